"""Values of a stream in one block: a result that is there as a whole is written over the rows of an input that dies in
the stream, which begins so far behind it that no row is overwritten before it was read for the last time.

    input            [ a b c d e f g h ]            before the stream
    result       [ A B C D E F ]                    behind it; B is written when c is the first row that is still read
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ... import ops
from ...ir import Array, Graph, Node, Tensor
from ...ops.traits import Rows
from .rows import Held, Stream, row_bytes, rows_of, rule_of, streamed_inputs

NEVER: Final = 1 << 28  # rows


@dataclass(frozen=True, slots=True)
class Pair:
    """`over` begins `apart` bytes below `under`, and is written over it."""

    over: str
    under: str
    apart: int
    saved: int  # bytes of the block, beside a block for each


def pairs(
    graph: Graph, nodes: Sequence[Node], stream: Stream, root: Callable[[str], str], align: int,
    over: Mapping[str, int], under: Mapping[str, int],
) -> list[Pair]:  # fmt: skip
    """Of results and of inputs with their bytes those that share a block, each with one other, what saves most first.
    `nodes` are those of the stream."""
    touched = _Touched(graph, nodes, stream, root)
    taken: set[str] = set()
    kept: list[Pair] = []
    # A pair saves no more than the smaller one takes: it is looked at when nothing else can save more.
    waiting: list[tuple[int, str, str, int | None]] = [
        (-min(x_bytes, y_bytes), y, x, None) for x, x_bytes in under.items() for y, y_bytes in over.items()
    ]
    heapq.heapify(waiting)
    while waiting:
        less, y, x, apart = heapq.heappop(waiting)
        if {y, x} & taken:
            continue
        if apart is not None:
            taken |= {y, x}
            kept.append(Pair(y, x, apart, -less))
        elif (least := touched.apart(y, x)) is not None:
            apart = -(-least // align) * align
            saved = under[x] + over[y] - max(apart + under[x], over[y])
            if saved > 0:
                heapq.heappush(waiting, (-saved, y, x, apart))
    return kept


def rows_apart(
    graph: Graph, nodes: Sequence[Node], stream: Stream, root: Callable[[str], str], over: str, under: str
) -> int | None:
    """How many bytes the input begins behind the result at least; None if a node needs the input as a whole. `root` is
    the value that a tensor shows."""
    return _Touched(graph, nodes, stream, root).apart(over, under)


class _Touched:
    """Which nodes of a stream write and read a value, and when."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], stream: Stream, root: Callable[[str], str]) -> None:
        self.graph, self.nodes, self.stream = graph, nodes, stream
        self.writers: dict[str, list[int]] = {}  # value → nodes, by number
        self.readers: dict[str, list[tuple[int, int]]] = {}  # and which of their inputs
        self._turns = np.arange(-1, stream.iterations)
        self._ends: dict[int, Array] = {}
        self._needed: dict[tuple[int, int], Array | None] = {}
        for k, node in enumerate(nodes):
            if not ops.get(node.op).is_view and node.outs[0] in stream.values:
                self.writers.setdefault(root(node.outs[0]), []).append(k)
                for i, name in enumerate(node.ins):
                    self.readers.setdefault(root(name), []).append((k, i))

    def apart(self, over: str, under: str) -> int | None:
        """As rows_apart."""
        writers, readers = self.writers.get(over, ()), self.readers.get(under, ())
        reads: list[tuple[int, Array]] = []  # place, first byte that is read in an iteration or later
        least, in_place = 0, list[int]()  # by nodes that do both; and where these may begin at the same byte
        for k, i in readers:
            needed = self._needed_bytes(k, i)
            if needed is None:
                return None
            reads.append((k, needed))
            if k in writers:
                node, held = self.nodes[k], self.stream.values[self.nodes[k].outs[0]]
                rule = rule_of(self.graph, node)
                assert rule is not None
                own = _of_node(rule, held, self.graph[node.ins[i]])
                if _works_in_place(self.graph, node, i):
                    in_place.append(own)
                else:
                    least = max(least, own)
        for at in writers:
            row = self.stream.values[self.nodes[at].outs[0]].row_bytes
            written = self._end(at)[1:] * row  # bytes that are written up to an iteration
            for k, needed in reads:
                before = k <= at  # in an iteration, it has read what it reads
                least = max(least, int((written - needed[before:][: len(written)]).max()))
        return max([least, *in_place]) if least else 0 if reads and writers else None

    def _end(self, k: int) -> Array:
        """Rows of its result that a node has made after each iteration, and before the first."""
        if k not in self._ends:
            held = self.stream.values[self.nodes[k].outs[0]]
            end = np.clip((self._turns + 1) * held.step // held.period + held.ahead, 0, held.count)
            end[0] = 0
            self._ends[k] = end
        return self._ends[k]

    def _needed_bytes(self, k: int, i: int) -> Array | None:
        """Iteration → the first byte of an input that is read there or later; None: it is read as a whole."""
        if (k, i) not in self._needed:
            node = self.nodes[k]
            rule, x = rule_of(self.graph, node), self.graph[node.ins[i]]
            by_rows = rule is not None and i in set(streamed_inputs(self.graph, node))
            needed = _needed_from(rule, self._end(k), rows_of(x)) * row_bytes(x) if rule and by_rows else None
            self._needed[k, i] = needed
        return self._needed[k, i]


def _of_node(rule: Rows, held: Held, x: Tensor) -> int:
    """For a node that writes over what it reads, whatever the iterations, as the loader looks at it: smg_rows_apart of
    runtime/rows.c."""
    most = min(-(-held.step // held.period), held.count)
    begin = np.arange(held.count - most + 1)
    return int(((begin + most) * held.row_bytes - _first(rule, begin, rows_of(x)) * row_bytes(x)).max())


def _first(rule: Rows, begin: Array, count: int) -> Array:
    """The first of `count` rows of the input that is needed for rows from `begin` on."""
    by, over, low, _ = rule.needs
    first: Array = np.clip((begin * by + low) // over, 0, count)
    return first


def _needed_from(rule: Rows, end: Array, count: int) -> Array:
    """Iteration → the first row of the input that is read there or later, one place more than there are iterations."""
    begin = end[:-1]
    found = np.append(np.where(end[1:] > begin, _first(rule, begin, count), NEVER), NEVER)
    return np.minimum.accumulate(found[::-1])[::-1]


def _works_in_place(graph: Graph, node: Node, i: int) -> bool:
    """Row by row, the result takes the place of this input."""
    rule, name = rule_of(graph, node), node.ins[i]
    x, y = graph[name], graph[node.outs[0]]
    same = rule is not None and rule.kind == "each" and (x.shape, x.dtype) == (y.shape, y.dtype)
    return same and i in ops.get(node.op).inplace and node.ins.count(name) == 1


__all__ = ["Pair", "pairs", "rows_apart"]
