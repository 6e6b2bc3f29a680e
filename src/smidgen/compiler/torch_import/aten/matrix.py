"""Torch's matrix products. A product with a matrix that all samples share is a `linear`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....ir import Batch, batch_axis
from .emit import Emit
from .samples import Samples
from .writer import Operand, Unsupported, Value, aten, broadcast, static


@aten("linear")
def linear(t: Emit, x: Operand, w: Operand, bias: Operand | None = None) -> Operand:
    if t.batch_axis(w) is not None or t.rank(w) != 2:
        return t.plus(matmul(t, x, t.permute(w, (*range(t.rank(w) - 2), t.rank(w) - 1, t.rank(w) - 2))), bias or 0)
    apart = t.unmerged(x)
    if apart is not None:  # keep samples in sequence: the reshape moves behind the product
        return t.reshape(linear(t, apart, w, bias), (*t.shape(x)[:-1], t.shape(w)[0]))
    rows = t.reshape(x, (1, *t.shape(x))) if t.rank(x) == 1 else x
    ins = [t.f32(rows), t.f32(w), *([] if bias is None else [t.f32(bias)])]
    y = t.add("linear", *ins)
    return t.reshape(y, (*t.shape(x)[:-1], t.shape(w)[0]))


@aten("matmul", "mm", "bmm", "mv", "dot", "inner")
def matmul(t: Emit, a: Operand, b: Operand) -> Operand:
    if t.rank(a) == 1:
        y = matmul(t, t.reshape(a, (1, *t.shape(a))), b)
        lead = t.shape(y)
        return t.reshape(y, (*lead[:-2], lead[-1]) if t.rank(b) > 1 else lead[:-1])
    if t.rank(b) == 1:
        y = matmul(t, a, t.reshape(b, (*t.shape(b), 1)))
        return t.reshape(y, t.shape(y)[:-1])
    if isinstance(t.shape(a)[-1], Batch):
        raise Unsupported("it sums products over the samples of a batch", "a mean over samples of per-sample values")
    lead = broadcast(t.shape(a)[:-2], t.shape(b)[:-2])
    if _is_matrix(t, b):
        y = linear(t, a, t.permute(t.reshape(b, t.shape(b)[-2:]), (1, 0)))
        return t.reshape(y, (*lead, t.shape(a)[-2], t.shape(b)[-1]))
    if _is_matrix(t, a):
        y = _swapped(t, linear(t, _swapped(t, b), t.reshape(a, t.shape(a)[-2:])))
        return t.reshape(y, (*lead, t.shape(a)[-2], t.shape(b)[-1]))
    if t.rank(b) == 3 <= t.rank(a) and t.batch_axis(b) is None and t.shape(a)[-3] == t.shape(b)[0]:
        return _one_by_one(t, a, b)
    if batch_axis(t.shape(a)[-2:]) is not None or batch_axis(t.shape(b)[-2:]) is not None:
        raise Unsupported("a product of matrices that grow with the batch", "put the batch in front of both matrices")
    a, b = t.expand(a, (*lead, *t.shape(a)[-2:])), t.expand(b, (*lead, *t.shape(b)[-2:]))
    return product(t, a, b)


def _is_matrix(t: Emit, x: Operand) -> bool:
    """One matrix for all samples."""
    return t.batch_axis(x) is None and all(d == 1 for d in t.shape(x)[:-2])


def _one_by_one(t: Emit, a: Operand, b: Operand) -> Operand:
    """A matrix for each place along axis −3, the same for all samples: a `linear` each instead of copies per sample."""
    axis, count = t.rank(a) - 3, t.length(b, 0)
    parts = []
    for k in range(count):
        rows = t.reshape(t.slice(a, axis, k, k + 1), (*t.shape(a)[:axis], *t.shape(a)[axis + 1 :]))
        w = t.reshape(t.slice(b, 0, k, k + 1), t.shape(b)[1:])
        y = linear(t, rows, t.permute(w, (1, 0)))
        parts.append(t.reshape(y, (*t.shape(y)[:axis], 1, *t.shape(y)[axis:])))
    return t.concat(parts, axis)


def product(t: Emit, a: Operand, b: Operand, ta: bool = False, tb: bool = False) -> Value:
    """Batched product; a transposed operand is read transposed instead of being moved."""
    a, ta = t.transposed_from(a, ta)
    b, tb = t.transposed_from(b, tb)
    return t.add("matmul", t.f32(a), t.f32(b), ta=ta, tb=tb)


def _swapped(t: Emit, x: Operand) -> Operand:
    rank = t.rank(x)
    return t.permute(x, (*range(rank - 2), rank - 1, rank - 2))


@aten("addmm")
def addmm(t: Emit, x: Operand, a: Operand, b: Operand, beta: Any = 1, alpha: Any = 1) -> Any:
    if beta == 1 and alpha == 1 and t.shape(x) == t.shape(b)[-1:] and t.batch_axis(b) is None:
        return linear(t, a, t.permute(b, (1, 0)), x)
    return t.plus(t.times(x, beta), t.times(matmul(t, a, b), alpha))


@aten("baddbmm", "addmv")
def baddbmm(t: Emit, x: Operand, a: Operand, b: Operand, beta: Any = 1, alpha: Any = 1) -> Any:
    return t.plus(t.times(x, beta), t.times(matmul(t, a, b), alpha))


@aten("outer", "ger")
def outer(t: Emit, a: Operand, b: Operand) -> Any:
    return t.times(t.reshape(a, (*t.shape(a), 1)), b)


@aten("bilinear")
def bilinear(t: Emit, x: Operand, y: Operand, w: Operand, bias: Operand | None = None) -> Any:
    outs, left, right = static(t.shape(w))
    table = t.reshape(t.permute(w, (0, 2, 1)), (outs * right, left))
    spread = t.reshape(linear(t, x, table), (*t.shape(x)[:-1], outs, right))
    total = t.reduce("sum", t.times(spread, t.reshape(y, (*t.shape(y)[:-1], 1, right))), [-1])
    return total if bias is None else t.plus(total, bias)


@aten("embedding")
def embedding(
    t: Emit, w: Operand, index: Operand, padding: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Operand:
    if by_frequency and t.training and isinstance(w, Value):
        raise Unsupported("gradients divided by how often a row is read", "scale_grad_by_freq=False")
    at = t.i32(index)
    rows = t.add("embedding", t.f32(w), at)
    if padding < 0 or not t.training or not isinstance(w, Value):
        return rows
    # The padding row does not learn: where it is read, the gradient stops.
    spread = t.reshape(t.add("eq", at, t.constant(padding, torch.int32)), (*t.shape(at), 1))
    return t.add("where", spread, t.detach(rows), rows)


BAG = ("sum", "mean", "max")


@aten("embedding_bag", "_embedding_bag")
def embedding_bag(
    t: Emit, w: Operand, index: Operand, starts: Any, by_frequency: bool = False, mode: int = 0, sparse: bool = False,
    factors: Operand | None = None, last: bool = False, padding: int | None = -1,
) -> Sequence[Operand | None]:  # fmt: skip
    """A bag is a sample: indices of two axes. Of other results than the first nothing is known."""
    size = t.shape(index)[0]
    if not isinstance(size, Batch) or not isinstance(starts, Samples) or starts.rest is not None or last:
        raise Unsupported("bags of several sizes", "indices of two axes, a bag for each sample")
    if padding is not None and padding >= 0:
        raise Unsupported("a padding row in bags", "nn.Embedding with the same weights, and a mean over what counts")
    bag = (Batch(1), size.times)
    rows = embedding(t, w, t.reshape(index, bag), by_frequency=by_frequency)
    if factors is not None:
        rows = t.times(rows, t.reshape(factors, (*bag, 1)))
    found = t.add_many("max_index", rows, axis=1, keepdim=False)[0] if BAG[mode] == "max" else None
    return (t.reduce(BAG[mode], rows, [1], False) if found is None else found), None, None, None
