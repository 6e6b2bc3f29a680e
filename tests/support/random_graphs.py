"""Random graphs, written as an importer would: channels second, permutes around every layer that wants them last."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np

from smidgen.ir import Batch, Graph, Role, at, size
from smidgen.ops.build import Builder, feed, fetch

N = Batch()
TO_LAST, TO_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


class Net:
    """Grows a graph at random; `images` are values [n,C,H,W], `rows` values [n,S,D], `flat` values [n,K]."""

    def __init__(self, seed: int, only_cnn: bool = False) -> None:
        self.r = random.Random(seed)
        self.g = np.random.default_rng(seed)
        self.b = Builder()
        self.only_cnn = only_cnn
        self.count = 0
        shape = (N, self.r.choice([1, 2, 4, 6]), self.r.choice([4, 6]), self.r.choice([4, 5, 6]))
        self.values = [feed(self.b, "x", shape)]
        for _ in range(self.r.randint(3, 14)):
            self.step()

    def param(self, *shape: int, role: Role = Role.PARAM, positive: bool = False) -> str:
        self.count += 1
        value = (
            self.g.uniform(0.5, 1.5, shape) if positive else self.g.standard_normal(shape) / math.prod(shape[1:]) ** 0.5
        )
        return self.b.stored(f"p{self.count}", value, role)

    def add(self, op: str, *ins: str, **attrs: Any) -> str:
        return self.b.add(op, *ins, **attrs)

    def last(self, x: str) -> str:
        return self.add("permute", x, perm=TO_LAST)

    def second(self, x: str) -> str:
        return self.add("permute", x, perm=TO_SECOND)

    def step(self) -> None:
        x = self.values[-1] if self.r.random() < 0.6 else self.r.choice(self.values)
        rank = len(self.b[x].shape)
        steps = [self.conv, self.norm, self.act, self.binary, self.residual]
        if not self.only_cnn:
            steps += [self.pool, self.concat, self.cut, self.pad, self.reduce, self.along, self.shuffle, self.turn]
            steps += [
                self.flatten,
                self.rows,
                self.layer_norm,
                self.attention,
                self.expand,
                self.select,
                self.parameter,
            ]
        step = self.r.choice(steps)
        made = step(x, rank)
        if made is not None and at(size(self.b[made].shape), 1) <= 3000:
            self.values.append(made)

    def conv(self, x: str, rank: int) -> str | None:
        if rank != 4 or not isinstance(self.b[x].shape[0], Batch):
            return None
        c = int(self.b[x].shape[1])  # type: ignore[arg-type]
        depthwise = self.r.random() < 0.3
        groups, out = (c, c) if depthwise else (1, self.r.choice([c, 2, 4]))
        k = self.r.choice([1, 3])
        w = self.param(out, c // groups, k, k, role=self.r.choice([Role.PARAM, Role.CONST]))
        half = ((k // 2, k // 2), (k // 2, k // 2))
        attrs = {"stride": (1, 1), "padding": half, "dilation": (1, 1), "groups": groups}
        bias = (self.param(out),) if self.r.random() < 0.5 else ()
        return self.second(self.add("conv2d", self.last(x), self.add("permute", w, perm=TO_LAST), *bias, **attrs))

    def norm(self, x: str, rank: int) -> str | None:
        if rank != 4 or isinstance(self.b[x].shape[1], Batch):
            return None
        c = int(self.b[x].shape[1])  # type: ignore[arg-type]
        vectors = [
            self.param(c),
            self.param(c),
            self.param(c, role=Role.STAT),
            self.param(c, role=Role.STAT, positive=True),
        ]
        return self.second(self.add("batch_norm", self.last(x), *vectors, eps=1e-3))

    def act(self, x: str, rank: int) -> str:
        op, attrs = self.r.choice(
            [("relu", {}), ("tanh", {}), ("scale", {"by": self.r.choice([1.0, 0.5])}), ("sigmoid", {})]
        )
        return self.add(op, x, **attrs)

    def binary(self, x: str, rank: int) -> str:
        shape = self.b[x].shape
        sizes = [1 if isinstance(d, Batch) or self.r.random() < 0.4 else int(d) for d in shape]
        sizes = sizes[self.r.randint(1, rank) :]
        other = self.param(*sizes, role=self.r.choice([Role.PARAM, Role.CONST]))
        ins = (x, other) if self.r.random() < 0.7 else (other, x)
        return self.add(self.r.choice(["add", "mul", "sub", "maximum"]), *ins)

    def residual(self, x: str, rank: int) -> str:
        same = [v for v in self.values if self.b[v].shape == self.b[x].shape]
        return self.add(self.r.choice(["add", "mul"]), x, self.r.choice(same))

    def pool(self, x: str, rank: int) -> str | None:
        if rank != 4 or not isinstance(self.b[x].shape[0], Batch):
            return None
        _, _, h, w = self.b[x].shape
        if isinstance(h, Batch) or isinstance(w, Batch) or min(h, w) < 2:
            return None
        attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "out_hw": (h // 2, w // 2)}
        return self.second(self.add("max_pool2d_plain", self.last(x), **attrs))

    def axis(self, x: str) -> int | None:
        axes = [i for i, d in enumerate(self.b[x].shape) if not isinstance(d, Batch)]
        return self.r.choice(axes) if axes else None

    def concat(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)

        def rest(v: str) -> Any:
            shape = self.b[v].shape
            return len(shape), [d for i, d in enumerate(shape) if i != axis]

        others = [v for v in self.values if axis is not None and rest(v) == rest(x)]
        return self.add("concat", x, self.r.choice(others), x, axis=axis) if others else None

    def cut(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)
        if axis is None:
            return None
        dim = int(self.b[x].shape[axis])  # type: ignore[arg-type]
        start = self.r.randint(0, dim - 1)
        stop, step = self.r.randint(start + 1, dim), self.r.choice([1, 1, 2])
        return self.add("slice", x, axis=axis, start=start, stop=stop, step=step)

    def pad(self, x: str, rank: int) -> str:
        pads = [
            (0, 0) if isinstance(d, Batch) else (self.r.randint(0, 1), self.r.randint(0, 1)) for d in self.b[x].shape
        ]
        return self.add("pad", x, pads=tuple(pads), value=0.5)

    def reduce(self, x: str, rank: int) -> str | None:
        axes = tuple(i for i, d in enumerate(self.b[x].shape) if not isinstance(d, Batch) and self.r.random() < 0.5)
        if not axes or len(axes) >= rank:
            return None
        return self.add(self.r.choice(["sum", "mean", "amax"]), x, axes=axes, keepdim=self.r.random() < 0.5)

    def along(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)
        if axis is None:
            return None
        if self.r.random() < 0.3 and rank > 1:
            return self.b.add_many("max_index", x, axis=axis, keepdim=self.r.random() < 0.5)[0]
        return self.add(self.r.choice(["softmax", "log_softmax", "cumsum"]), x, axis=axis)

    def shuffle(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)
        shape = self.b[x].shape
        if axis is None or shape[axis] == 1:
            return None
        dim = int(shape[axis])  # type: ignore[arg-type]
        part = self.r.choice([d for d in range(1, dim + 1) if dim % d == 0])
        split = self.add("reshape", x, shape=(*shape[:axis], part, dim // part, *shape[axis + 1 :]))
        perm = [*range(axis), axis + 1, axis, *range(axis + 2, rank + 1)]
        return self.add("reshape", self.add("permute", split, perm=tuple(perm)), shape=shape)

    def turn(self, x: str, rank: int) -> str:
        perm = self.r.sample(range(1, rank), rank - 1)
        return self.add("permute", x, perm=(0, *perm) if self.r.random() < 0.8 else (*perm, 0))

    def flatten(self, x: str, rank: int) -> str | None:
        shape = self.b[x].shape
        if not isinstance(shape[0], Batch) or rank < 3:
            return None
        k = int(size(shape[1:]))  # type: ignore[arg-type]
        flat = self.add("reshape", x, shape=(N, k))
        if self.r.random() < 0.5:
            flat = self.add("relu", flat)
        if self.r.random() < 0.3:
            return self.add("reshape", flat, shape=shape)
        if self.r.random() < 0.3:
            return self.add("reshape", flat, shape=(N, int(shape[1]), k // int(shape[1])))  # type: ignore[arg-type]
        return self.add("linear", flat, self.param(5, k), *([self.param(5)] if self.r.random() < 0.5 else []))

    def rows(self, x: str, rank: int) -> str | None:
        k = self.b[x].shape[-1]
        return None if isinstance(k, Batch) or rank < 2 else self.add("linear", x, self.param(4, k))

    def layer_norm(self, x: str, rank: int) -> str | None:
        count = self.r.randint(1, rank - 1) if rank > 1 else 0
        sizes = self.b[x].shape[rank - count :]
        if not count or any(isinstance(d, Batch) for d in sizes) or at(size(sizes), 1) == 1:
            return None
        vectors = [self.param(*sizes), self.param(*sizes)]  # type: ignore[arg-type]
        return self.add("layer_norm", x, *vectors, axes=count, eps=1e-2)

    def attention(self, x: str, rank: int) -> str | None:
        shape = self.b[x].shape
        if rank < 3 or any(isinstance(d, Batch) for d in shape[1:]):
            return None
        swap = (*range(rank - 2), rank - 1, rank - 2)
        return self.add("matmul", x, self.add("permute", x, perm=swap), ta=False, tb=False)

    def expand(self, x: str, rank: int) -> str | None:
        shape = self.b[x].shape
        if rank < 2 or isinstance(shape[-1], Batch):
            return None
        small = self.add("mean", x, axes=(rank - 1,), keepdim=True)
        return self.add("mul", x, self.add("expand", small, shape=shape))

    def select(self, x: str, rank: int) -> str:
        mask = self.add("gt", x, self.param())
        return self.add("where", mask, x, self.add("scale", x, by=0.1))

    def parameter(self, x: str, rank: int) -> str | None:
        """A parameter is itself rearranged and computed with before use."""
        shape = self.b[x].shape
        if any(isinstance(d, Batch) for d in shape[1:]):
            return None
        perm = self.r.sample(range(rank - 1), rank - 1)
        stored: list[int] = [0] * (rank - 1)
        for i, p in enumerate(perm):
            stored[p] = int(shape[1 + i])  # type: ignore[call-overload]
        p = self.param(*stored, role=self.r.choice([Role.PARAM, Role.CONST]))
        p = self.add("tanh", p) if self.r.random() < 0.5 else p
        return self.add("add", x, self.add("permute", p, perm=tuple(perm)))

    def graph(self) -> Graph:
        ends = self.r.sample(self.values, min(len(self.values), self.r.randint(1, 3)))
        if self.values[-1] not in ends:
            ends.append(self.values[-1])
        for i, value in enumerate(ends):
            rank = len(self.b[value].shape)
            fetch(self.b, value, f"y{i}", tuple(self.r.sample(range(rank), rank)) if self.r.random() < 0.3 else None)
        return self.b.graph()
