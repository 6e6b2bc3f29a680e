"""The last layers learn: the last k weighted operations, with their biases and the norms after the first of them."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Graph
from .registry import Update, register
from .uses import uses


def last(graph: Graph, k: int | None) -> Sequence[Update]:
    found = uses(graph)
    weighted = sorted({u.position for u in found if u.role == "weight"})
    if not weighted:
        return []
    start = weighted[-min(k or 1, len(weighted))]
    return [Update(u.param) for u in found if u.position >= start]


register("last_layer", "weight and bias of the last layer", lambda graph, k: last(graph, 1))
register("last", "the last k layers, as in last:3", last, takes_count=True)
