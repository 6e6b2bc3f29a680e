"""One technique alone, as other systems use it. `joint` is never worse than any of them, since it may take it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from ...devices.room import Limit
from ..entries import Entries
from ..planner.goal import Goal, Search
from ..planner.problem import Problem, Schedule, problem_of, profile
from ..planner.within import applied
from .candidate import Candidate, candidate, cheapest, room_for
from .squeeze import rewritten

TRIES: Final = 3  # a placement above its bound asks for a lower bound
FIXED: Final = ("chen",)  # the same schedule for every budget
SCHEDULED: Final = ("recompute", "page", "chen", "sage", "dtr", "melon")


def alone(
    name: str, limit: Limit, entries: Entries, goal: Goal, search: Search, below: float = math.inf
) -> Candidate | None:
    """The step as the technique makes it fit, taken at once; None if it does not, or costs no less than `below`."""
    graphs = [entries.plain["train"]]
    if name == "page" and entries.graphs["train"] is not graphs[0] and entries.const == "f32":
        graphs.append(entries.graphs["train"])  # it is not the worse for what is computed again at next to no price
    problems = [problem_of(graph, entries.batch, goal.prices, limit.align) for graph in graphs]
    made: list[Candidate] = []
    for graph, problem in zip(graphs, problems, strict=True):
        target = room = room_for(limit, entries)
        for _ in range(1 if name in FIXED else TRIES):
            schedule = _scheduled(name, problem, target, goal, search) if target >= 0 else None
            if schedule is None or _cost(problem, schedule, goal) >= below:
                break
            one, decisions = applied(graph, problem, schedule, goal)
            trial = candidate(limit, rewritten(entries, {"train": one}, decisions), goal, entries)
            if trial.fits(limit):
                made.append(trial)
                below = min(below, goal.cost(trial.step))
                break
            target -= max(trial.need.arena_bytes - room, limit.align)
    return cheapest(limit, made, goal) if made else None


def _cost(problem: Problem, schedule: Schedule, goal: Goal) -> float:
    one = profile(problem, schedule)
    return one.joules if goal.objective == "energy" else one.seconds


def _scheduled(name: str, problem: Problem, room_bytes: int, goal: Goal, search: Search) -> Schedule | None:
    """Within so many bytes, or None."""
    from ..planner import online  # these need ortools
    from ..planner.chen import chen
    from ..planner.greedy import fit
    from ..planner.solve import solve

    def recompute() -> Schedule | None:
        if not search.effort_s:
            return fit(problem, room_bytes, objective=goal.objective)[0]
        solved = solve(problem, room_bytes, objective=goal.objective, effort_s=search.effort_s)
        return solved.schedule if solved else None

    methods: dict[str, Callable[[], Schedule | None]] = {
        "recompute": recompute,
        "page": lambda: fit(problem, room_bytes, lambda step: False, page=True, objective=goal.objective)[0],
        "chen": lambda: chen(problem),
        "sage": lambda: online.run(problem, room_bytes, online.sage),
        "dtr": lambda: online.run(problem, room_bytes, online.dtr),
        "melon": lambda: online.run(problem, room_bytes, online.melon),
    }
    made = methods[name]()
    return made if made is not None and profile(problem, made).peak_bytes <= room_bytes else None
