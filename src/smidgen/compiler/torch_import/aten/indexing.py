"""Torch ops that pick elements by index or mask, and those that create tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ....ir import Batch, DType, Shape, batch_axis
from .emit import Emit
from .writer import Operand, Unsupported, Value, aten, axis_of, is_tensor, static


@aten("index_select")
def index_select(t: Emit, x: Operand, axis: int, index: Operand) -> Operand:
    return pick(t, x, axis_of(axis, t.rank(x)), index)


@aten("index")
def index(t: Emit, x: Operand, indices: Sequence[Operand | None]) -> Operand:
    given = [(axis, i) for axis, i in enumerate(indices) if i is not None]
    if len(given) != 1:
        raise Unsupported("it indexes several axes at once", "index one axis at a time")
    axis, at = given[0]
    if t.dtype(at) is DType.U8:
        raise Unsupported("the result's size depends on values", "torch.where(mask, x, 0) keeps the size")
    return pick(t, x, axis, at)


def pick(t: Emit, x: Operand, axis: int, at: Operand) -> Operand:
    """x[at] along one axis: slices if the places are known, else rows of a table."""
    size = t.shape(x)[axis]
    rest = (*t.shape(x)[:axis], *t.shape(x)[axis + 1 :])
    if isinstance(size, Batch):
        raise Unsupported("it reorders the samples of a batch", "shuffle the data, not the batch")
    if batch_axis(rest) is None:
        table = t.permute(x, (axis, *[a for a in range(t.rank(x)) if a != axis]))
        rows = t.reshape(table, (size, math.prod(static(rest))))
        if isinstance(at, torch.Tensor):
            at = torch.where(at < 0, at + size, at)
        found = t.reshape(t.add("embedding", rows, t.i32(at)), (*t.shape(at), *rest))
        lead = len(t.shape(at))
        order = [*range(lead, lead + axis), *range(lead), *range(lead + axis, lead + len(rest))]
        return t.permute(found, order)
    if not isinstance(at, torch.Tensor):
        raise Unsupported("it looks up values of a sample at computed places", "torch.where or a product with a mask")
    taken = t.take(x, axis, [int(i) % size for i in at.flatten()])
    return t.reshape(taken, (*t.shape(x)[:axis], *at.shape, *t.shape(x)[axis + 1 :]))


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
    axis = axis_of(axis, t.rank(x))
    size, shape = t.shape(x)[axis], t.shape(at)
    others = [i for i in range(len(shape)) if i != axis]
    if isinstance(size, Batch) or shape[axis] != 1 or any(shape[i] != t.shape(x)[i] for i in others):
        raise Unsupported("it gathers several values a row", "gather one value a row, or index with constants")
    mask = hits(t, t.reshape(at, [shape[i] for i in others]), axis, size)
    return t.reduce("sum", t.add("where", mask, t.f32(x), t.constant(0.0)), [axis], keepdim=True)


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


@aten("arange")
def arange(t: Emit, *_: Any) -> Operand:
    raise Unsupported("it counts the samples of a batch", "number positions within a sample only")


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
