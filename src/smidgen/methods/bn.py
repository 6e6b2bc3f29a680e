"""Scale and shift of batch-norm layers learn, alone or together with the last layer."""

from __future__ import annotations

from collections.abc import Sequence

from .. import ops
from ..ir import Graph
from .contract import Context, Method, Update
from .last import last
from .registry import register
from .uses import uses


def norms(graph: Graph) -> Sequence[Update]:
    return [Update(u.param) for u in uses(graph) if ops.get(u.op).norm == "batch"]


@register
class Norms(Method):
    name, doc = "bn", "scale and shift of batch-norm layers"
    keeps, costs = "inputs of batch-norms", "gradients back to the first norm"

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return norms(graph)


@register
class NormsAndLast(Method):
    name, doc = "bn+last", "batch-norm layers and the last layer"
    keeps, costs = "inputs of batch-norms and of the last layer", "gradients back to the first norm"
    after = "Mudrakarta et al. 2019"

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return [*norms(graph), *last(graph, 1)]
