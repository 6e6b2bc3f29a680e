"""Which tensors of a graph are the same memory, and which nodes a loop repeats. Placement decides what is joined."""

from __future__ import annotations

from collections.abc import Collection

from ... import ops
from ...ir import Graph, Role


def loop_range(graph: Graph) -> range:
    """Positions of the loop's body, empty without a loop."""
    for i, node in enumerate(graph.nodes):
        if ops.is_loop(node):
            return range(i + 1, i + 1 + node.attrs["body"])
    return range(0)


class Families:
    """Tensors that are the same memory, each family named by one: what is stored, an accumulator, or what the loop
    gathers, wins."""

    def __init__(self, graph: Graph, stored: Collection[str]) -> None:
        self.graph, self.stored = graph, stored
        self.body = loop_range(graph)
        self.in_body = {o for i in self.body for o in graph.nodes[i].outs}
        self._parent: dict[str, str] = {}

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

    def stride(self, name: str) -> int:
        """Bytes from one sample to the next, for a tensor inside the loop that is part of one outside it."""
        top = self.root(name)
        inside = name in self.in_body and top not in self.in_body and top not in self.stored
        return self.graph[top].bytes(1) if inside else 0
