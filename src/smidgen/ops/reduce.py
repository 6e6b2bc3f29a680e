"""Reductions over sets of axes.

`sum`, `mean`, … stay within a sample. `batch_sum` and `batch_mean` cross the batch axis: one sample after the other,
outermost, and means divide by the size of the whole batch, so that micro-batches add up to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, DType, Node, Shape, Tensor, batch_axis, size
from .fixed_point import of_mean
from .movement import as_shape
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Infer, N, Param, Run, Running, Spec, case, define
from .strides import batch_reduce_params, broadcast_strides, merged, reduce_params, show
from .traits import Int16, Integer, Layout, Taken

Dys = Sequence[str | None]
Axes = tuple[int, ...]


def reduced_shape(shape: Shape, axes: Sequence[int], keepdim: bool) -> Shape:
    if keepdim:
        return tuple(1 if i in axes else dim for i, dim in enumerate(shape))
    return tuple(dim for i, dim in enumerate(shape) if i not in axes)


def with_axes(y: Array, shape: tuple[int, ...], axes: Sequence[int]) -> Array:
    """A reduction's result with its reduced axes put back as size 1."""
    return np.reshape(y, [1 if i in axes else dim for i, dim in enumerate(shape)])


def check_axes(what: str, x: Tensor, axes: Sequence[int], across: bool = False) -> None:
    """`across`: the op is the one that mixes samples."""
    if x.dtype is not DType.F32:
        raise BadShape(f"{what} of {x.dtype.value}{show(x.shape)}", help="cast it to f32 first")
    if len(set(axes)) != len(axes) or any(not 0 <= axis < len(x.shape) for axis in axes):
        raise BadShape(f"{what} over axes {list(axes)} of {show(x.shape)}", why=f"it has {len(x.shape)} axes")
    if (batch_axis(x.shape) in axes) != across:
        why = "none of them holds the samples" if across else "one of them holds the samples"
        other = what.removeprefix("batch_") if across else f"batch_{what}"
        help = f"{other} is for that" if what.endswith(("sum", "mean")) and what != "cumsum" else ""
        raise BadShape(f"{what} over axes {list(axes)} of {show(x.shape)}", why=why, help=help)


def check_gradient(what: str, dy: Tensor, shape: Shape) -> None:
    if dy.shape != shape:
        raise BadShape(f"{what}: the gradient has shape {show(dy.shape)}, the output {show(shape)}")


def _reduce_infer(what: str, across: bool = False, empty: bool = True) -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        x, axes = ins[0], attrs["axes"]
        check_axes(what, x, axes, across)
        if not empty and any(x.shape[axis] == 0 for axis in axes):
            raise BadShape(f"{what} over axes {list(axes)} of {show(x.shape)}", why="there is nothing to choose from")
        shape = reduced_shape(x.shape, axes, attrs["keepdim"])
        wanted = attrs.get("shape", shape)
        if size(wanted) != size(shape):
            raise BadShape(f"{what}: {show(shape)} cannot be given the shape {show(wanted)}")
        return [(tuple(wanted), DType.F32)]

    return infer


def _params(call: Call) -> Sequence[Param]:
    return reduce_params(call.ins[0].shape, call["axes"])


def _batch_params(call: Call) -> Sequence[Param]:
    return batch_reduce_params(call.ins[0].shape, call["axes"])


def _expand_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    """Of a sum: every element gets the gradient of the total."""
    shape = b[node.ins[0]].shape
    kept = as_shape(b, str(dys[0]), reduced_shape(shape, node.attrs["axes"], keepdim=True))
    return [b.add("expand", kept, shape=shape)]


def _mean_vjp(dx_op: str) -> Callable[[Builder, Node, Dys], Sequence[str | None]]:
    return lambda b, node, dys: [b.add(dx_op, str(dys[0]), shape=b[node.ins[0]].shape, **node.attrs)]


WITHIN = [
    case((N, 4, 5, 3), axes=(1, 2), keepdim=False), case((N, 7, 7, 19), axes=(1, 2), keepdim=True),
    case((N, 6), axes=(1,), keepdim=True), case((N, 3, 1031), axes=(2,), keepdim=False),
    case((3, N, 5), axes=(0, 2), keepdim=False), case((N, 3, 2, 5, 4), axes=(1, 3), keepdim=False),
    case((2, 3), axes=(1, 0), keepdim=False), case((5,), axes=(), keepdim=False),
    case((1, 4), axes=(0,), keepdim=False), case((4, N), axes=(0,), keepdim=False),
    case((N, 1, 1), axes=(1, 2), keepdim=False), case((N, 9, 11), axes=(1,), keepdim=False),
]  # fmt: skip
ACROSS = [
    case((N, 4, 5), axes=(0,), keepdim=True), case((N, 3, 5, 11), axes=(0, 1, 2), keepdim=False),
    case((N, 6, 9), axes=(0, 2), keepdim=False), case((N,), axes=(0,), keepdim=False),
    case((N, 4, 300), axes=(0, 1, 2), keepdim=False), case((Batch(5), 3), axes=(0,), keepdim=False),
    case((4, N, 3), axes=(0, 1), keepdim=False), case((2, 3, Batch(2), 2, 3), axes=(0, 2, 4), keepdim=True),
]  # fmt: skip

define(
    "sum", doc="y = Σx over axes",
    layout=Layout("over"), linear_in=((0,),),
    infer=_reduce_infer("sum"), ref=lambda x, axes, keepdim: (x.sum(axis=axes, keepdims=keepdim),), vjp=_expand_vjp,
    kernels={"f32": "sum_f32"}, params=_params, cases=WITHIN,
)  # fmt: skip

define(
    "mean", doc="y = mean of x over axes",
    layout=Layout("over"), linear_in=((0,),),
    infer=_reduce_infer("mean", empty=False), ref=lambda x, axes, keepdim: (x.mean(axis=axes, keepdims=keepdim),),
    vjp=_mean_vjp("mean_dx"), kernels={"f32": "mean_f32"}, params=_params, cases=WITHIN,
    integer=Integer("rescaled", "qmean", of_mean),
)  # fmt: skip


def _batch_sum_ref(x: Array, axes: Axes, keepdim: bool, shape: tuple[int, ...] | None = None) -> Sequence[Array]:
    y = x.sum(axis=axes, keepdims=keepdim)
    return (y if shape is None else np.reshape(y, shape),)


define(
    "batch_sum", doc="y = Σx over axes, the samples among them; the result may be given another `shape`",
    layout=Layout("over"),
    infer=_reduce_infer("batch_sum", across=True), ref=_batch_sum_ref, vjp=_expand_vjp, batchwise=True, sink=True,
    running=Running("batch_sum_running", lambda shape: shape), kernels={"f32": "batch_sum_f32"}, params=_batch_params,
    cases=[*ACROSS, case((N, 4, 3), axes=(0, 2), keepdim=True, shape=(4, 1))],
)  # fmt: skip


def _whole(counted: int, run: Run) -> float:
    """Elements in the whole batch when `counted` are at hand."""
    return counted / run.n * run.total


def _batch_mean_ref(x: Array, axes: Axes, keepdim: bool, run: Run) -> Sequence[Array]:
    return (x.sum(axis=axes, keepdims=keepdim) / _whole(math.prod(x.shape[i] for i in axes), run),)


define(
    "batch_mean", doc="y = mean of x over axes, the samples of the whole batch among them",
    layout=Layout("over"),
    infer=_reduce_infer("batch_mean", across=True, empty=False), ref=_batch_mean_ref, vjp=_mean_vjp("batch_mean_dx"),
    batchwise=True, needs_run=True, running=Running("batch_mean_running", lambda shape: shape),
    kernels={"f32": "batch_mean_f32"}, params=_batch_params, cases=ACROSS,
)  # fmt: skip


def _running_infer(what: str) -> Infer:
    infer = _reduce_infer(what, across=True)

    def running(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        [(shape, dtype)] = infer(ins[1:], attrs)
        if (ins[0].shape, ins[0].dtype) != (shape, dtype):
            raise BadShape(f"{what}_running goes on with {ins[0]}", why=f"its result has shape {show(shape)}")
        return [(shape, dtype), (shape, dtype)]

    return running


def _batch_sum_running_ref(acc: Array, x: Array, **attrs: Any) -> Sequence[Array]:
    total = acc + _batch_sum_ref(x, **attrs)[0]
    return (total, total)


def _batch_mean_running_ref(acc: Array, x: Array, axes: Axes, keepdim: bool, run: Run) -> Sequence[Array]:
    total = acc + x.sum(axis=axes, keepdims=keepdim)
    return (total / _whole(math.prod(x.shape[i] for i in axes), run), total)


for _name, _ref in (("batch_sum", _batch_sum_running_ref), ("batch_mean", _batch_mean_running_ref)):
    define(
        f"{_name}_running", doc=f"acc' = acc + Σx; y = {_name} of this micro-batch and those before",
        infer=_running_infer(_name), ref=_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True, needs_run=_name == "batch_mean",
        kernels={"f32": f"{_name}_running_f32"}, shares={1: 0},
        params=lambda call: batch_reduce_params(call.ins[1].shape, call["axes"]),
        cases=[
            Case((reduced_shape(c.inputs[0], c.attrs["axes"], c.attrs["keepdim"]), *c.inputs), c.attrs)  # type: ignore[arg-type]
            for c in ACROSS if 300 not in c.inputs[0]  # type: ignore[operator]
        ],
    )  # fmt: skip


def _mean_dx_infer(what: str, across: bool) -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        shape, axes = tuple(attrs["shape"]), attrs["axes"]
        check_axes(what, Tensor("x", shape), axes, across)
        check_gradient(what, ins[0], reduced_shape(shape, axes, attrs["keepdim"]))
        return [(shape, DType.F32)]

    return infer


def _mean_dx_ref(
    dy: Array, shape: tuple[int, ...], axes: Axes, keepdim: bool, run: Run | None = None
) -> Sequence[Array]:
    count = math.prod(shape[i] for i in axes)
    return (np.broadcast_to(with_axes(dy, shape, axes), shape) / (count if run is None else _whole(count, run)),)


def _mean_dx_params(call: Call) -> Sequence[Param]:
    shape, axes = call.outs[0].shape, call["axes"]
    count = 1
    for axis in axes:
        dim = shape[axis]
        count *= dim.times if isinstance(dim, Batch) else dim
    walk, (steps,) = merged(shape, broadcast_strides(reduced_shape(shape, axes, keepdim=True), shape))
    return [count, len(walk), *walk, *steps]


def _dx_cases(cases: Sequence[Case]) -> list[Case]:
    """Cases of the gradient op from those of the op: dy in the output's shape."""
    made = []
    for old in cases:
        shape: Any = old.inputs[0]
        dy = reduced_shape(shape, old.attrs["axes"], old.attrs["keepdim"])
        made.append(Case((dy,), {**old.attrs, "shape": shape}))
    return made


def _mean_dx16(b: Builder, node: Node, dy: str) -> tuple[str, str]:
    """Divided while it is small, then repeated."""
    shape, axes = node.attrs["shape"], node.attrs["axes"]
    small = b.add("scale", dy, by=1 / math.prod(shape[i] for i in axes))
    q, exponent = b.add_many("quantize16", small)
    kept = b.add("reshape", q, shape=reduced_shape(shape, axes, keepdim=True))
    return b.add("expand", kept, shape=shape, name=node.outs[0]), exponent


def _mean_dx_tiled(call: Call, count: int) -> Taken | None:
    """Unless the channels are what was averaged."""
    (dy,), shape = call.ins, call.outs[0].shape
    if not dy.shape or dy.shape[-1] != shape[-1] or len(shape) - 1 in call["axes"]:
        return None
    return Taken(((0, len(dy.shape) - 1),), {"shape": (*shape[:-1], count)})


define(
    "mean_dx", doc="dx = dy / count, repeated along axes",
    infer=_mean_dx_infer("mean_dx", across=False), ref=_mean_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "mean_dx_f32"}, params=_mean_dx_params, cases=_dx_cases(WITHIN), tiled=_mean_dx_tiled,
    int16=Int16(write=_mean_dx16),
)  # fmt: skip

define(
    "batch_mean_dx", doc="dx = dy / count in the whole batch, repeated along axes",
    infer=_mean_dx_infer("batch_mean_dx", across=True), ref=_mean_dx_ref, vjp=NOT_DIFFERENTIABLE,
    batchwise=True, needs_run=True,
    kernels={"f32": "batch_mean_dx_f32"}, params=_mean_dx_params, cases=_dx_cases(ACROSS),
)  # fmt: skip


def ties(rng: np.random.Generator, n: int) -> Array:
    return rng.integers(-1, 2, (3, 4, 5)).astype(np.float64)


for _name, _word, _f in (("amax", "largest", np.max), ("amin", "smallest", np.min)):
    define(
        _name, doc=f"y = {_word} of x over axes; the gradient is shared by equal ones",
        layout=Layout("over"),
        infer=_reduce_infer(_name, empty=False),
        ref=lambda x, axes, keepdim, f=_f: (f(x, axis=axes, keepdims=keepdim),),
        vjp=lambda b, node, dys: [b.add("amax_dx", str(dys[0]), node.ins[0], node.outs[0], **node.attrs)],
        kernels={"f32": f"{_name}_f32"}, params=_params,
        cases=[*WITHIN, case(ties, smooth=False, axes=(1,), keepdim=False)],
    )  # fmt: skip


def _amax_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, x, y = ins
    check_axes("amax_dx", x, attrs["axes"])
    shape = reduced_shape(x.shape, attrs["axes"], attrs["keepdim"])
    check_gradient("amax_dx", dy, shape)
    check_gradient("amax_dx", y, shape)
    return [(x.shape, DType.F32)]


def _amax_dx_ref(dy: Array, x: Array, y: Array, axes: Axes, keepdim: bool) -> Sequence[Array]:
    equal = x == with_axes(y, x.shape, axes)
    with np.errstate(all="ignore"):
        share = with_axes(dy, x.shape, axes) / equal.sum(axis=axes, keepdims=True)
    return (np.where(equal, share, 0),)


define(
    "amax_dx", doc="dx = dy / (number of equal ones) where x = y, else 0; for amax and amin",
    infer=_amax_dx_infer, ref=_amax_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "amax_dx_f32"}, params=lambda call: reduce_params(call.ins[1].shape, call["axes"]), inplace=(1,),
    cases=[case((3, 5), ties, lambda rng, n: np.ones((3, 5)), axes=(1,), keepdim=False),
           case((3, 1, 1), ties, lambda rng, n: np.ones((3, 1, 1)), axes=(1, 2), keepdim=True),
           case((4,), ties, lambda rng, n: -np.ones((4,)), axes=(0, 2), keepdim=False)],
)  # fmt: skip
