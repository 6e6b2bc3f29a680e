"""Which parts of the loop over samples run row by row: those that bring its memory down to the least that can be
reached, or to what the rest of the program takes anyway, in as little time as that allows; and those that are faster."""

from __future__ import annotations

import weakref
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from ...ir import ALIGN, Graph
from ..graph.alias import loop_range
from ..graph.rows import Stream, rule_of
from ..passes.stream_rows import with_streams
from ..place.arena import lower_bound, outside_loop
from .cost import Prices
from .pieces import Piece, Pieces, streams_of

Wanted = Literal["cheap", "least", "fast"]
"""The least memory for which the loop takes hardly longer; the least memory, also where the rest of the program takes
more: it may be recomputed; or only what is faster than layers as a whole."""

WORTH: Final = 0.03  # of the loop's time, for the least memory
FASTER: Final = 0.02  # of it: less is not worth having been sought
LEAST_SAVED: Final = 1024  # bytes: for less nothing is streamed
FINE: Final = 256  # of the range of peaks: they are told apart by so many parts of it


@dataclass(frozen=True, slots=True)
class Way:
    """By which prices, and whether a row of an input may be asked for alone."""

    prices: Prices
    whole_inputs: bool = False


_known: dict[int, tuple[weakref.ref[Graph], list[tuple[int, Way, Wanted, Graph]]]] = {}
"""What was made of graphs that still exist, by their id: one graph is asked for again and again."""


def streamed(graph: Graph, batch: int, way: Way, wanted: Wanted = "cheap") -> Graph:
    """The graph with the streams that are wanted; without any, if there are none."""
    key = id(graph)
    if key not in _known:
        _known[key] = weakref.ref(graph, lambda _: _known.pop(key, None)), []
    made = _known[key][1]
    for *asked, found in made:
        if asked == [batch, way, wanted]:
            return found
    plain = unstreamed(graph)
    found = with_streams(plain, chosen) if (chosen := _chosen(plain, batch, way, wanted)) else plain
    if found is not graph:  # it would keep itself
        made.append((batch, way, wanted, found))
    return found


def _chosen(plain: Graph, batch: int, way: Way, wanted: Wanted) -> list[Stream]:
    body = loop_range(plain)
    if not any(rule_of(plain, plain.nodes[i]) is not None for i in body):
        return []  # also without a loop
    choice = _Choice(plain, batch, way)
    return streams_of({"least": choice.least, "cheap": choice.cheap, "fast": choice.fast}[wanted]())


def eased(graph: Graph, batch: int, most_bytes: int, align: int, way: Way) -> Graph:
    """A graph with streams for the least memory, with those that take the least time for which so much is enough;
    without streams, if it is enough for that."""
    plain = unstreamed(graph)
    if plain is graph or lower_bound(plain, batch, align) <= most_bytes:
        return streamed(plain, batch, way, "fast") if plain is not graph else graph
    choice = _Choice(plain, batch, way)
    limits = choice.limits(choice.lowest)

    def made(limit: int) -> Graph:
        return with_streams(plain, streams_of(choice.pieces.within(limit)))

    end = bisect_left(limits, True, key=lambda limit: lower_bound(made(limit), batch, align) > most_bytes)
    return made(limits[end - 1]) if end else graph


def unstreamed(graph: Graph) -> Graph:
    body = loop_range(graph)
    return with_streams(graph, ()) if body and "streams" in graph.nodes[body.start - 1].attrs else graph


class _Choice:
    def __init__(self, graph: Graph, batch: int, way: Way) -> None:
        self.graph, self.batch, self.body = graph, batch, loop_range(graph)
        self.pieces = Pieces(graph, self.body, way.prices, way.whole_inputs)

    @cached_property
    def lowest(self) -> int:
        """The lowest peak."""
        found = sorted({piece.peak for piece in (*self.pieces.streams, *self.pieces.wholes)})
        return found[bisect_left(found, True, key=lambda limit: bool(self.pieces.within(limit)))]

    def limits(self, low: int) -> list[int]:
        """Peaks that can be kept to, from there to the one without streams."""
        step = max((self.pieces.top - low) // FINE, 1)
        return [*range(low, self.pieces.top, step)]

    def least(self) -> list[Piece]:
        return self.pieces.within(self.lowest) if self.lowest < self.pieces.top else []

    def cheap(self) -> list[Piece]:
        pieces, rest = self.pieces, self._rest()
        if pieces.top <= rest + LEAST_SAVED:
            return self.fast()
        limits = [limit for limit in self.limits(max(self.lowest, rest)) if limit <= pieces.top - LEAST_SAVED]
        most = WORTH * pieces.seconds
        end = bisect_left(limits, True, key=lambda limit: _seconds(pieces.within(limit)) <= most)
        return pieces.within(limits[end]) if end < len(limits) else self.fast()

    def fast(self) -> list[Piece]:
        """They take no more memory, either."""
        found = self.pieces.within(self.pieces.top)
        return found if _seconds(found) < -FASTER * self.pieces.seconds else []

    def _rest(self) -> int:
        """What the loop may take without being what the program's memory depends on."""
        inside = {out for i in self.body for out in self.graph.nodes[i].outs}
        outside = {t: tensor for t, tensor in self.graph.tensors.items() if t not in inside}
        nodes = (*self.graph.nodes[: self.body.start - 1], *self.graph.nodes[self.body.stop :])
        rest = self.graph.with_(nodes=nodes, tensors=outside)
        return lower_bound(rest, self.batch) - outside_loop(self.graph, self.batch)


def _seconds(pieces: list[Piece]) -> float:
    """Of all of them, beyond those of the nodes as a whole."""
    return sum(piece.seconds for piece in pieces)


__all__ = ["ALIGN", "Wanted", "Way", "eased", "streamed", "unstreamed"]
