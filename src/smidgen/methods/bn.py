"""Scale and shift of batch-norm layers learn, alone or together with the last layer."""

from __future__ import annotations

from collections.abc import Sequence

from .. import ops
from ..ir import Graph
from .last import last
from .registry import Update, register
from .uses import uses


def norms(graph: Graph) -> Sequence[Update]:
    return [Update(u.param) for u in uses(graph) if ops.get(u.op).norm == "batch"]


register("bn", "scale and shift of batch-norm layers", lambda graph, k: norms(graph))
register("bn+last", "batch-norm layers and the last layer", lambda graph, k: [*norms(graph), *last(graph, 1)])
