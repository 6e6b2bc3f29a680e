"""Replace ops whose extra results nobody reads by their lean form (max-pooling without indices)."""

from __future__ import annotations

from ... import ops
from ...ir import Graph, Node


def lean(graph: Graph) -> Graph:
    read = {name for node in graph.nodes for name in (*node.ins, *node.attrs.get("yields", ()))}

    def one(node: Node) -> Node:
        name = ops.get(node.op).lean
        if name is None or any(out in read for out in node.outs[1:]):
            return node
        return node.with_(op=name, outs=node.outs[:1])

    return graph.with_(nodes=tuple(one(node) for node in graph.nodes))
