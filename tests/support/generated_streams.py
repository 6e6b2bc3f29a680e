"""Random networks of what can be streamed, and random streams of them: odd sizes, strides to 3, dilation, padding that
differs above and below, groups, skips short and long, concatenations, pools, transposed convolutions, upsampling by any
factor, one and two dimensions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from smidgen.compiler import verify
from smidgen.compiler.encode import encode
from smidgen.compiler.graph.alias import loop_range
from smidgen.compiler.graph.rows import Body, Stream
from smidgen.compiler.passes.few_axes import few_axes
from smidgen.compiler.passes.sample_loop import sample_loop
from smidgen.compiler.passes.stream_rows import with_streams
from smidgen.compiler.place import arena
from smidgen.ir import Array, Graph
from smidgen.ops import N
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.program import Program
from smidgen.runtime.machine import Machine

BATCH = 2


@dataclass
class Net:
    rng: random.Random
    b: Builder
    values: Any  # numpy's generator
    flat: bool  # one dimension

    def weight(self, *shape: int) -> str:
        return self.b.const("w", self.values.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1))

    def layer(self, x: str) -> str:
        kinds = ["conv", "conv", "depthwise", "pointwise", "pool", "skip", "norm", "concat", "average", "transposed",
                 "upsampled", "padded", "channels", "long_skip"]  # fmt: skip
        return str(getattr(self, "_" + self.rng.choice(kinds))(x))

    def _window(self, hw: tuple[int, int]) -> tuple[tuple[int, int], dict[str, Any]]:
        """A kernel that fits, and how it moves."""
        rng = self.rng
        kernel = tuple(1 if self.flat and i == 0 else rng.choice([1, 2, 3, 3, 5]) for i in range(2))
        dilation = tuple(rng.choice([1, 1, 2]) if k > 1 else 1 for k in kernel)
        stride = tuple(1 if self.flat and i == 0 else rng.choice([1, 1, 1, 2, 3]) for i in range(2))
        padding = []
        for size, k, d in zip(hw, kernel, dilation, strict=True):
            reach = d * (k - 1) + 1
            low, high = rng.randint(0, (reach - 1)), rng.randint(0, reach - 1)
            padding.append((low + max(reach - size - low - high, 0), high))
        window = {"stride": stride, "padding": tuple(padding), "dilation": dilation}
        return kernel, window  # type: ignore[return-value]

    def _hw(self, x: str) -> tuple[int, int, int]:
        _, h, w, c = self.b[x].shape
        return int(h), int(w), int(c)  # type: ignore[arg-type]

    def _conv(self, x: str) -> str:
        h, w, c = self._hw(x)
        kernel, window = self._window((h, w))
        groups = self.rng.choice([g for g in (1, 1, 2) if c % g == 0])
        out = groups * self.rng.randint(1, 3)
        bias = [self.weight(out)] if self.rng.random() < 0.7 else []
        y = self.b.add("conv2d", x, self.weight(out, *kernel, c // groups), *bias, groups=groups, **window)
        return self._activated(y)

    def _depthwise(self, x: str) -> str:
        h, w, c = self._hw(x)
        kernel, window = self._window((h, w))
        return self._activated(self.b.add("conv2d", x, self.weight(c, *kernel, 1), groups=c, **window))

    def _pointwise(self, x: str) -> str:
        c, out = self._hw(x)[2], self.rng.randint(1, 5)
        return self._activated(self.b.add("linear", x, self.weight(out, c)))

    def _activated(self, x: str) -> str:
        op = self.rng.choice(["relu", "hardswish", "", "sigmoid"])
        return self.b.add(op, x) if op else x

    def _norm(self, x: str) -> str:
        c = self._hw(x)[2]
        positive = self.b.const("v", self.values.uniform(0.5, 2, c))
        return self.b.add("batch_norm", x, *(self.weight(c) for _ in range(3)), positive, eps=1e-5)

    def _pool(self, x: str) -> str:
        how = self._pooled(x)
        return self.b.add("max_pool2d_plain", x, dilation=(1, 1), **how)

    def _average(self, x: str) -> str:
        """With padding that counts or does not, and windows that hang over it."""
        how, more = self._pooled(x), self.rng.choice([True, False])
        divisor = {"divisor": self.rng.choice([5, -3])} if self.rng.random() < 0.2 else {}
        return self.b.add("avg_pool2d", x, count_include_pad=more, **divisor, **how)

    def _pooled(self, x: str) -> dict[str, Any]:
        h, w, _ = self._hw(x)
        kernel = (1 if self.flat else min(h, self.rng.choice([2, 3])), min(w, self.rng.choice([2, 3])))
        stride = tuple(min(k, self.rng.choice([1, 2, 3])) for k in kernel)
        padding = tuple(self.rng.choice([0, k // 2]) for k in kernel)
        out = []
        for size, k, s, p in zip((h, w), kernel, stride, padding, strict=True):
            floor, rest = divmod(size + 2 * p - k, s)
            hangs = rest and self.rng.random() < 0.5 and (floor + 1) * s - p < size  # ceil_mode
            out.append(floor + 1 + bool(hangs))
        return {"kernel": kernel, "stride": stride, "padding": padding, "out_hw": tuple(out)}

    def _same(self, x: str) -> str:
        """As large as x, by a kernel of odd size."""
        _, _, c = self._hw(x)
        k = [1 if self.flat else self.rng.choice([1, 3]), self.rng.choice([1, 3, 5])]
        padding = tuple((n // 2, n // 2) for n in k)
        return self._activated(self.b.add("conv2d", x, self.weight(c, *k, c), stride=(1, 1), padding=padding,
                                          dilation=(1, 1), groups=1))  # fmt: skip

    def _skip(self, x: str) -> str:
        return self.b.add("add", x, self._same(self._same(x) if self.rng.random() < 0.5 else x))

    def _concat(self, x: str) -> str:
        return self.b.add("concat", x, self._same(x), axis=3)

    def _transposed(self, x: str) -> str:
        """Kernels narrower and wider than the stride, padding, and rows added behind."""
        h, w, c = self._hw(x)
        out, rng = self.rng.randint(1, 3), self.rng
        step = tuple(1 if self.flat and i == 0 else rng.choice([2, 2, 3]) for i in range(2))
        k = tuple(1 if self.flat and i == 0 else rng.randint(1, 4) for i in range(2))
        low = tuple(rng.randint(0, n // 2) if size > 1 else 0 for n, size in zip(k, (h, w), strict=True))
        sizes = zip((h, w), step, k, low, strict=True)
        hw = tuple(max((size - 1) * s + n - 2 * p, 1) + (rng.randrange(s) if s > 1 else 0) for size, s, n, p in sizes)
        pairs = zip((h, w), step, k, low, hw, strict=True)
        padding = tuple((p, (size - 1) * s + n - p - whole) for size, s, n, p, whole in pairs)
        return self.b.add("conv_transpose2d", x, self.weight(c, *k, out), stride=step, padding=padding,
                          dilation=(1, 1), groups=1, out_hw=hw)  # fmt: skip

    def _upsampled(self, x: str) -> str:
        """By whole factors and others, to sizes or by factors that torch floors, smaller too."""
        h, w, _ = self._hw(x)
        factors = [1.0 if self.flat and i == 0 else self.rng.choice([2, 2, 3, 1.5, 1.7, 0.6, 4]) for i in range(2)]
        sizes = zip((h, w), factors, strict=True)
        hw = tuple(size if f == 1 else max(int(size * f) + self.rng.choice([0, 0, 1]), 1) for size, f in sizes)
        return self._resized(x, hw, tuple(factors) if self.rng.random() < 0.5 else None)  # type: ignore[arg-type]

    def _resized(self, x: str, hw: tuple[int, int], factors: tuple[float, float] | None = None) -> str:
        if self.rng.random() < 0.5:
            return self.b.add("upsample_nearest2d", x, out_hw=hw, scale=factors)
        align = self.rng.random() < 0.5
        return self.b.add("upsample_bilinear2d", x, out_hw=hw, align_corners=align, scale=factors)

    def _padded(self, x: str) -> str:
        some = [(0, 0) if self.flat and i == 0 else (self.rng.randint(0, 3), self.rng.randint(0, 2)) for i in range(3)]
        value = self.rng.choice([0.0, -1.5])
        return self.b.add(
            "pad", x, pads=((0, 0), *(p if self.rng.random() < 0.7 else (0, 0) for p in some)), value=value
        )

    def _channels(self, x: str) -> str:
        """Some of them, in another order, or one made from all."""
        c = self._hw(x)[2]
        kind = self.rng.choice(["slice", "softmax", "mean", "swap"])
        if kind == "slice" and c > 1:
            return self.b.add("slice", x, axis=3, start=self.rng.randint(0, 1), stop=c, step=self.rng.choice([1, 2]))
        if kind == "softmax":
            return self.b.add("softmax", x, axis=3)
        if kind == "swap" and c % 2 == 0:
            apart = self.b.add("reshape", x, shape=(*self.b[x].shape[:3], 2, c // 2))
            return self.b.add("reshape", self.b.add("permute", apart, perm=(0, 1, 2, 4, 3)), shape=self.b[x].shape)
        return self.b.add("mul", x, self.b.add("mean", x, axes=(3,), keepdim=True))

    def _long_skip(self, x: str) -> str:
        """Down, and up again beside what was there."""
        h, w, c = self._hw(x)
        if min(w, 9 if self.flat else h) < 4:
            return x
        step = (1 if self.flat else 2, 2)
        padding, k = ((0, 0) if self.flat else (1, 1), (1, 1)), (1 if self.flat else 3, 3)
        low = self._same(self.b.add("conv2d", x, self.weight(c, *k, c), stride=step, padding=padding, dilation=(1, 1),
                                    groups=1))  # fmt: skip
        return self.b.add("concat", x, self._resized(low, (h, w)), axis=3)


def network(seed: int) -> Graph:
    """An entry point `infer`, in a loop over samples."""
    rng, b = random.Random(seed), Builder()
    flat = rng.random() < 0.25
    net = Net(rng, b, np.random.default_rng(seed), flat)
    h, w, c = 1 if flat else rng.randint(5, 17), rng.randint(6, 19), rng.randint(1, 4)
    x = feed(b, "x", (N, c, h, w), perm=(0, 2, 3, 1))
    for _ in range(rng.randint(2, 9)):
        y = net.layer(x)
        x = y if max(b[y].shape[1:]) < 60 else x  # type: ignore[type-var]
    if rng.random() < 0.5:
        fetch(b, x, "y", perm=(0, 3, 1, 2))
    else:
        fetch(b, b.add("mean", x, axes=(1, 2), keepdim=False), "y")
    return few_axes(sample_loop(b.graph()))


def random_streams(graph: Graph, rng: random.Random) -> list[Stream]:
    """Of random parts of the loop, one after the other, some rows at a time."""
    body = loop_range(graph)
    if not body:
        return []
    rows, at, found = Body(graph, body), 0, []
    while at < len(body):
        length = rng.randint(1, len(body) - at)
        stream = rows.stream(at, length, rng.choice([1, 1, 2, 3, 5]))
        found += [] if stream is None else [stream]
        at += 1 if stream is None else length
    return found


def program(graph: Graph) -> Program:
    """Placed, encoded and verified."""
    stored, const, state = arena.place_state([graph])
    layout = arena.place(graph, BATCH, stored, const, state)
    made = encode({"infer": (graph, layout)}, BATCH, {})
    verify.verify(made, {"infer": graph}, {"infer": layout})
    return made


def run(made: Program, x: Array) -> bytes:
    y = np.zeros(made.entries["infer"].buffers[-1].shape(len(x)), np.float32)
    Machine(made.to_bytes()).run("infer", [x], [y], len(x))
    return y.tobytes()


def outcome(seed: int) -> tuple[int, int]:
    """How many streams were tried, and nodes in them; an assertion fails where bits differ."""
    graph = network(seed)
    x = np.random.default_rng(seed).standard_normal(graph[graph.inputs[0]].shape[1:], np.float32)  # type: ignore[arg-type]
    batch = np.stack([x, x[..., ::-1]]).copy()
    plain, rng, streams, nodes = run(program(graph), batch), random.Random(seed), 0, 0
    for _ in range(3):
        found = random_streams(graph, rng)
        made = with_streams(graph, found)
        assert run(program(made), batch) == plain, f"seed {seed}: {[s.plain[:3] for s in found]}"
        streams, nodes = streams + len(found), nodes + sum(s.nodes for s in found)
    return streams, nodes
