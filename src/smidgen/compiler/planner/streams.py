"""Which parts of the loop over samples run row by row (graph/rows.py): as few as bring its memory down to the least
that can be reached, or to what the rest of the program takes anyway.

The loop's body is cut into pieces. A piece is one node that runs as a whole, or a stream; each has a peak, and the
largest is what the loop takes beside what lives outside it. Cuts of streams are where little is alive.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import weakref
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ... import ops
from ...ir import ALIGN, Graph, Node, Role, at
from ...ops.build import typed
from ..effort import spend
from ..graph.alias import Families, loop_range
from ..graph.joint import pairs
from ..graph.rows import Body, Stream, rule_of, shared_rows
from ..passes.stream_rows import with_streams
from ..place.arena import align_up, lower_bound, outside_loop
from .cost import HOST

TILES: Final = (2, 4, 8, 16)  # rows of an iteration that are tried: more take more memory, and less time


@dataclass(frozen=True, slots=True)
class _Price:
    """Of streams: what a call takes beside its work, a weight that is read anew, and a byte that is moved to the front.
    In what the work of nodes is counted in: multiplications, or seconds of the host. `worth` is the share of the loop's
    work that the least memory may take. Those of fast kernels were fitted to MobileNetV2, ResNet-18 and VGG-16, 224 px:
    rows that are still in the cache pay for most of what is moved."""

    call: float
    weight: float
    moved: float
    worth: float


EXACT: Final = _Price(100, 0, 0.04, 0.03)
FAST: Final = _Price(1e-7, 3.5e-10, 1e-11, 0.05)
LEAST_SAVED: Final = 1024  # bytes: for less nothing is streamed
LEAST_CUTS: Final = 8
MOST_LOOKED: Final = 150_000  # nodes of all streams that are tried: of large networks not all cuts are
LEAST_PEAK: Final = 1 / 64  # of the peak without streams: what is looked for first
MORE: Final = 1.5  # and then so much more
WORK: Final = 20e-6  # of effort for a node that is looked at


_known: dict[int, tuple[weakref.ref[Graph], dict[tuple[object, ...], Graph]]] = {}
"""What was made of graphs that still exist, by their id: one graph is asked for again and again."""


def streamed(graph: Graph, batch: int, kernels: str, whole_inputs: bool = False, least: bool = False) -> Graph:
    """The graph with the streams that are worth their time; without any, if none is. Kernels are exact or fast; with
    `whole_inputs` no row of an input is asked for alone. `least`: with those for the least memory of the loop, also
    where the rest takes more: it may be recomputed."""
    key, asked = id(graph), (batch, kernels, whole_inputs, least)
    if key not in _known:
        _known[key] = weakref.ref(graph, lambda _: _known.pop(key, None)), {}
    made = _known[key][1]
    if asked not in made:
        found = _streamed(graph, *asked)
        if found is graph:  # it would keep itself
            return graph
        made[asked] = found
    return made[asked]


def _streamed(graph: Graph, batch: int, kernels: str, whole_inputs: bool, least: bool) -> Graph:
    plain = unstreamed(graph)
    body = loop_range(plain)
    if not any(rule_of(plain, plain.nodes[i]) is not None for i in body):
        return plain  # also without a loop
    found = _Loop(plain, body, batch, "fast" if least else kernels, whole_inputs).chosen(least)
    return with_streams(plain, found) if found else plain


def eased(graph: Graph, batch: int, most_bytes: int, align: int = ALIGN, whole_inputs: bool = False) -> Graph:
    """A graph with streams for the least memory, with the fewest calls for which so much is enough; without streams, if
    it is enough for that."""
    plain = unstreamed(graph)
    if plain is graph or lower_bound(plain, batch, align) <= most_bytes:
        return plain
    loop = _Loop(plain, loop_range(plain), batch, "fast", whole_inputs)

    def made(limit: int) -> Graph:
        return with_streams(plain, _streams(loop.within(limit)))

    limits: list[int] = []
    for more in loop.least_limits():
        limits += more
        if lower_bound(made(limits[-1]), batch, align) > most_bytes:
            break
    end = bisect_left(limits, True, key=lambda limit: lower_bound(made(limit), batch, align) > most_bytes)
    return made(limits[end - 1]) if end else graph


def unstreamed(graph: Graph) -> Graph:
    body = loop_range(graph)
    return with_streams(graph, ()) if body and "streams" in graph.nodes[body.start - 1].attrs else graph


_MOST_PIECES: Final = 1 << 14
_pieces: dict[tuple[str, int, int], _Piece | None] = {}
"""By the loop up to where they end, where they begin, and rows: infer and evaluate have most in common. Effort is spent
for them as if they were not known, so that plans do not depend on what was planned before."""


@dataclass(frozen=True, slots=True)
class _Piece:
    first: int
    nodes: int
    peak: int
    cost: float  # of calls and moves of rows
    stream: Stream | None = None
    inner: int = 0  # bytes of what is read within the stream alone
    whole: Mapping[str, int] | None = None  # its results, while nobody looked for inputs that they are written over


class _Loop:
    def __init__(self, graph: Graph, body: range, batch: int, kernels: str, whole_inputs: bool) -> None:
        self.graph, self.body, self.batch = graph, body, batch
        self.price, self.is_fast = (FAST, True) if kernels == "fast" else (EXACT, False)
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
        self._roots: dict[str, str] = {}
        self.scratch = [align_up(int(at(ops.get(n.op).scratch(typed(graph, n)), 1)), ALIGN) for n in self.nodes]
        self.made: dict[str, int] = {}  # value of the loop → its maker
        self.last: dict[str, int] = {}
        for k, node in enumerate(self.nodes):
            for name in (*node.ins, *node.outs):
                if root := self._inside(name):
                    self.made.setdefault(root, k)
                    self.last[root] = k
        self._pieces: list[_Piece] = []
        self._found: dict[tuple[int, int], _Piece | None] = {}
        self._until = self._told_apart()
        spend(WORK * len(self.nodes))

    def _told_apart(self) -> list[str]:
        """A hash of all that pieces which end before a node depend on."""
        found, known = [], hashlib.sha256(str(self.is_fast).encode())
        for k, node in enumerate(self.nodes):
            found.append(known.hexdigest())
            for name in (*node.ins, *node.outs):
                root = self._inside(name)
                lives = self.families.root(name), self.made.get(root), self.last.get(root)
                known.update(repr((self.graph[name], lives)).encode())
            attrs = sorted(node.attrs.items())
            known.update(repr((node.op, node.ins, node.outs, attrs, self.blocked[k], self.scratch[k])).encode())
        return [*found, known.hexdigest()]

    def _inside(self, name: str) -> str:
        """The value of the loop that a tensor is, or nothing."""
        if name not in self._roots:
            root = self.families.root(name)
            is_value = self.graph[root].role is Role.VALUE and root in self.families.in_body
            self._roots[name] = root if is_value else ""
        return self._roots[name]

    def _bytes(self, root: str) -> int:
        return align_up(self.graph[root].bytes(1), ALIGN)

    # -- pieces ----------------------------------------------------------------------------------------------------

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

    def whole(self, k: int) -> _Piece:
        """A node that runs as it is; its result may take the place of an input that dies."""
        node = self.nodes[k]
        new = {root for out in node.outs if (root := self._inside(out)) and self.made[root] == k}
        dying = {self._inside(node.ins[i]) for i in ops.get(node.op).inplace} & {
            root for root, last in self.last.items() if last == k
        }
        size = sum(self._bytes(root) for root in new)
        if any(self._bytes(root) == size for root in dying if root):
            size = 0
        return _Piece(k, 1, self.alive[k] + size + self.scratch[k], 0.0)

    @cached_property
    def wholes(self) -> list[_Piece]:
        return [self.whole(k) for k in range(len(self.nodes))]

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
        return self._fewer(sorted(found))

    def _fewer(self, cuts: list[int]) -> list[int]:
        """In each part that can be streamed those where least is alive; each pair of cuts is a stream to be tried."""
        most = max(LEAST_CUTS, math.isqrt(6 * MOST_LOOKED // len(self.nodes)))
        parts: dict[int, list[int]] = {}
        for k in cuts:
            parts.setdefault(self._blocked_before[k], []).append(k)
        kept: list[int] = []
        for first, *inner in parts.values():
            ends, inner = [first, *inner[-1:]], inner[:-1]
            kept += [*ends, *sorted(inner, key=lambda k: (self.alive[k], k))[: most - len(ends)]]
        return sorted(kept)

    def streams(self, most: int) -> Iterator[_Piece]:
        """Streams between cuts with a peak below `most`, one row at a time."""
        for a, first in enumerate(self.cuts):
            for end in self.cuts[a + 1 :]:
                if self._blocked_before[first] < self._blocked_before[end]:
                    break
                piece = self._one_row(first, end)
                if piece is None:
                    continue
                if self.alive[first] + piece.inner >= most:
                    break  # a longer one holds as much, and more
                if (piece := self._shortened(piece, 1, most)).peak < most:
                    yield piece

    @cached_property
    def _blocked_before(self) -> list[int]:
        return [0, *itertools.accumulate(self.blocked)]

    def _one_row(self, first: int, end: int) -> _Piece | None:
        if (first, end) not in self._found:
            self._found[first, end] = self._piece(first, end, 1)
        return self._found[first, end]

    def _piece(self, first: int, end: int, rows: int) -> _Piece | None:
        """Without what results save that are written over inputs, unless that is known."""
        spend(WORK * (end - first))
        key = self._until[end], first, rows
        if key not in _pieces:
            if len(_pieces) >= _MOST_PIECES:
                _pieces.clear()
            _pieces[key] = self._made(first, end, rows)
        return _pieces[key]

    def _shortened(self, piece: _Piece, rows: int, most: float) -> _Piece:
        """With results written over inputs, which save no more than the results take, if that may be below `most`."""
        if piece.whole is None or piece.stream is None or piece.peak - sum(piece.whole.values()) >= most:
            return piece
        key = self._until[piece.first + piece.nodes], piece.first, rows
        known = _pieces.get(key)
        if known is None or known.whole is not None:
            known = replace(piece, peak=piece.peak - self._shared(piece.stream, piece.whole), whole=None)
            _pieces[key] = known
        if rows == 1:
            self._found[piece.first, piece.first + piece.nodes] = known
        return known

    def _quicker(self, piece: _Piece, limit: int) -> _Piece:
        """With as many rows at a time as fit."""
        for rows in TILES if piece.stream is not None else ():
            more = self._piece(piece.first, piece.first + piece.nodes, rows)
            if more is None or (more := self._shortened(more, rows, limit + 1)).peak > limit:
                break
            piece = min(piece, more, key=lambda one: one.cost)
        return piece

    def _made(self, first: int, end: int, rows: int) -> _Piece | None:
        stream = self.rows.stream(first, end - first, rows)
        if stream is None:
            return None
        rows, whole = self._held(stream)
        peak = self.alive[first] + rows + sum(whole.values())
        return _Piece(first, end - first, peak, self._overhead(stream), stream, rows, whole)

    def _held(self, stream: Stream) -> tuple[int, dict[str, int]]:
        """Bytes of rows of values that are read within the stream alone, with scratch; and of what is there as a
        whole, by value."""
        end = stream.first + stream.nodes
        nodes = self.nodes[stream.first : end]
        shared = self._shared_rows(stream)
        whole, stay, passing = dict[str, int](), dict[str, int](), dict[str, int]()
        for name, held in stream.values.items():
            if root := self._inside(name):
                top, count = shared.get(name, name), align_up(held.bytes, ALIGN)
                kind = whole if self.last[root] >= end else passing if held.passes else stay
                kind[top] = max(kind.get(top, 0), count)
        work = self.scratch[stream.first : end]
        touched: dict[str, range] = {}
        for k, node in enumerate(nodes):
            for name in (*node.ins, *node.outs):
                if name in stream.values:
                    top = shared.get(name, name)
                    touched[top] = range(touched.get(top, range(k, k)).start, k + 1)
        for top, count in passing.items():  # what no iteration leaves to the next one
            for k in touched[top] if top not in whole else ():
                work[k] += count
        return sum(count for top, count in stay.items() if top not in whole) + max(work), whole

    def _shared_rows(self, stream: Stream) -> dict[str, str]:
        """Value → the one whose memory it takes."""
        found: dict[str, str] = {}
        nodes = self.nodes[stream.first : stream.first + stream.nodes]
        for out, source in shared_rows(self.graph, nodes, self.rows.readers):
            found[out] = found.get(source, source)
        return found

    def _shared(self, stream: Stream, whole: Mapping[str, int]) -> int:
        """Bytes less, where results are written over what the stream reads."""
        end = stream.first + stream.nodes
        nodes = self.nodes[stream.first : end]
        read = {self._inside(name) for node in nodes for name in node.ins} - {""}
        dying = {root: self._bytes(root) for root in sorted(read) if self.made[root] < stream.first
                 and self.last[root] < end}  # fmt: skip
        if not whole or not dying:
            return 0
        shared = self._shared_rows(stream)

        def root(name: str) -> str:
            return shared.get(name, name) if name in stream.values else self._inside(name)

        return sum(p.saved for p in pairs(self.graph, nodes, stream, root, ALIGN, whole, dying))

    def _work(self, node: Node) -> float:
        """Of a node that runs as a whole, in what prices are."""
        call = typed(self.graph, node)
        return HOST.seconds(node.op, call, 1) if self.is_fast else float(at(ops.get(node.op).macs(call), 1))

    def _overhead(self, stream: Stream) -> float:
        """Calls, in each of which weights are read anew, and rows that are moved."""
        cost = 0.0
        for node in self.nodes[stream.first : stream.first + stream.nodes]:
            held = stream.values.get(node.outs[0])
            if held is None or ops.get(node.op).is_view:
                continue
            calls = math.ceil(held.count / math.ceil(held.step / held.period))
            weights = sum(self.graph[i].bytes(1) // 4 for i in node.ins if self.graph[i].role is not Role.VALUE
                          and self.graph[i].role is not Role.INPUT)  # fmt: skip
            moved = calls * max(held.most - math.ceil(held.step / held.period), 0) * held.row_bytes
            cost += calls * (self.price.call + weights * self.price.weight) + moved * self.price.moved
        return cost

    # -- the choice ------------------------------------------------------------------------------------------------

    def chosen(self, least: bool) -> list[Stream]:
        most = math.inf if least else self.price.worth * sum(self._work(node) for node in self.nodes)
        for limits in self.least_limits() if least else self.limits(self._rest(), LEAST_SAVED):
            for limit in limits:
                best = self.within(limit)
                if sum(piece.cost for piece in best) <= most:
                    return _streams(best)
        return []

    def least_limits(self) -> Iterator[list[int]]:
        """Whatever the rest of the program takes."""
        return self.limits(0, 1)

    def limits(self, rest: int, saved: int) -> Iterator[list[int]]:
        """Peaks that can be kept to, none below `rest`, and so much lower than without streams: the lowest first, some
        at a time, as low ones are found with few pieces."""
        top = max(piece.peak for piece in self.wholes)
        most, done = max(int(LEAST_PEAK * top), rest + 1), -1
        while top >= rest + saved and done < top - saved:
            most = min(most, top)
            self._pieces = list(self.streams(most))
            peaks = {max(piece.peak, rest) for piece in (*self._pieces, *self.wholes)}
            found = sorted(peak for peak in peaks if done < peak < most and peak <= top - saved)
            found = found[bisect_left(found, True, key=lambda limit: bool(self._cheapest(limit))) :]
            if found:
                yield found
            done, most = (most - 1, int(MORE * most) + 1) if most < top else (top, top)

    def within(self, limit: int) -> list[_Piece]:
        """With as few calls as a peak of so many bytes allows."""
        return [self._quicker(piece, limit) for piece in self._cheapest(limit)]

    @cached_property
    def beside(self) -> int:
        """Bytes of what is there outside the loop all the time that it runs."""
        return outside_loop(self.graph, self.batch)

    def _rest(self) -> int:
        """What the loop may take without being what the program's memory depends on."""
        outside = {t: tensor for t, tensor in self.graph.tensors.items() if t not in self.families.in_body}
        at_, end = self.body.start - 1, self.body.stop
        nodes = (*self.graph.nodes[:at_], *self.graph.nodes[end:])
        rest = self.graph.with_(nodes=nodes, tensors=outside)
        return lower_bound(rest, self.batch) - self.beside

    def _cheapest(self, limit: int) -> list[_Piece]:
        """Pieces that make up the body, none with a peak above the limit; nothing if there are no such pieces."""
        by_first: dict[int, list[_Piece]] = {}
        for piece in (*self.wholes, *self._pieces):
            if piece.peak <= limit:
                by_first.setdefault(piece.first, []).append(piece)
        best: dict[int, tuple[float, _Piece | None, int]] = {0: (0.0, None, 0)}
        for k in range(len(self.nodes)):
            if k not in best:
                continue
            for piece in by_first.get(k, ()):
                end, cost = k + piece.nodes, best[k][0] + piece.cost
                if end not in best or cost < best[end][0]:
                    best[end] = (cost, piece, k)
        if len(self.nodes) not in best:
            return []
        found, k = list[_Piece](), len(self.nodes)
        while k:
            _, last, before = best[k]
            assert last is not None
            found.insert(0, last)
            k = before
        return found


def _streams(pieces: Sequence[_Piece]) -> list[Stream]:
    return [piece.stream for piece in pieces if piece.stream is not None]


__all__ = ["eased", "streamed", "unstreamed"]
