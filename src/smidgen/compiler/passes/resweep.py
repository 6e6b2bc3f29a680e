"""A sweep whose choice can be changed, and changed back: only nodes that read something else then are done again.

The result is that of a sweep from the start. Costs follow from what was added and removed.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ...ir import Graph, Node
from .facts import Facts
from .layout import Choice, Emitted, Rule, Step, Sweep


@dataclass(frozen=True, slots=True)
class Swept:
    graph: Graph
    cost: float  # of all permutes
    relaid: frozenset[str]  # weights that were rearranged so that their input need not be


@dataclass(frozen=True, slots=True)
class Change:
    """What a change of choice replaced."""

    choice: Choice
    steps: dict[int, Step]


class Resweep:
    """A sweep of the whole graph, kept node by node."""

    def __init__(
        self, graph: Graph, rule: Rule, keep: Collection[str], exclusive: Collection[str], choice: Choice
    ) -> None:
        self.graph = graph
        self._sweep = Sweep(graph, rule, keep, exclusive, choice)
        self._steps = [self._sweep.step(position) for position in range(len(graph.nodes))]
        self._position = {out: k for k, node in enumerate(graph.nodes) for out in node.outs}
        self._live = _Live(self._sweep)
        self._live.replace((), self._steps)

    @property
    def choice(self) -> Choice:
        return self._sweep.choice

    @property
    def cost(self) -> float:
        """Of all permutes."""
        return self._live.cost

    @property
    def copied(self) -> list[str]:
        """Values that had to be copied."""
        return list(dict.fromkeys(name for step in self._steps for name in step.copied))

    @property
    def held(self) -> set[str]:
        """Values that lie in another order than written."""
        return {name for name, (_, view) in self._sweep.views.values.items() if not view.natural}

    def swept(self) -> Swept:
        relaid = frozenset(name for step in self._steps for name in step.relaid)
        return Swept(self._live.graph(self._steps), self.cost, relaid)

    def change(self, choice: Choice) -> Change:
        """Sweep with another choice."""
        before, self._sweep.choice = self._sweep.choice, choice
        feeds = {name for name, perm in before.feeds.items() ^ choice.feeds.items()}
        changed = feeds | (before.as_written ^ choice.as_written)
        waiting = [self._position[name] for name in changed if name in self._position]
        heapq.heapify(waiting)
        known = set(waiting)
        old: dict[int, Step] = {}
        while waiting:
            position = heapq.heappop(waiting)
            if position in old:
                continue
            old[position] = step = self._steps[position]
            _forget(step, position)
            self._steps[position] = new = self._sweep.step(position)
            for reader in _readers(_differing(step, new)):
                if reader > position and reader not in known:
                    known.add(reader)
                    heapq.heappush(waiting, reader)
        self._live.replace(old.values(), [self._steps[position] for position in old])
        return Change(before, old)

    def undo(self, change: Change) -> None:
        """Take back the last change."""
        new = [self._steps[position] for position in change.steps]
        for position in change.steps:
            _forget(self._steps[position], position)
        for position, step in change.steps.items():
            self._steps[position] = step
            for facts, key, value in step.writes:
                facts.put(key, value, position)
        self._sweep.choice = change.choice
        self._live.replace(new, change.steps.values())


def _forget(step: Step, position: int) -> None:
    for facts, key, _ in step.writes:
        facts.drop(key, position)


def _differing(one: Step, other: Step) -> list[tuple[Facts[Any, Any], Hashable]]:
    """What only one of them wrote, or each in its own way."""
    if one.writes == other.writes:
        return []
    places = {(id(facts), key): (facts, key) for facts, key, _ in (*one.writes, *other.writes)}
    before, after = ({(id(facts), key): value for facts, key, value in s.writes} for s in (one, other))
    return [place for name, place in places.items() if before.get(name) != after.get(name)]


def _readers(written: Iterable[tuple[Facts[Any, Any], Hashable]]) -> Iterable[int]:
    return chain.from_iterable(facts.readers.get(key, ()) for facts, key in written)


class _Live:
    """Which nodes of the new graph are of use, and what these cost; for tensors, by how many such nodes they are read.

    A permute costs a whole number, so sums do not depend on their order.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep, self._keep = sweep, frozenset(sweep.keep)
        self.cost = 0.0
        self._used: dict[str, int] = {}
        self._made_by: dict[str, Emitted] = {}
        self._live: set[int] = set()  # by identity: steps hold them

    def replace(self, old: Iterable[Step], new: Iterable[Step]) -> None:
        """What comes is counted before what goes: else all that leads here would go and come, too."""
        removed = [emitted for step in old for emitted in step.emitted]
        added = [emitted for step in new for emitted in step.emitted]
        for emitted in added:
            self._made_by.update(dict.fromkeys(emitted.node.outs, emitted))
        for emitted in added:
            if self._wanted(emitted):
                self._revive(emitted)
        for emitted in removed:
            self._kill(emitted)
        for emitted in removed:
            for out in emitted.node.outs:
                if self._made_by[out] is emitted:
                    del self._made_by[out]

    def _wanted(self, emitted: Emitted) -> bool:
        return emitted.stays or any(self._used.get(out) for out in emitted.node.outs)

    def _kill(self, emitted: Emitted) -> None:
        waiting = [emitted]
        while waiting:
            dead = waiting.pop()
            if id(dead) not in self._live:
                continue
            self._live.remove(id(dead))
            self.cost -= dead.price
            for name in dead.node.ins:
                self._used[name] -= 1
                source = self._made_by.get(name)
                if not self._used[name] and source is not None and not self._wanted(source):
                    waiting.append(source)

    def _revive(self, emitted: Emitted) -> None:
        waiting = [emitted]
        while waiting:
            live = waiting.pop()
            if id(live) in self._live:
                continue
            self._live.add(id(live))
            self.cost += live.price
            for name in live.node.ins:
                self._used[name] = self._used.get(name, 0) + 1
                source = self._made_by.get(name)
                if source is not None:
                    waiting.append(source)

    def graph(self, steps: Iterable[Step]) -> Graph:
        """The new graph, without what is of no use."""
        nodes, made = list[Node](), list[str]()
        for step in steps:
            made += [key for facts, key, _ in step.writes if facts is self._sweep.tensors]  # type: ignore[misc]
            nodes += [emitted.node for emitted in step.emitted if id(emitted) in self._live]
        old = self._sweep.graph
        named = {name for node in nodes for name in (*node.ins, *node.outs)}
        named |= {*old.inputs, *old.outputs} | self._keep
        tensors = {name: t for name, t in self._sweep.given.items() if name in named}
        tensors |= {name: self._sweep.tensors.values[name][1] for name in made if name in named}
        return old.with_(
            nodes=tuple(nodes),
            tensors=tensors,
            data={name: value for name, value in old.data.items() if name in named},
            layouts={name: steps_ for name, steps_ in old.layouts.items() if name in named},
        )
