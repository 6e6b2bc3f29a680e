"""Run parts of the loop over samples row by row, depth first (graph/rows.py): same bits, and no map as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Graph
from ..graph.alias import loop_range
from ..graph.rows import Stream


def with_streams(graph: Graph, found: Sequence[Stream]) -> Graph:
    """The loop of the graph with these streams instead of those it has."""
    body = loop_range(graph)
    at = body.start - 1
    loop = graph.nodes[at]
    attrs = {k: v for k, v in loop.attrs.items() if k != "streams"}
    if found:
        attrs["streams"] = tuple(stream.plain for stream in found)
    return graph.with_(nodes=(*graph.nodes[:at], loop.with_(attrs=attrs), *graph.nodes[at + 1 :]))
