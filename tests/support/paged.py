"""Programs that page, for tests: everything saved for the backward pass, or the optimizer's state, at home in PAGE."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from smidgen import ops
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.graph.check import check
from smidgen.compiler.passes.page import cannot_page, page, page_state
from smidgen.ir import Array, Graph, Role
from smidgen.program.program import Program
from smidgen.train.job import Job
from tests.support import small


def saved(graph: Graph) -> dict[str, list[int]]:
    """Every value of the forward pass that can be paged → its first reader in the backward pass."""
    turn = next(i for i, node in enumerate(graph.nodes) if node.stage == "backward")
    found: dict[str, list[int]] = {}
    shows: dict[str, str] = {}
    for i, node in enumerate(graph.nodes):
        names = {shows.get(name, name) for name in node.ins}
        if ops.get(node.op).is_view and node.ins:
            shows[node.outs[0]] = shows.get(node.ins[0], node.ins[0])
        elif i >= turn:
            made = {out for n in graph.nodes[:turn] for out in n.outs}
            for name in names & made:
                if not cannot_page(graph, name):
                    found.setdefault(name, [i])
    return found


def anywhere(entries: Entries, seed: int) -> Entries:
    """Half of all values go out somewhere between their uses, up to three times, some of them twice over; and half of
    what learns, and of the optimizer's state, is at home in PAGE."""
    rng = random.Random(seed)
    graphs = dict(entries.graphs)
    for _ in range(2):
        graph, shows = graphs["train"], dict[str, str]()
        uses: dict[str, set[int]] = {}
        for i, node in enumerate(graph.nodes):
            if ops.get(node.op).is_view and node.ins:
                shows[node.outs[0]] = shows.get(node.ins[0], node.ins[0])
            else:
                for name in node.ins:
                    uses.setdefault(shows.get(name, name), set()).add(i)
        some = [name for name in uses if not cannot_page(graph, name) and rng.random() < 0.5]
        gaps = {name: rng.sample(sorted(uses[name]), min(len(uses[name]), rng.randint(1, 3))) for name in some}
        graphs["train"] = page(graph, gaps, ahead=rng.randint(0, 8))
        check(graphs["train"], "page")
    state = [t.name for t in graphs["train"].of_role(Role.PARAM, Role.OPTIM) if t.name in graphs["train"].data]
    graphs = page_state(graphs, [name for name in state if rng.random() < 0.5], ahead=rng.randint(0, 4))
    return replace(entries, graphs=graphs)


def paged(entries: Entries, *, ahead: int = 2, state: Sequence[str] = (), only: Sequence[str] | None = None) -> Entries:
    """With all that is saved (or only these tensors of `train`) and this state in PAGE."""
    graphs = dict(entries.graphs)
    for name in ("train", "grad"):
        if name in graphs:
            gaps = saved(graphs[name])
            graphs[name] = page(graphs[name], {k: v for k, v in gaps.items() if only is None or k in only}, ahead=ahead)
    if state:
        graphs = page_state(graphs, state, ahead=ahead)
    for name, graph in graphs.items():
        check(graph, f"page {name}")
    return replace(entries, graphs=graphs)


def optimizer_state(graphs: Mapping[str, Graph]) -> list[str]:
    return list(dict.fromkeys(t.name for g in graphs.values() for t in g.of_role(Role.OPTIM) if t.name in g.data))


BATCH = 4


def batches(
    steps: int, n: int = BATCH, shape: tuple[int, ...] = (3, 8, 8), classes: int = 5
) -> list[tuple[Array, Array]]:
    rng = np.random.default_rng(1)
    return [
        (rng.standard_normal((n, *shape)).astype(np.float32), rng.integers(0, classes, n).astype(np.int32))
        for _ in range(steps)
    ]


def bits(job: Job) -> dict[str, bytes]:
    """All that learning changes, by name."""
    found = {name: value.tobytes() for name, value in job.state_dict().items()}
    for owner, tensors in job.optimizer_state().items():
        found |= {f"{owner}:{slot}": value.tobytes() for slot, value in tensors.items()}
    return found


def same_bits(entries: Entries, ahead: int, shape: tuple[int, ...], classes: int, folder: Path) -> None:
    """With all that is saved and the optimizer's state in PAGE, and without: three steps and a prediction."""
    plain = Job(encode(entries), kernels="exact")
    moved = paged(entries, ahead=ahead, state=optimizer_state(entries.graphs))
    job = Job(encode(moved), kernels="exact", page_to=folder / "page")
    assert job.plan.state_bytes < plain.plan.state_bytes
    for x, y in batches(3, shape=shape, classes=classes):
        assert job.train_step(x, y) == plain.train_step(x, y)
    assert bits(job) == bits(plain)
    np.testing.assert_array_equal(job.predict(x), plain.predict(x))
    traffic = job.plan.paged["train"]
    assert traffic.in_bytes > 0 < traffic.out_bytes
    again = Job(encode(moved), kernels="exact", page_to=folder / "other")
    before = again.paged
    again.train_step(x, y)
    assert again.paged.in_bytes - before.in_bytes == traffic.in_bytes
    assert again.paged.out_bytes - before.out_bytes == traffic.out_bytes


def momentum_in_pages() -> Program:
    entries = small.entries()
    return encode(paged(entries, state=["w1", *optimizer_state(entries.graphs)]))
