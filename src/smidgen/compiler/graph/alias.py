"""Which tensors of a graph are the same memory, and which nodes a loop repeats. Placement decides what is joined."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from ... import ops
from ...ir import Graph, Role
from .rows import Held, Stream, marked, shared_rows, streams


def loop_range(graph: Graph) -> range:
    """Positions of the loop's body, empty without a loop."""
    for i, node in enumerate(graph.nodes):
        if ops.is_loop(node):
            return range(i + 1, i + 1 + node.attrs["body"])
    return range(0)


def ascends(graph: Graph, name: str) -> bool:
    """Is it a list of indices that is known, from the front, each larger than the one before?"""
    if graph[name].role is not Role.CONST:
        return False
    places = np.asarray(graph.data[name])
    return bool(places[0] >= 0 and (np.diff(places) > 0).all())


def regions(graph: Graph) -> list[range]:
    """Nodes that run by turns, with the node in front that says so: the loop, and streams outside of it. Nothing else
    comes between them."""
    found = []
    for i, node in enumerate(graph.nodes):
        if ops.is_loop(node) or ops.is_stream(node):
            found.append(range(i, i + 1 + node.attrs["body"]))
    return found


class Families:
    """Tensors that are the same memory, each family named by one: what is stored, an accumulator, or what the loop
    gathers, wins."""

    def __init__(self, graph: Graph, stored: Collection[str]) -> None:
        self.graph, self.stored = graph, stored
        self.body = loop_range(graph)
        self.in_body = {o for i in self.body for o in graph.nodes[i].outs}
        self.held: dict[str, Held] = {}  # tensor of a stream → the rows of it that there are
        self.streams: dict[range, Stream] = {}  # by their nodes
        self._stream: dict[int, range] = {}  # node of a stream → all of them
        for one in streams(graph, graph.nodes[self.body.start - 1]) if self.body else ():
            self._streams(range(self.body.start + one.first, self.body.start + one.first + one.nodes), one)
        self.carries: dict[int, int] = {}  # node of a stream → bytes that it keeps beside its result
        for mark in marked(graph):
            self._streams(mark.nodes, mark.stream)
            self.carries |= mark.carries
        self._passing: set[str] = set()
        self._parent: dict[str, str] = {}

    def _streams(self, nodes: range, stream: Stream) -> None:
        self.held |= stream.values
        self.streams[nodes] = stream
        self._stream |= dict.fromkeys(nodes, nodes)

    def root(self, name: str) -> str:
        top = name
        while top in self._parent:
            top = self._parent[top]
        while name != top:  # the next one to ask has a short way
            self._parent[name], name = top, self._parent[name]
        return top

    def join(self, one: str, other: str) -> None:
        a, b = self.root(one), self.root(other)
        if a != b:
            keep, drop = sorted((a, b), key=self._rank)
            self._parent[drop] = keep

    def _rank(self, name: str) -> tuple[bool, bool, bool]:
        return (name not in self.stored, self.graph[name].role is not Role.ACCUM, name in self.in_body)

    def touched(self, position: int, name: str) -> range:
        """When a value is alive, as far as this node knows that touches it: while it runs; or with a stream around it
        all the time that this takes, unless nothing of the value is there between two iterations."""
        return range(position, position + 1) if self.root(name) in self._passing else self.turns(position)

    def turns(self, position: int) -> range:
        """Nodes that run by turns with this one."""
        return self._stream.get(position, range(position, position + 1))

    def is_streamed(self, position: int) -> bool:
        return position in self._stream

    def join_rows(self) -> None:
        """What nodes of streams make in place. Everything else that is joined for good was joined before."""
        for nodes in self.streams:
            for out, source in shared_rows(self.graph, [self.graph.nodes[i] for i in nodes]):
                self.join(out, source)
        stay = {self.root(name) for name, held in self.held.items() if not held.passes or name not in self.in_body}
        self._passing = {self.root(name) for name in self.held} - stay

    def bytes(self, name: str, n: int) -> int:
        """What a tensor takes, for n samples."""
        held = self.held.get(name)
        inside = held is not None and self.root(name) in (self.in_body if name in self.in_body else self.held)
        return held.bytes if held and inside and held.row_bytes else self.graph[name].bytes(n)

    def stride(self, name: str) -> int:
        """Bytes from one sample to the next, for a tensor inside the loop that is part of one outside it."""
        top = self.root(name)
        inside = name in self.in_body and top not in self.in_body and top not in self.stored
        return self.graph[top].bytes(1) if inside else 0
