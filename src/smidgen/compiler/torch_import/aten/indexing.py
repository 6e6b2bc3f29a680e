"""Torch ops that pick elements by index or mask, and those that create tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ....ir import Batch, Dim, DType, Shape, batch_axis
from ....ir import size as count
from .emit import Emit
from .samples import HELP, WHY, Samples
from .writer import Operand, Unsupported, Value, aten, axis_of, broadcast, is_tensor, static

REORDERS = ("it reorders the samples of a batch", "shuffle the data, not the batch")
EXACT = 1 << 24  # integers that the model computes are floats here


@aten("index_select")
def index_select(t: Emit, x: Operand, axis: int, index: Operand) -> Operand:
    return pick(t, x, axis_of(axis, t.rank(x)), index)


MASKED = (
    "torch.where(mask, x, 0) keeps the size; a mask that never changes: a buffer of its numbers, mask.nonzero()[:, 0]"
)


@aten("index")
def index(t: Emit, x: Operand, indices: Sequence[Operand | Samples | None]) -> Operand:
    """Each element of the result takes its place along every indexed axis from an index; these broadcast."""
    given = {axis: i for axis, i in enumerate(indices) if i is not None}
    if any(not isinstance(i, Samples) and t.dtype(i) is DType.U8 for i in given.values()):
        raise Unsupported("the result's size depends on values", MASKED)
    axes = list(given)
    together = axes == list(range(axes[0], axes[-1] + 1))
    batch = t.batch_axis(x)
    if batch in given:
        return _per_sample(t, x, given, batch, axes[0] if together else 0)
    if any(isinstance(i, Samples) for i in given.values()):
        raise Unsupported("it takes the number of a sample for a place along another axis", HELP)
    if not together:
        x = t.permute(x, (*axes, *[a for a in range(t.rank(x)) if a not in given]))
    at = axes[0] if together else 0
    shape = t.shape(x)
    sizes = static(shape[at : at + len(axes)])
    places = flat(t, [(i, size) for i, size in zip(given.values(), sizes, strict=True)])
    return pick(t, t.reshape(x, (*shape[:at], math.prod(sizes), *shape[at + len(axes) :])), at, places)


def flat(t: Emit, picks: Sequence[tuple[Any, int]]) -> Operand:
    """Places along several axes as places along all of them joined; (index, size) of each."""
    if len(picks) == 1:
        return t.i32(picks[0][0])
    if math.prod(size for _, size in picks) >= EXACT:
        raise Unsupported(f"it indexes axes of {EXACT:,} elements and more together", "index one axis at a time")
    total: Any = 0
    for i, (index, size) in enumerate(picks):
        step = math.prod(own for _, own in picks[i + 1 :])
        if isinstance(index, torch.Tensor):
            term: Any = torch.where(index < 0, index + size, index).to(torch.int64) * step
        else:
            below = t.add("lt", t.i32(index), t.constant(0, torch.int32))
            place = t.add("where", below, t.plus(index, size), t.f32(index))
            inside = t.add("clamp", place, lo=0.0, hi=float(size - 1), closed=True)
            term = t.add("where", t.add("eq", inside, place), t.times(place, step), t.constant(-float(2 * EXACT)))
        plain = isinstance(total, int) or (isinstance(total, torch.Tensor) and isinstance(term, torch.Tensor))
        total = term + total if plain and isinstance(term, torch.Tensor) else t.plus(term, total)
    return t.i32(total)


def _per_sample(t: Emit, x: Operand, given: dict[int, Any], batch: int, to: int) -> Operand:
    """x[torch.arange(batch), places, …]: every sample is indexed with places of its own, or with those of all."""
    own, length = given[batch], t.shape(x)[batch]
    if not isinstance(own, Samples) or not isinstance(length, Batch):
        raise Unsupported(*REORDERS)
    others = [a for a in range(t.rank(x)) if a not in given]
    picked = [a for a in given if a != batch]
    whole = broadcast(*[i.shape if isinstance(i, Samples) else t.shape(i) for i in given.values()])
    picks = [(given[a], t.length(x, a)) for a in picked]
    if length.times > 1:  # several rows a sample: which of them is the rest of the number
        rest = torch.zeros((), dtype=torch.int64) if own.rest is None else own.rest
        picks.insert(0, (rest, length.times))
    if own.times != length.times or (length.times == 1 and own.rest is not None) or t.unmerged(x) is not None:
        raise Unsupported(*REORDERS)
    kept = [t.shape(x)[a] for a in others]
    rows = math.prod(size for _, size in picks)
    x = t.reshape(t.permute(x, (batch, *picked, *others)), (Batch(1), rows, math.prod(static(kept))))
    places = flat(t, picks) if picks else torch.zeros((), dtype=torch.int64)
    shape = (1,) * (len(whole) - t.rank(places)) + t.shape(places)
    place = batch_axis(whole)
    assert place is not None
    repeats, at = shape[place], t.batch_axis(places)
    if at is None:  # the same places in all samples
        found = pick(t, x, 1, t.reshape(places, (math.prod(static(shape)),)))
        inside: list[Dim] = [1, *shape[:place], *shape[place + 1 :]]
    else:
        assert isinstance(repeats, Batch)
        first = t.permute(t.reshape(places, shape), (place, *[a for a in range(len(shape)) if a != place]))
        inside = [repeats.times, *shape[:place], *shape[place + 1 :]]
        found = t.add("gather", x, t.reshape(t.i32(first), (Batch(1), math.prod(static(inside)))))
    apart = t.reshape(found, (Batch(1), *inside, *kept))
    order = [*range(2, 2 + place), 0, 1, *range(2 + place, 1 + len(inside) + len(kept))]
    count = whole[place]
    assert isinstance(count, Batch)
    spread = (*whole[:place], Batch(1), count.times, *whole[place + 1 :], *kept)
    y = t.reshape(t.expand(t.permute(apart, order), spread), (*whole, *kept))
    ahead = sum(a < to for a in others)
    lead = len(whole)
    return t.permute(y, [*range(lead, lead + ahead), *range(lead), *range(lead + ahead, lead + len(kept))])


def pick(t: Emit, x: Operand, axis: int, at: Any) -> Operand:
    """x[at] along one axis: slices if the places are known, else rows of a table."""
    size = t.shape(x)[axis]
    rest = (*t.shape(x)[:axis], *t.shape(x)[axis + 1 :])
    if isinstance(at, Samples):
        raise Unsupported(WHY, HELP)
    if isinstance(size, Batch):
        raise Unsupported(*REORDERS)
    if batch_axis(rest) is None:
        if isinstance(at, torch.Tensor):
            at = torch.where(at < 0, at + size, at)
        table = t.permute(x, (axis, *[a for a in range(t.rank(x)) if a != axis]))
        rows = t.reshape(table, (size, math.prod(static(rest))))
        taken = t.add("embedding", rows, t.i32(at)) if t.dtype(x) is DType.F32 else _integers(t, rows, t.i32(at))
        found = t.reshape(taken, (*t.shape(at), *rest))
        lead = len(t.shape(at))
        order = [*range(lead, lead + axis), *range(lead), *range(lead + axis, lead + len(rest))]
        return t.permute(found, order)
    if isinstance(at, torch.Tensor):
        taken = t.take(x, axis, [int(i) % size for i in at.flatten()])
    else:
        taken = t.rows(x, axis, t.reshape(t.i32(at), (1, math.prod(static(t.shape(at))))))
    return t.reshape(taken, (*t.shape(x)[:axis], *t.shape(at), *t.shape(x)[axis + 1 :]))


def _integers(t: Emit, rows: Operand, at: Operand) -> Operand:
    """Rows of a table of integers or booleans."""
    return t.add("gather", t.reshape(rows, (1, *t.shape(rows))), t.reshape(at, (1, count(t.shape(at)))))


@aten("one_hot")
def one_hot(t: Emit, x: Operand, classes: int = -1) -> Operand:
    if classes < 0:
        raise Unsupported("the number of classes depends on values", "F.one_hot(x, num_classes)")
    return t.add("cast", hits(t, x, t.rank(x), classes), dtype="f32")


def hits(t: Emit, index: Operand, axis: int, size: int) -> Value:
    """u8: is this the place that `index` names, along a new axis?"""
    shape = t.shape(index)
    spread = t.reshape(t.i32(index), (*shape[:axis], 1, *shape[axis:]))
    return t.add("eq", spread, torch.arange(size).reshape(-1, *[1] * (len(shape) - axis)))


@aten("gather", "gather.default")
def gather(t: Emit, x: Operand, axis: int, at: Operand, *_: Any) -> Operand:
    """Along one axis, from places of their own for all elements of the others."""
    rank = t.rank(x)
    if not rank:
        return t.reshape(x, t.shape(at))
    axis = axis_of(axis, rank)
    if isinstance(t.shape(x)[axis], Batch):
        raise Unsupported("it gathers values of other samples", "gather along another axis")
    for i, dim in enumerate(t.shape(at)):
        if i != axis and dim != t.shape(x)[i]:  # torch takes an index that covers a part
            x = t.slice(x, i, 0, dim)
    return along(t, x, axis, at)


def along(t: Emit, x: Operand, axis: int, at: Operand) -> Operand:
    """x at the places `at` along `axis`, which have its size along all other axes.

    An index that was expanded along the last axes picks whole rows; along the first ones, all take the same.
    """
    rank, size, shape = t.rank(x), t.length(x, axis), t.shape(at)
    small = t.unexpanded(t.i32(at))
    if any(d not in (1, e) for d, e in zip(t.shape(small), shape, strict=True)) or t.shape(small)[axis] != shape[axis]:
        small = t.i32(at)
    wide = all(d == 1 for d in t.shape(small)[axis + 1 :])
    order = list(range(rank)) if wide else [*[a for a in range(rank) if a != axis], axis]
    to = axis if wide else rank - 1
    x, small = t.permute(x, order), t.permute(small, order)
    lead, own = t.shape(x)[:to], list(t.shape(small)[:to])
    turn = next((i for i, d in enumerate(own) if d != 1), to)  # from here on, groups differ
    small = t.expand(small, (*own[:turn], *lead[turn:], shape[axis], *[1] * (rank - to - 1)))
    if batch_axis(lead) is None and isinstance(shape[axis], Batch):  # a fixed table, and places for each sample
        picks = [(torch.arange(math.prod(static(lead))).reshape(*static(lead), 1), math.prod(static(lead)))]
        table = t.reshape(x, (math.prod(static(lead)) * size, *t.shape(x)[to + 1 :]))
        places = flat(t, [*picks, (t.reshape(small, (*t.shape(small)[:to], shape[axis])), size)])
        y = pick(t, table, 0, t.expand(places, (*lead, shape[axis])))
    else:
        rows = t.reshape(x, (count(lead), size, count(t.shape(x)[to + 1 :])))
        y = t.add("gather", rows, t.reshape(small, (count(lead[turn:]), shape[axis])))
        y = t.reshape(y, (*lead, shape[axis], *t.shape(x)[to + 1 :]))
    return t.permute(y, [order.index(a) for a in range(rank)])


@aten("triu")
def triu(t: Emit, x: Operand, diagonal: int = 0) -> Operand:
    return t.add("where", torch.ones(static(t.shape(x)[-2:])).triu(diagonal).bool(), t.f32(x), t.constant(0.0))


@aten("tril")
def tril(t: Emit, x: Operand, diagonal: int = 0) -> Operand:
    return t.add("where", torch.ones(static(t.shape(x)[-2:])).tril(diagonal).bool(), t.f32(x), t.constant(0.0))


@aten("diagonal")
def diagonal(t: Emit, x: Operand, offset: int = 0, first: int = 0, second: int = 1) -> Operand:
    rank = t.rank(x)
    pair = [axis_of(first, rank), axis_of(second, rank)]
    last = t.permute(x, [*[a for a in range(rank) if a not in pair], *pair])
    rows, columns = static(t.shape(last)[-2:])
    if offset or rows != columns:
        raise Unsupported("a diagonal other than the main one of a square", "a product with a constant mask")
    kept = t.add("where", torch.eye(rows).bool(), t.f32(last), t.constant(0.0))
    return t.reduce("sum", kept, [rank - 1])


# Creating. Static sizes are folded before a rule is asked, so these see sizes with the batch, or `…_like`.


def full(t: Emit, shape: Shape, value: Any) -> Operand:
    filled = t.fill(shape, float(value))
    return t.cast(filled, t.node_dtypes[0])


@aten("full", "full_like")
def full_(t: Emit, like: Any, value: Any, *_: Any) -> Operand:
    if isinstance(value, Value):
        return t.expand(t.cast(value, t.node_dtypes[0]), t.out_shape)
    return full(t, t.out_shape, t.number(value))


@aten("new_full")
def new_full(t: Emit, x: Operand, shape: Any, value: Any, *_: Any) -> Operand:
    return full_(t, x, value)


@aten("zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty")
def zeros(t: Emit, *_: Any) -> Operand:
    return full(t, t.out_shape, 0)


@aten("ones", "ones_like", "new_ones")
def ones(t: Emit, *_: Any) -> Operand:
    return full(t, t.out_shape, 1)


@aten("bernoulli.p", "bernoulli")
def bernoulli(t: Emit, x: Operand, p: Any = None, *_: Any) -> Operand:
    """Ones with probability p: a dropout of ones, without its scaling."""
    if not isinstance(p, (int, float)) or is_tensor(p):
        raise Unsupported("probabilities that are tensors", "F.dropout(x, p)")
    if not p:
        return t.fill(t.shape(x), 0)
    return t.times(t.dropout(t.fill(t.shape(x), 1), 1 - p), p) if p < 1 else t.fill(t.shape(x), 1)


@aten("fill", "fill.Tensor")
def fill(t: Emit, x: Operand, value: Any) -> Operand:
    if isinstance(value, Value):
        return t.expand(value, t.shape(x))
    return full(t, t.shape(x), t.number(value))


@aten("zero")
def zero(t: Emit, x: Operand) -> Operand:
    return full(t, t.shape(x), 0)
