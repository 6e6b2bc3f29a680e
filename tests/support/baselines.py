"""What other systems do with a budget, by name: each takes a problem, a budget and prices, and gives a schedule, or
None if it does not fit. They see the same steps, sizes and prices; only the choice differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smidgen.compiler.planner import online
from smidgen.compiler.planner.chen import chen
from smidgen.compiler.planner.cost import Prices
from smidgen.compiler.planner.greedy import fit
from smidgen.compiler.planner.problem import Problem, Schedule, profile
from smidgen.compiler.planner.solve import solve

Baseline = Callable[[Problem, int, Prices], Schedule | None]


def _if_fits(problem: Problem, budget_bytes: int, schedule: Schedule | None) -> Schedule | None:
    if schedule is None or profile(problem, schedule).peak_bytes > budget_bytes:
        return None
    return schedule


def _joint(problem: Problem, budget_bytes: int, page: bool) -> Schedule | None:
    """At least as good as all the others here, which it starts from."""
    alone = [method(problem, budget_bytes, problem.prices) for name, method in BASELINES.items() if name in ALONE]
    found = solve(problem, budget_bytes, page=page, known=[one for one in alone if one is not None])
    return found.schedule if found else None


def _recompute(problem: Problem, budget_bytes: int) -> Schedule | None:
    found = solve(problem, budget_bytes)
    return found.schedule if found else None


def _page(problem: Problem, budget_bytes: int) -> Schedule | None:
    return fit(problem, budget_bytes, lambda step: False, page=True)[0]


def _priced(method: Callable[[Problem, int], Schedule | None]) -> Baseline:
    def call(problem: Problem, budget_bytes: int, prices: Prices) -> Schedule | None:
        return _if_fits(problem, budget_bytes, method(replace(problem, prices=prices), budget_bytes))

    return call


BASELINES: dict[str, Baseline] = {
    "none": _priced(lambda problem, budget: problem.plain()),
    "chen": _priced(lambda problem, budget: chen(problem)),
    "recompute": _priced(_recompute),
    "page": _priced(_page),
    "checkpoint (SAGE)": _priced(lambda problem, budget: online.run(problem, budget, online.sage)),
    "evict (DTR)": _priced(lambda problem, budget: online.run(problem, budget, online.dtr)),
    "greedy (Melon)": _priced(lambda problem, budget: online.run(problem, budget, online.melon)),
    "joint": _priced(lambda problem, budget: _joint(problem, budget, problem.prices.page is not None)),
    "ideal": lambda problem, budget_bytes, prices: problem.plain(),  # as if RAM had no end
}
ALONE = ("none", "chen", "recompute", "page", "checkpoint (SAGE)", "evict (DTR)", "greedy (Melon)")
"""The single techniques, from which `joint` starts."""
