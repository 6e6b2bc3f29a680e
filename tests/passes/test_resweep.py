"""A sweep whose choice is changed: the same, to the last name, as one from the start; and how much work that is."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from smidgen.compiler.graph.text import to_text
from smidgen.compiler.passes import simplify
from smidgen.compiler.passes.as_written import least_cost
from smidgen.compiler.passes.axes import arrange
from smidgen.compiler.passes.layout import Choice, Sweep, without_dead
from smidgen.compiler.passes.resweep import Resweep, Swept
from smidgen.compiler.torch_import.capture import import_model
from smidgen.ir import Batch, Graph, Node, Role
from smidgen.ops.build import Builder, feed, fetch
from tests.support.permuting_nets import NETS
from tests.support.random_graphs import Net

N = Batch()


def exact(swept: Swept) -> object:
    graph = swept.graph
    stored = {name: id(value) for name, value in graph.data.items()}
    return to_text(graph), list(graph.tensors.items()), graph.nodes, stored, graph.layouts, swept.cost, swept.relaid


def random_choice(graph: Graph, r: random.Random) -> Choice:
    computed = [out for node in graph.nodes for out in node.outs if graph[out].role is Role.VALUE]
    feeds = {}
    for node in graph.nodes:
        if node.op == "feed" and r.random() < 0.5:
            axes = list(range(1, len(graph[node.outs[0]].shape)))
            r.shuffle(axes)
            feeds[node.outs[0]] = (0, *axes)
    return Choice(feeds, frozenset(r.sample(computed, r.randint(0, min(4, len(computed))))))


@pytest.mark.parametrize("seed", range(60))
def test_a_changed_sweep_is_that_from_the_start(seed: int) -> None:
    graph, r = Net(seed).graph(), random.Random(seed)
    exclusive = {t.name for t in graph.of_role(Role.PARAM) if r.random() < 0.7}
    keep = {graph.nodes[-1].outs[0]} | {r.choice(graph.nodes).outs[0]}
    swept = Resweep(graph, arrange, keep, exclusive, Choice({}))
    for _ in range(8):
        choice, before = random_choice(graph, r), exact(swept.swept())
        change = swept.change(choice)
        whole = Resweep(graph, arrange, keep, exclusive, choice)
        assert exact(swept.swept()) == exact(whole.swept())
        assert (swept.copied, swept.held) == (whole.copied, whole.held)
        if r.random() < 0.5:
            swept.undo(change)
            assert exact(swept.swept()) == before


def searched_from_the_start(graph: Graph, keep: set[str], exclusive: set[str]) -> Swept:
    """The search of `simplify`, each choice swept from the start; values that may serve are found by walking up."""

    def sweep(choice: Choice) -> Resweep:
        return Resweep(graph, arrange, keep, exclusive, choice)

    def origins(swept: Resweep) -> list[str]:
        producer, held, serves = graph.producer(), swept.held, Counter[str]()
        for copied in swept.copied:
            above, waiting = {copied}, [copied]
            while waiting:
                node = producer.get(waiting.pop())
                new = {i for i in node.ins if i in held and i in producer} - above if node else set()
                above |= new
                waiting += new
            serves.update(above)
        shared = [out for node in graph.nodes for out in node.outs if serves[out] > 1]
        return sorted(shared, key=lambda name: -serves[name])

    best = sweep(Choice({}))
    orders = simplify._feed_orders(graph, best.swept().graph)
    for feeds in [dict(reversed(orders)), *({name: perm} for name, perm in orders)]:
        found = sweep(Choice({**best.choice.feeds, **feeds})) if best.cost else best
        best = found if found.cost < best.cost else best
    waiting = origins(best)
    for _ in range(simplify._TRIALS):
        if waiting:
            found = sweep(Choice(best.choice.feeds, best.choice.as_written | {waiting.pop(0)}))
            if found.cost < best.cost:
                best, waiting = found, origins(found)
    unmoved = sweep(Choice({}, frozenset(graph.tensors)))
    return (unmoved if best.cost and unmoved.cost <= best.cost else best).swept()


@pytest.mark.parametrize("name", NETS)
def test_networks_that_permute_a_lot_come_out_as_if_searched_from_the_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    model = import_model(make().eval(), torch.zeros(2, *shape), loss="cross_entropy")
    graphs = {"train": model.train, "infer": model.infer}
    found = simplify.simplify_all(graphs, {model.loss})
    monkeypatch.setattr(simplify, "_swept", searched_from_the_start)
    expected = simplify.simplify_all(graphs, {model.loss})
    for key in graphs:
        assert to_text(found[key]) == to_text(expected[key])
        assert list(found[key].tensors.items()) == list(expected[key].tensors.items())
        assert found[key].layouts == expected[key].layouts


# As written.


def written(graph: Graph, keep: set[str], exclusive: set[str]) -> float:
    return Resweep(graph, arrange, keep, exclusive, Choice({}, frozenset(graph.tensors))).cost


@pytest.mark.parametrize("seed", range(60))
def test_the_least_cost_of_values_as_written_is_not_above_that_of_a_sweep(seed: int) -> None:
    graph, r = Net(seed).graph(), random.Random(seed)
    exclusive = {t.name for t in graph.of_role(Role.PARAM) if r.random() < 0.7}
    keep = {graph.nodes[-1].outs[0]}
    graph = without_dead(graph, keep)
    assert least_cost(graph, exclusive) <= written(graph, keep, exclusive)


@pytest.mark.parametrize("name", NETS)
def test_in_networks_that_permute_a_lot_the_least_cost_is_near(name: str) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    model = import_model(make().eval(), torch.zeros(2, *shape), loss="cross_entropy")
    for graph in (model.train, model.infer):
        keep, exclusive = {model.loss} & set(graph.tensors), simplify._exclusive({"": graph})
        graph = without_dead(graph, keep)
        cost = written(graph, keep, exclusive)
        assert 0.5 * cost <= least_cost(graph, exclusive) <= cost


# Work.


def patches(depth: int) -> Graph:
    """Blocks that cut an image into patches, mix these as tokens, and put them together again, beside the image."""
    b = Builder()
    x = feed(b, "x", (N, 8, 8, 8))
    for k in range(depth):
        b.src = f"block{k}"
        y = b.add("permute", x, perm=(0, 2, 3, 1))
        y = b.add("permute", b.add("silu", y), perm=(0, 3, 1, 2))
        y = b.add("reshape", y, shape=(N, 8, 4, 2, 4, 2))
        y = b.add("permute", y, perm=(0, 3, 5, 2, 4, 1))
        y = b.add("reshape", y, shape=(N * 4, 16, 8))
        weights = [b.stored(f"block{k}.{name}", torch.randn(8, 8).numpy(), Role.PARAM) for name in "qkvo"]
        q, key, v = (b.add("permute", b.add("reshape", b.add("linear", y, w), shape=(N * 4, 16, 2, 4)),
                           perm=(0, 2, 1, 3)) for w in weights[:3])  # fmt: skip
        mixed = b.add("matmul", b.add("softmax", b.add("matmul", q, key, ta=False, tb=True), axis=3), v,
                      ta=False, tb=False)  # fmt: skip
        mixed = b.add("reshape", b.add("permute", mixed, perm=(0, 2, 1, 3)), shape=(N * 4, 16, 8))
        y = b.add("add", y, b.add("linear", mixed, weights[3]))
        y = b.add("permute", b.add("reshape", y, shape=(N, 2, 2, 4, 4, 8)), perm=(0, 5, 3, 1, 4, 2))
        x = b.add("add", x, b.add("reshape", y, shape=(N, 8, 8, 8)))
    b.src = ""
    fetch(b, b.add("mean", x, axes=(2, 3), keepdim=False), "out")
    return b.graph()


class Counted:
    """How often a rule is asked about a node."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(simplify, "arrange", self._arrange)

    def _arrange(self, sweep: Sweep, node: Node) -> bool:
        self.count += 1
        return arrange(sweep, node)


def test_work_for_a_node_does_not_grow_with_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    work = []
    for depth in (2, 8, 32):
        graph, counted = patches(depth), Counted(monkeypatch)
        simplify.simplify(graph)
        work.append(counted.count / len(graph.nodes))
    assert max(work) < 1.5 * min(work) < 24


def test_what_comes_again_as_it_was_is_not_swept_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, sweeps = Counted(monkeypatch), simplify.Sweeps()
    once = simplify.simplify_all({"": patches(4)}, sweeps=sweeps)
    first, expected = counted.count, simplify.simplify_all(once)
    counted.count = 0
    again = simplify.simplify_all(once, sweeps=sweeps)
    assert counted.count == 0 < first
    assert to_text(again[""]) == to_text(expected[""])
    other = once[""].with_(tensors={k: replace(t, role=Role.CONST) if t.role is Role.PARAM else t
                                    for k, t in once[""].tensors.items()})  # fmt: skip
    simplify.simplify_all({"": other}, sweeps=sweeps)
    assert counted.count > 0


def test_what_would_be_dearer_as_written_is_not_swept_so(monkeypatch: pytest.MonkeyPatch) -> None:
    choices: list[Choice] = []

    class Noted(Resweep):
        def __init__(self, *args: Any) -> None:
            choices.append(args[-1])
            super().__init__(*args)

    monkeypatch.setattr(simplify, "Resweep", Noted)
    graph = patches(4)
    assert simplify._swept(graph, frozenset(), frozenset()).cost
    assert not any(choice.as_written for choice in choices)
