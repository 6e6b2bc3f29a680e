"""From graphs with their places to the facts of a plan (program/timeline.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .. import ops
from ..ir import REPLAY, Graph, Node, Role, at, samples
from ..ops.build import typed
from ..ops.traits import PAGE_WRITERS
from ..program.timeline import (
    INPUT,
    LOOP,
    MODEL,
    OPTIMIZER,
    OUTPUT,
    REPLAYED,
    STREAM,
    Facts,
    Moment,
    Span,
    Stored,
    Timeline,
)
from .graph.alias import Families
from .place.layout import Layout


def facts_of(graphs: Mapping[str, Graph], layouts: Mapping[str, Layout], batch: int) -> Facts:
    """What people want to know of a placed program."""
    owners = _owners(graphs)
    entries = {
        name: _Drawn(graph, layouts[name], samples(graph, batch), owners).timeline() for name, graph in graphs.items()
    }
    return Facts(entries, tuple(_stored(graphs, layouts, owners)))


def traffic(graph: Graph, batch: int) -> tuple[int, int]:
    """Bytes that one run brings in from PAGE, and puts out there."""
    moved = {"in": 0, "out": 0}
    for node in graph.nodes:
        page = ops.get(node.op).page
        way = "in" if page in ("in", "start") else "out" if page in PAGE_WRITERS else ""
        if way:
            moved[way] += graph[node.outs[0]].bytes(batch)
    return moved["in"], moved["out"]


def _owners(graphs: Mapping[str, Graph]) -> dict[str, str]:
    """Stored tensor → the first layer that reads it, under whatever view."""
    found: dict[str, str] = {}
    for graph in sorted(graphs.values(), key=lambda g: -len(g.nodes)):  # training before inference
        shows: dict[str, str] = {}
        for node in graph.nodes:
            if ops.get(node.op).is_view and node.ins:
                shows[node.outs[0]] = shows.get(node.ins[0], node.ins[0])
            elif node.stage == "forward":
                for name in (shows.get(name, name) for name in node.ins):
                    if graph[name].role in (Role.CONST, Role.PARAM, Role.STAT):
                        found.setdefault(name, node.src or MODEL)
    return found


def _stored(graphs: Mapping[str, Graph], layouts: Mapping[str, Layout], owners: Mapping[str, str]) -> list[Stored]:
    found: dict[str, Stored] = {}
    for entry, graph in graphs.items():
        changed = {out for node in graph.nodes for out in node.outs}
        for t in graph.tensors.values():
            if t.paged:
                continue  # neither RAM nor flash
            if (t.role is Role.CONST or t.role.is_state) and t.name not in changed and t.name in layouts[entry].slots:
                owner = t.name.rpartition(":")[0] if t.role is Role.OPTIM else t.name
                outside = REPLAYED if t.name == REPLAY else OPTIMIZER if t.role is Role.SETTING else MODEL
                found.setdefault(t.name, Stored(t.name, t.role.value, owners.get(owner, outside), t.bytes(1)))
    return list(found.values())


class _Drawn:
    """One entry point on its way to a timeline."""

    def __init__(self, graph: Graph, layout: Layout, batch: int, owners: Mapping[str, str]) -> None:
        self.graph, self.layout, self.batch, self.owners = graph, layout, batch, owners
        stored = {name: slot for name, slot in layout.slots.items() if slot.region != "arena"}
        self.families = Families(graph, stored)  # views, updates and gathered pieces; not what is done in place
        for node in graph.nodes:
            for out, source in ops.get(node.op).shares.items():
                self.families.join(node.outs[out], node.ins[source])
            for gathered, piece in zip(node.outs, node.attrs.get("yields", ()), strict=False):
                self.families.join(gathered, piece)
        self.families.join_rows()
        self._first_of: dict[str, str] = {}  # family → the first tensor of it
        for name in graph.tensors:
            self._first_of.setdefault(self.families.root(name), name)
        self.moments: list[Moment] = []
        self.when: dict[int, int] = {}  # node → instruction, for nodes that are one
        self.loop: tuple[int, int] | None = None
        self._number()
        backward = [i for i, m in enumerate(self.moments) if m.stage == "backward"]
        self.turn = backward[0] if backward else len(self.moments)

    def _number(self) -> None:
        body = self.families.body
        heads = {span[0] for span in self.families.streams}  # their first nodes
        for i, node in enumerate(self.graph.nodes):
            if ops.is_stream(node):  # in the file a loop over one sample
                self.moments.append(Moment("loop", LOOP, node.stage, 0))
            if i in heads:
                self.moments.append(Moment("stream", STREAM, node.stage, 0))
            if ops.is_loop(node):
                working = sum(not ops.get(self.graph.nodes[k].op).is_view for k in body)
                working += len(heads.intersection(body)) if working else 0
                if working:
                    self.loop = (len(self.moments), working)
            elif ops.get(node.op).is_view or ops.is_stream(node):
                continue
            if not ops.is_loop(node) or self.loop:
                self.when[i] = len(self.moments)
                macs = int(at(ops.get(node.op).macs(typed(self.graph, node)), self.batch))
                macs *= self.batch if i in body else 1
                self.moments.append(Moment(node.op, self._layer(node), node.stage, macs))

    def _layer(self, node: Node) -> str:
        special = LOOP if ops.is_loop(node) else {"in": INPUT, "out": OUTPUT, "": ""}[ops.border(node)]
        if node.src or special:
            return node.src or special
        if node.stage == "update":
            names = [n for name in (*node.ins, *node.outs) for n in (name, name.rpartition(":")[0])]
            return next((self.owners[n] for n in names if n in self.owners), OPTIMIZER)
        return MODEL

    def timeline(self) -> Timeline:
        spans = self._spans()
        for i, slot in self.layout.scratch.items():
            turns = self._turns(i) if i in self.families.carries else [self.when[i]]
            spans.append(Span("scratch", "scratch", slot.offset, slot.bytes, turns[0], turns[-1], self.when[i]))
        spans = _written_over([s for s in spans if s.bytes])
        spans.sort(key=lambda s: (s.first, s.offset, s.last))
        return Timeline(self.layout.align, self.loop, tuple(self.moments), tuple(spans))

    def _spans(self) -> list[Span]:
        """One for each family in the arena; where one is written over another in place, the older ends before."""
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        made: dict[str, tuple[str, int]] = {}
        body = self.families.body
        for i, now in self.when.items():
            node = self.graph.nodes[i]
            for name in (*node.ins, *node.outs):
                top = self.families.root(name)
                turns = [self.when[k] for k in self.families.touched(i, name) if k in self.when]
                first.setdefault(top, turns[0])
                end = self.when[body[0] - 1] + self.loop[1] if self._outlives(top, i) and self.loop else turns[-1]
                last[top] = max(last.get(top, 0), end)
            for name in node.outs if not ops.is_loop(node) else ():
                made.setdefault(self.families.root(name), (node.ins[0] if ops.border(node) == "in" else name, now))
        kept = {top for top, end in last.items() if end >= self.turn}
        for i, now in self.when.items():
            node = self.graph.nodes[i]
            for source in ops.get(node.op).inplace:
                old, new = self.families.root(node.ins[source]), self.families.root(node.outs[0])
                if old != new and last[old] == now == first[new] and self._same_place(old, new):
                    last[old] = now - 1
        return [
            self._span(top, first[top], last[top], *made.get(top, (top, first[top])), top in kept)
            for top in first
            if self._is_drawn(top)
        ]

    def _turns(self, node: int) -> list[int]:
        """Instructions that run by turns with that of a node."""
        return [self.when[k] for k in self.families.turns(node) if k in self.when]

    def _outlives(self, top: str, node: int) -> bool:
        """Touched in the loop, but alive outside it: stays until the last iteration ends."""
        return node in self.families.body and top not in self.families.in_body

    def _same_place(self, old: str, new: str) -> bool:
        slots = [self.layout.slots.get(name) for name in (old, new)]
        return slots[0] is not None and slots[0] == slots[1] and slots[0].region == "arena"

    def _is_drawn(self, top: str) -> bool:
        """In the arena, and not a piece at work in the place of what the loop gathers."""
        slot = self.layout.slots.get(top)
        return slot is not None and slot.region == "arena" and not slot.stride

    def _span(self, top: str, first: int, last: int, name: str, made: int, kept: bool) -> Span:
        """A tensor is called what its maker calls it, an input what the caller calls it."""
        tensor, slot = self.graph[top], self.layout.slots[top]
        if tensor.role is Role.ACCUM:
            given = self._first_of[top]
            return Span(given, "accumulator", slot.offset, slot.bytes, 0, len(self.moments) - 1, made)
        maker = self.moments[made]
        if (made < self.turn and kept) or ops.get(maker.op).page:  # what comes back from PAGE was saved there
            kind = "mask" if tensor.dtype.value == "u8" else "saved"
        elif top in self.families.held and slot.bytes < tensor.bytes(self.batch):
            kind = "rows"
        elif ops.get(maker.op).border == "in":
            kind = "input"
        else:
            kind = "gradient" if made >= self.turn or maker.stage == "update" else "activation"
        name = top if top not in self.families.in_body and name in self.families.in_body else name
        return Span(name, kind, slot.offset, slot.bytes, first, last, made)


def _written_over(spans: Sequence[Span]) -> list[Span]:
    """A stream writes a value over another one: what both take meanwhile is a span of its own."""
    alone: list[Span] = []
    both: list[Span] = []
    offset, end, last = np.zeros((3, len(spans)), np.int64)  # of those in `alone`
    for n, new in enumerate(sorted(spans, key=lambda s: (s.first, s.last))):
        low, high = new.offset, new.offset + new.bytes
        for k in np.flatnonzero((last[:n] >= new.first) & (offset[:n] < high) & (end[:n] > low)):
            old = alone[k]
            if old.last >= new.first:
                start, stop = min(old.offset, low), max(int(end[k]), high)
                name = f"{new.tensor}>{old.tensor}"
                both.append(Span(name, new.kind, start, stop - start, new.first, old.last, new.made))
                alone[k] = replace(old, last=new.first - 1)
                last[k] = new.first - 1
                new = replace(new, first=old.last + 1)
        offset[n], end[n], last[n] = low, high, new.last
        alone.append(new)
    return [s for s in (*alone, *both) if s.first <= s.last]


__all__ = ["facts_of", "traffic"]
