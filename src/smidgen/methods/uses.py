"""How the forward graph uses its parameters: the role of a parameter is where it enters an op, never its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .. import ops
from ..ir import Graph, Role
from ..ops.traits import OperandRole


@dataclass(frozen=True, slots=True)
class Use:
    param: str
    role: OperandRole | Literal["other"]
    op: str
    position: int  # of the node in the graph


def uses(graph: Graph) -> list[Use]:
    """Every use of every parameter in execution order; views and layout changes are looked through."""
    origin = {t.name: t.name for t in graph.of_role(Role.PARAM)}
    found: list[Use] = []
    for position, node in enumerate(graph.nodes):
        record = ops.get(node.op)
        passes_on = record.is_view or record.rearranges is not None
        for i, name in enumerate(node.ins):
            if name not in origin:
                continue
            if passes_on:
                origin[node.outs[0]] = origin[name]
            else:
                found.append(Use(origin[name], record.operands.get(i, "other"), node.op, position))
    return found
