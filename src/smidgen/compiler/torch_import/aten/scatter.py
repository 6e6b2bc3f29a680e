"""Torch ops that write to places given by an index or a mask: scatter, index_put, index_add.

All are one thing: rows x[A,V,D], places [A or 1, K] and what is written there, [A,K,D].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ....ir import Batch, Dim, DType, Shape, batch_axis
from ....ir import size as count
from .emit import Emit
from .indexing import REORDERS, flat
from .pointwise import where
from .samples import HELP, Samples
from .writer import Operand, Unsupported, aten, axis_of, broadcast, is_tensor, static

REDUCES = {"add": "sum", "sum": "sum", "mean": "mean", "amax": "amax", "amin": "amin"}
MASKED = (
    "as many values are written as the mask is true, one after the other",
    "torch.where(mask, new, old), with `new` as large as `old`",
)


def written(t: Emit, x: Operand, at: Operand, new: Operand, how: str, own: bool = True) -> Operand:
    """x[A,V,D] with new[A,K,D] at the places at[A or 1, K] of V. `how`: "set" (the last one counts), or how all that
    meets at a place is reduced; `own`: together with what x has there."""
    rows = t.length(x, 1)
    if isinstance(at, torch.Tensor):
        at = torch.where(at < 0, at + rows, at)
    number = _counts(t, at, rows)
    hit = number > 0 if isinstance(number, torch.Tensor) else t.add("gt", number, t.constant(0.0))
    if how == "set":
        return _chosen(t, x, hit, t.add("gather", t.value(new), _last(t, at, rows)))
    x, new = t.f32(x), t.f32(new)
    if how in ("amax", "amin"):
        return _extreme(t, x, at, new, how, own, hit)
    total: Any = t.add("gather_dx", new, t.i32(at), rows=rows)
    total = t.plus(x, total) if own else total
    if how == "mean":
        total = t.over(total, t.plus(number, 1.0) if own else _chosen(t, t.constant(1.0), hit, number))
    return total if own else _chosen(t, x, hit, total)


def _counts(t: Emit, at: Operand, rows: int) -> Operand:
    """How often each place is written: [A or 1, V, 1]"""
    if isinstance(at, torch.Tensor):
        return (at[:, :, None] == torch.arange(rows)).sum(1)[:, :, None].double()
    return t.add("gather_dx", t.value(t.fill((*t.shape(at), 1), 1.0)), t.i32(at), rows=rows)


def _hits(t: Emit, at: Operand, rows: int) -> Operand:
    """u8[A or 1, K, V]: does k write to v?"""
    if isinstance(at, torch.Tensor):
        return at[:, :, None] == torch.arange(rows)
    below = t.add("lt", t.i32(at), t.constant(0, torch.int32))
    place = t.i32(t.add("where", below, t.plus(at, rows), t.f32(at)))
    return t.add("eq", t.reshape(place, (*t.shape(at), 1)), torch.arange(rows))


def _last(t: Emit, at: Operand, rows: int) -> Operand:
    """Which k is the last that writes to each place; 0 where none does: i32[A or 1, V]"""
    order = torch.arange(1, t.length(at, 1) + 1)[:, None]
    hits = _hits(t, at, rows)
    if isinstance(hits, torch.Tensor):
        return (hits * order).argmax(1)
    return t.add("argmax", t.times(t.f32(hits), order.double()), axis=1, keepdim=False)


def _extreme(t: Emit, x: Operand, at: Operand, new: Operand, how: str, own: bool, hit: Operand) -> Operand:
    a, places, width = t.shape(new)
    rows = t.length(x, 1)
    none = t.constant(-math.inf if how == "amax" else math.inf)
    hits = _hits(t, at, rows)
    spread = t.add("where", t.reshape(hits, (*t.shape(hits), 1)), t.reshape(new, (a, places, 1, width)), none)
    if own:
        spread = t.concat([spread, t.reshape(x, (a, 1, rows, width))], 1)
        return t.reduce(how, spread, [1])
    return _chosen(t, x, hit, t.reduce(how, t.add("where", t.reshape(hit, (*t.shape(hit)[:1], 1, rows, 1)), spread,
                                                  t.constant(0.0)), [1]))  # fmt: skip


def _chosen(t: Emit, x: Operand, hit: Operand, new: Operand) -> Operand:
    """new where hit, else x; integers stay integers."""
    kind = t.dtype(x)
    made = t.add("where", hit, t.f32(new), t.f32(x))
    return made if kind is DType.F32 else t.add("cast", made, dtype=kind.value)


# Along one axis.


def _scattered(t: Emit, x: Operand, axis: int, at: Any, new: Any, how: str, own: bool = True) -> Operand:
    """`at` has as many axes as x; along all but `axis` it may cover a part."""
    if not t.rank(x):
        return t.reshape(_scattered(t, t.reshape(x, (1,)), 0, t.reshape(at, (count(t.shape(at)),)),
                                    t.reshape(new, (1,)) if is_tensor(new) else new, how, own), ())  # fmt: skip
    axis = axis_of(axis, t.rank(x))
    if isinstance(at, Samples) or isinstance(t.shape(x)[axis], Batch):
        return _in_samples(t, x, axis, at, new, how, own)
    shape = t.shape(at)
    if not is_tensor(new):
        new = t.fill(shape, float(new))
    for i, dim in enumerate(shape):
        if t.shape(new)[i] != dim:
            new = t.slice(new, i, 0, dim)
    part = [i for i, dim in enumerate(shape) if i != axis and dim != t.shape(x)[i]]
    return _within(t, x, part, shape, lambda inner: _whole(t, inner, axis, at, new, how, own))


def _within(
    t: Emit, x: Operand, axes: Sequence[int], shape: Shape, change: Callable[[Operand], Operand]
) -> Operand:  # fmt: skip
    """x with the corner of the given shape changed."""
    if not axes:
        return change(x)
    axis, *others = axes
    piece = t.slice(x, axis, 0, shape[axis])
    return t.put(x, _within(t, piece, others, shape, change), axis, 0, shape[axis])


def _whole(t: Emit, x: Operand, axis: int, at: Operand, new: Operand, how: str, own: bool) -> Operand:
    rank = t.rank(x)
    order = [*[a for a in range(rank) if a != axis], axis]
    lead = tuple(t.shape(x)[a] for a in order[:-1])
    groups = count(lead)
    places = t.reshape(t.permute(at, order), (groups, t.shape(at)[axis]))
    rows = t.reshape(t.permute(x, order), (groups, t.shape(x)[axis], 1))
    values = t.reshape(t.permute(new, order), (groups, t.shape(at)[axis], 1))
    y = t.reshape(written(t, rows, places, values, how, own), (*lead, t.shape(x)[axis]))
    return t.permute(y, [order.index(a) for a in range(rank)])


def _in_samples(t: Emit, x: Operand, axis: int, at: Any, new: Any, how: str, own: bool) -> Operand:
    """Along the samples, places that are numbered through: each sample writes into its own rows."""
    length = t.shape(x)[axis]
    if not isinstance(at, Samples) or not isinstance(length, Batch) or at.times != length.times:
        raise Unsupported("it writes to other samples", "scatter along another axis")
    local = torch.zeros((), dtype=torch.int64) if at.rest is None else at.rest

    def apart(v: Any, shape: Shape) -> Any:
        dim = shape[axis]
        assert isinstance(dim, Batch)
        return t.reshape(t.expand(v, shape), (*shape[:axis], Batch(1), dim.times, *shape[axis + 1 :]))

    new = apart(new, t.shape(new)) if is_tensor(new) else new
    found = _scattered(t, apart(x, t.shape(x)), axis + 1, apart(local, at.shape), new, how, own)
    return t.reshape(found, t.shape(x))


@aten("scatter.value", "scatter.src", "scatter")
def scatter(t: Emit, x: Operand, axis: int, at: Any, new: Any) -> Operand:
    return _scattered(t, x, axis, at, _number(t, new), "set")


@aten("scatter_add")
def scatter_add(t: Emit, x: Operand, axis: int, at: Any, new: Operand) -> Operand:
    return _scattered(t, x, axis, at, new, "sum")


@aten("scatter_reduce")
def scatter_reduce(t: Emit, x: Operand, axis: int, at: Any, new: Operand, how: str, own: bool = True) -> Operand:
    if how not in REDUCES:
        raise Unsupported(f"what meets at a place is reduced by '{how}'", f"one of {', '.join(REDUCES)}")
    return _scattered(t, x, axis, at, new, REDUCES[how], own)


@aten("index_add")
def index_add(t: Emit, x: Operand, axis: int, at: Any, new: Operand, alpha: Any = 1) -> Operand:
    axis = axis_of(axis, t.rank(x))
    return _put(t, x, {axis: at}, t.times(new, alpha), "sum", axis)


@aten("index_copy")
def index_copy(t: Emit, x: Operand, axis: int, at: Any, new: Operand) -> Operand:
    axis = axis_of(axis, t.rank(x))
    return _put(t, x, {axis: at}, new, "set", axis)


@aten("index_fill", "index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(t: Emit, x: Operand, axis: int, at: Any, value: Any) -> Operand:
    axis = axis_of(axis, t.rank(x))
    new = value if is_tensor(value) else t.constant(float(value))
    return _put(t, x, {axis: at}, new, "set", axis)


def _number(t: Emit, x: Any) -> Any:
    return x if is_tensor(x) and t.rank(x) else x if isinstance(x, str) else t.number(x)


# By indices of several axes, or a mask.


@aten("index_put")
def index_put(t: Emit, x: Operand, indices: Sequence[Any], value: Operand, accumulate: bool = False) -> Operand:
    given = {axis: i for axis, i in enumerate(indices) if i is not None}
    masks = [i for i in given.values() if is_tensor(i) and t.dtype(i) is DType.U8]
    if masks:
        if len(given) > 1:
            raise Unsupported("it is given a mask and other indices", "torch.where(mask, new, old)")
        return _masked(t, x, next(iter(given)), masks[0], value, accumulate)
    axes = list(given)
    together = axes == list(range(axes[0], axes[-1] + 1))
    return _put(t, x, given, value, "sum" if accumulate else "set", axes[0] if together else 0)


def _masked(t: Emit, x: Operand, axis: int, mask: Operand, value: Operand, accumulate: bool) -> Operand:
    """The mask covers axes from `axis` on. What is written is the same wherever it is true."""
    behind = t.rank(x) - axis - t.rank(mask)
    shape = t.shape(value)
    if len(shape) > behind:  # the axis of the hits stands before those behind the mask
        if shape[len(shape) - behind - 1] != 1:
            raise Unsupported(*MASKED)
        ahead = shape[: len(shape) - behind - 1]
        value = t.reshape(value, (*ahead, *[1] * t.rank(mask), *shape[len(shape) - behind :]))
    wide = t.reshape(mask, (*t.shape(mask), *[1] * behind))
    return where(t, wide, t.plus(x, value) if accumulate else value, x)


def _put(t: Emit, x: Operand, given: dict[int, Any], value: Operand, how: str, to: int) -> Operand:
    """x[indices] = value, or += value; the axes of the index stand at `to` in what is written."""
    batch = t.batch_axis(x)
    others = [a for a in range(t.rank(x)) if a not in given]
    picked = [a for a in given if a != batch]
    picks = [(given[a], t.length(x, a)) for a in picked]
    whole = broadcast(*[i.shape if isinstance(i, Samples) else t.shape(i) for i in given.values()])
    kept = [t.shape(x)[a] for a in others]
    ahead = sum(a < to for a in others)
    value = t.expand(value, (*kept[:ahead], *whole, *kept[ahead:]))
    first = [*range(ahead, ahead + len(whole)), *range(ahead), *range(ahead + len(whole), t.rank(value))]
    value = t.permute(value, first)  # [*whole, *kept]
    lead: tuple[Dim, ...]
    if batch in given:
        places, whole_first = _own_places(t, x, given, batch, picks, whole)
        value = t.permute(value, [*whole_first, *range(len(whole), t.rank(value))])
        lead = (Batch(1),)
    else:
        if any(isinstance(i, Samples) for i in given.values()):
            raise Unsupported("it takes the number of a sample for a place along another axis", HELP)
        if batch_axis(whole) is not None:
            raise Unsupported("every sample writes into what all samples share", "torch.where, or a sum over F.one_hot")
        places, lead = t.reshape(flat(t, picks), (1, math.prod(static(whole)))), (1,)
    number = count(t.shape(places)) if batch not in given else t.shape(places)[1]
    order = [*([batch] if batch in given else []), *picked, *others]
    moved = t.permute(x, order)
    width = count(kept)
    rows = t.reshape(moved, (*lead, _rows(t, x, batch in given, picks), width))
    new = t.reshape(value, (*lead, number, width))
    y = t.reshape(written(t, rows, places, new, how), t.shape(moved))
    return t.permute(y, [order.index(a) for a in range(t.rank(x))])


def _rows(t: Emit, x: Operand, in_samples: bool, picks: Sequence[tuple[Any, int]]) -> int:
    own = t.shape(x)[t.batch_axis(x) or 0] if in_samples else 1
    return math.prod(size for _, size in picks) * (own.times if isinstance(own, Batch) else 1)


def _own_places(
    t: Emit, x: Operand, given: dict[int, Any], batch: int, picks: Sequence[tuple[Any, int]], whole: Shape
) -> tuple[Operand, list[int]]:
    """Places in each sample [n, K], and the axes of the index with that of the samples first."""
    own, length = given[batch], t.shape(x)[batch]
    if not isinstance(own, Samples) or not isinstance(length, Batch) or own.times != length.times:
        raise Unsupported(*REORDERS)
    if (length.times == 1 and own.rest is not None) or t.unmerged(x) is not None:
        raise Unsupported(*REORDERS)
    if length.times > 1:
        rest = torch.zeros((), dtype=torch.int64) if own.rest is None else own.rest
        picks = [(rest, length.times), *picks]
    places = flat(t, picks) if picks else torch.zeros((), dtype=torch.int64)
    axis = batch_axis(whole)
    assert axis is not None
    order = [axis, *[a for a in range(len(whole)) if a != axis]]
    spread = t.permute(t.expand(t.i32(places), whole), order)
    dim = whole[axis]
    assert isinstance(dim, Batch)
    each = dim.times * math.prod(static([whole[a] for a in order[1:]]))
    return t.reshape(spread, (Batch(1), each)), order
