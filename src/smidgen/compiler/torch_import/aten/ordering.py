"""Torch ops that bring elements along an axis into the order of their values: sort, top-k, medians."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....ir import Batch
from .emit import Emit
from .indexing import along
from .sorted_rows import by_value
from .writer import Operand, Unsupported, aten, axis_of


def _ordered(t: Emit, x: Operand, axis: int, count: int | None, descending: bool) -> tuple[Operand, Operand]:
    """(values, places) of the first `count` along an axis. The gradient goes to where a value came from."""
    if not t.rank(x):
        values, places = _ordered(t, t.reshape(x, (1,)), 0, count, descending)
        return t.reshape(values, ()), t.reshape(places, ())
    axis = axis_of(axis, t.rank(x))
    length = t.shape(x)[axis]
    if isinstance(length, Batch):
        raise Unsupported("it orders the samples of a batch", "sort along another axis")
    places = t.add("argsort", t.f32(x), axis=axis, count=length if count is None else count, descending=descending)
    return along(t, x, axis, places), places


@aten("topk")
def topk(t: Emit, x: Operand, k: int, axis: int = -1, largest: bool = True, *_: Any) -> Sequence[Operand]:
    return _ordered(t, x, axis, k, largest)


@aten("sort")
def sort(t: Emit, x: Operand, axis: int = -1, descending: bool = False) -> Sequence[Any]:
    if t.rank(x) == 1 and isinstance(t.shape(x)[0], Batch) and not descending:
        return by_value(t, x)
    return _ordered(t, x, axis, None, descending)


@aten("sort.stable")
def sort_stable(
    t: Emit, x: Operand, stable: Any = None, axis: int = -1, descending: bool = False
) -> Sequence[Any]:  # fmt: skip
    return sort(t, x, axis, descending)


@aten("msort")
def msort(t: Emit, x: Operand) -> Operand:
    return _ordered(t, x, 0, None, False)[0]


@aten("argsort")
def argsort(t: Emit, x: Operand, axis: int = -1, descending: bool = False) -> Any:
    return sort(t, x, axis, descending)[1]


@aten("argsort.stable")
def argsort_stable(t: Emit, x: Operand, stable: Any = None, axis: int = -1, descending: bool = False) -> Any:
    return argsort(t, x, axis, descending)


@aten("kthvalue")
def kthvalue(t: Emit, x: Operand, k: int, axis: int = -1, keep: bool = False) -> Sequence[Operand]:
    found = _ordered(t, x, axis, k, False)
    if not t.rank(x):
        return found
    axis = axis_of(axis, t.rank(x))
    return [t.reshape(t.slice(v, axis, k - 1, k), t.out_shape) for v in found]


@aten("median.dim")
def median(t: Emit, x: Operand, axis: int, keep: bool = False) -> Sequence[Operand]:
    """Of an even number, the lower of the middle ones."""
    length = t.length(x, axis_of(axis, t.rank(x))) if t.rank(x) else 1
    return kthvalue(t, x, (length - 1) // 2 + 1, axis, keep)
