"""Operations along one axis: the largest and its index, the order of values, softmax, cumulative sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Tensor
from .reduce import Dys, check_axes, check_gradient, reduced_shape, ties, with_axes
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Infer, N, Param, Spec, case, define
from .strides import lines, show
from .traits import Layout


def _line_check(what: str, x: Tensor, axis: int) -> None:
    check_axes(what, x, (axis,))
    if x.shape[axis] == 0:
        raise BadShape(f"{what} along axis {axis} of {show(x.shape)}", why="there is nothing along it")


def _pick_infer(what: str, *kinds: DType) -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        _line_check(what, ins[0], attrs["axis"])
        shape = reduced_shape(ins[0].shape, (attrs["axis"],), attrs["keepdim"])
        return [(shape, kind) for kind in kinds]

    return infer


def _max_index_ref(x: Array, axis: int, keepdim: bool) -> Sequence[Array]:
    index = np.argmax(x, axis=axis, keepdims=True)
    value = np.take_along_axis(x, index, axis)
    found = (value, index.astype(np.int32))
    return found if keepdim else tuple(np.squeeze(a, axis) for a in found)


def _max_index_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    if dys[0] is None:
        return [None]
    return [b.add("max_index_dx", dys[0], node.outs[1], shape=b[node.ins[0]].shape, **node.attrs)]


def _nans(rng: np.random.Generator, n: int) -> Array:
    x = rng.standard_normal((4, 3))
    x[[1, 2, 2], [0, 0, 2]] = np.nan, np.nan, np.inf
    return x


PICKS = [
    case((N, 5), axis=1, keepdim=False), case((N, 4, 3), axis=1, keepdim=True), case((5, N), axis=0, keepdim=False),
    case((1,), axis=0, keepdim=False),
]  # fmt: skip
KINKS = [case(ties, smooth=False, axis=2, keepdim=False), case(_nans, smooth=False, axis=0, keepdim=False)]

define(
    "max_index", doc="largest of x along one axis and where it is; the first of equal ones, and it gets the gradient",
    layout=Layout("over"),
    infer=_pick_infer("max_index", DType.F32, DType.I32), ref=_max_index_ref, vjp=_max_index_vjp,
    kernels={"f32": "max_index_f32"}, params=lambda call: lines(call.ins[0].shape, call["axis"]), cases=PICKS + KINKS,
)  # fmt: skip

define(
    "argmax", doc="where the largest of x along one axis is; the first of equal ones",
    layout=Layout("over"),
    infer=_pick_infer("argmax", DType.I32), ref=lambda x, axis, keepdim: _max_index_ref(x, axis, keepdim)[1:],
    vjp=NOT_DIFFERENTIABLE,
    kernels={"i32": "argmax_i32"}, params=lambda call: lines(call.ins[0].shape, call["axis"]), cases=PICKS + KINKS,
)  # fmt: skip


def _argsort_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    [x], axis, count = ins, attrs["axis"], attrs["count"]
    _line_check("argsort", x, axis)
    if not 1 <= count <= x.shape[axis]:
        raise BadShape(
            f"argsort of {count} elements along axis {axis} of {show(x.shape)}", why=f"there are {x.shape[axis]}",
            help="ask for as many as there are along the axis, or fewer",
        )  # fmt: skip
    return [((*x.shape[:axis], count, *x.shape[axis + 1 :]), DType.I32)]


def _argsort_ref(x: Array, axis: int, count: int, descending: bool) -> Sequence[Array]:
    last = np.moveaxis(x, axis, -1)
    odd = np.isnan(last)
    number = np.where(odd, 0, last)
    order = np.lexsort((-number, ~odd) if descending else (number, odd), axis=-1)  # stable; the last key comes first
    return (np.moveaxis(order, -1, axis).take(range(count), axis).astype(np.int32),)


define(
    "argsort",
    doc="the first `count` places of x along one axis by value; equal ones as they stand, NaN is largest",
    infer=_argsort_infer, ref=_argsort_ref, vjp=NOT_DIFFERENTIABLE, kernels={"i32": "argsort_i32"},
    params=lambda call: [*lines(call.ins[0].shape, call["axis"]), call["count"], int(call["descending"])],
    cases=[
        case((N, 5), axis=1, count=5, descending=False), case((N, 7, 3), axis=1, count=2, descending=True),
        case((5, N), axis=0, count=3, descending=False), case((1,), axis=0, count=1, descending=True),
        *[case(make, smooth=False, axis=axis, count=4, descending=down)
          for make, axis in ((ties, 1), (_nans, 0)) for down in (False, True)],
    ],
)  # fmt: skip


def _max_index_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    shape, axis = tuple(attrs["shape"]), attrs["axis"]
    _line_check("max_index_dx", Tensor("x", shape), axis)
    for given in ins:
        check_gradient("max_index_dx", given, reduced_shape(shape, (axis,), attrs["keepdim"]))
    return [(shape, DType.F32)]


def _max_index_dx_ref(dy: Array, index: Array, shape: tuple[int, ...], axis: int, keepdim: bool) -> Sequence[Array]:
    dx = np.zeros(shape, dy.dtype)
    np.put_along_axis(dx, with_axes(index, shape, (axis,)), with_axes(dy, shape, (axis,)), axis)
    return (dx,)


def _below(limit: int, *shape: int) -> Any:
    return lambda rng, n: rng.integers(0, limit, shape).astype(np.int32)


define(
    "max_index_dx", doc="dx = dy at the index, else 0",
    infer=_max_index_dx_infer, ref=_max_index_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "max_index_dx_f32"}, params=lambda call: lines(call.outs[0].shape, call["axis"]),
    cases=[case((3, 2), _below(5, 3, 2), shape=(3, 5, 2), axis=1, keepdim=False),
           case((4, 1), _below(3, 4, 1), shape=(4, 3), axis=1, keepdim=True)],
)  # fmt: skip


def _line_infer(what: str) -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        for x in ins:
            _line_check(what, x, attrs["axis"])
            check_gradient(what, x, ins[0].shape)
        return [(ins[0].shape, DType.F32)]

    return infer


def _line_params(call: Call) -> Sequence[Param]:
    return lines(call.ins[0].shape, call["axis"])


def _log_softmax(x: Array, axis: int) -> Array:
    x = x - x.max(axis=axis, keepdims=True)
    return np.asarray(x - np.log(np.exp(x).sum(axis=axis, keepdims=True)))


def _from_output(dx_op: str) -> Callable[[Builder, Node, Dys], Sequence[str | None]]:
    return lambda b, node, dys: [b.add(dx_op, str(dys[0]), node.outs[0], axis=node.attrs["axis"])]


def _masked(rng: np.random.Generator, n: int) -> Array:
    x = rng.standard_normal((3, 4)) * 20
    x[0, 1:] = -np.inf
    return x


LINES = [
    case((N, 5), axis=1), case((N, 3, 4, 2), axis=2), case((6, N), axis=0), case((2, 1), axis=1), case((700,), axis=0),
]  # fmt: skip
PAIRS = [Case((old.inputs[0], old.inputs[0]), old.attrs) for old in LINES]

define(
    "softmax", doc="y = exp(x) / Σexp(x) along one axis",
    layout=Layout("along"), masks=True,
    infer=_line_infer("softmax"), ref=lambda x, axis: (np.exp(_log_softmax(x, axis)),), vjp=_from_output("softmax_dx"),
    kernels={"f32": "softmax_f32"}, params=_line_params, inplace=(0,),
    cases=[*LINES, case(_masked, axis=1, smooth=False)],
)  # fmt: skip

define(
    "softmax_dx", doc="dx = y · (dy - Σdy·y) along one axis",
    layout=Layout("along"),
    infer=_line_infer("softmax_dx"),
    ref=lambda dy, y, axis: (y * (dy - (dy * y).sum(axis=axis, keepdims=True)),), vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "softmax_dx_f32"}, params=_line_params, macs=lambda call: call.ins[0].size, inplace=(0, 1),
    cases=PAIRS,
)  # fmt: skip

define(
    "log_softmax", doc="y = x - log Σexp(x) along one axis",
    layout=Layout("along"), masks=True,
    infer=_line_infer("log_softmax"), ref=lambda x, axis: (_log_softmax(x, axis),), vjp=_from_output("log_softmax_dx"),
    kernels={"f32": "log_softmax_f32"}, params=_line_params, inplace=(0,), cases=LINES,
)  # fmt: skip

define(
    "log_softmax_dx", doc="dx = dy - exp(y) · Σdy along one axis",
    layout=Layout("along"),
    infer=_line_infer("log_softmax_dx"),
    ref=lambda dy, y, axis: (dy - np.exp(y) * dy.sum(axis=axis, keepdims=True),), vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "log_softmax_dx_f32"}, params=_line_params, inplace=(0, 1), cases=PAIRS,
)  # fmt: skip


def _cumsum_ref(x: Array, axis: int, reverse: bool = False) -> Sequence[Array]:
    return (np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis),)


define(
    "cumsum", doc="y = sum of x up to here along one axis; `reverse`: from here to the end",
    layout=Layout("along"),
    infer=_line_infer("cumsum"), ref=_cumsum_ref,
    vjp=lambda b, node, dys: [
        b.add("cumsum", str(dys[0]), axis=node.attrs["axis"], reverse=not node.attrs.get("reverse", False))
    ],
    kernels={"f32": "cumsum_f32"}, params=lambda call: [*_line_params(call), int(call.attrs.get("reverse", False))],
    inplace=(0,), cases=[*LINES, case((N, 67), axis=1, reverse=True), case((4, 3), axis=0, reverse=True)],
)  # fmt: skip
