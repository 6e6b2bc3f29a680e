"""Which parts of a step that learns run row by row (passes/learning_rows.py), in a program for one sample at a time.

Forward and backward pass are cut where little is alive. Between cuts nodes run as a whole, or as a stream; in the
backward pass a stream makes again what it reads of the forward pass, but for what is alive at a cut of that. For a
limit, what needs more as a whole is a stream: as few pieces as can be, which take as little time as can be. What lives
beside them is the matter of whoever recomputes and pages.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Final

from ... import ops
from ...ir import ALIGN, Graph, Node, Role, at
from ...ops.build import typed
from ...ops.optim import unfused
from ..effort import spend
from ..graph.alias import Families, regions
from ..graph.rows import Marked, Stream, of_one, rule_of, shared_rows
from ..passes.learning_rows import Part, part_of, with_parts
from ..place.arena import align_up
from .cost import Prices, by_rows_seconds

TILES: Final = (1, 2, 4, 8, 16, 32)  # rows of an iteration that are tried
JOINED: Final = 4  # pieces between neighbouring cuts that may be one stream
LEAST: Final = 1024  # bytes: less is never worth a stream
WORK: Final = 20e-6  # of effort for a node that is looked at


@dataclass(frozen=True, slots=True)
class Piece:
    """Nodes first..end: `peak` is what they touch at a time, `seconds` what they take more than as they are."""

    first: int
    end: int
    peak: int
    seconds: float = 0.0
    part: Part | None = None
    stream: Stream | None = None


class _Cut:
    """A part of a graph, in pieces."""

    def __init__(self, graph: Graph, span: range, prices: Prices) -> None:
        self.graph, self.span, self.prices = graph, span, prices
        self.one = of_one(graph)
        self.families = Families(graph, graph.data)
        for node in graph.nodes:
            for out, source in ops.get(node.op).shares.items():
                self.families.join(node.outs[out], node.ins[source])
            for gathered, piece in zip(node.outs, node.attrs.get("yields", ()), strict=False):
                self.families.join(gathered, piece)
        self.maker = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
        spend(WORK * len(span))

    def again(self, span: range) -> Sequence[int]:
        """Nodes whose results are made again for these."""
        return ()

    @cached_property
    def _overwritten(self) -> dict[str, int]:
        """State → the first node that changes it."""
        found: dict[str, int] = {}
        for i, node in enumerate(self.graph.nodes):
            for source in ops.get(node.op).shares.values() if is_update(node) else ():
                found.setdefault(node.ins[source], i)
        return found

    # -- cuts ------------------------------------------------------------------------------------------------------

    @cached_property
    def edges(self) -> list[int]:
        """Positions before which little is alive of what is made here, and ends of what can be a stream."""
        first, alive = self.span.start, self._alive
        found = {first, self.span.stop}
        low, falls = first, False
        for k in self.span[1:]:
            if self.can[k - 1] != self.can[k]:
                found.add(k)
            before, now = alive[k - 1 - first], alive[k - first]
            if now < before:
                low, falls = k, True
            elif now > before and falls:
                found.add(low)
                falls = False
        return sorted(found)

    @cached_property
    def can(self) -> dict[int, bool]:
        """May a node be in a stream, or follow it?"""
        found = {}
        for i in self.span:
            node = self.one.nodes[i]
            both = unfused(node, node.outs[0]) if node.outs else None
            found[i] = rule_of(self.one, both[0] if both else node) is not None or is_update(node)
        return found

    @cached_property
    def _alive(self) -> list[int]:
        """Bytes before each node of values that the nodes here make, and read; not of sums, which are small."""
        made: dict[str, int] = {}
        last: dict[str, int] = {}
        for i in self.span:
            node = self.graph.nodes[i]
            last |= {root: i for root in map(self.value, node.ins) if root in made}
            if not is_update(node) and not ops.get(node.op).row_sums:
                last |= {root: made.setdefault(root, i) for root in map(self.value, node.outs) if root}
        change = [0] * (len(self.span) + 2)
        for root, i in made.items():
            change[i + 1 - self.span.start] += self.bytes(root)
            change[last[root] + 1 - self.span.start] -= self.bytes(root)
        return list(accumulate(change))

    def value(self, name: str) -> str:
        """The value that a tensor is, or nothing."""
        root = self.families.root(name)
        return root if self.graph[root].role is Role.VALUE else ""

    def bytes(self, root: str) -> int:
        return align_up(self.graph[root].bytes(1), ALIGN)

    # -- pieces ----------------------------------------------------------------------------------------------------

    @cached_property
    def wholes(self) -> list[Piece]:
        """Nodes between neighbouring cuts as they are."""
        spans = [range(a, b) for a, b in pairwise(self.edges)]
        return [Piece(s.start, s.stop, max(map(self._touched, s))) for s in spans]

    def beside(self, span: range) -> int:
        """Bytes of values that are alive meanwhile, and not touched."""
        touched = {self.value(name) for i in span for name in (*self.graph.nodes[i].ins, *self.graph.nodes[i].outs)}
        return sum(self.bytes(root) for root, (made, last) in self.lives.items()
                   if made < span.start and span.stop <= last and root not in touched)  # fmt: skip

    @cached_property
    def lives(self) -> dict[str, tuple[int, int]]:
        """Values that are kept → their maker and last reader."""
        made, last = dict[str, int](), dict[str, int]()
        for i, node in enumerate(self.graph.nodes):
            last |= {root: i for root in map(self.value, (*node.ins, *node.outs)) if root}
            for root in filter(None, map(self.value, node.outs)):
                made.setdefault(root, i)
        return {root: (i, last[root]) for root, i in made.items() if self.is_kept(root)}

    def is_kept(self, root: str) -> bool:
        """Others are made again, or gone."""
        raise NotImplementedError

    def _touched(self, i: int) -> int:
        """A result may take the place of an input."""
        node, record = self.graph.nodes[i], ops.get(self.graph.nodes[i].op)
        size = sum(self.bytes(root) for root in {self.value(name) for name in (*node.ins, *node.outs)} - {""})
        if node.outs and (out := self.value(node.outs[0])):
            taken = {self.value(node.ins[k]) for k in record.inplace} - {"", out}
            size -= max((self.bytes(root) for root in taken if self.bytes(root) == self.bytes(out)), default=0)
        return size + int(at(record.scratch(typed(self.one, self.one.nodes[i])), 1))

    def stream(self, span: range, limit: int, room: int) -> Piece | None:
        """With as many rows at a time as stay within the limit, or within the room with all that lives beside them;
        with one if none do."""
        again = self.again(span)
        part = part_of(self.graph, span, again)
        if any(self._overwritten.get(name, span.start) < span.start for i in again for name in self.graph.nodes[i].ins):
            return None  # it would be made of other weights
        body = part.body(self.graph) if part.rows else None
        if body is None or any(body.blocked):
            return None
        best, beside = None, self.beside(span)
        for rows in TILES:
            spend(WORK * len(part.nodes))
            stream = body.stream(0, len(part.nodes), rows)
            if stream is None:
                break
            shared = {out for out, _ in shared_rows(body.graph, body.nodes, body.readers)}
            peak, seconds = self._priced(part, Marked(range(len(part.nodes)), stream, body.graph), shared)
            if best is not None and peak > limit and beside + peak > room:
                break
            if best is None or seconds < best.seconds:
                best = Piece(span.start, span.stop, min(peak, best.peak) if best else peak, seconds, part, stream)
        return best

    def _priced(self, part: Part, mark: Marked, shared: Collection[str]) -> tuple[int, float]:
        """What a stream touches, and the time that it takes more: all of what is made again."""
        nodes, own = mark.graph.nodes, {t.name for t in part.tensors}
        made = {out for node in nodes for out in node.outs}
        peak = sum(align_up(count, ALIGN) for count in mark.carries.values())
        for name, held in mark.stream.values.items():
            if name not in shared:
                peak += align_up(held.bytes if held.row_bytes else mark.graph[name].bytes(1), ALIGN)
        read = {self.value(name) for node in nodes for name in node.ins if name not in made and name not in own}
        peak += sum(self.bytes(root) for root in read - {""})
        peak += max(int(at(ops.get(n.op).scratch(typed(mark.graph, n)), 1)) for n in nodes)
        repeated = nodes[: len(part.again)]
        seconds = sum(self.prices.seconds(n.op, typed(mark.graph, n), 1) for n in repeated)
        return peak, seconds + by_rows_seconds(mark, self.prices)

    def chosen(self, limit: int, room: int) -> list[tuple[Part, Stream]]:
        """Streams for all that touches more than the limit as a whole, in the least time."""
        best: list[tuple[tuple[int, float], Piece | None]] = [((0, 0.0), None)]
        for end in range(1, len(self.edges)):
            tried = []
            for piece in self._ending(end, limit, room):
                over, seconds = best[self.edges.index(piece.first)][0]
                over += piece.peak if piece.peak > limit else 0
                tried.append(((over, seconds + piece.seconds), piece))
            best.append(min(tried, key=lambda one: one[0]))
        found = []
        k = len(self.edges) - 1
        while k:
            last = best[k][1]
            assert last is not None
            if last.part is not None and last.stream is not None:
                found.append((last.part, last.stream))
            k = self.edges.index(last.first)
        return found

    def _ending(self, end: int, limit: int, room: int) -> Iterator[Piece]:
        whole = self.wholes[end - 1]
        yield whole
        if whole.peak <= limit:
            return
        for first in range(end - 1, max(end - 1 - JOINED, -1), -1):
            span = range(self.edges[first], self.edges[end])
            if not all(self.can[i] for i in span):
                return
            if (piece := self.stream(span, limit, room)) is not None:
                yield piece


class Forward(_Cut):
    @cached_property
    def kept(self) -> dict[str, int]:
        """Values that are alive at a cut of the forward pass, but for inputs of the caller, and bits → their makers."""
        nodes, found = self.graph.nodes, dict[str, int]()
        read: dict[str, int] = {}  # by the forward pass, last
        for i in self.span:
            read |= dict.fromkeys(nodes[i].ins, i)
        for name, last in read.items():
            made = self.maker.get(name, -1)
            is_alive = made in self.span and any(made < cut <= last for cut in self.edges)
            if is_alive and ops.border(nodes[made]) != "in":
                found[name] = made
        return found | self.masks

    @cached_property
    def masks(self) -> dict[str, int]:
        return {out: i for i in self.span for out in self.graph.nodes[i].outs if self.graph[out].dtype.bytes == 1}

    def is_kept(self, root: str) -> bool:
        return root in self._roots or self.maker.get(root, -1) not in self.span

    @cached_property
    def _roots(self) -> set[str]:
        return set(map(self.value, self.kept))


class Backward(_Cut):
    def __init__(self, graph: Graph, span: range, prices: Prices, forward: Forward) -> None:
        super().__init__(graph, span, prices)
        self.forward = forward

    def is_kept(self, root: str) -> bool:
        return self.forward.is_kept(root)

    def again(self, span: range) -> Sequence[int]:
        base = self._closure(span, self.forward.kept)
        first = self.edges.index(span.start)
        if not base or self.edges[first + 1] == span.stop:
            return base
        return self._closure(span, self.forward.masks | {n: i for n, i in self.forward.kept.items() if i < base[0]})

    def _closure(self, span: range, kept: Collection[str]) -> list[int]:
        found, todo = set[int](), [name for i in span for name in self.graph.nodes[i].ins]
        while todo:
            name = todo.pop()
            i = self.maker.get(name, -1)
            if i in self.forward.span and i not in found and name not in kept and self.forward.can[i]:
                found.add(i)
                todo += self.graph.nodes[i].ins
        return sorted(found)


def is_update(node: Node) -> bool:
    record = ops.get(node.op)
    return not record.is_view and bool(record.shares)


@dataclass(frozen=True, slots=True)
class Cuts:
    forward: Forward
    backward: Backward


def cuts_of(graph: Graph, prices: Prices) -> Cuts:
    turn = next((i for i, node in enumerate(graph.nodes) if node.stage == "backward"), len(graph.nodes))
    start = max((region.stop for region in regions(graph) if region.start < turn), default=0)
    forward = Forward(graph, range(start, max(turn, start)), prices)
    return Cuts(forward, Backward(graph, range(forward.span.stop, len(graph.nodes)), prices, forward))


_made: dict[int, tuple[weakref.ref[Graph], dict[Any, Any]]] = {}
"""What was found of graphs that still exist, by their id: one graph is asked for with many limits."""


def _known(graph: Graph) -> dict[Any, Any]:
    key = id(graph)
    if key not in _made:
        _made[key] = weakref.ref(graph, lambda _: _made.pop(key, None)), {}
    return _made[key][1]


def limits(graph: Graph, prices: Prices) -> list[int]:
    """Bytes for which `by_rows` may make another graph each, the largest first."""
    known = _known(graph)
    if "limits" not in known:
        cuts = cuts_of(graph, prices)
        peaks = {piece.peak for cut in (cuts.forward, cuts.backward) for piece in cut.wholes}
        known["limits"] = [peak - 1 for peak in sorted(peaks, reverse=True) if peak > LEAST]
    found: list[int] = known["limits"]
    return found


def by_rows(graph: Graph, limit: int, room: int, prices: Prices) -> Graph:
    """The graph, of one sample at a time, with streams in place of all that touches more than `limit` bytes; as many
    rows at a time as `room` bytes allow. Itself if there are none."""
    known, key = _known(graph), (limit, room, id(prices))
    if key not in known:
        found = _by_rows(graph, limit, room, prices)
        if found is graph:  # it would keep itself
            return graph
        known[key] = found, prices  # which so keep their id
    made: Graph = known[key][0]
    return made


def _by_rows(graph: Graph, limit: int, room: int, prices: Prices) -> Graph:
    back = cuts_of(graph, prices).backward.chosen(limit, room)
    found = without_unread(with_parts(graph, back)) if back else graph
    forth = cuts_of(found, prices).forward.chosen(limit, room)
    return with_parts(found, forth) if forth else found


def without_unread(graph: Graph) -> Graph:
    """Without results of the forward pass that are made again wherever they were read."""
    inside = {i for region in regions(graph) for i in region}
    used: set[str] = set()
    kept = []
    for i, node in reversed(list(enumerate(graph.nodes))):
        if i in inside or any(out in used or graph[out].role is not Role.VALUE for out in node.outs):
            kept.append(node)
            used.update(node.ins)
            used.update(node.attrs.get("yields", ()))
    return graph.with_(nodes=tuple(reversed(kept)))


__all__ = ["Backward", "Cuts", "Forward", "Piece", "by_rows", "cuts_of", "limits", "without_unread"]
