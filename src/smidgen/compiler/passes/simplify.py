"""Drop what does nothing: dead code, repeated and cancelling movement, permutes that another layout makes needless.

Parameters keep their names. Where all graphs read one only through the same rearrangement, it is stored that way and
`Graph.layouts` says how to get there from the user's layout.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ... import ops
from ...errors import Internal
from ...ir import Array, Graph, Node, Role, Step
from ...ops.build import named_by_content
from ...program import arrays
from .as_written import least_cost
from .axes import arrange
from .fold import fold_constants
from .layout import Choice, moves, without_dead
from .resweep import Resweep, Swept
from .view import Perm

STORED = (Role.PARAM, Role.STAT, Role.CONST)
_TRIALS = 32  # of other choices per graph


def simplify(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """`simplify_all` of a single graph."""
    return simplify_all({"": graph}, keep)[""]


class Sweeps:
    """The last sweep of each graph: what comes again as it was is not searched again."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[Graph, frozenset[str], frozenset[str], Swept]] = {}

    def swept(self, name: str, graph: Graph, keep: frozenset[str], exclusive: frozenset[str]) -> Swept:
        if name in self._last:
            before, *asked, found = self._last[name]
            if asked == [keep, exclusive] and _same_graph(before, graph):
                return found
        found = _swept(graph, keep, exclusive)
        self._last[name] = graph, keep, exclusive, found
        return found


def _same_graph(one: Graph, other: Graph) -> bool:
    """To the order of their tensors; values are the same arrays."""
    return (
        (one.nodes, one.inputs, one.outputs) == (other.nodes, other.inputs, other.outputs)
        and list(one.tensors.items()) == list(other.tensors.items())
        and list(one.layouts.items()) == list(other.layouts.items())
        and [(name, id(value)) for name, value in one.data.items()]
        == [(name, id(value)) for name, value in other.data.items()]
    )


def simplify_all(
    graphs: Mapping[str, Graph], keep: Collection[str] = frozenset(), sweeps: Sweeps | None = None
) -> dict[str, Graph]:
    """The same meaning with as few nodes as possible that only move data; stored layouts agree among the graphs.

    Values named in `keep` stay, under their names. A graph that hands nothing out is taken for its last result.
    `sweeps` are those of earlier calls.
    """
    for graph in graphs.values():
        if any(map(ops.is_loop, graph.nodes)):
            raise Internal("simplify comes before loops are made")
    exclusive, sweeps = _exclusive(graphs), sweeps or Sweeps()
    while True:
        done, relaid = _fixpoint(graphs, frozenset(keep), exclusive, sweeps)
        # A weight rearranged for one graph's sake, which another graph reads as it was, would be copied every time.
        failed = {name for name in relaid for g in done.values() if _still_moved(g, name)}
        if not failed:
            return _distinct(done)
        exclusive -= failed


def _fixpoint(
    graphs: Mapping[str, Graph], keep: frozenset[str], exclusive: set[str], sweeps: Sweeps
) -> tuple[dict[str, Graph], set[str]]:
    kept = {name: keep | _results(graph) for name, graph in graphs.items()}
    done = current = {name: without_dead(graph, kept[name]) for name, graph in graphs.items()}
    relaid: set[str] = set()
    least = (math.inf, math.inf)
    while True:
        alone = frozenset(exclusive & _exclusive(current))
        swept = {name: sweeps.swept(name, graph, kept[name], alone) for name, graph in current.items()}
        absorbed = absorb_layouts({name: s.graph for name, s in swept.items()}, frozenset().union(*kept.values()))
        current = {
            name: without_dead(fold_constants(graph, kept[name]), kept[name]) for name, graph in absorbed.items()
        }
        relaid |= {w for s in swept.values() for w in s.relaid}
        now = (sum(s.cost for s in swept.values()), sum(len(graph.nodes) for graph in current.values()))
        if now >= least:
            return done, relaid
        done, least = current, now


def _distinct(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """With other names where graphs use one name for different constants: entry points share constants by name."""
    known: dict[str, Array] = {}
    done: dict[str, Graph] = {}
    for key, graph in graphs.items():
        new: dict[str, str] = {}
        for name in [t.name for t in graph.of_role(Role.CONST) if t.name in graph.data]:
            value = graph.data[name]
            if not _same_bytes(known.setdefault(name, value), value):
                new[name] = named_by_content(name, np.ascontiguousarray(value))
        done[key] = _renamed(graph, new) if new else graph
    return done


def _same_bytes(one: Array, other: Array) -> bool:
    """Mostly they are the same array: weights may be large."""
    if one is other:
        return True
    a, b = (np.ascontiguousarray(value).reshape(-1).view(np.uint8) for value in (one, other))
    return np.array_equal(a, b)


def _renamed(graph: Graph, new: Mapping[str, str]) -> Graph:
    tensors = {new.get(k, k): replace(t, name=new.get(k, k)) for k, t in graph.tensors.items()}
    nodes = tuple(node.with_(ins=tuple(new.get(i, i) for i in node.ins)) for node in graph.nodes)
    data, layouts = ({new.get(k, k): v for k, v in of.items()} for of in (graph.data, graph.layouts))
    return graph.with_(tensors=tensors, nodes=nodes, data=data, layouts=layouts, merged=graph.merged.union(new))


def _exclusive(graphs: Mapping[str, Graph]) -> set[str]:
    """Stored tensors that no graph reads in more than one place."""
    readers = [graph.readers() for graph in graphs.values()]
    names = {t.name for graph in graphs.values() for t in graph.of_role(*STORED)}
    return {name for name in names if all(len(r.get(name, ())) <= 1 for r in readers)}


def _still_moved(graph: Graph, name: str) -> bool:
    family = {name}
    for node in graph.nodes:
        if node.ins and node.ins[0] in family:
            if moves(node):
                return True
            family |= set(node.outs) if ops.get(node.op).rearranges else set()
    return False


def _results(graph: Graph) -> set[str]:
    if any(ops.border(node) == "out" for node in graph.nodes) or not graph.nodes:
        return set()
    return {out for out in graph.nodes[-1].outs if graph[out].role is Role.VALUE}


def _swept(graph: Graph, keep: Collection[str], exclusive: Collection[str]) -> Swept:
    """The cheapest sweep found by changing one choice at a time."""
    best = Resweep(graph, arrange, keep, exclusive, Choice({}))
    orders = _feed_orders(graph, best.swept().graph)
    for feeds in [dict(reversed(orders)), *({feed: perm} for feed, perm in orders)]:
        if best.cost:
            _improved(best, Choice({**best.choice.feeds, **feeds}))
    waiting = _shared_origins(best)
    for _ in range(_TRIALS):
        if not waiting:
            break
        if _improved(best, Choice(best.choice.feeds, best.choice.as_written | {waiting.pop(0)})):
            waiting = _shared_origins(best)
    if best.cost and least_cost(graph, exclusive) <= best.cost:
        unmoved = Resweep(graph, arrange, keep, exclusive, Choice({}, frozenset(graph.tensors)))
        best = unmoved if unmoved.cost <= best.cost else best
    return best.swept()


def _improved(best: Resweep, choice: Choice) -> bool:
    """Take the choice if it is cheaper."""
    least = best.cost
    change = best.change(choice)
    if best.cost < least:
        return True
    best.undo(change)
    return False


def _shared_origins(swept: Resweep) -> list[str]:
    """Values of which one copy may serve where now several are made further down, most of them first."""
    graph, held = swept.graph, swept.held
    producer = graph.producer()
    serves = {name: 1 << k for k, name in enumerate(swept.copied)}  # a bit for each copied value
    for node in reversed(graph.nodes):
        below = 0
        for out in node.outs:
            below |= serves.get(out, 0)
        for name in node.ins if below else ():
            if name in held and name in producer:
                serves[name] = serves.get(name, 0) | below
    count = {name: bits.bit_count() for name, bits in serves.items()}
    shared = [out for node in graph.nodes for out in node.outs if count.get(out, 0) > 1]
    return sorted(shared, key=lambda name: -count[name])


def _feed_orders(graph: Graph, swept: Graph) -> list[tuple[str, Perm]]:
    """Orders of axes worth trying for each input: channels last, and those it is permuted to."""
    found: list[tuple[str, Perm]] = []
    for node in graph.nodes:
        if ops.border(node) == "in":
            out, rank = node.outs[0], len(graph[node.outs[0]].shape)
            found += [(out, (0, *range(2, rank), 1))] if rank > 2 else []
            found += [(out, n.attrs["perm"]) for n in swept.nodes if moves(n) and n.ins == (out,)]
    return list(dict.fromkeys(found))


def absorb_layouts(graphs: Mapping[str, Graph], keep: Collection[str] = frozenset()) -> dict[str, Graph]:
    """Store parameters, statistics and constants as they are read, where all readers in all graphs ask for the same."""
    relaid = {key: _Relaid(graph) for key, graph in graphs.items()}
    for name in sorted({t.name for graph in graphs.values() for t in graph.of_role(*STORED)}):
        holders = [r for r in relaid.values() if name in r.tensors]
        while (step := _common_step(holders, name, keep)) is not None:
            moved: dict[int, Array] = {}
            for holder in holders:
                holder.absorb(name, step, moved)
    return {key: r.graph() for key, r in relaid.items()}


def _common_step(holders: Sequence[_Relaid], name: str, keep: Collection[str]) -> Step | None:
    readers = [node for holder in holders for node in holder.readers_of(name)]
    steps = {_step(node) for node in readers}
    alike = {(holder.tensors[name].shape, holder.layouts.get(name, ())) for holder in holders}
    if len(steps) != 1 or len(alike) != 1 or any(out in keep for node in readers for out in node.outs):
        return None
    return steps.pop()


def _step(node: Node) -> Step | None:
    rearranges = ops.get(node.op).rearranges
    return rearranges(node.attrs) if rearranges else None


class _Relaid:
    """A graph whose stored tensors change their layout, one after the other."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._readers = graph, graph.readers()
        self._nodes: list[Node | None] = list(graph.nodes)
        self.tensors, self.data, self.layouts = dict(graph.tensors), dict(graph.data), dict(graph.layouts)

    def readers_of(self, name: str) -> list[Node]:
        return [node for i in self._readers.get(name, ()) if (node := self._nodes[i]) is not None]

    def absorb(self, name: str, step: Step, moved: dict[int, Array]) -> None:
        """`moved`: what the graphs share is moved once."""
        old, after = self.tensors[name], list[int]()
        for i in self._readers.pop(name, ()):
            node, self._nodes[i] = self._nodes[i], None
            assert node is not None
            del self.tensors[node.outs[0]]
            for k in self._readers.pop(node.outs[0], ()):
                reader = self._nodes[k]
                assert reader is not None
                self._nodes[k] = reader.with_(ins=tuple(name if x == node.outs[0] else x for x in reader.ins))
                after.append(k)
        self._readers[name] = sorted(set(after))
        shape = arrays.laid_shape(old.shape, [step])  # type: ignore[arg-type]  # what is stored has no batch axis
        quant = old.quant
        if quant is not None:
            quant = arrays.laid_quant(quant, old.shape, step)  # type: ignore[arg-type]
            if quant is None:
                raise Internal(f"{old} is quantized along an axis that is not one of {list(shape)}")
        self.tensors[name] = replace(old, shape=shape, quant=quant)
        if name in self.data:
            value = self.data[name]
            if id(value) not in moved:
                moved[id(value)] = np.ascontiguousarray(arrays.laid(value, [step])).reshape(shape)
                moved[id(value)].flags.writeable = False
            self.data[name] = moved[id(value)]
        self.layouts[name] = arrays.added_step(self.layouts.get(name, ()), step)

    def graph(self) -> Graph:
        nodes = tuple(node for node in self._nodes if node is not None)
        return self._graph.with_(nodes=nodes, tensors=self.tensors, data=self.data, layouts=self.layouts)
