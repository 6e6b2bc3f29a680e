"""Copies and broadcasts along more axes than a kernel walks along, in several steps; the result is the same.

Axes that lie and move together count as one (ops/strides.py), so only few networks have such: windows of windows,
factorised attention over many axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ... import ops
from ...ir import Dim, Graph, Node, Shape, size
from ...ops.build import Builder, typed
from ...ops.strides import MAX_RANK, TooManyAxes, broadcast_strides, joined, strides


def few_axes(graph: Graph) -> Graph:
    if not any(_too_many(graph, node) for node in graph.nodes):
        return graph
    b = Builder(graph)
    b.nodes = []
    loops: dict[int, int] = {}  # place of a loop → of the first old node behind its body
    for at, node in enumerate(graph.nodes):
        _close(b, loops, at)
        if ops.is_loop(node):
            loops[len(b.nodes)] = at + 1 + node.attrs["body"]
        b.stage, b.src = node.stage, node.src
        record = ops.get(node.op)
        rule = record.layout.rule if record.layout else ""
        if not _too_many(graph, node):
            b.append(node)
        elif rule == "reorder":
            _named(b, node, _permuted(b, node.ins[0], node.attrs["perm"]))
        elif rule == "repeat":
            _named(b, node, _expanded(b, node.ins[0], graph[node.outs[0]].shape))
        elif record.pointwise:
            shape = graph[node.outs[0]].shape
            b.append(node.with_(ins=tuple(_expanded(b, name, shape) for name in node.ins)))
        else:
            b.append(node)
    _close(b, loops, len(graph.nodes))
    return b.graph()


def _close(b: Builder, loops: dict[int, int], at: int) -> None:
    """A loop says how many nodes it repeats, and some of them have become several."""
    for place in [place for place, end in loops.items() if end == at]:
        del loops[place]
        loop = b.nodes[place]
        b.nodes[place] = loop.with_(attrs={**loop.attrs, "body": len(b.nodes) - place - 1})


def _too_many(graph: Graph, node: Node) -> bool:
    if all(len(graph[name].shape) <= MAX_RANK for name in (*node.ins, *node.outs)):
        return False
    try:
        ops.get(node.op).params(typed(graph, node))
    except TooManyAxes:
        return True
    return False


def _named(b: Builder, node: Node, result: str) -> None:
    """`result`, which the last node made, under the name by which the others know it."""
    shape = b[node.outs[0]].shape
    if b.nodes[-1].outs != (result,) or b[result].shape != shape:
        b.append(Node("reshape", (result,), node.outs, {"shape": shape}, node.stage, node.src))
        return
    b.nodes[-1] = b.nodes[-1].with_(outs=node.outs)
    del b.tensors[result]


def _permuted(b: Builder, x: str, perm: Sequence[int]) -> str:
    """Moves to the front, each of as many blocks of axes as one walk allows."""
    shape = b[x].shape
    blocks: list[list[int]] = []
    for axis in (a for a in perm if shape[a] != 1):
        following = blocks and all(shape[a] == 1 for a in range(blocks[-1][-1] + 1, axis)) and blocks[-1][-1] < axis
        if following:
            blocks[-1].append(axis)
        else:
            blocks.append([axis])
    lie = sorted(range(len(blocks)), key=lambda k: blocks[k][0])
    x = b.add("reshape", x, shape=tuple(size([shape[a] for a in blocks[k]]) for k in lie))
    placed = 0
    while lie != sorted(lie):
        for count in range(len(lie) - placed, 0, -1):
            front = list(range(placed + count))
            order = [*front, *[k for k in lie if k >= placed + count]]
            step = [lie.index(k) for k in order]
            if _runs(step) <= MAX_RANK:
                break
        x = b.add("permute", x, perm=tuple(step))
        lie, placed = order, placed + count
    return x


def _runs(perm: Sequence[int]) -> int:
    return 1 + sum(after != before + 1 for before, after in pairwise(perm))


def _expanded(b: Builder, x: str, shape: Shape) -> str:
    """Some axes first, then others."""
    own = b[x].shape
    if len(own) < len(shape):
        x = b.add("reshape", x, shape=(*[1] * (len(shape) - len(own)), *own))
    while b[x].shape != shape:
        now: list[Dim] = list(b[x].shape)
        for axis, dim in enumerate(shape):
            wider = [*now[:axis], dim, *now[axis + 1 :]]
            if now[axis] != dim and _walk(b[x].shape, tuple(wider)) <= MAX_RANK:
                now = wider
        x = b.add("expand", x, shape=tuple(now))
    return x


def _walk(shape: Shape, to: Shape) -> int:
    return len(joined(to, broadcast_strides(shape, to), strides(to))[0])
