"""An order of nodes with a low peak: inputs are fetched when they are needed, not before."""

from __future__ import annotations

from ... import ops
from ...ir import Graph, Node


def feed_late(graph: Graph) -> Graph:
    """Move every `feed` to right before its first reader. Feeds inside a loop stay with the loop's body."""
    body: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if ops.is_loop(node):
            body = set(range(i + 1, i + 1 + node.attrs["body"]))
    waiting = {node.outs[0]: node for i, node in enumerate(graph.nodes) if ops.border(node) == "in" and i not in body}
    nodes: list[Node] = []
    for i, node in enumerate(graph.nodes):
        if ops.border(node) == "in" and i not in body:
            continue
        for name in node.ins:
            if name in waiting:
                nodes.append(waiting.pop(name))
        nodes.append(node)
    return graph.with_(nodes=tuple(nodes))
