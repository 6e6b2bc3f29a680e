"""Every parameter learns."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Graph, Role
from .contract import Context, Method, Update
from .registry import register


@register
class Full(Method):
    name, doc = "full", "every parameter"
    keeps, costs = "inputs of every layer", "all gradients"

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return [Update(t.name) for t in graph.of_role(Role.PARAM)]
