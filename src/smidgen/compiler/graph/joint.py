"""Values of a stream in one block: a result that is there as a whole is written over the rows of an input that dies in
the stream, which begins so far behind it that no row is overwritten before it was read for the last time.

    input            [ a b c d e f g h ]            before the stream
    result       [ A B C D E F ]                    behind it; B is written when c is the first row that is still read
"""

from __future__ import annotations

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
    found = []
    for x, x_bytes in under.items():
        for y, y_bytes in over.items():
            least = rows_apart(graph, nodes, stream, root, y, x)
            if least is None:
                continue
            apart = -(-least // align) * align
            saved = x_bytes + y_bytes - max(apart + x_bytes, y_bytes)
            if saved > 0:
                found.append(Pair(y, x, apart, saved))
    taken: set[str] = set()
    kept = []
    for pair in sorted(found, key=lambda p: (-p.saved, p.over, p.under)):
        if not {pair.over, pair.under} & taken:
            taken |= {pair.over, pair.under}
            kept.append(pair)
    return kept


def rows_apart(
    graph: Graph, nodes: Sequence[Node], stream: Stream, root: Callable[[str], str], over: str, under: str
) -> int | None:
    """How many bytes the input begins behind the result at least; None if a node needs the input as a whole. `root` is
    the value that a tensor shows."""
    reads: list[tuple[int, Array]] = []  # place, first byte that is read in an iteration or later
    writes: list[tuple[int, Array]] = []  # place, bytes that are written up to an iteration
    least, in_place = 0, list[int]()  # by nodes that do both; and where these may begin at the same byte
    turns = np.arange(-1, stream.iterations)
    for k, node in enumerate(nodes):
        held = stream.values.get(node.outs[0])
        if ops.get(node.op).is_view or held is None:
            continue
        end = np.clip((turns + 1) * held.step // held.period + held.ahead, 0, held.count)
        end[0] = 0
        writes_over = root(node.outs[0]) == over
        if writes_over:
            writes.append((k, end[1:] * held.row_bytes))
        by_rows = set(streamed_inputs(graph, node))
        for i, name in enumerate(node.ins):
            if root(name) != under:
                continue
            rule = rule_of(graph, node)
            if i not in by_rows or rule is None:
                return None
            x = graph[name]
            reads.append((k, _needed_from(rule, end, rows_of(x)) * row_bytes(x)))
            if not writes_over:
                continue
            if _works_in_place(graph, node, i):
                in_place.append(_of_node(rule, held, x))
            else:
                least = max(least, _of_node(rule, held, x))
    for at, written in writes:
        for k, needed in reads:
            before = k <= at  # in an iteration, it has read what it reads
            least = max(least, int((written - needed[before:][: len(written)]).max()))
    return max([least, *in_place]) if least else 0 if reads and writes else None


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
