"""Rows picked by index, from other places for each sample, and the gradient: rows added up where they came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, DType, Node, Shape, Tensor
from .registry import Builder, N, Param, Spec, case, define
from .strides import show


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
    if b[x].dtype is not DType.F32 or not b.need(x):
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
    return lambda rng, n: rng.integers(0, 2, shape).astype(np.uint8)


define(
    "gather", doc="y[a,k,D] = x[a, index[a mod G, k], D]; x[A,V,D], index[G,K]; a negative index counts from the end",
    linear_in=((0,),), infer=_gather_infer,
    ref=lambda x, index: (np.take_along_axis(x, _turns(index, len(x)), 1),), vjp=_gather_vjp,
    kernels={"f32": "gather_b4", "i32": "gather_b4", "u8": "gather_b1"},
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
