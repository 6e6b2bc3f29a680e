"""Operations that move values without changing them. Only `reshape` is free; the others copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, Dim, DType, Node, Quant, Shape, Tensor, batch_axis, size
from .fixed_point import rounded
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Integers, N, Param, Spec, case, define
from .strides import broadcast_strides, copy_params, show, strides, times
from .traits import BY_ROWS, SAME, SAME16, Integer, Layout, Rows

COPY = {"f32": "copy_b4", "i32": "copy_b4", "u8": "copy_b1", "i8": "copy_b1", "i16": "copy_b2"}
Dys = Sequence[str | None]


def sum_to(b: Builder, dy: str, shape: Shape) -> str:
    """The gradient of something of `shape` that was broadcast: dy added up over the broadcast axes."""
    wide = b[dy].shape
    padded = (1,) * (len(wide) - len(shape)) + tuple(shape)
    axes = tuple(i for i, (dim, whole) in enumerate(zip(padded, wide, strict=True)) if dim != whole)
    if not axes:
        return as_shape(b, dy, shape)
    if batch_axis(wide) not in axes:
        return as_shape(b, b.add("sum", dy, axes=axes, keepdim=True), shape)
    if all(dim == 1 for dim in padded[:-1]) and padded[-1] == wide[-1]:
        return as_shape(b, b.add("bias_dw", dy), shape)
    return b.add("batch_sum", dy, axes=axes, keepdim=True, shape=shape)


def as_shape(b: Builder, name: str, shape: Shape) -> str:
    """`name` itself, or a view of it in another shape."""
    return name if b[name].shape == shape else b.add("reshape", name, shape=shape)


def _ints(*shape: int) -> Any:
    return lambda rng, n: rng.integers(-9, 9, shape).astype(np.int32)


def _bytes(*shape: int) -> Any:
    return lambda rng, n: rng.integers(0, 256, shape).astype(np.uint8)


def _check_axis(what: str, x: Tensor, axis: int) -> None:
    if not 0 <= axis < len(x.shape):
        raise BadShape(f"{what} along axis {axis} of {show(x.shape)}", why=f"it has {len(x.shape)} axes")


def _reshape_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, shape = ins[0], tuple(attrs["shape"])
    if any(isinstance(d, int) and d < 0 for d in shape) or size(shape) != x.size:
        raise BadShape(
            f"{show(x.shape)} cannot be reshaped to {show(shape)}",
            why=f"{x.size} elements do not fill {size(shape)}",
        )
    return [(shape, x.dtype)]


define(
    "reshape", doc="the same elements under another shape; a view",
    layout=Layout("regroup", once=True), rearranges=lambda attrs: ("reshape", tuple(attrs["shape"])), linear_in=((0,),),
    int16=SAME16,
    infer=_reshape_infer, ref=lambda x, shape: (np.reshape(x, shape),), shares={0: 0}, integer=SAME,
    vjp=lambda b, node, dys: [b.add("reshape", str(dys[0]), shape=b[node.ins[0]].shape)],
    cases=[case((N, 49, 6), shape=(Batch(49), 6)), case((Batch(4), 3), shape=(N, 2, 6)), case((6, 1), shape=(2, 3)),
           case((1, 1), shape=())],
)  # fmt: skip


def _permute_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, perm = ins[0], attrs["perm"]
    if sorted(perm) != list(range(len(x.shape))):
        raise BadShape(f"{tuple(perm)} is not an order of the axes of {show(x.shape)}")
    return [(tuple(x.shape[p] for p in perm), x.dtype)]


def _permute_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    inverse = tuple(int(i) for i in np.argsort(node.attrs["perm"]))
    return [b.add("permute", str(dys[0]), perm=inverse)]


def _permute_params(call: Call) -> Sequence[Param]:
    own = strides(call.ins[0].shape)
    return copy_params(call.outs[0].shape, [own[p] for p in call["perm"]], strides(call.outs[0].shape))


define(
    "permute", doc="y = transpose(x, perm)",
    layout=Layout("reorder", once=True), rearranges=lambda attrs: ("permute", tuple(attrs["perm"])), linear_in=((0,),),
    infer=_permute_infer, ref=lambda x, perm: (np.array(np.transpose(x, perm), order="C"),),
    vjp=_permute_vjp, kernels=COPY, params=_permute_params, integer=SAME, int16=SAME16,
    cases=[case((N, 3, 4, 5), perm=(0, 2, 3, 1)), case((N, 5), perm=(1, 0)), case((), perm=()),
           case((2, 1, 3, 2, 2), perm=(4, 2, 1, 0, 3)), case(_ints(3, 5), perm=(1, 0), smooth=False)],
)  # fmt: skip


def _expand_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, shape = ins[0], tuple(attrs["shape"])
    if len(shape) != len(x.shape) or any(d not in (1, e) for d, e in zip(x.shape, shape, strict=True)):
        raise BadShape(f"{show(x.shape)} cannot be expanded to {show(shape)}", why="only axes of size 1 can grow")
    return [(shape, x.dtype)]


def _expand_params(call: Call) -> Sequence[Param]:
    out = call.outs[0].shape
    return copy_params(out, broadcast_strides(call.ins[0].shape, out), strides(out))


define(
    "expand", doc="y = x repeated along its axes of size 1",
    layout=Layout("repeat", once=True), identity=lambda attrs: True, linear_in=((0,),),
    infer=_expand_infer, ref=lambda x, shape: (np.array(np.broadcast_to(x, shape)),),
    vjp=lambda b, node, dys: [sum_to(b, str(dys[0]), b[node.ins[0]].shape)],
    kernels=COPY, params=_expand_params, integer=SAME, int16=SAME16,
    cases=[case((1, 1, 5), shape=(N, 1, 5)), case((1, 4, 1), shape=(N, 4, 3)), case((N, 1, 2, 1), shape=(N, 3, 2, 7)),
           case((1, 3, 1), shape=(2, 3, 5)), case((N, 2), shape=(N, 2)),
           case(_bytes(1, 5), shape=(4, 5), smooth=False),
           case(Integers((N, 1, 5), DType.I16, -32768, 32767), shape=(N, 3, 5), smooth=False)],
)  # fmt: skip


def _slice_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, axis, start, stop, step = ins[0], attrs["axis"], attrs["start"], attrs["stop"], attrs["step"]
    _check_axis("slice", x, axis)
    dim = x.shape[axis]
    length: Dim
    if isinstance(dim, Batch):
        if (start, stop, step) != (0, dim, 1):
            raise BadShape(
                f"slice {start}:{stop}:{step} of axis {axis} of {show(x.shape)}", why="that axis holds the samples",
                help="samples can only be taken all together",
            )  # fmt: skip
        length = dim
    else:
        if step < 1 or not 0 <= start < stop <= dim:
            raise BadShape(f"slice {start}:{stop}:{step} of axis {axis} of {show(x.shape)} is empty or outside")
        length = -(-(stop - start) // step)
    return [((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)]


def _slice_ref(x: Array, axis: int, start: int, stop: int, step: int) -> Sequence[Array]:
    return (np.array(x[(slice(None),) * axis + (slice(start, stop, step),)]),)


def _slice_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    a = node.attrs
    shape = b[node.ins[0]].shape
    return [b.add("slice_dx", str(dys[0]), shape=shape, axis=a["axis"], start=a["start"], step=a["step"])]


def _stepped(steps: Sequence[Dim], axis: int, step: int) -> list[Dim]:
    return [times(s, step) if i == axis else s for i, s in enumerate(steps)]


def _slice_params(call: Call) -> Sequence[Param]:
    x, y, axis = call.ins[0], call.outs[0], call["axis"]
    own = strides(x.shape)
    src = _stepped(own, axis, call["step"])
    return copy_params(y.shape, src, strides(y.shape), src_at=times(own[axis], call["start"]), src_size=x.size)


define(
    "slice", doc="y = x[start:stop:step] along one axis",
    layout=Layout("along", once=True), identity=lambda attrs: True, linear_in=((0,),),
    infer=_slice_infer, ref=_slice_ref, vjp=_slice_vjp, kernels=COPY, params=_slice_params, integer=SAME,
    int16=SAME16,
    cases=[case((N, 7, 3), axis=1, start=1, stop=6, step=2), case((5, N), axis=0, start=2, stop=4, step=1),
           case((N, 4), axis=0, start=0, stop=N, step=1), case((6,), axis=0, start=5, stop=6, step=3),
           case(_ints(3, 5), axis=1, start=0, stop=1, step=1, smooth=False)],
)  # fmt: skip


def _slice_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, shape, axis, start, step = ins[0], tuple(attrs["shape"]), attrs["axis"], attrs["start"], attrs["step"]
    _check_axis("slice_dx", dy, axis)
    rest = (*shape[:axis], dy.shape[axis], *shape[axis + 1 :])
    length, dim = dy.shape[axis], shape[axis] if axis < len(shape) else 0
    if isinstance(length, int) and isinstance(dim, int):
        fits = start >= 0 and step >= 1 and start + (length - 1) * step < dim
    else:
        fits = length == dim and (start, step) == (0, 1)
    if rest != dy.shape or not fits:
        raise BadShape(f"{show(dy.shape)} is no slice of {show(shape)} from {start} by {step} along axis {axis}")
    return [(shape, dy.dtype)]


def _slice_dx_ref(dy: Array, shape: tuple[int, ...], axis: int, start: int, step: int) -> Sequence[Array]:
    dx = np.zeros(shape, dy.dtype)
    dx[(slice(None),) * axis + (slice(start, start + (dy.shape[axis] - 1) * step + 1, step),)] = dy
    return (dx,)


def _slice_dx_params(call: Call) -> Sequence[Param]:
    dy, dx, axis = call.ins[0], call.outs[0], call["axis"]
    own = strides(dx.shape)
    dst = _stepped(own, axis, call["step"])
    at = times(own[axis], call["start"])
    return [0.0, 0, 1, 1, 1, 0, 0, *copy_params(dy.shape, strides(dy.shape), dst, dst_at=at, dst_size=dx.size)]


define(
    "slice_dx", doc="zeros with dy at start, start+step, … along one axis",
    infer=_slice_dx_infer, ref=_slice_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "pad_b4"}, params=_slice_dx_params,
    cases=[case((N, 3, 3), shape=(N, 7, 3), axis=1, start=1, step=2),
           case((2, N), shape=(5, N), axis=0, start=2, step=1),
           case((N, 4), shape=(N, 4), axis=0, start=0, step=1), case((1,), shape=(6,), axis=0, start=5, step=3)],
)  # fmt: skip


def _pad_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, pads = ins[0], attrs["pads"]
    if len(pads) != len(x.shape) or any(lo < 0 or hi < 0 for lo, hi in pads):
        raise BadShape(f"pads {tuple(pads)} do not fit {show(x.shape)}", why="one pair of sizes ≥ 0 for each axis")
    axis = batch_axis(x.shape)
    if axis is not None and tuple(pads[axis]) != (0, 0):
        raise BadShape(f"pad of axis {axis} of {show(x.shape)}", why="that axis holds the samples")
    grown = [d if isinstance(d, Batch) else lo + d + hi for d, (lo, hi) in zip(x.shape, pads, strict=True)]
    return [(tuple(grown), x.dtype)]


def _pad_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    dx = str(dys[0])
    for axis, (lo, hi) in enumerate(node.attrs["pads"]):
        if lo or hi:
            inside = b[node.ins[0]].shape[axis]
            dx = b.add("slice", dx, axis=axis, start=lo, stop=lo + int(inside), step=1)  # type: ignore[arg-type]
    return [dx]


def _pad_params(call: Call) -> Sequence[Param]:
    """The axes up to the first that grows make up images and their rows, the others a row."""
    x, y = call.ins[0].shape, call.outs[0].shape
    first = next((i for i, (lo, hi) in enumerate(call["pads"]) if lo or hi), len(x))
    has_rows = first < len(x) - 1
    inner = first + 1 if has_rows else 0
    images = [size(x[:first]), x[first], y[first], call["pads"][first][0]] if has_rows else [1, 1, 1, 0]
    dst = strides(y)
    at: dict[bool, Dim] = {False: 0, True: Batch(0)}  # a batch-sized offset cannot be added to a plain one here
    for step, (lo, _) in zip(dst[inner:], call["pads"][inner:], strict=True):
        offset = times(step, lo)
        if offset:
            at[isinstance(offset, Batch)] += offset  # type: ignore[operator]
    value = float(call["value"]) if call.ins[0].dtype is DType.F32 else int(call["value"])
    row = copy_params(x[inner:], strides(x)[inner:], dst[inner:], dst_at=at[False], dst_size=size(y[inner:]))
    return [value, at[True], *images, size(x[inner:]), *row]


def _pad_rows(call: Call, axis: int) -> Rows | None:
    lo, hi = call["pads"][axis]
    if axis == len(call["pads"]) - 1:
        return None
    return Rows("window", 1, 1, lo, (3, 4, 5), alone=True) if lo or hi else BY_ROWS


def _pad_with(call: Call, ins: Sequence[Quant], out: Quant) -> Mapping[str, Any]:
    return {**call.attrs, "value": int(rounded(call["value"], out))}


define(
    "pad", doc="y = x with `value` around it, (before, after) on each axis",
    layout=Layout("surround"), identity=lambda attrs: True,
    infer=_pad_infer, ref=lambda x, pads, value: (np.pad(x, pads, constant_values=value),), vjp=_pad_vjp,
    kernels={"f32": "pad_b4", "i32": "pad_b4", "u8": "pad_b1", "i8": "pad_b1"}, params=_pad_params, rows=_pad_rows,
    integer=Integer("same", attrs=_pad_with),
    cases=[case((N, 3, 4, 2), pads=((0, 0), (1, 2), (0, 1), (0, 0)), value=0.0),
           case((2, N, 3), pads=((1, 0), (0, 0), (2, 1)), value=-1.5), case((4,), pads=((0, 0),), value=1.0),
           case(_ints(2, 3), pads=((1, 1), (0, 2)), value=-7, smooth=False),
           case(_bytes(2, 3), pads=((0, 1), (1, 0)), value=1, smooth=False)],
)  # fmt: skip


def _concat_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    axis = attrs["axis"]
    if not 1 <= len(ins) <= 16:
        raise BadShape(f"concat of {len(ins)} tensors", help="1 to 16 at once; concatenate in groups")
    _check_axis("concat", ins[0], axis)
    shapes = " and ".join(show(x.shape) for x in ins)
    total = 0
    for x in ins:
        dim = x.shape[axis] if len(x.shape) == len(ins[0].shape) else None
        apart = (*x.shape[:axis], 0, *x.shape[axis + 1 :]) != (*ins[0].shape[:axis], 0, *ins[0].shape[axis + 1 :])
        if dim is None or apart or x.dtype is not ins[0].dtype:
            raise BadShape(f"concat of {shapes} along axis {axis}", why="the other axes and the types must be equal")
        if isinstance(dim, Batch):
            raise BadShape(f"concat of {shapes} along axis {axis}", why="that axis holds the samples")
        total += dim
    return [((*ins[0].shape[:axis], total, *ins[0].shape[axis + 1 :]), ins[0].dtype)]


def _concat_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    axis, at = node.attrs["axis"], 0
    grads: list[str | None] = []
    for name in node.ins:
        stop = at + int(b[name].shape[axis])
        wanted = b.need(name)
        grads.append(b.add("slice", str(dys[0]), axis=axis, start=at, stop=stop, step=1) if wanted else None)
        at = stop
    return grads


def _concat_params(call: Call) -> Sequence[Param]:
    axis = call["axis"]
    return [size(call.outs[0].shape[:axis]), *[size(x.shape[axis:]) for x in call.ins]]


define(
    "concat", doc="inputs one after the other along one axis", layout=Layout("join"), integer=SAME,
    infer=_concat_infer, ref=lambda *xs, axis: (np.concatenate(xs, axis),), vjp=_concat_vjp,
    kernels={"f32": "concat_b4", "i32": "concat_b4", "u8": "concat_b1", "i8": "concat_b1"}, params=_concat_params,
    cases=[case((N, 2, 3), (N, 1, 3), (N, 4, 3), axis=1), case((N, 5), axis=1), case((2, N), (3, N), axis=0),
           case((2, 1), (2, 7), axis=1), case(_ints(2, 3), _ints(1, 3), axis=0, smooth=False),
           case(_bytes(2, 3), _bytes(2, 1), axis=1, smooth=False)],
)  # fmt: skip


KIND = {DType.F32: 0, DType.I32: 1, DType.U8: 2}
"""How C is told the dtype of an input where the kernel is chosen by that of the output."""


def _cast_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if attrs["dtype"] not in {d.value for d in KIND}:
        raise BadShape(f"cast to '{attrs['dtype']}'", help="one of f32, i32, u8")
    return [(ins[0].shape, DType(attrs["dtype"]))]


def _cast_ref(x: Array, dtype: str) -> Sequence[Array]:
    if dtype == "u8":
        return ((x != 0).astype(np.uint8),)
    if dtype == "f32":
        return (x if x.dtype.kind == "f" else x.astype(np.float64),)
    if x.dtype.kind == "f":
        x = np.clip(np.where(np.isnan(x), 0, x), -(2.0**31), 2.0**31 - 1)
    return (x.astype(np.int32),)


def _cast_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    floats = b[node.ins[0]].dtype is b[node.outs[0]].dtype is DType.F32
    return [dys[0] if floats else None]


def _border_floats(rng: np.random.Generator, n: int) -> Array:
    return np.array([0.0, -0.0, 1.9, -1.9, 3e9, -3e9, np.inf, -np.inf, np.nan, 2147483520.0, 1e-30])


_CASTS = [
    *[Case((x,), {"dtype": kind}) for x in (_ints(3, 4), _bytes(2, 5)) for kind in ("f32", "i32", "u8")],
    *[Case((_border_floats,), {"dtype": kind}) for kind in ("i32", "u8")],
]

define(
    "cast", doc="another number type; to i32 cuts off toward zero and saturates (NaN is 0), to u8 is x ≠ 0",
    layout=Layout("each", once=True), identity=lambda attrs: attrs["dtype"] != "u8", converts=True,
    infer=_cast_infer, ref=_cast_ref, vjp=_cast_vjp,
    kernels={"f32": "cast_f32", "i32": "cast_i32", "u8": "cast_u8"},
    params=lambda call: [call.outs[0].size, KIND[call.ins[0].dtype]],
    cases=[case((N, 3), dtype="f32"), case((N, 3), dtype="i32"), *_CASTS],
)  # fmt: skip


def _fill_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if any(isinstance(d, int) and d < 0 for d in attrs["shape"]):
        raise BadShape(f"fill of shape {show(attrs['shape'])}", why="sizes are 0 or more")
    return [(tuple(attrs["shape"]), DType.F32)]


define(
    "fill", doc="a tensor with the same value everywhere",
    infer=_fill_infer,
    ref=lambda shape, value: (np.full(shape, value, np.float64),), vjp=lambda b, node, dys: [],
    kernels={"f32": "fill_f32"}, params=lambda call: [call.outs[0].size, float(call["value"])],
    cases=[case(shape=(N, 3), value=0.5), case(shape=(), value=-2.0)],
)  # fmt: skip

define(
    "detach", doc="y = x, and no gradient comes back", linear_in=((0,),),
    infer=lambda ins, attrs: [(ins[0].shape, ins[0].dtype)], ref=lambda x: (x,), vjp=lambda b, node, dys: [None],
    shares={0: 0},
    cases=[case((N, 3), smooth=False)],
)  # fmt: skip
