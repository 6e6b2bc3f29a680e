"""Layers that read a weight as it is stored, without the op that would make it whole.

`read_slices` comes after the gradients: a layer that reads put(constant, slice, index) reads the three of them, so that
the whole weight is nowhere in RAM. What has no such form keeps its put."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ... import ops
from ...ir import Array, Graph, Node, Role, Tensor
from ..graph.alias import ascends


def read_slices(graph: Graph) -> Graph:
    made = {node.outs[0]: node for node in graph.nodes if _is_put(graph, node)}
    tensors, data, nodes = dict(graph.tensors), dict(graph.data), []
    for node in graph.nodes:
        stored = ops.get(node.op).stored
        put = made.get(node.ins[stored.input]) if stored and stored.slice else None
        if stored and put and node.ins.count(put.outs[0]) == 1:
            node, constants = reading(graph, node, str(stored.slice), put.ins)
            node = node.with_(attrs={**node.attrs, "axis": put.attrs["axis"]})
            tensors |= {name: Tensor(name, value.shape, role=Role.CONST) for name, value in constants.items()}
            data |= constants
        nodes.append(node)
    read = {name for node in nodes for name in node.ins} | set(graph.outputs)
    gone = made.keys() - read
    kept = {name: tensor for name, tensor in tensors.items() if name not in gone}
    left = tuple(node for node in nodes if not gone.intersection(node.outs))
    return graph.with_(nodes=left, tensors=kept, data=data)


def _is_put(graph: Graph, node: Node) -> bool:
    """Into a constant, at indices that are known and ascend."""
    if ops.get(node.op).slices != "put" or graph[node.ins[0]].role is not Role.CONST:
        return False
    return ascends(graph, node.ins[2])


def reading(graph: Graph, node: Node, op: str, instead: Sequence[str]) -> tuple[Node, dict[str, Array]]:
    """`node` as `op`, which has other inputs in the place of its weight, and the constants that this takes: it always
    has a bias, and where there was none, one that changes no bit (x + 0 is not x for a zero with a sign, x - 0 is)."""
    record = ops.get(node.op)
    stored, bias = record.stored, record.operand("bias")
    assert stored is not None
    ins, constants = list(node.ins), {}
    if bias is not None and bias == len(ins):
        width = int(graph[node.outs[0]].shape[-1])  # type: ignore[arg-type]
        name = f"{'zeros' if record.zero_bias else 'no_bias'}:{width}"
        constants[name] = np.full(width, 0.0 if record.zero_bias else -0.0)
        ins.append(name)
    ins[stored.input : stored.input + 1] = instead
    return node.with_(op=op, ins=tuple(ins)), constants
