"""Random networks that learn, of what can be streamed, and random parts of a step as streams, both ways."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smidgen.compiler import verify
from smidgen.compiler.encode import encode
from smidgen.compiler.graph.check import check
from smidgen.compiler.graph.rows import Stream, marked
from smidgen.compiler.optimizers import SGD, Adam, Optimizer
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.passes.learning_rows import Part, part_of, with_parts
from smidgen.compiler.pipeline import train_graph
from smidgen.compiler.place import arena
from smidgen.compiler.place.layout import Layout
from smidgen.compiler.planner.cost import HOST
from smidgen.compiler.planner.learning_streams import Backward, Forward, cuts_of, without_unread
from smidgen.ir import DType, Graph, Role
from smidgen.ops import N
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.program import Program
from smidgen.runtime.machine import Machine
from tests.support.generated_streams import Net

CLASSES = 3
OPTIMIZERS: Sequence[Optimizer] = (SGD(0.1), SGD(0.1, momentum=0.9), Adam(0.01), SGD(0.1, clip_norm=1.0))


@dataclass
class Learner(Net):
    """Weights learn, but for some that are given."""

    frozen: float = 0.2

    def weight(self, *shape: int) -> str:
        value = self.values.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)
        return self.b.stored("w", value, Role.CONST if self.rng.random() < self.frozen else Role.PARAM)


def network(seed: int) -> Graph:
    """A step of training, for one sample at a time."""
    rng, b = random.Random(seed), Builder()
    net = Learner(rng, b, np.random.default_rng(seed), rng.random() < 0.15)
    h, w, c = 1 if net.flat else rng.randint(5, 24), rng.randint(6, 70 if rng.random() < 0.2 else 19), rng.randint(1, 4)
    x = feed(b, "x", (N, c, h, w), perm=(0, 2, 3, 1))
    target = feed(b, "t", (N,), DType.I32)
    for _ in range(rng.randint(3, 9)):
        y = net.layer(x)
        x = y if max(b[y].shape[1:]) < 75 else x  # type: ignore[type-var]
    flat = b.add("mean", x, axes=(1, 2), keepdim=False)
    scores = b.add("linear", flat, net.weight(CLASSES, int(b[flat].shape[1])), net.weight(CLASSES))  # type: ignore[arg-type]
    loss = b.add("cross_entropy", scores, target, reduction="mean", ignore_index=-100, label_smoothing=0.0)
    fetch(b, loss, "loss")
    params = [t.name for t in b.graph().of_role(Role.PARAM)]
    whole, grads = autodiff(b.graph(), loss, params)
    return train_graph(whole, grads, OPTIMIZERS[seed % len(OPTIMIZERS)])


def random_parts(graph: Graph, cut: Forward | Backward, rng: random.Random) -> list[tuple[Part, Stream]]:
    """Of random parts between cuts, one after the other, some rows at a time."""
    found, k, edges = list[tuple[Part, Stream]](), 0, cut.edges
    while k < len(edges) - 1:
        ends = [j for j in range(k + 1, len(edges)) if all(cut.can[i] for i in range(edges[k], edges[j]))]
        end = rng.choice(ends[:6]) if ends and rng.random() < 0.85 else k + 1
        span = range(edges[k], edges[end])
        part = part_of(graph, span, cut.again(span))
        body = part.body(graph) if part.rows and all(cut.can[i] for i in span) else None
        if body is not None and not any(body.blocked):
            stream = body.stream(0, len(part.nodes), rng.choice([1, 1, 2, 3, 5]))
            found += [] if stream is None else [(part, stream)]
        k = end
    return found


def streamed(graph: Graph, rng: random.Random) -> Graph:
    back = with_parts(graph, random_parts(graph, cuts_of(graph, HOST).backward, rng))
    back = without_unread(back)
    return with_parts(back, random_parts(back, cuts_of(back, HOST).forward, rng))


def laid_out(graph: Graph) -> Layout:
    stored, const, state = arena.place_state([graph])
    return arena.place(graph, 1, stored, const, state)


def program(graph: Graph, layout: Layout | None = None) -> Program:
    """Placed, encoded and verified."""
    layout = layout or laid_out(graph)
    made = encode({"train": (graph, layout)}, 1, {})
    verify.verify(made, {"train": graph}, {"train": layout})
    return made


def learned(made: Program, graph: Graph, seed: int, steps: int = 2) -> list[bytes]:
    """Loss and state after each step."""
    rng, machine, found = np.random.default_rng(seed), Machine(made.to_bytes()), []
    shape: Any = graph[graph.inputs[0]].shape[1:]
    for _ in range(steps):
        loss = np.zeros((), np.float32)
        given = rng.standard_normal((1, *shape), np.float32), rng.integers(0, CLASSES, 1, np.int32)
        machine.run("train", list(given), [loss], 1)
        found += [loss.tobytes(), machine.state.tobytes()]
    return found


def outcome(seed: int) -> tuple[int, int]:
    """How many streams were tried, and sums over rows in them; an assertion fails where bits differ."""
    graph, rng = network(seed), random.Random(seed)
    plain, streams, sums = learned(program(graph), graph, seed), 0, 0
    for _ in range(2):
        made = streamed(graph, rng)
        check(made, "stream")
        marks = marked(made)
        assert learned(program(made), graph, seed) == plain, f"seed {seed}: {[len(m.nodes) for m in marks]}"
        streams, sums = streams + len(marks), sums + sum(len(m.carries) for m in marks)
    return streams, sums
