"""What a sweep that lays out every value as written costs at least, told without one."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from ... import ops
from ...ir import Graph, Node
from .layout import moves, price


def least_cost(graph: Graph, exclusive: Collection[str]) -> float:
    """Of a graph without dead nodes. Values are numbered: what such a sweep may write once has one number, and all
    permutes of one value count as one of them. `exclusive`: stored tensors into whose layout permutes are absorbed."""
    number: dict[Hashable, int] = {}
    value = {name: number.setdefault(name, len(number)) for name in graph.tensors}
    absorbing = {value[name] for name in exclusive if name in value}
    priced: set[int] = set()
    cost = 0.0
    for node in graph.nodes:
        source = value[node.ins[0]] if node.ins else -1
        if _is_free(graph, node):
            value[node.outs[0]] = source
        elif moves(node):
            value[node.outs[0]] = moved = number.setdefault(("moved", source), len(number))
            if moved not in priced and source not in absorbing:
                priced.add(moved)
                cost += price(graph[node.outs[0]].shape)
        elif (layout := ops.get(node.op).layout) is not None and layout.once:
            key = (node.op, *(value[name] for name in node.ins))
            for k, out in enumerate(node.outs):
                value[out] = number.setdefault((k, key), len(number))
    return cost


def _is_free(graph: Graph, node: Node) -> bool:
    """Its result is its operand, under another shape perhaps."""
    record = ops.get(node.op)
    if record.rearranges is not None:
        axes = record.rearranges(node.attrs)[1]
        solid = [] if record.is_view else [a for a in axes if graph[node.ins[0]].shape[a] != 1]
        return solid == sorted(solid)
    if record.identity is None or not record.identity(node.attrs):
        return False
    x, y = graph[node.ins[0]], graph[node.outs[0]]
    return (x.shape, x.dtype) == (y.shape, y.dtype)
