"""Random networks for tests: fan-out, broadcasting, odd sizes, shared weights, two inputs, concat, slices, any rank.

A network is a list of steps chosen by a seed; its forward pass replays them, so torch.export sees ordinary code.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smidgen
from smidgen.compiler.optimizers import Optimizer

ACTIVATIONS: list[Callable[[Tensor], Tensor]] = [
    F.relu, F.relu6, F.silu, F.hardswish, F.gelu, torch.tanh, torch.sigmoid, F.elu, F.hardsigmoid,
    lambda x: F.leaky_relu(x, 0.1), lambda x: F.gelu(x, approximate="tanh"), F.softplus,
    lambda x: torch.clamp(x, -0.7, 0.9), lambda x: x * x, lambda x: (x * x + 1.0).sqrt(), lambda x: torch.exp(-x * x),
    lambda x: 1.0 / (1.0 + x.abs()), lambda x: torch.log(x * x + 1.5), lambda x: x * torch.sigmoid(1.7 * x) - 0.1,
]  # fmt: skip


@dataclass
class Step:
    run: Callable[..., Tensor]  # (module, *values) → value
    reads: tuple[int, ...]


class RandomNet(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.mods = nn.ModuleList()
        self.free = nn.ParameterList()
        self.steps: list[Step] = []
        self.two_inputs = self.rng.random() < 0.25
        self.kind = self.rng.choice(["image", "image", "image", "sequence", "vector"])
        self.shapes: list[tuple[int, ...]] = [self._input_shape() for _ in range(2 if self.two_inputs else 1)]
        self.input_shapes = list(self.shapes)
        self.shared: dict[tuple[Any, ...], int] = {}
        for _ in range(self.rng.randint(3, 12)):
            self._grow()
        self._finish()
        del self.rng

    def _input_shape(self) -> tuple[int, ...]:
        r = self.rng
        if self.kind == "image":
            return (r.randint(1, 6), r.randint(5, 14), r.randint(5, 14))
        return (r.randint(3, 9), r.randint(3, 12)) if self.kind == "sequence" else (r.randint(3, 24),)

    # -- growing: each rule returns (shape, run, reads) or None -------------------------------------------------

    def _grow(self) -> None:
        for _ in range(30):
            # Recent values are likelier, older ones make fan-out.
            at = len(self.shapes) - 1 - min(int(self.rng.expovariate(0.9)), len(self.shapes) - 1)
            rules = {3: self._image_rules, 2: self._sequence_rules, 1: self._vector_rules}[len(self.shapes[at])]
            made = self.rng.choice([*rules(), *self._common_rules()])(at, self.shapes[at])
            if made is not None and min(made[0]) > 0 and int(np.prod(made[0])) <= 4000:
                self.shapes.append(tuple(made[0]))
                self.steps.append(Step(made[1], made[2]))
                return

    def _module(self, module: nn.Module, key: tuple[Any, ...] | None = None) -> int:
        if key is not None and key in self.shared and self.rng.random() < 0.5:
            return self.shared[key]  # the same weights at a second place
        self.mods.append(module)
        if key is not None:
            self.shared[key] = len(self.mods) - 1
        return len(self.mods) - 1

    def _param(self, *shape: int) -> int:
        self.free.append(nn.Parameter(torch.randn(*shape) * 0.5))
        return len(self.free) - 1

    def _common_rules(self) -> list[Callable[..., Any]]:
        def activation(at: int, s: tuple[int, ...]) -> Any:
            f = self.rng.choice(ACTIVATIONS)
            return s, lambda m, x: f(x), (at,)

        def combine(at: int, s: tuple[int, ...]) -> Any:
            others = [i for i, t in enumerate(self.shapes) if t == s]
            f = self.rng.choice([torch.add, torch.sub, torch.mul, torch.maximum, lambda a, b: a / (b * b + 1.0)])
            return s, lambda m, x, y: f(x, y), (at, self.rng.choice(others))

        def concat(at: int, s: tuple[int, ...]) -> Any:
            axis = self.rng.randrange(len(s))
            others = [i for i, t in enumerate(self.shapes) if len(t) == len(s) and
                      all(a == b for k, (a, b) in enumerate(zip(s, t, strict=True)) if k != axis)]  # fmt: skip
            other = self.rng.choice(others)
            shape = list(s)
            shape[axis] += self.shapes[other][axis]
            return tuple(shape), lambda m, x, y: torch.cat([x, y], axis + 1), (at, other)

        def cut(at: int, s: tuple[int, ...]) -> Any:
            axis = self.rng.randrange(len(s))
            if s[axis] < 3:
                return None
            start = self.rng.randint(0, s[axis] - 2)
            stop = self.rng.randint(start + 1, s[axis])
            step = self.rng.choice([1, 1, 2])
            shape = list(s)
            shape[axis] = len(range(start, stop, step))
            index = (slice(None),) * (axis + 1) + (slice(start, stop, step),)
            return tuple(shape), lambda m, x: x[index], (at,)

        def broadcast(at: int, s: tuple[int, ...]) -> Any:
            shape = tuple(d if self.rng.random() < 0.5 else 1 for d in s)[self.rng.randrange(len(s)) :]
            p = self._param(*shape)
            f = self.rng.choice([torch.add, torch.mul])
            return s, lambda m, x: f(x, m.free[p]), (at,)

        def mean_and_back(at: int, s: tuple[int, ...]) -> Any:
            axes = tuple(k + 1 for k in range(len(s)) if self.rng.random() < 0.5) or (1,)
            f = self.rng.choice(["mean", "sum", "amax"])
            scale = 0.1 if f == "sum" else 1.0
            return s, lambda m, x: x - scale * getattr(x, f)(axes, keepdim=True), (at,)

        return [activation, activation, combine, combine, concat, cut, broadcast, mean_and_back]

    def _image_rules(self) -> list[Callable[..., Any]]:
        r = self.rng

        def conv(at: int, s: tuple[int, ...]) -> Any:
            c, h, w = s
            k = (r.choice([1, 1, 2, 3, 3, 5]), r.choice([1, 2, 3, 3]))
            stride, dilation = (r.choice([1, 1, 2, 3]), r.choice([1, 2])), r.choice([1, 1, 1, 2])
            pad = (r.randint(0, 2), r.randint(0, 2))
            groups = r.choice([g for g in range(1, c + 1) if c % g == 0])
            out = groups * r.randint(1, max(1, 8 // groups))
            if any(n + 2 * p < dilation * (kk - 1) + 1 for n, p, kk in zip((h, w), pad, k, strict=True)):
                return None
            key = ("conv", c, out, k, stride, pad, dilation, groups)
            i = self._module(nn.Conv2d(c, out, k, stride, pad, dilation, groups, bias=r.random() < 0.6), key)
            hw = [(n + 2 * p - dilation * (kk - 1) - 1) // st + 1
                  for n, p, kk, st in zip((h, w), pad, k, stride, strict=True)]  # fmt: skip
            return (out, *hw), lambda m, x: m.mods[i](x), (at,)

        def transposed(at: int, s: tuple[int, ...]) -> Any:
            k, stride, pad = r.choice([2, 3]), r.choice([1, 2]), r.choice([0, 1])
            out = r.randint(1, 6)
            i = self._module(nn.ConvTranspose2d(s[0], out, k, stride, pad))
            hw = [(n - 1) * stride - 2 * pad + k for n in s[1:]]
            return (out, *hw), lambda m, x: m.mods[i](x), (at,)

        def norm(at: int, s: tuple[int, ...]) -> Any:
            groups = r.choice([g for g in range(1, s[0] + 1) if s[0] % g == 0])
            module: nn.Module = nn.BatchNorm2d(s[0]) if r.random() < 0.6 else nn.GroupNorm(groups, s[0])
            if isinstance(module, nn.GroupNorm) and s[0] // groups * s[1] * s[2] < 4:
                return None
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
            i = self._module(module)
            return s, lambda m, x: m.mods[i](x), (at,)

        def pool(at: int, s: tuple[int, ...]) -> Any:
            k = r.choice([2, 3])
            if min(s[1:]) < k:
                return None
            stride, pad, ceil = r.choice([1, 2, 3]), r.choice([0, 1]), r.random() < 0.3
            f = r.choice([F.max_pool2d, F.avg_pool2d])
            probe = f(torch.zeros(1, *s), k, stride, pad, ceil_mode=ceil)
            return tuple(probe.shape[1:]), lambda m, x: f(x, k, stride, pad, ceil_mode=ceil), (at,)

        def adaptive(at: int, s: tuple[int, ...]) -> Any:
            out = (r.randint(1, s[1]), r.randint(1, s[2]))
            f = r.choice([F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
            return (s[0], *out), lambda m, x: f(x, out), (at,)

        def resize(at: int, s: tuple[int, ...]) -> Any:
            if max(s[1:]) > 10:
                return None
            mode = r.choice(["nearest", "bilinear"])
            return (s[0], s[1] * 2, s[2] * 2), lambda m, x: F.interpolate(x, scale_factor=2, mode=mode), (at,)

        def gate(at: int, s: tuple[int, ...]) -> Any:
            i = self._module(nn.Conv2d(s[0], s[0], 1))
            return s, lambda m, x: x * torch.sigmoid(m.mods[i](x.mean((2, 3), keepdim=True))), (at,)

        def pad(at: int, s: tuple[int, ...]) -> Any:
            p = tuple(r.randint(0, 2) for _ in range(4))
            return (s[0], s[1] + p[2] + p[3], s[2] + p[0] + p[1]), lambda m, x: F.pad(x, p), (at,)

        def shuffle(at: int, s: tuple[int, ...]) -> Any:
            g = r.choice([g for g in range(1, s[0] + 1) if s[0] % g == 0])
            c, h, w = s
            return s, lambda m, x: x.view(-1, g, c // g, h, w).transpose(1, 2).reshape(-1, c, h, w), (at,)

        def flatten(at: int, s: tuple[int, ...]) -> Any:
            size = int(np.prod(s))
            return ((size,), lambda m, x: torch.flatten(x, 1), (at,)) if size <= 600 else None

        def tokens(at: int, s: tuple[int, ...]) -> Any:
            return (s[1] * s[2], s[0]), lambda m, x: x.flatten(2).transpose(1, 2), (at,)

        return [conv, conv, conv, transposed, norm, norm, pool, adaptive, resize, gate, pad, shuffle, flatten, tokens]

    def _sequence_rules(self) -> list[Callable[..., Any]]:
        r = self.rng

        def linear(at: int, s: tuple[int, ...]) -> Any:
            out = r.randint(1, 12)
            i = self._module(nn.Linear(s[1], out, bias=r.random() < 0.7), ("linear", s[1], out))
            return (s[0], out), lambda m, x: m.mods[i](x), (at,)

        def norm(at: int, s: tuple[int, ...]) -> Any:
            if s[1] < 3:
                return None
            i = self._module(nn.LayerNorm(s[1]))
            return s, lambda m, x: m.mods[i](x), (at,)

        def attention(at: int, s: tuple[int, ...]) -> Any:
            heads = r.choice([h for h in range(1, s[1] + 1) if s[1] % h == 0])
            i, (length, width) = self._module(nn.Linear(s[1], 3 * s[1])), s

            def run(m: RandomNet, x: Tensor) -> Tensor:
                q, k, v = m.mods[i](x).chunk(3, -1)
                split = [t.reshape(-1, length, heads, width // heads).transpose(1, 2) for t in (q, k, v)]
                y = F.scaled_dot_product_attention(*split)
                return x + y.transpose(1, 2).reshape(-1, length, width)

            return s, run, (at,)

        def conv(at: int, s: tuple[int, ...]) -> Any:
            k, out = r.choice([1, 3]), r.randint(1, 8)
            i = self._module(nn.Conv1d(s[1], out, k, padding=k // 2))
            return (s[0], out), lambda m, x: m.mods[i](x.transpose(1, 2)).transpose(1, 2), (at,)

        def softmax(at: int, s: tuple[int, ...]) -> Any:
            axis = r.choice([1, 2])
            f = r.choice([F.softmax, F.log_softmax])
            return s, lambda m, x: f(x, axis), (at,)

        def turn(at: int, s: tuple[int, ...]) -> Any:
            return (s[1], s[0]), lambda m, x: x.transpose(1, 2), (at,)

        def outer(at: int, s: tuple[int, ...]) -> Any:
            return (s[0], s[0]), lambda m, x: x @ x.transpose(1, 2) / s[1], (at,)

        def collapse(at: int, s: tuple[int, ...]) -> Any:
            how = r.choice(["mean", "flat", "first"])
            if how == "flat":
                return ((s[0] * s[1],), lambda m, x: x.reshape(-1, s[0] * s[1]), (at,)) if s[0] * s[1] < 500 else None
            return (s[1],), (lambda m, x: x.mean(1)) if how == "mean" else (lambda m, x: x[:, 0]), (at,)

        return [linear, linear, norm, attention, conv, softmax, turn, outer, collapse]

    def _vector_rules(self) -> list[Callable[..., Any]]:
        r = self.rng

        def linear(at: int, s: tuple[int, ...]) -> Any:
            out = r.randint(1, 20)
            i = self._module(nn.Linear(s[0], out, bias=r.random() < 0.7), ("linear", s[0], out))
            return (out,), lambda m, x: m.mods[i](x), (at,)

        def norm(at: int, s: tuple[int, ...]) -> Any:
            if s[0] < 3:
                return None
            i = self._module(r.choice([nn.LayerNorm, nn.BatchNorm1d])(s[0]))
            return s, lambda m, x: m.mods[i](x), (at,)

        def stack(at: int, s: tuple[int, ...]) -> Any:
            return (2, s[0]), lambda m, x: torch.stack([x, x.tanh()], 1), (at,)

        def product(at: int, s: tuple[int, ...]) -> Any:
            out = r.randint(1, 9)
            p = self._param(s[0], out)
            return (out,), lambda m, x: x @ m.free[p], (at,)

        return [linear, linear, norm, stack, product]

    def _finish(self) -> None:
        """Everything that nobody reads ends in the classifier, so that every branch has a gradient."""
        read = {i for step in self.steps for i in step.reads}
        self.loose = [i for i in range(len(self.shapes)) if i not in read]
        self.classes = self.rng.randint(2, 6)
        width = sum(self.shapes[i][0] for i in self.loose)
        self.head = nn.Linear(width, self.classes)

    def forward(self, *inputs: Tensor) -> Tensor:
        values = list(inputs)
        for step in self.steps:
            values.append(step.run(self, *[values[i] for i in step.reads]))
        ends = [v.flatten(2).mean(2) if v.dim() > 2 else v for v in (values[i] for i in self.loose)]
        y: Tensor = self.head(torch.cat(ends, 1))
        return y


def sample(seed: int) -> tuple[RandomNet, str, str, str, int]:
    """A network with a method, an optimizer, a loss and a batch size."""
    net = RandomNet(seed)
    r = random.Random(seed + 10**6)
    method = r.choice(["full", "full", "last_layer", "last:2", "bias", "head.*", "*.weight"])
    optimizer, loss = r.choice(["sgd", "momentum", "adam"]), r.choice(["cross_entropy", "mse"])
    return net, method, optimizer, loss, r.choice([1, 2, 3, 5])


def data(net: RandomNet, loss: str, n: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    xs = [rng.standard_normal((n, *shape)).astype(np.float32) for shape in net.input_shapes]
    if loss == "cross_entropy":
        return xs, rng.integers(0, net.classes, n)
    return xs, rng.standard_normal((n, net.classes)).astype(np.float32)


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": smidgen.SGD(0.05),
    "momentum": smidgen.SGD(0.05, momentum=0.9, weight_decay=1e-3),
    # eps above the rounding of a gradient that is zero in exact arithmetic, which Adam would blow up to a full step
    "adam": smidgen.Adam(1e-3, eps=1e-4),
}
