"""What nodes cost that run row by row, beside what they take as a whole: more calls, in each of which weights are read
anew, and rows that move to the front. Less where maps are too large for the cache, and rows are not. Rates are in
rows.json, which benchmarks/row_prices.py writes."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ... import ops
from ...ir import DType, Graph, Node, Role
from ..graph.alias import loop_range
from ..graph.rows import Held, Stream, shared_rows, streamed_inputs, streams

PATH: Final = Path(__file__).parent / "rows.json"
FAR_BYTES: Final = 4 << 20  # of a map: what is beyond is fetched from far away


class Counts(NamedTuple):
    """Of a stream, for one sample. As rates: seconds, or instructions, for each of them."""

    visits: float  # instructions, each in every iteration
    turns: float  # calls
    moved: float  # bytes
    again: float  # weights that are read once more, in f32
    again_stored: float  # and such that are stored otherwise
    far: float  # bytes of large maps that are not read and written as a whole; what they save

    def total(self, rates: Counts) -> float:
        spent = sum(count * rate for count, rate in zip(self[:-1], rates[:-1], strict=True))
        return spent - self.far * rates.far

    def times(self, factor: float) -> Counts:
        return Counts(*(count * factor for count in self))


NONE: Final = Counts(0, 0, 0, 0, 0, 0)


def summed(counts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(NONE, *counts, strict=True)))


class _Weights(NamedTuple):
    again: int
    again_stored: int
    far: int


class RowCosts:
    """Of some nodes, of which streams may be made."""

    def __init__(self, graph: Graph, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        self.weights = [None if ops.get(node.op).is_view else _weights(graph, node) for node in nodes]

    def of(self, span: range, stream: Stream, in_place: Collection[str]) -> Counts:
        """Those at `span`; results that take the memory of an input do not move."""
        return summed(self._node(k, stream, in_place) for k in span)

    def _node(self, k: int, stream: Stream, in_place: Collection[str]) -> Counts:
        weights, name = self.weights[k], self.nodes[k].outs[0]
        if weights is None:
            return NONE
        held = stream.values[name]
        turns = turns_of(held)
        moves = held.most < held.count and name not in in_place
        moved = turns * (held.ahead - held.kept) * held.row_bytes if moves else 0
        again, stored = (turns - 1) * weights.again, (turns - 1) * weights.again_stored
        return Counts(stream.iterations, turns, moved, again, stored, weights.far)


def _weights(graph: Graph, node: Node) -> _Weights:
    by_rows = set(streamed_inputs(graph, node))
    sizes = {True: 0, False: 0}
    for k, name in enumerate(node.ins):
        if k not in by_rows:
            sizes[graph[name].dtype is DType.F32] += int(graph[name].size)  # type: ignore[arg-type]
    maps = [] if ops.border(node) else [graph[node.ins[k]].bytes(1) for k in by_rows]
    maps += [graph[node.outs[0]].bytes(1)] if graph[node.outs[0]].role is Role.VALUE else []
    return _Weights(sizes[True], sizes[False], sum(max(size - FAR_BYTES, 0) for size in maps))


def turns_of(held: Held) -> int:
    """Iterations that make rows of a value."""
    return min(-(-held.count * held.period // held.step), held.count)


def counts_of(graph: Graph) -> Counts:
    """Of all streams of a graph."""
    body, found = loop_range(graph), list[Counts]()
    for stream in streams(graph, graph.nodes[body.start - 1]) if body else ():
        nodes = graph.nodes[body.start + stream.first : body.start + stream.first + stream.nodes]
        in_place = {out for out, _ in shared_rows(graph, nodes)}
        found.append(RowCosts(graph, nodes).of(range(len(nodes)), stream, in_place))
    return summed(found)


def most_saved(graph: Graph, rates: Counts) -> float:
    """No streams of the graph save more, for one sample."""
    body = loop_range(graph)
    if not body or not rates.far:
        return 0.0
    nodes = [graph.nodes[i] for i in body]
    return sum(w.far for w in RowCosts(graph, nodes).weights if w is not None) * rates.far


@functools.cache
def rates() -> Mapping[str, Mapping[str, Counts]]:
    """host: kernels → seconds; cores: core → instructions."""
    found = json.loads(PATH.read_text())
    return {kind: {name: Counts(*figures) for name, figures in found[kind].items()} for kind in ("host", "cores")}


__all__ = ["NONE", "Counts", "RowCosts", "counts_of", "most_saved", "rates", "summed", "turns_of"]
