"""Rows picked by index, from other places for each sample, and the gradient: rows added up where they came from. Some
indices of an axis, taken out of a tensor or put into it: the list is an operand, so that a program can choose it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, DType, Node, Shape, Tensor, size
from .registry import Builder, Integers, N, Param, Spec, case, define
from .strides import show
from .traits import SAME16


def _rows(what: str, rows: Tensor, index: Tensor) -> None:
    """rows[A,_,D] and index[G,_]; A is a multiple of G."""
    if len(rows.shape) != 3 or len(index.shape) != 2 or index.dtype is not DType.I32:
        raise BadShape(
            f"{what} of {show(rows.shape)} with an index {show(index.shape)} of {index.dtype.value}",
            why="it takes [groups, rows, width], and an index [groups or a divisor of them, places] of i32",
        )
    if 0 in (*rows.shape[1:], index.shape[1]):
        raise BadShape(
            f"{what} of {show(rows.shape)} with an index {show(index.shape)}",
            why="there is nothing to pick from, or nothing to pick", help="leave it out where it is empty",
        )  # fmt: skip
    a, g = rows.shape[0], index.shape[0]
    if not _divides(g, a):
        raise BadShape(
            f"{what} of {show(rows.shape)} with an index {show(index.shape)}",
            why=f"{a} groups cannot take turns with {g} rows of the index",
        )


def _divides(g: Any, a: Any) -> bool:
    """Whole turns of g in a, whatever the number of samples."""
    if isinstance(g, int):
        return g > 0 and (a if isinstance(a, int) else a.times) % g == 0
    return not isinstance(a, int) and a.times % g.times == 0


def _gather_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, index = ins
    _rows("gather", x, index)
    return [((x.shape[0], index.shape[1], x.shape[2]), x.dtype)]


def _turns(index: Array, groups: int) -> Array:
    """The index of each group: [A,K,1]"""
    return np.tile(index, (groups // max(len(index), 1), 1))[:, :, None]


def _gather_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    x, index = node.ins
    if not b[x].has_gradient or not b.need(x):
        return [None, None]
    return [b.add("gather_dx", str(dys[0]), index, rows=b[x].shape[1]), None]


def _params(x: Shape, index: Shape) -> Sequence[Param]:
    return [x[0], index[0], x[1], index[1], x[2]]


def _places(rows: int, *shape: int) -> Callable[[np.random.Generator, int], Array]:
    """From both ends."""
    return lambda rng, n: rng.integers(-rows, rows, shape).astype(np.int32)


def _ints(*shape: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.integers(-9, 9, shape).astype(np.int32)


def _bytes(*shape: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.integers(0, 256, shape).astype(np.uint8)


define(
    "gather", doc="y[a,k,D] = x[a, index[a mod G, k], D]; x[A,V,D], index[G,K]; a negative index counts from the end",
    linear_in=((0,),), infer=_gather_infer,
    ref=lambda x, index: (np.take_along_axis(x, _turns(index, len(x)), 1),), vjp=_gather_vjp,
    kernels={"f32": "gather_b4", "i32": "gather_b4", "u8": "gather_b1", "i8": "gather_b1"},
    params=lambda call: _params(call.ins[0].shape, call.ins[1].shape),
    cases=[
        case((6, 7, 3), _places(7, 6, 4)), case((N, 5, 2), _places(5, 1, 9)), case((4, 3, N), _places(3, 2, 3)),
        case((Batch(6), 4, 1), _places(4, 3, 2)), case((1, 1, 1), _places(1, 1, 1)),
        case(_ints(4, 5, 2), _places(5, 2, 3), smooth=False), case(_bytes(3, 5, 1), _places(5, 3, 7), smooth=False),
    ],
)  # fmt: skip


def _gather_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, index = ins
    _rows("gather_dx", dy, index)
    if dy.shape[1] != index.shape[1] or attrs["rows"] < 1 or dy.dtype is not DType.F32:
        raise BadShape(
            f"gather_dx of {show(dy.shape)} with an index {show(index.shape)} into {attrs['rows']} rows",
            why="dy must be f32 with one row for each place",
        )
    return [((dy.shape[0], attrs["rows"], dy.shape[2]), DType.F32)]


def _gather_dx_ref(dy: Array, index: Array, rows: int) -> Sequence[Array]:
    dx = np.zeros((dy.shape[0], rows, dy.shape[2]), dy.dtype)
    places = _turns(index, len(dy))[:, :, 0]
    np.add.at(dx, (np.arange(len(dy))[:, None], places), dy)
    return (dx,)


define(
    "gather_dx", doc="dx[a,v,D] = Σ of the rows dy[a,k,D] with index[a mod G, k] = v, in the order of k; rows = V",
    linear_in=((0,),), infer=_gather_dx_infer, ref=_gather_dx_ref,
    vjp=lambda b, node, dys: [b.add("gather", str(dys[0]), node.ins[1]) if b.need(node.ins[0]) else None, None],
    kernels={"f32": "gather_dx_f32"},
    params=lambda call: _params(call.outs[0].shape, call.ins[1].shape),
    cases=[
        case((6, 4, 3), _places(7, 6, 4), rows=7), case((N, 9, 2), _places(5, 1, 9), rows=5),
        case((4, 3, N), _places(3, 2, 3), rows=3), case((Batch(6), 2, 1), _places(4, 3, 2), rows=4),
        case((1, 30, 1), _places(2, 1, 30), rows=2),
    ],
)  # fmt: skip


# Some indices of an axis.


def check_axis(what: str, x: Tensor, index: Tensor, axis: int) -> None:
    if not 0 <= axis < len(x.shape) or isinstance(x.shape[axis], Batch):
        raise BadShape(f"{what} along axis {axis} of {show(x.shape)}", why="that is no axis of fixed size")
    if len(index.shape) != 1 or index.dtype is not DType.I32 or 0 in (index.shape[0], x.shape[axis]):
        raise BadShape(
            f"{what} along axis {axis} of {show(x.shape)} with an index {show(index.shape)} of {index.dtype.value}",
            why="it takes a list [places] of i32, and at least one place",
        )


def with_axis(shape: Shape, axis: int, length: Any) -> Shape:
    return (*shape[:axis], length, *shape[axis + 1 :])


def _axis_params(whole: Shape, part: Shape, axis: int) -> Sequence[Param]:
    """As gather has them: groups, rows of the index, rows, places, width."""
    return [size(whole[:axis]), 1, whole[axis], part[axis], size(whole[axis + 1 :])]


def _take_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, index = ins
    check_axis("take", x, index, attrs["axis"])
    return [(with_axis(x.shape, attrs["axis"], index.shape[0]), x.dtype)]


def _take_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    (x, index), axis = node.ins, node.attrs["axis"]
    if not b[x].has_gradient or not b.need(x):
        return [None, None]
    whole = b[x].shape
    rows = b.add("reshape", str(dys[0]), shape=(size(whole[:axis]), b[index].shape[0], size(whole[axis + 1 :])))
    places = b.add("reshape", index, shape=(1, b[index].shape[0]))
    return [b.add("reshape", b.add("gather_dx", rows, places, rows=whole[axis]), shape=whole), None]


def _different(rows: int, count: int) -> Callable[[np.random.Generator, int], Array]:
    """Different ones, in any order, some counted from the end."""

    def made(rng: np.random.Generator, n: int) -> Array:
        found = rng.permutation(rows)[:count].astype(np.int32)
        return np.where(rng.random(count) < 0.5, found, found - rows).astype(np.int32)

    return made


define(
    "take", doc="y = x with only the listed indices of `axis`, in their order: take(x, index[K])",
    slices="take", inplace=(0,), shrinks=True, int16=SAME16, linear_in=((0,),), infer=_take_infer, vjp=_take_vjp,
    ref=lambda x, index, axis: (np.array(np.take(x, index, axis)),),
    kernels={"f32": "gather_b4", "i32": "gather_b4", "u8": "gather_b1", "i8": "gather_b1", "i16": "gather_b2"},
    params=lambda call: _axis_params(call.ins[0].shape, call.outs[0].shape, call["axis"]),
    cases=[
        case((N, 4, 5, 9), _different(9, 4), axis=3), case((6, 3, 3, 2), _different(6, 5), axis=0),
        case(Integers((N, 5, 9), DType.I16, -32768, 32767), _different(9, 4), axis=2, smooth=False),
        case((4, 7), _different(7, 1), axis=1), case((5,), _different(5, 5), axis=0),
        case((N, 6, 2), _different(6, 2), axis=1), case((3, 4, N), _different(4, 3), axis=1),
        case(_bytes(4, 6), _different(6, 3), axis=1, smooth=False),
    ],
)  # fmt: skip


def _put_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, part, index = ins
    axis = attrs["axis"]
    check_axis("put", x, index, axis)
    if part.dtype is not x.dtype or part.shape != with_axis(x.shape, axis, index.shape[0]):
        raise BadShape(
            f"put of {show(part.shape)} into {show(x.shape)} along axis {axis} at {show(index.shape)} places",
            why="both must have one type, and the part one index for each place",
        )
    return [(x.shape, x.dtype)]


def _put_ref(x: Array, part: Array, index: Array, axis: int) -> Sequence[Array]:
    y = np.array(x)
    y[(slice(None),) * axis + (index,)] = part
    return (y,)


def _put_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    (x, part, index), axis, dy = node.ins, node.attrs["axis"], str(dys[0])
    if not b[x].has_gradient:
        return [None, None, None]
    return [
        b.add("put", dy, b.add("fill", shape=b[part].shape, value=0.0), index, axis=axis) if b.need(x) else None,
        b.add("take", dy, index, axis=axis) if b.need(part) else None,
        None,
    ]


define(
    "put", doc="y = x, with part at the listed indices of `axis`, which differ: put(x, part, index[K])",
    slices="put", linear_in=((0, 1),), infer=_put_infer, ref=_put_ref, vjp=_put_vjp, inplace=(0,),
    kernels={"f32": "put_b4", "i32": "put_b4", "u8": "put_b1", "i8": "put_b1"},
    params=lambda call: _axis_params(call.ins[0].shape, call.ins[1].shape, call["axis"]),
    cases=[
        case((4, 3, 3, 9), (4, 3, 3, 4), _different(9, 4), axis=3), case((5,), (5,), _different(5, 5), axis=0),
        case((6, 3, 2), (5, 3, 2), _different(6, 5), axis=0), case((N, 7, 2), (N, 1, 2), _different(7, 1), axis=1),
        case(_bytes(4, 6), _bytes(4, 3), _different(6, 3), axis=1, smooth=False),
    ],
)  # fmt: skip
