"""Where a network can be cut in two: values through which everything later goes."""

from __future__ import annotations

from collections.abc import Collection

from .. import ops
from ..ir import Graph, Role, batch_axis


def cuts(graph: Graph, without: Collection[str] = ()) -> list[tuple[int, str]]:
    """Each with the position of the node that makes it: nothing else that was computed from the inputs, apart from
    those named in `without`, is read after it."""
    last_read: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        last_read |= dict.fromkeys(node.ins, i)
    depends = {out for n in graph.nodes if ops.border(n) == "in" and n.ins[0] not in without for out in n.outs}
    alive: set[str] = set()
    found: list[tuple[int, str]] = []
    for i, node in enumerate(graph.nodes):
        if depends.isdisjoint(node.ins):
            continue
        depends |= set(node.outs)
        alive = {name for name in (*alive, *node.outs) if last_read.get(name, -1) > i}
        made = graph[node.outs[0]]
        if alive == {made.name} and made.role is Role.VALUE and batch_axis(made.shape) == 0:
            found.append((i, made.name))
    return found


__all__ = ["cuts"]
