"""How the forward graph uses its parameters: the role of a parameter is where it enters an op, never its name."""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from ..ir import Graph, Role

# op → role of each input that may be a parameter.
OPERANDS = {
    "linear": {1: "weight", 2: "bias"},
    "conv2d": {1: "weight", 2: "bias"},
    "conv_transpose2d": {1: "weight", 2: "bias"},
    "matmul": {0: "weight", 1: "weight"},
    "embedding": {0: "table"},
    "batch_norm": {1: "scale", 2: "shift"},
    "batch_norm_batch": {1: "scale", 2: "shift"},
    "layer_norm": {1: "scale", 2: "shift"},
    "group_norm": {1: "scale", 2: "shift"},
    "add": {0: "bias", 1: "bias"},
    "mul": {0: "scale", 1: "scale"},
}


@dataclass(frozen=True, slots=True)
class Use:
    param: str
    role: str  # weight, bias, scale, shift, table, other
    op: str
    position: int  # of the node in the graph


def uses(graph: Graph) -> list[Use]:
    """Every use of every parameter in execution order; views and layout changes are looked through."""
    origin = {t.name: t.name for t in graph.of_role(Role.PARAM)}
    found: list[Use] = []
    for position, node in enumerate(graph.nodes):
        passes_on = ops.get(node.op).is_view or node.op == "permute"
        for i, name in enumerate(node.ins):
            if name not in origin:
                continue
            if passes_on:
                origin[node.outs[0]] = origin[name]
            else:
                role = OPERANDS.get(node.op, {}).get(i, "other")
                found.append(Use(origin[name], role, node.op, position))
    return found
