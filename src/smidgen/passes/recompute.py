"""Compute values again instead of keeping them: nodes are repeated before a later reader, which takes the copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .. import ops
from ..ir import Graph, Node, Tensor, unnamed_removed


def recompute(graph: Graph, again: Mapping[int, Sequence[int]]) -> Graph:
    """`again`: position → positions of the nodes to repeat right before it, in that order.

    From there on everybody reads the newest copy, also through views. The bits do not change: a copy is the same kernel
    on the same values, and random numbers depend on the node of origin.
    """
    return _Rewrite(graph).run(again)


class _Rewrite:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.nodes: list[Node] = []
        self.newest: dict[str, str] = {}  # tensor → its last copy
        self.views = {n.outs[0]: n for n in graph.nodes if n.ins and n.op != "loop" and ops.get(n.op).is_view}
        self.seen: dict[tuple[str, str], str] = {}  # (view, copy of what it shows) → copy of the view

    def run(self, again: Mapping[int, Sequence[int]]) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            for source in again.get(position, ()):
                self._repeat(self.graph.nodes[source])
            self.nodes.append(self._redirected(node))
        return unnamed_removed(self.graph.with_(nodes=tuple(self.nodes), tensors=self.tensors))

    def _repeat(self, node: Node) -> None:
        node = self._redirected(node)
        outs = tuple(self._copy(name) for name in node.outs)
        self.nodes.append(node.with_(outs=outs))
        self.newest.update(zip(node.outs, outs, strict=True))

    def _redirected(self, node: Node) -> Node:
        return node.with_(ins=tuple(self._read(name) for name in node.ins))

    def _read(self, name: str) -> str:
        """The newest copy; a view of something that has one is made anew, once."""
        if name in self.newest or name not in self.views:
            return self.newest.get(name, name)
        view = self.views[name]
        shown = self._read(view.ins[0])
        if shown == view.ins[0]:
            return name
        if (name, shown) not in self.seen:
            self.seen[name, shown] = self._copy(name)
            self.nodes.append(view.with_(ins=(shown, *view.ins[1:]), outs=(self.seen[name, shown],)))
        return self.seen[name, shown]

    def _copy(self, name: str) -> str:
        k = 2
        while f"{name}~{k}" in self.tensors:
            k += 1
        self.tensors[f"{name}~{k}"] = Tensor(f"{name}~{k}", self.tensors[name].shape, self.tensors[name].dtype)
        return f"{name}~{k}"
