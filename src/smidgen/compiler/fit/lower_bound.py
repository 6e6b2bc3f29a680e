"""What no way to fit can be cheaper than, whatever it computes again, pages or keeps outside, at once or in
micro-batches."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from ...devices.room import Limit
from ...errors import SmidgenError
from ...ir import ceil_div
from ..effort import Effort
from ..entries import Entries
from ..planner.goal import Goal
from ..planner.problem import Problem, problem_of, profile
from ..planner.row_cost import NONE, most_saved
from .candidate import counts_in, plain_cost, room_for
from .paged_state import movable

SHARES_OUTSIDE: Final = 4  # into so many parts the state that may be outside is divided
BOUND_S: Final = 5.0  # that may be spent on it
SMALL: Final = 120  # steps

Parts = Callable[[int], Entries]
"""A step in micro-batches of so many samples. Raises SmidgenError if that is not the same step."""


def least(
    limit: Limit, whole: Entries, parts: Parts, goal: Goal, *, enough: float = sys.float_info.max,
    above: float = 0.0, known: Mapping[int, float] = MappingProxyType({}), effort_s: float = BOUND_S,
) -> float:  # fmt: skip
    """No step that fits costs less, at once or in micro-batches; infinite if none fits. Once the bound is above
    `enough`, it is not raised further; results at or below `above` may be underestimates. Less effort, a lower bound.
    `known`: samples at a time → what is proven to be the least extra cost of each time, with all state in RAM."""
    effort = Effort.of(effort_s)
    entries, lowest = whole, math.inf
    while True:
        plain = _plain(entries, goal)
        if plain > min(lowest, enough):  # smaller parts take longer
            return min(lowest, plain)
        proven = known.get(entries.batch, 0.0)
        one = least_alike(limit, entries, goal, enough=enough, proven=proven, effort_s=effort.left_s)
        lowest = min(lowest, one)
        if lowest <= above or entries.batch == 1 or not goal.split:
            return lowest
        try:
            entries = parts(ceil_div(entries.batch, 2))
        except SmidgenError:  # a loss that is no sum over samples
            return lowest


def least_alike(
    limit: Limit, entries: Entries, goal: Goal, *, enough: float = sys.float_info.max, proven: float = 0.0,
    effort_s: float = BOUND_S,
) -> float:  # fmt: skip
    """The same for parts of just this size."""
    effort = Effort.of(min(effort_s, BOUND_S))
    plain = _plain(entries, goal)
    times = max(entries.step_samples // entries.batch, 1)
    problem = problem_of(entries.plain[counts_in(entries)], entries.batch, goal.prices, limit.align)
    room, lowest = room_for(limit, entries), math.inf
    for most, fetched in _outside(entries, goal):
        if room + most < 0 or fetched >= lowest:
            continue
        wanted = (min(enough - plain, lowest) - fetched) / times
        extra = proven if not most else 0.0
        if extra < wanted:
            extra = max(extra, _extra(problem, room + most, goal, wanted, effort.left_s))
        lowest = min(lowest, fetched + times * extra)
    return plain + lowest


def _plain(entries: Entries, goal: Goal) -> float:
    """Of a step with all the RAM that it wants, by rows wherever that saves time and nowhere else."""
    whole = replace(goal, prices=replace(goal.prices, rows=NONE))
    graph = entries.plain[counts_in(entries)]
    saved_s = (entries.step_samples or entries.batch) * most_saved(graph, goal.prices.rows)
    return plain_cost(entries, whole) - saved_s * (goal.prices.watts if goal.objective == "energy" else 1.0)


def _outside(entries: Entries, goal: Goal) -> list[tuple[int, float]]:
    """So many bytes of state may be outside, if so much is paid: each step fetches and returns them."""
    paging = goal.prices.page
    sizes = [t.bytes(1) for t in movable(entries)] if goal.page and paging is not None else []
    if paging is None or not sizes:
        return [(0, 0.0)]
    byte_cost = 1 / paging.in_bytes_per_s + 1 / paging.out_bytes_per_s
    byte_cost *= paging.watts if goal.objective == "energy" else 1
    edges = [min(sizes), *(sum(sizes) * k // SHARES_OUTSIDE for k in range(1, SHARES_OUTSIDE + 1))]
    return [(0, 0.0), *((most, fewest * byte_cost) for fewest, most in pairwise(edges) if most >= fewest)]


def _extra(problem: Problem, room: int, goal: Goal, enough: float, effort_s: float) -> float:
    if profile(problem, problem.plain()).peak_bytes <= room:
        return 0.0
    from ..planner.lower_bound import least_extra  # these need ortools
    from ..planner.solve import solve

    page = goal.page and goal.prices.page is not None
    if len(problem.steps) <= SMALL and effort_s > 0:  # the optimum itself is soon found
        solved = solve(problem, room, objective=goal.objective, page=page, effort_s=effort_s)
        if solved is not None:
            return solved.bound
    return least_extra(problem, room, objective=goal.objective, page=page, enough=enough, effort_s=effort_s)
