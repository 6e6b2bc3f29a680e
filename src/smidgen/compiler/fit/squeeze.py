"""Less and less RAM for one program, by recomputing results or paging them, until it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ...devices.room import Limit, arena_room
from ...ir import ALIGN, Graph
from ...program.plan import Decision
from ..effort import Effort
from ..entries import Entries, checked, narrowed
from ..place.arena import lower_bound
from ..planner.goal import LEAST_S, QUICK, Goal, Search
from ..planner.least_peak import least_peak
from ..planner.problem import problem_of
from ..planner.within import within
from .candidate import Candidate, candidate, cheapest, counts_in, is_large, plain_cost, room_for

MOST_SQUEEZES: Final = 6  # a placement above its bound asks for a lower bound
SHARE: Final = 0.75  # of the effort that is left: placements mostly succeed
MOST_SEARCHES: Final = 3  # the same, where each try is a search


def squeezed(
    limit: Limit, entries: Entries, goal: Goal, search: Search = QUICK, most: int = MOST_SQUEEZES,
    first: Candidate | None = None,
) -> Candidate:  # fmt: skip
    """The program as it is if it fits; else with more recomputed or paged, or as near as that comes. Of the effort each
    try takes most of what is left. `first`: the program as it is."""
    effort = Effort.of(search.effort_s)
    bounds: Mapping[int, float] = {}
    best = first or candidate(limit, entries, goal)
    room = arena_room(limit, best.need)
    if best.need.arena_bytes <= room and not (goal.fill and goal.cost(best.step) > plain_cost(entries, goal)):
        return best
    target, step = room, 0
    if best.need.arena_bytes > room and not may_fit(limit, entries, goal):
        most = 1  # as small as it comes, once
    for k in range(most):
        if k and not search.left_s:
            break
        left = effort.left_s * (SHARE if most > 1 else 1.0)
        now = Search(max(left, LEAST_S), search.patience) if search.effort_s else search
        made, least = fitted(entries, max(target, 0), limit.align, goal, now)
        trial = candidate(limit, made, goal, entries, best)
        if not k:  # later ones are for less
            bounds = {entries.batch: least}
        best = cheapest(limit, [best, trial], goal)
        over = trial.need.arena_bytes - room
        peak = _bound(trial)
        if over <= 0 or peak > max(target, 0):  # or it goes no lower
            break
        step = max(2 * step, over, room // 512)
        target = min(target - step, peak - 1)  # what reaches no less than before would be placed as before
    if most > 1 and search.left_s and best.need.arena_bytes > room:
        # The greedy that looks at the budget failed: the aggressive variant drops many values per round.
        hasty, _ = fitted(entries, 0, limit.align, goal, search.quick(search.patience), thin=True)
        best = cheapest(limit, [best, candidate(limit, hasty, goal, entries, best)], goal)
    return replace(best, bounds=bounds)


def _bound(one: Candidate) -> int:
    """No placement of a step's graph is smaller."""
    name = counts_in(one.entries)
    if name in one.sized.layouts:
        return one.sized.layouts[name].lower_bound_bytes
    align = ALIGN if one.limit is None else one.limit.align
    return lower_bound(one.entries.graphs[name], one.entries.batch, align)


def searched(limit: Limit, best: Candidate, goal: Goal, search: Search) -> Candidate:
    """The cheaper of what was found and what a search for the optimum finds with its effort."""
    hopeless = not may_be_cheaper(best, goal) if best.fits(limit) else is_large(best.given)
    if not search.effort_s or hopeless or not may_fit(limit, best.given, goal):
        return best
    other = squeezed(limit, best.given, goal, search, most=MOST_SEARCHES)
    return replace(cheapest(limit, [other, best], goal), bounds=other.bounds)


def may_be_cheaper(best: Candidate, goal: Goal) -> bool:
    """Is there something to look for, though it fits?"""
    if best.entries is best.given and not goal.fill:
        return False
    return goal.cost(best.step) > plain_cost(best.given, goal)


def may_fit(limit: Limit, entries: Entries, goal: Goal) -> bool:
    """False: whatever is recomputed or paged, it is too large, which can be told at once."""
    room = room_for(limit, entries)
    for graph in entries.plain.values():
        if least_peak(problem_of(graph, entries.batch, goal.prices, limit.align), page=goal.page) > room:
            return False
    return lower_bound(entries.graphs["infer"], entries.batch, limit.align) <= room


def fitted(
    entries: Entries, arena_bytes: int, align: int, goal: Goal, search: Search, thin: bool = False
) -> tuple[Entries, float]:
    """With as much recomputed or paged as it takes to stay within `arena_bytes`, or as near as it comes; `thin`: then
    without what is done for nothing. And what a run of it costs more at least."""
    found: dict[str, tuple[Graph, list[Decision], float]] = {}
    for name, graph in entries.plain.items():
        counts = name == counts_in(entries)
        how = (goal, search) if counts else (goal.at_leisure, search.quick(search.patience))
        found[name] = within(graph, entries.batch, arena_bytes, align, *how, thin)
    _, decisions, least = found[counts_in(entries)]
    return rewritten(entries, {name: graph for name, (graph, _, _) in found.items()}, decisions), least


def rewritten(entries: Entries, graphs: Mapping[str, Graph], decisions: Sequence[Decision]) -> Entries:
    """With these graphs instead of those in which what is cheap is recomputed."""
    kept = [d for d in entries.decisions if d.kind not in ("cheap", "recompute", "int8")]
    made = {**entries.graphs, **checked(graphs, "recompute")}
    found = replace(entries, graphs=made, decisions=(*kept, *decisions), const="f32")
    return narrowed(found) if entries.const == "int8" else found
