"""What the loop over samples can be cut into: nodes that run as a whole, and streams (graph/rows.py) from one place to
another, some rows at a time. Each has a peak, and takes more time than its nodes as a whole, or less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from ... import ops
from ...ir import ALIGN, Graph, Role, at
from ...ops.build import typed
from ..effort import spend
from ..graph.alias import Families
from ..graph.joint import pairs
from ..graph.rows import Body, Stream, shared_rows
from ..place.arena import align_up
from .cost import Prices
from .row_cost import RowCosts

MOST_ROWS: Final = 32  # of an iteration: more take more memory, and hardly less time
FEW: Final = 4  # rows that tell, beside one, how peak and time change with them
WORK: Final = 20e-6  # of effort for a node that is looked at


@dataclass(frozen=True, slots=True)
class Piece:
    """`seconds` are those beyond what the nodes take as a whole."""

    first: int
    end: int
    peak: int
    seconds: float = 0.0
    stream: Stream | None = None
    inner: int = 0  # bytes of what is read within the stream alone


class Pieces:
    """Of a graph without streams. With `whole_inputs` no row of an input is asked for alone."""

    def __init__(self, graph: Graph, body: range, prices: Prices, whole_inputs: bool) -> None:
        self.graph, self.prices = graph, prices
        self.rows = Body(graph, body)
        self.nodes = self.rows.nodes
        blocked = zip(self.nodes, self.rows.blocked, strict=True)
        self.blocked = [is_ or (whole_inputs and ops.border(node) == "in") for node, is_ in blocked]
        self.families = Families(graph, graph.data)
        for node in graph.nodes:
            for out, source in ops.get(node.op).shares.items():
                self.families.join(node.outs[out], node.ins[source])
            for gathered, piece in zip(node.outs, node.attrs.get("yields", ()), strict=False):
                self.families.join(gathered, piece)
        self.scratch = [align_up(int(at(ops.get(n.op).scratch(typed(graph, n)), 1)), ALIGN) for n in self.nodes]
        self.made: dict[str, int] = {}  # value of the loop → its maker
        self.last: dict[str, int] = {}
        for k, node in enumerate(self.nodes):
            for name in (*node.ins, *node.outs):
                if root := self._inside(name):
                    self.made.setdefault(root, k)
                    self.last[root] = k
        self._known: dict[tuple[int, int, int], Piece | None] = {}
        spend(WORK * len(self.nodes))

    def _inside(self, name: str) -> str:
        """The value of the loop that a tensor is, or nothing."""
        root = self.families.root(name)
        is_value = self.graph[root].role is Role.VALUE and root in self.families.in_body
        return root if is_value else ""

    def _bytes(self, root: str) -> int:
        return align_up(self.graph[root].bytes(1), ALIGN)

    # -- nodes as a whole ------------------------------------------------------------------------------------------

    @cached_property
    def alive(self) -> list[int]:
        """Bytes of values that are made before a node and read at it or later."""
        change = [0] * (len(self.nodes) + 2)
        for root, made in self.made.items():
            change[made + 1] += self._bytes(root)
            change[self.last[root] + 1] -= self._bytes(root)
        total, found = 0, []
        for k in range(len(self.nodes) + 1):
            total += change[k]
            found.append(total)
        return found

    def _whole(self, k: int) -> Piece:
        """A result may take the place of an input that dies."""
        node = self.nodes[k]
        new = {root for out in node.outs if (root := self._inside(out)) and self.made[root] == k}
        dying = {self._inside(node.ins[i]) for i in ops.get(node.op).inplace} & {
            root for root, last in self.last.items() if last == k
        }
        size = sum(self._bytes(root) for root in new)
        if any(self._bytes(root) == size for root in dying if root):
            size = 0
        return Piece(k, k + 1, self.alive[k] + size + self.scratch[k])

    @cached_property
    def wholes(self) -> list[Piece]:
        return [self._whole(k) for k in range(len(self.nodes))]

    @cached_property
    def top(self) -> int:
        """The peak without any stream."""
        return max(piece.peak for piece in self.wholes)

    @cached_property
    def seconds(self) -> float:
        """Of all nodes as a whole."""
        return sum(self.prices.seconds(node.op, typed(self.graph, node), 1) for node in self.nodes)

    # -- streams ---------------------------------------------------------------------------------------------------

    @cached_property
    def cuts(self) -> list[int]:
        """Nodes before which little is alive, ends of what can be streamed included."""
        can = [*(not blocked for blocked in self.blocked), False]
        alive = [*self.alive, 0]
        found = {0, len(self.nodes)}
        for k in range(1, len(self.nodes)):
            ends = can[k - 1] != can[k]
            if (
                ends
                or (alive[k] <= alive[k - 1] and alive[k] < alive[k + 1])
                or alive[k] < alive[k - 1] == alive[k + 1]
            ):
                found.add(k)
        return sorted(found)

    @cached_property
    def streams(self) -> list[Piece]:
        """Between cuts, with a lower peak than without streams, one row at a time."""
        return list(self._streams())

    def _streams(self) -> Iterator[Piece]:
        for a, first in enumerate(self.cuts):
            for end in self.cuts[a + 1 :]:
                if any(self.blocked[first:end]):
                    break
                piece = self.piece(first, end, 1)
                if piece is None:
                    continue
                if self.alive[first] + piece.inner >= self.top:
                    break  # a longer one holds as much, and more
                if piece.peak < self.top:
                    yield piece

    def piece(self, first: int, end: int, rows: int) -> Piece | None:
        """A stream of nodes first..end, so many rows of the longest value at a time; None if they cannot be one."""
        key = first, end, rows
        if key not in self._known:
            spend(WORK * (end - first))
            stream = self.rows.stream(first, end - first, rows)
            self._known[key] = None if stream is None else self._of(stream)
        return self._known[key]

    def _of(self, stream: Stream) -> Piece:
        end = stream.first + stream.nodes
        shared = self._shared_rows(stream)
        inner, whole = self._held(stream, shared)
        peak = self.alive[stream.first] + inner + sum(whole.values()) - self._saved(stream, shared, whole)
        seconds = self._costs.of(range(stream.first, end), stream, shared).total(self.prices.rows)
        return Piece(stream.first, end, peak, seconds, stream, inner)

    @cached_property
    def _costs(self) -> RowCosts:
        return RowCosts(self.graph, self.nodes)

    def _shared_rows(self, stream: Stream) -> dict[str, str]:
        """Value → the one whose memory it takes."""
        found: dict[str, str] = {}
        nodes = self.nodes[stream.first : stream.first + stream.nodes]
        for out, source in shared_rows(self.graph, nodes, self.rows.readers):
            found[out] = found.get(source, source)
        return found

    def _held(self, stream: Stream, shared: Mapping[str, str]) -> tuple[int, dict[str, int]]:
        """Bytes of rows of values that are read within the stream alone, with scratch; and of what is there as a
        whole, by value."""
        end = stream.first + stream.nodes
        whole, stay, passing = dict[str, int](), dict[str, int](), dict[str, int]()
        for name, held in stream.values.items():
            if root := self._inside(name):
                top, count = shared.get(name, name), align_up(held.bytes, ALIGN)
                kind = whole if self.last[root] >= end else passing if held.passes else stay
                kind[top] = max(kind.get(top, 0), count)
        lives: dict[str, list[int]] = {}  # what no iteration leaves to the next one → nodes that touch it
        for k, node in enumerate(self.nodes[stream.first : end]):
            for name in (*node.ins, *node.outs):
                if name in stream.values and (top := shared.get(name, name)) in passing and top not in whole:
                    lives.setdefault(top, []).append(k)
        work = self.scratch[stream.first : end]
        for top, touched in lives.items():
            for k in range(touched[0], touched[-1] + 1):
                work[k] += passing[top]
        return sum(count for top, count in stay.items() if top not in whole) + max(work), whole

    def _saved(self, stream: Stream, shared: Mapping[str, str], whole: Mapping[str, int]) -> int:
        """Bytes less, where results are written over what the stream reads."""
        end = stream.first + stream.nodes
        nodes = self.nodes[stream.first : end]
        read = {self._inside(name) for node in nodes for name in node.ins} - {""}
        dying = {root: self._bytes(root) for root in sorted(read) if self.made[root] < stream.first
                 and self.last[root] < end}  # fmt: skip

        def root(name: str) -> str:
            return shared.get(name, name) if name in stream.values else self._inside(name)

        return sum(p.saved for p in pairs(self.graph, nodes, stream, root, ALIGN, whole, dying))

    # -- within a peak ---------------------------------------------------------------------------------------------

    def within(self, limit: int) -> list[Piece]:
        """Pieces that make up the body, none with a peak above the limit, in as little time as is found; nothing if
        there are no such pieces."""
        by_first: dict[int, list[tuple[int, float, bool]]] = {}
        for piece in self.wholes:
            if piece.peak <= limit:
                by_first.setdefault(piece.first, []).append((piece.end, 0.0, False))
        for piece in self.streams:
            if piece.peak <= limit:
                by_first.setdefault(piece.first, []).append((piece.end, self._guess(piece, limit), True))
        best: dict[int, tuple[float, int, bool]] = {0: (0.0, 0, False)}
        for k in range(len(self.nodes)):
            for end, seconds, streams in by_first.get(k, ()) if k in best else ():
                total = best[k][0] + seconds
                if end not in best or total < best[end][0]:
                    best[end] = total, k, streams
        if len(self.nodes) not in best:
            return []
        found, end = list[Piece](), len(self.nodes)
        while end:
            _, first, streams = best[end]
            found.insert(0, self._quickest(first, end, limit) if streams else self.wholes[first])
            end = first
        return found

    def _guess(self, one: Piece, limit: int) -> float:
        """Seconds with as many rows at a time as fit: peaks grow with them, and calls become fewer."""
        few = self.piece(one.first, one.end, FEW)
        if few is None or few.peak <= one.peak:
            return one.seconds if few is None else min(one.seconds, few.seconds)
        rows = min(1 + (limit - one.peak) * (FEW - 1) / (few.peak - one.peak), MOST_ROWS)
        each = (one.seconds - few.seconds) / (1 - 1 / FEW)
        return one.seconds - each * (1 - 1 / rows)

    def _quickest(self, first: int, end: int, limit: int) -> Piece:
        best, rows = self.piece(first, end, 1), 2
        assert best is not None
        while rows <= MOST_ROWS:
            more = self.piece(first, end, rows)
            if more is None or more.peak > limit:
                break
            best, rows = min(best, more, key=lambda one: one.seconds), 2 * rows
        return best


def streams_of(pieces: Sequence[Piece]) -> list[Stream]:
    return [piece.stream for piece in pieces if piece.stream is not None]


__all__ = ["Piece", "Pieces", "streams_of"]
