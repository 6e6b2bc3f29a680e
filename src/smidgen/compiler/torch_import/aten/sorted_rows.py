"""Rows of all samples in the order of a key, as mixtures of experts bring tokens together that go to one expert.

A sample must not know its place in the batch, so nothing is sorted: what is done to sorted rows, row by row, is done to
the rows as they stand, and putting them back is nothing. What depends on the order itself is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....ir import Batch, Shape
from . import movement
from .emit import Emit
from .matrix import linear, matmul
from .samples import CASTS, Samples
from .writer import TABLE, Operand, Unsupported, Value, Virtual, aten, is_tensor

WHY = "it orders rows of different samples"
HELP = "after sorting rows, work on each row alone and bring them back by the inverse of the same order"
GROUPED = ("_grouped_mm", "grouped_mm_fallback")
SAME = (*CASTS, *movement.COPIES)


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """Of rows, by these keys [k·n]; equal ones as they stand."""

    keys: Operand


@dataclass(frozen=True, slots=True, eq=False)
class Rows(Virtual):
    """`value` with its rows in that order."""

    shape: Shape
    order: Order
    value: Operand
    is_key: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Places(Virtual):
    """Where each row came from, divided by `every`; or, if `inverse`, where each went to."""

    shape: Shape
    order: Order
    every: int = 1
    inverse: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Groups(Virtual):
    """How many rows have the key 0, 1, … below `count`; if `summed`, where each group ends."""

    shape: Shape
    order: Order
    count: int
    summed: bool = False


Ordered = (Rows, Places, Groups)


def involved(args: Any) -> bool:
    return any(isinstance(a, Ordered) for a in pytree.tree_leaves(args, is_leaf=lambda a: isinstance(a, Virtual)))


def by_value(t: Emit, keys: Operand) -> Sequence[Virtual]:
    order = Order(keys)
    return Rows(t.shape(keys), order, keys, is_key=True), Places(t.shape(keys), order)


def applied(t: Emit, name: str, args: Sequence[Any], rule: Callable[..., Any] | None) -> Any:
    """The result of an op on what is ordered; None if there is no rule."""
    x = args[0]
    if name in ("empty_like", "zeros_like", "ones_like", "full_like"):
        return TABLE[name](t, *args)
    if name == "index":
        return _indexed(t, x, args[1])
    if name == "index_put":
        return _inverse(*args)
    if name in GROUPED:
        return _grouped(t, *args)
    if isinstance(x, Places):
        return _place(t, name, x, args[1:])
    if isinstance(x, Groups):
        return _group(name, x, args[1:])
    if name == "histc" and isinstance(x, Rows):
        return _histogram(t, x, *args[1:])
    return None if rule is None else _each_row(t, rule, args, keeps_key=name in SAME)


def _each_row(t: Emit, rule: Callable[..., Any], args: Sequence[Any], keeps_key: bool) -> Any:
    """An op that leaves the rows where they are, as the first axis, does the same to all of them."""
    leaves = pytree.tree_leaves(args, is_leaf=lambda a: isinstance(a, Virtual))
    rows = [a for a in leaves if isinstance(a, Rows)]
    order, length = rows[0].order, rows[0].shape[0]
    others = [a for a in leaves if isinstance(a, Virtual) and not isinstance(a, Rows)]
    mixed = any(isinstance(a, Value) and t.batch_axis(a) is not None for a in leaves)
    apart = any(r.order is not order or r.shape[0] != length for r in rows)
    moved = any(not shape or shape[0] != length for shape in t.node_shapes)
    if others or mixed or apart or moved:
        raise Unsupported(WHY, HELP)
    is_key = keeps_key and rows[0].is_key
    plain = pytree.tree_map(
        lambda a: a.value if isinstance(a, Rows) else a, list(args), is_leaf=lambda a: isinstance(a, Virtual)
    )
    found = rule(t, *plain)
    if isinstance(found, (list, tuple)):
        return [Rows(s, order, v) for v, s in zip(found, t.node_shapes, strict=True)]
    return Rows(t.out_shape, order, found, is_key)


def _indexed(t: Emit, x: Any, indices: Sequence[Any]) -> Any:
    first, rest = indices[0], [i for i in indices[1:] if i is not None]
    if isinstance(first, Places) and not rest:
        if first.inverse:
            if isinstance(x, Rows) and x.order is first.order and x.shape[0] == first.shape[0]:
                return x.value
        elif is_tensor(x) and t.shape(x):
            rows, length = t.shape(x)[0], first.shape[0]
            whole = isinstance(rows, Batch) and isinstance(length, Batch) and rows.times * first.every == length.times
            if whole and t.unmerged(x) is None:
                repeated = TABLE["repeat_interleave.self_int"]
                value = _shaped(t, t.out_shape, lambda: repeated(t, x, first.every, 0)) if first.every > 1 else x
                return Rows(t.out_shape, first.order, value)
    if isinstance(first, Rows) and not rest and is_tensor(x) and t.batch_axis(x) is None:
        return Rows(t.out_shape, first.order, TABLE["index"](t, x, [first.value]))
    if first is None and isinstance(x, Rows) and not any(isinstance(i, Virtual) for i in rest):
        return _each_row(t, TABLE["index"], [x, list(indices)], keeps_key=False)
    raise Unsupported(WHY, HELP)


def _shaped(t: Emit, shape: Shape, make: Callable[[], Operand]) -> Operand:
    """`make` as if torch had asked for this shape."""
    before, t.node_shapes = t.node_shapes, [shape]
    try:
        return make()
    finally:
        t.node_shapes = before


def _inverse(x: Any, indices: Sequence[Any], value: Any, accumulate: bool = False) -> Places:
    """inverse[places] = torch.arange(rows)"""
    [places] = indices if len(indices) == 1 else [None]
    if not isinstance(places, Places) or places.inverse or places.every != 1 or accumulate:
        raise Unsupported(WHY, HELP)
    if not isinstance(value, Samples) or not value.is_count or value.shape != places.shape or isinstance(x, Virtual):
        raise Unsupported(WHY, HELP)
    return Places(places.shape, places.order, inverse=True)


def _place(t: Emit, name: str, x: Places, args: Sequence[Any]) -> Any:
    if name in SAME and not t.node_dtypes[0].is_floating_point:
        return x
    if name in ("floor_divide", "div") and not x.inverse and (name == "floor_divide" or args[1:] == ["floor"]):
        by, rows = t.number(args[0]), x.shape[0]
        if isinstance(by, int) and by > 0 and isinstance(rows, Batch) and rows.times % (by * x.every) == 0:
            return Places(x.shape, x.order, x.every * by)
    if name == "argsort" and not x.inverse and x.every == 1 and not any(args):  # of the places: where each went
        return Places(x.shape, x.order, inverse=True)
    raise Unsupported(WHY, HELP)


def _histogram(t: Emit, x: Rows, bins: int = 100, low: Any = 0, high: Any = 0) -> Groups:
    if not x.is_key or t.number(low) != 0 or t.number(high) != bins - 1:
        raise Unsupported("it counts values of all samples together", HELP)
    return Groups(t.out_shape, x.order, bins)


def _group(name: str, x: Groups, args: Sequence[Any]) -> Groups:
    if name in SAME:
        return x
    if name == "cumsum" and not x.summed:
        return Groups(x.shape, x.order, x.count, summed=True)
    raise Unsupported("it counts rows of all samples together", HELP)


def _grouped(t: Emit, x: Any, w: Any, ends: Any = None, bias: Any = None, *_: Any) -> Rows:
    """Each row times the matrix of its group."""
    fits = isinstance(x, Rows) and isinstance(ends, Groups) and ends.summed and x.order is ends.order
    if not fits or bias is not None or t.rank(w) != 3 or t.batch_axis(w) is not None or t.shape(w)[0] != ends.count:
        raise Unsupported(WHY, HELP)
    return Rows(t.out_shape, x.order, by_row(t, x.value, w, x.order.keys))


def by_row(t: Emit, x: Operand, w: Operand, group: Operand) -> Operand:
    """y[s] = x[s] · w[group[s]], w[groups, inputs, outputs]. A row at the place of its group, zeros at the others,
    times all matrices at once. With more groups than outputs it takes less memory to pick the matrix of each row."""
    groups, inputs, outputs = (t.length(w, axis) for axis in range(3))
    rows = t.shape(x)[0]
    if groups > outputs:
        picked = TABLE["index"](t, w, [group])
        return t.reshape(matmul(t, t.reshape(x, (rows, 1, inputs)), picked), (rows, outputs))
    own = t.add("eq", t.reshape(t.i32(group), (rows, 1, 1)), torch.arange(groups).reshape(-1, 1))
    spread = t.add("where", own, t.reshape(t.f32(x), (rows, 1, inputs)), t.constant(0.0))
    stacked = t.permute(t.reshape(w, (groups * inputs, outputs)), (1, 0))
    return linear(t, t.reshape(spread, (rows, groups * inputs)), stacked)


for _name in (*GROUPED, "histc"):

    @aten(_name)
    def _unordered(t: Emit, *_: Any) -> Any:
        """Only with what `by_value` orders."""
        raise Unsupported(WHY, HELP)
