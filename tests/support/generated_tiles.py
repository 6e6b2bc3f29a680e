"""Random networks of wide blocks, what learns in them, and their steps with random chains in tiles of channels."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smidgen
from smidgen import api
from smidgen.compiler import verify
from smidgen.compiler.encode import encode
from smidgen.compiler.graph.check import check
from smidgen.compiler.passes.tiles import chains, in_tiles
from smidgen.compiler.place import arena
from smidgen.ir import Graph, batch_axis
from smidgen.program.program import Program
from smidgen.runtime.machine import Machine

ACTIVATIONS = (F.relu, F.relu6, F.hardswish, F.silu, torch.sigmoid, lambda x: F.leaky_relu(x, 0.1), lambda x: x)


class Block(nn.Module):
    """Wide inside: layers of one pixel around some that work channel by channel, or by groups."""

    def __init__(self, r: random.Random, c: int, o: int) -> None:
        super().__init__()
        wide, k = r.choice([66, 72, 80, 96, 128, 130, 136, 150, 200]), r.choice([1, 3, 5])
        has_norm = r.random() < 0.3
        self.first = nn.Conv2d(c, wide, r.choice([1] * 7 + [3]), padding="same", bias=r.random() < 0.7)
        inner: list[nn.Module] = []
        for _ in range(r.choice([0, 1, 1, 2])):
            groups = r.choice([wide] * 7 + [2])
            inner.append(nn.Conv2d(wide, wide, k, 1, k // 2, groups=groups))
        if r.random() < 0.3:
            inner.append(r.choice([nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.Upsample(scale_factor=1)]))
        self.inner = nn.ModuleList(inner)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide) if has_norm else nn.Identity() for _ in range(len(inner) + 1))
        self.gate = nn.Linear(wide, wide) if r.random() < 0.1 else None
        self.last = nn.Conv2d(wide, o, 1, r.choice([1, 1, 2]), bias=r.random() < 0.7)
        self.around = c == o and r.random() < 0.7 and self.last.stride == (1, 1)
        self.activations = [r.choice(ACTIVATIONS) for _ in range(len(inner) + 1)]

    def forward(self, x: Tensor) -> Tensor:
        h = self.activations[0](self.norms[0](self.first(x)))
        for layer, norm, activation in zip(self.inner, list(self.norms)[1:], self.activations[1:], strict=True):
            h = activation(norm(layer(h)))
        if self.gate is not None:
            h = h * torch.sigmoid(self.gate(h.mean((2, 3))))[:, :, None, None]
        y: Tensor = self.last(h)
        return x + y if self.around else y


class WideNet(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.shape, c = (r.randint(1, 3), r.randint(3, 7), r.randint(3, 7)), r.randint(3, 9)
        layers: list[nn.Module] = [nn.Conv2d(self.shape[0], c, 3, 1, 1)]
        for _ in range(r.randint(1, 2)):
            o = r.choice([c, r.randint(3, 12)])
            layers.append(Block(r, c, o))
            c = o
        self.body = nn.Sequential(*layers)
        wide = r.choice([0, 0, 100])
        self.head = nn.Linear(c, 3) if not wide else nn.Sequential(nn.Linear(c, wide), nn.ReLU(), nn.Linear(wide, 3))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x).mean((2, 3)))
        return y


@dataclass(frozen=True)
class Learner:
    net: WideNet
    batch: int
    entries: Any

    @property
    def steps(self) -> dict[str, Graph]:
        """Entries that have gradients."""
        return dict(self.entries.plain)


def learner(seed: int) -> Learner:
    net, rng = WideNet(seed), random.Random(seed + 1)
    batch = rng.choice([1, 1, 2, 3])
    optimizers = (
        smidgen.SGD(0.02), smidgen.SGD(0.02, momentum=0.9), smidgen.Adam(0.003), smidgen.SGD(0.1, clip_norm=1.0)
    )  # fmt: skip
    precision = rng.choice(["f32", "int8"])
    names = [name for name, value in net.named_parameters() if value.dim() == 4 and value.shape[1] > 1]
    some, shape = rng.choice(names), dict(net.named_parameters())
    axis = rng.choice([0, 1])
    slice_ = smidgen.Update(some, axis, tuple(range(0, shape[some].shape[axis], 2)))
    method: Any = rng.choice(["full", "full", "bias", [slice_, "bias"], [slice_, "head.weight"]])
    method = ["full"] if isinstance(method, list) and isinstance(net.head, nn.Sequential) else method
    data = np.random.default_rng(seed).standard_normal((16, *net.shape)).astype(np.float32)
    entries = api.build(
        net, torch.zeros(batch, *net.shape), batch=batch, method=method, optimizer=optimizers[seed % 4],
        precision=precision, data=None if precision == "f32" else data, accumulate=seed % 5 == 4,
        bn="frozen" if precision == "int8" else rng.choice(["frozen", "batch"]),
    )  # fmt: skip
    return Learner(net, batch, entries)


def tiled(graph: Graph, rng: random.Random) -> tuple[Graph, int]:
    """Some of its chains in tiles, and how many."""
    some = [chain for chain in chains(graph) if rng.random() < 0.8]
    for chain in reversed(some):
        graph = in_tiles(graph, chain, rng.choice([1, 2, 3, 9]))
    check(graph, "tiles")
    return graph, len(some)


def program(graphs: dict[str, Graph], batch: int) -> Program:
    """Placed, encoded and verified."""
    stored, const, state = arena.place_state(list(graphs.values()))
    layouts = {name: arena.place(graph, batch, stored, const, state) for name, graph in graphs.items()}
    made = encode({name: (graph, layouts[name]) for name, graph in graphs.items()}, batch, {})
    verify.verify(made, graphs, layouts)
    return made


def learned(made: Program, graphs: dict[str, Graph], one: Learner, seed: int, kernels: str) -> list[bytes]:
    """Loss and state after each of two steps."""
    rng, machine, found = np.random.default_rng(seed), Machine(made.to_bytes(), kernels=kernels), []
    for _ in range(2):
        for name in [n for n in ("zero", "grad", "apply", "train") if n in graphs]:
            graph = graphs[name]
            given = [rng.standard_normal((one.batch, *one.net.shape), np.float32) if k == 0
                     else rng.integers(0, 3, one.batch, np.int32) for k in range(len(graph.inputs))]  # fmt: skip
            outs = [np.zeros([d if batch_axis((d,)) is None else one.batch for d in graph[o].shape],  # type: ignore[misc]
                             graph[o].dtype.numpy) for o in graph.outputs]  # fmt: skip
            machine.run(name, given, outs, one.batch)
            found += [*(o.tobytes() for o in outs), machine.state.tobytes()]
    return found


def outcome(seed: int) -> int:
    """How many chains were in tiles; an assertion fails where bits differ."""
    one, rng, count = learner(seed), random.Random(seed), 0
    whole = {**one.entries.graphs, **one.steps}
    wanted = {name: graph for name, graph in whole.items() if name in ("zero", "grad", "apply", "train")}
    plain = learned(program(wanted, one.batch), wanted, one, seed, "exact")
    for _ in range(2):
        made = dict(wanted)
        for name in one.steps:
            made[name], found = tiled(one.steps[name], rng)
            count += found
        assert learned(program(made, one.batch), made, one, seed, "exact") == plain, f"seed {seed}"
    return count
