"""Less and less RAM for one program, by computing results again or paging them, until it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from . import limits, place
from .device import Device
from .effort import Effort
from .found import Found, cheapest, counts_in, found, is_large, plain_cost, room_for
from .ir import Graph
from .lower import Entries, checked, narrowed
from .plan import Decision
from .planner.least import least_peak
from .planner.problem import problem_of
from .planner.within import LEAST_EFFORT_S, Aim, within

MOST_SQUEEZES: Final = 6  # a placement above its bound asks for a lower bound
SHARE: Final = 0.75  # of the time that is left: placements mostly succeed
MOST_SEARCHES: Final = 3  # the same, where each try is a search


def squeezed(
    device: Device, entries: Entries, aim: Aim, most: int = MOST_SQUEEZES, first: Found | None = None
) -> Found:
    """The program as it is if it fits the device's RAM; else with more computed again or paged, or as near as that
    comes. Of the time for searching each try takes most of what is left. `first`: the program as it is."""
    search = Effort.of(aim.effort_s)
    known: Mapping[int, float] = {}
    best = first or found(device, entries, aim)
    room = limits.arena_room(device, best.need)
    if best.need.arena_bytes <= room and not (aim.fills and best.cost(aim) > plain_cost(entries, aim)):
        return best
    target, step = room, 0
    if best.need.arena_bytes > room and not may_fit(device, entries, aim):
        most = 1  # as small as it comes, once
    for k in range(most):
        if k and not aim.left_s:
            break
        left = search.left_s * (SHARE if most > 1 else 1.0)
        now = replace(aim, effort_s=max(left, LEAST_EFFORT_S)) if aim.effort_s else aim
        made, least = fitted(entries, max(target, 0), device.align, now)
        trial = found(device, made, aim, entries, best)
        if not k:  # later ones are for less
            known = {entries.batch: least}
        best = cheapest(device, [best, trial], aim)
        over = trial.need.arena_bytes - room
        peak = _bound(trial)
        if over <= 0 or peak > max(target, 0):  # or it goes no lower
            break
        step = max(2 * step, over, room // 512)
        target = min(target - step, peak - 1)  # what reaches no less than before would be placed as before
    if (
        most > 1 and aim.left_s and best.need.arena_bytes > room
    ):  # by the bargains of a budget it is not reached, perhaps by haste
        hasty, _ = fitted(entries, 0, device.align, replace(aim, effort_s=0.0), thin=True)
        best = cheapest(device, [best, found(device, hasty, aim, entries, best)], aim)
    return replace(best, known=known)


def _bound(one: Found) -> int:
    """No placement of a step's graph is smaller."""
    name = counts_in(one.entries)
    if name in one.sized.layouts:
        return one.sized.layouts[name].lower_bound_bytes
    align = place.ALIGN if one.device is None else one.device.align
    return place.lower_bound(one.entries.graphs[name], one.entries.batch, align)


def searched(device: Device, best: Found, aim: Aim) -> Found:
    """The cheaper of what was found and what a search for the optimum finds in the time that the aim gives it."""
    fits = limits.fits(device, best.need)
    if not aim.effort_s or (not may_be_cheaper(best, aim) if fits else is_large(best.given)):
        return best
    if not may_fit(device, best.given, aim):
        return best
    other = squeezed(device, best.given, aim, most=MOST_SEARCHES)
    return replace(cheapest(device, [other, best], aim), known=other.known)


def may_be_cheaper(best: Found, aim: Aim) -> bool:
    """Is there something to look for, though it fits?"""
    if best.entries is best.given and not aim.fills:
        return False
    return best.cost(aim) > plain_cost(best.given, aim)


def may_fit(device: Device, entries: Entries, aim: Aim) -> bool:
    """False: whatever is computed again or paged, it is too large, which can be told at once."""
    room = room_for(device, entries)
    for graph in entries.plain.values():
        if least_peak(problem_of(graph, entries.batch, aim.prices, device.align), page=aim.page) > room:
            return False
    return place.lower_bound(entries.graphs["infer"], entries.batch, device.align) <= room


def fitted(entries: Entries, arena_bytes: int, align: int, aim: Aim, thin: bool = False) -> tuple[Entries, float]:
    """With as much computed again or paged as it takes to stay within `arena_bytes`, or as near as it comes; `thin`:
    then without what is done for nothing, though it was in vain. And what a run of it costs more at least."""
    quick = replace(aim, effort_s=0.0, deadline_s=None)
    within_it = {
        name: within(graph, entries.batch, arena_bytes, align, aim if name == counts_in(entries) else quick, thin)
        for name, graph in entries.plain.items()
    }
    graphs = {name: graph for name, (graph, _, _) in within_it.items()}
    _, decisions, least = within_it[counts_in(entries)]
    return rewritten(entries, graphs, decisions), least


def rewritten(entries: Entries, graphs: Mapping[str, Graph], decisions: Sequence[Decision]) -> Entries:
    """With these graphs instead of those in which what is cheap is computed again."""
    kept = [d for d in entries.decisions if d.what not in ("cheap", "recompute", "int8")]
    made = {**entries.graphs, **checked(graphs, "recompute")}
    found = replace(entries, graphs=made, decisions=(*kept, *decisions), const="f32")
    return narrowed(found) if entries.const == "int8" else found
