"""The vocabulary of translation rules: arithmetic, movement and reductions that take care of numbers, constants and the
batch, and leave out steps that change nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ....ir import Batch, Dim, batch_axis, size
from ....ops.build import Builder
from .writer import MOST_PIECES, Number, Operand, Unsupported, Value, Writer, axis_of, broadcast, is_tensor, static

MOST_CONCAT = 16


class Emit(Writer):
    def __init__(self, builder: Builder, *, training: bool, bn: str) -> None:
        super().__init__(builder, training=training, bn=bn)
        self._source: dict[str, Value] = {}  # result of reshape/permute/expand → what it was made from
        self._perm: dict[str, tuple[int, ...]] = {}
        self._batch_sums: dict[str, tuple[Value, dict[str, Any], float]] = {}

    # Arithmetic with numbers and tensors in either place.

    def number(self, x: Any) -> Number | None:
        """The plain number behind `x`, if it is one."""
        if isinstance(x, (bool, int, float)):
            return x
        if isinstance(x, torch.Tensor) and x.dim() == 0:
            value: Number = x.item()
            return value
        if isinstance(x, Batch):
            raise Unsupported(
                "the batch size is used as a number", "use .mean(0) or .mean() instead of dividing by the batch size"
            )
        return None

    def binary(self, op: str, a: Any, b: Any) -> Value:
        """Both in f32, numbers as constants; an expanded operand is replaced by what it was made from."""
        pair = [self.f32(x) if is_tensor(x) else self.constant(float(self.number(x) or 0)) for x in (a, b)]
        shape = broadcast(*[self.shape(x) for x in pair])
        for i in (0, 1):
            smaller = self.unexpanded(pair[i])
            if broadcast(self.shape(smaller), self.shape(pair[1 - i])) == shape:
                pair[i] = smaller
        return self.add(op, *pair)

    def unexpanded(self, x: Operand) -> Operand:
        """What an expand made `x` from; else `x`."""
        source = self._source.get(x) if isinstance(x, Value) else None
        return source if source is not None and x not in self._perm and self._is_expand(x) else x

    def _is_expand(self, x: Value) -> bool:
        return self.b[x].size != self.b[self._source[x]].size

    def plus(self, a: Any, b: Any) -> Any:
        x, y = self.number(a), self.number(b)
        if x is not None and y is not None:
            return x + y
        if x is not None:
            a, y = b, x
        if y is not None:
            return a if y == 0 else self.add("shift", self.f32(a), by=float(y))
        return self.binary("add", a, b)

    def minus(self, a: Any, b: Any) -> Any:
        y = self.number(b)
        if y is not None:
            return self.plus(a, -y)
        if self.number(a) is not None:
            return self.plus(self.add("neg", self.f32(b)), a)
        return self.binary("sub", a, b)

    def times(self, a: Any, b: Any) -> Any:
        x, y = self.number(a), self.number(b)
        if x is not None and y is not None:
            return x * y
        if x is not None:
            a, y = b, x
        if y is not None:
            return a if y == 1 else self._scaled(a, float(y))
        return self.binary("mul", a, b)

    def _scaled(self, a: Operand, by: float) -> Value:
        scaled = self.add("scale", self.f32(a), by=by)
        if isinstance(a, Value) and a in self._batch_sums:
            x, attrs, factor = self._batch_sums[a]
            self._batch_sums[scaled] = (x, attrs, factor * by)
        return scaled

    def over(self, a: Any, b: Any) -> Any:
        if isinstance(b, Batch):
            return self._over_batch(a, b)
        y = self.number(b)
        if y is not None:
            return self.times(a, 1.0 / y if y else math.inf)
        if self.number(a) is not None:
            return self.times(self.add("reciprocal", self.f32(b)), a)
        return self.binary("div", a, b)

    def _over_batch(self, a: Operand, n: Batch) -> Any:
        """A sum over samples divided by their number is a mean, which stays right in micro-batches."""
        if not isinstance(a, Value) or a not in self._batch_sums:
            return self.number(n)
        x, attrs, factor = self._batch_sums[a]
        count = math.prod(d.times if isinstance(d, Batch) else d for i, d in enumerate(self.shape(x))
                          if i in attrs["axes"])  # fmt: skip
        return self.times(self.add("batch_mean", x, **attrs), factor * count / n.times)

    # Movement.

    def reshape(self, x: Operand, shape: Sequence[Dim]) -> Operand:
        shape = tuple(shape)
        if self.shape(x) == shape:
            return x
        if isinstance(x, torch.Tensor):
            if batch_axis(shape) is None:
                return self._derived(x, x.reshape(static(shape)))
            x = self.value(x)
        source = self._source.get(x)
        if source is not None and x not in self._perm and not self._is_expand(x):
            x = source
            if self.shape(x) == shape:
                return x
        y = self.add("reshape", x, shape=shape)
        self._source[y] = x
        return y

    def _derived(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if id(x) in self.names and y is not x:
            self.keep(y, self.names[id(x)])
        return y

    def permute(self, x: Operand, perm: Sequence[int]) -> Operand:
        perm = tuple(perm)
        if isinstance(x, torch.Tensor):
            return x.permute(perm)
        if x in self._perm:
            before = self._perm[x]
            x, perm = self._source[x], tuple(before[p] for p in perm)
        if perm == tuple(range(len(perm))):
            return x
        y = self.add("permute", x, perm=perm)
        self._source[y], self._perm[y] = x, perm
        return y

    def transposed_from(self, x: Operand, flip: bool) -> tuple[Operand, bool]:
        """(y, flip) such that reading y, transposed if flip, gives what reading x did."""
        if not isinstance(x, Value) or x not in self._perm:
            return x, flip
        rank = self.rank(x)
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        return (self._source[x], not flip) if self._perm[x] == swapped else (x, flip)

    def unmerged(self, x: Operand) -> Operand | None:
        """`x` before a reshape joined samples with an axis in front of them, which interleaves samples; else None."""
        source = self._source.get(x) if isinstance(x, Value) else None
        if source is None or x in self._perm or self._is_expand(x):
            return None
        axis, before, after = self.batch_axis(source), self.shape(source), self.shape(x)
        if not axis or math.prod(static(before[:axis])) == 1 or self.batch_axis(x) != 0:
            return None
        ends = [k for k in range(axis + 1, len(before)) if size(before[:k]) == after[0]]
        return self.reshape(source, (*before[: ends[0]], *after[1:])) if ends else None

    def expand(self, x: Operand, shape: Sequence[Dim]) -> Operand:
        shape = tuple(shape)
        if isinstance(x, torch.Tensor) and batch_axis(shape) is None:
            return x.expand(static(shape))
        x = self.reshape(x, (1,) * (len(shape) - self.rank(x)) + self.shape(x))
        if self.shape(x) == shape:
            return x
        x = self.value(x)
        y = self.add("expand", x, shape=shape)
        self._source[y] = x
        return y

    def slice(self, x: Operand, axis: int, start: Dim, stop: Dim, step: int = 1) -> Operand:
        """x[start:stop:step] along an axis; along the samples only whole multiples of the batch."""
        length = self.shape(x)[axis]
        if (start, stop, step) == (0, length, 1):
            return x
        if isinstance(length, Batch):
            return self._slice_batch(x, axis, length, start, stop, step)
        if isinstance(start, Batch) or isinstance(stop, Batch):
            raise Unsupported("a slice depends on the batch size")
        if isinstance(x, torch.Tensor):
            return x[(slice(None),) * axis + (slice(start, stop, step),)]
        if stop <= start:  # no elements, which is for concat to leave out
            return self.add("cast", self.fill((*self.shape(x)[:axis], 0, *self.shape(x)[axis + 1 :]), 0.0),
                            dtype=self.dtype(x).value)  # fmt: skip
        return self.add("slice", x, axis=axis, start=start, stop=stop, step=step)

    def _slice_batch(self, x: Operand, axis: int, length: Batch, start: Dim, stop: Dim, step: int) -> Operand:
        ends = [end.times if isinstance(end, Batch) else None if end else 0 for end in (start, stop)]
        if step != 1 or None in ends:
            raise Unsupported(
                "samples are picked out of the batch", "treat all samples alike; select samples before training"
            )
        shape = self.shape(x)
        apart = self.reshape(x, (*shape[:axis], length.times, Batch(1), *shape[axis + 1 :]))
        part = self.slice(apart, axis, int(ends[0] or 0), int(ends[1] or 0))
        return self.reshape(part, (*shape[:axis], Batch(self.length(part, axis)), *shape[axis + 1 :]))

    def concat(self, parts: Iterable[Operand], axis: int) -> Operand:
        xs = list(parts)
        xs = [x for x in xs if self.shape(x)[axis] != 0] or xs[:1]
        if len({self.dtype(x) for x in xs}) > 1:
            xs = [self.f32(x) for x in xs]
        if isinstance(self.shape(xs[0])[axis], Batch) and len(xs) > 1:
            return self._concat_batch(xs, axis)
        while len(xs) > 1:
            groups = [xs[i : i + MOST_CONCAT] for i in range(0, len(xs), MOST_CONCAT)]
            xs = [self.add("concat", *g, axis=axis) if len(g) > 1 else g[0] for g in groups]
        return xs[0]

    def _concat_batch(self, xs: list[Operand], axis: int) -> Operand:
        """All samples of the first, then all of the second: a concatenation along a new axis before the samples."""
        before, after = self.shape(xs[0])[:axis], self.shape(xs[0])[axis + 1 :]
        times = [d.times if isinstance(d := self.shape(x)[axis], Batch) else 0 for x in xs]
        whole = self.concat(
            [self.reshape(x, (*before, k, Batch(1), *after)) for x, k in zip(xs, times, strict=True)], axis
        )
        return self.reshape(whole, (*before, Batch(self.length(whole, axis)), *after))

    def take(self, x: Operand, axis: int, indices: Sequence[int]) -> Operand:
        """x at the given places along an axis, as slices joined; equal neighbours become an expand. Many are picked."""
        runs: list[list[int]] = []
        for i in indices:
            step = i - runs[-1][-1] if runs else None
            before = runs[-1][-1] - runs[-1][-2] if runs and len(runs[-1]) > 1 else step
            if step in (0, 1) and step == before:
                runs[-1].append(i)
            else:
                runs.append([i])
        if len(runs) > MOST_PIECES:
            return self.rows(x, axis, torch.tensor([list(indices)]))
        parts = []
        for run in runs:
            piece = self.slice(x, axis, run[0], run[-1] + 1)
            shape = self.shape(piece)
            parts.append(self.expand(piece, (*shape[:axis], len(run), *shape[axis + 1 :])))
        return self.concat(parts, axis)

    def rows(self, x: Operand, axis: int, index: Operand) -> Operand:
        """x at the same places along an axis everywhere; index[1, places]."""
        shape = self.shape(x)
        apart = self.reshape(x, (size(shape[:axis]), shape[axis], size(shape[axis + 1 :])))
        return self.reshape(self.add("gather", apart, index), (*shape[:axis], self.shape(index)[1], *shape[axis + 1 :]))

    def put(self, x: Operand, piece: Operand, axis: int, start: Dim, stop: Dim, step: int = 1) -> Operand:
        """x with piece written to x[start:stop:step] along an axis."""
        length = self.shape(x)[axis]
        if (start, stop, step) == (0, length, 1):
            return piece
        if isinstance(length, Batch) or isinstance(start, Batch) or isinstance(stop, Batch):
            raise Unsupported("single samples of the batch are overwritten", "treat all samples alike")
        places = range(start, stop, step)
        if not places:
            return x
        parts = [self.slice(x, axis, 0, places[0])] if places[0] else []
        if step == 1:
            parts.append(piece)
        else:
            for k, place in enumerate(places):
                end = places[k + 1] if k + 1 < len(places) else place + 1
                parts.append(self.slice(piece, axis, k, k + 1))
                parts += [self.slice(x, axis, place + 1, end)] if end > place + 1 else []
        parts += [self.slice(x, axis, places[-1] + 1, length)] if places[-1] + 1 < length else []
        return self.concat(parts, axis)

    # Reductions.

    def reduce(self, op: str, x: Operand, axes: Sequence[int] | None = None, keepdim: bool = False) -> Value:
        rank = self.rank(x)
        picked = tuple(range(rank)) if not axes else tuple(sorted(axis_of(a, rank) for a in axes))
        attrs: dict[str, Any] = {"axes": picked, "keepdim": bool(keepdim)}
        x = self.value(self.f32(x))
        if self.batch_axis(x) not in picked:
            return self.add(op, x, **attrs) if picked else x
        if op not in ("sum", "mean"):
            raise Unsupported("it mixes the samples of a batch", "over the batch, sum and mean work")
        y = self.add(f"batch_{op}", x, **attrs)
        if op == "sum":
            self._batch_sums[y] = (x, attrs, 1.0)
        return y
