"""Steps of which parts run row by row, going forward and back (planner/learning_streams.py), where one sample is taken
at a time: another way to fit, on top of which results are recomputed and paged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from ...devices.room import Limit
from ...ir import Graph
from ...program.plan import Decision
from ..entries import Entries, checked, narrowed
from ..graph.rows import Marked, marked
from ..planner.goal import Goal, Search
from ..planner.learning_streams import by_rows, limits
from ..planner.problem import problem_of, profile
from .candidate import Candidate, counts_in, is_large, room_for
from .squeeze import squeezed

MOST: Final = 8  # limits that are tried, from the largest on
FEW: Final = 3  # of them for a large graph
NAMED: Final = 3  # streams in a decision
IN_VAIN: Final = 2  # tries that are no better than the one before, after which no more are made


def may_stream(entries: Entries) -> bool:
    """Where rows are allowed, and there is one sample."""
    return bool(entries.stream) and entries.batch == 1 and not is_streamed(entries)


def is_streamed(entries: Entries) -> bool:
    return any(decision.kind == "stream_learning" for decision in entries.decisions)


def by_rows_each(entries: Entries, goal: Goal, room: int | None = None) -> Iterator[Entries]:
    """The step with more and more of it row by row: first what takes more than the room. Without a room, as few rows at
    a time as there can be."""
    if not may_stream(entries):
        return
    graph = entries.plain[counts_in(entries)]
    wanted = limits(graph, goal.prices)
    if room is not None:
        above = [limit for limit in wanted if limit >= room]
        wanted = [*above[-1:], *(limit for limit in wanted if limit < room)]
    seen: list[Graph] = []
    for limit in wanted[: FEW if is_large(entries) else MOST]:
        graphs = {name: by_rows(g, limit, limit if room is None else room, goal.prices)
                  for name, g in entries.plain.items()}  # fmt: skip
        made = graphs[counts_in(entries)]
        if made is graph or any(made.nodes == other.nodes for other in seen):
            continue
        seen.append(made)
        yield remade(entries, graphs, _decision(entries, made, goal), "stream")


def remade(entries: Entries, graphs: dict[str, Graph], decision: Decision, after: str) -> Entries:
    """With these graphs instead of the plain ones."""
    checked(graphs, after)
    kept = tuple(d for d in entries.decisions if d.kind not in ("cheap", "int8"))
    found = replace(
        entries, graphs={**entries.graphs, **graphs}, plain=graphs, decisions=(*kept, decision), const="f32"
    )
    return narrowed(found) if entries.const == "int8" else found


def _decision(entries: Entries, graph: Graph, goal: Goal) -> Decision:
    before, after = (problem_of(g, entries.batch, goal.prices) for g in (entries.plain[counts_in(entries)], graph))
    saved = profile(before, before.plain()).peak_bytes - profile(after, after.plain()).peak_bytes
    spans = list(dict.fromkeys(filter(None, map(_span, marked(graph)))))
    rest = f" and {len(spans) - NAMED} more" if len(spans) > NAMED else ""
    short = f"streams {', '.join(spans[:NAMED])}{rest} while learning"
    price = f"about {(after.seconds / before.seconds - 1) * 100:.0f} % more time"
    why = f"{short}, row by row: no inner map or gradient of it exists as a whole ({price})"
    return Decision("stream_learning", why, max(saved, 0), max(after.seconds - before.seconds, 0.0), short)


def _span(mark: Marked) -> str:
    """From which layer to which."""
    names = [node.src for node in mark.graph.nodes[mark.nodes.start : mark.nodes.stop] if node.src]
    return " to ".join(dict.fromkeys(names[:: max(len(names) - 1, 1)]))


def streamed(limit: Limit, entries: Entries, goal: Goal, search: Search) -> list[Candidate]:
    """Ever more of the step row by row, until that helps no more."""
    return each_tried(limit, by_rows_each(entries, goal, max(room_for(limit, entries), 0)), goal, search)


def each_tried(limit: Limit, steps: Iterable[Entries], goal: Goal, search: Search) -> list[Candidate]:
    """One after the other, until that helps no more."""
    found: list[Candidate] = []
    vain = 0
    for made in steps:
        if found and not search.left_s:
            break
        one = squeezed(limit, made, goal, search)
        best = min((goal.cost(c.step) for c in found if c.fits(limit)), default=None)
        vain = vain + 1 if best is not None and (not one.fits(limit) or goal.cost(one.step) >= best) else 0
        found.append(one)
        if vain == IN_VAIN:
            break
    return found


__all__ = ["by_rows_each", "each_tried", "is_streamed", "may_stream", "remade", "streamed"]
