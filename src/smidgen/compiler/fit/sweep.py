"""Budget against time: what each technique alone, and all of them together, make of one model.

Every point is placed: its RAM is that of a program, not of tensors. Times and energies are those of the prices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ...devices.room import Limit
from ...ir import ceil_div
from ...runtime.work import EXACT, Work
from ..entries import Entries
from ..options import Options
from ..passes.additive import takes_statistics
from ..pipeline import Lowering
from ..planner.goal import Goal, Search
from . import lower_bound
from .candidate import Candidate, candidate, cheapest, eased, is_large, room_for
from .micro_batch import micro_batched, one_by_one
from .search import found_for
from .single_technique import SCHEDULED, alone
from .smallest import Smallest

POINTS: Final = 7  # from the smallest budget to that of the plan without one
LEAST_BOUND_S: Final = 1.0  # for a bound, without any effort
MEANING: Final = {
    "none": "nothing is done to fit",
    "recompute": "results are recomputed, the cheapest choice that was found",
    "page": "tensors leave RAM for a while; nothing is recomputed",
    "split": "a step runs in micro-batches; nothing is recomputed",
    "stream": "what does not learn runs row by row; nothing is recomputed",
    "chen": "checkpoints at every √n-th result (Chen et al. 2016)",
    "sage": "checkpoints chosen while it runs, by time over bytes (SAGE)",
    "dtr": "eviction while it runs, by staleness (DTR)",
    "melon": "greedy eviction, by bytes and lifetime over time (Melon)",
    "joint": "all of it, whatever is the cheapest",
}

Made = Callable[["Point", Entries], None]
"""Gets each point that fits, with the graphs that a program can be made of."""
Told = Callable[[int, int, str], None]
"""(done, of how many, what is at hand)"""


@dataclass(frozen=True, slots=True)
class Point:
    """One technique within one budget. The last fields are None if it does not fit."""

    technique: str
    budget_bytes: int
    solve_s: float
    parts: int = 1  # micro-batches of a step
    ram_bytes: int | None = None
    seconds: float | None = None
    joules: float | None = None
    bound_s: float | None = None  # of joint: no whole step within the budget takes less

    @property
    def fits(self) -> bool:
        """Whether a plan within the budget was found."""
        return self.ram_bytes is not None


@dataclass(frozen=True, slots=True)
class Sweep:
    """`base` is the plan without a budget, with all that costs next to nothing already done; `floor_bytes` is state and
    the runtime's own memory: nothing goes below but a plan that keeps some of the state outside RAM.
    `smallest_bytes` is the smallest budget: `compile` fits in it, and refuses less."""

    batch: int
    prices: str
    objective: str
    page: bool
    base_bytes: int
    base_s: float
    base_j: float
    floor_bytes: int
    smallest_bytes: int
    points: tuple[Point, ...]

    @property
    def techniques(self) -> list[str]:
        """Of all points, each once."""
        return list(dict.fromkeys(p.technique for p in self.points))

    @property
    def budgets(self) -> list[int]:
        """Of all points in bytes, the smallest first."""
        return sorted({p.budget_bytes for p in self.points})

    def extra(self, point: Point) -> float | None:
        """Time more than without a budget, as a share; energy, if that is what should be small."""
        value, base = (point.joules, self.base_j) if self.objective == "energy" else (point.seconds, self.base_s)
        return None if value is None or not base else value / base - 1

    def at(self, technique: str, budget_bytes: int) -> Point:
        """The point of one technique and budget."""
        return next(p for p in self.points if (p.technique, p.budget_bytes) == (technique, budget_bytes))


def sweep(
    lowering: Lowering, options: Options, limit: Limit | None, goal: Goal, search: Search, work: Work = EXACT,
    budgets: Sequence[int] = (), shares: Sequence[float] = (), told: Told = lambda done, total, what: None,
    made: Made = lambda point, entries: None,
) -> Sweep:  # fmt: skip
    """All techniques at `budgets`, at `shares` of the way from the floor to the plan without a budget, and at the
    smallest budget that is found to fit; without shares, at some budgets from there to the plan without one."""
    bench = _Bench(lowering, options, limit, replace(goal, fill=True), search, work, made)
    low, high = bench.low, max(bench.low, bench.base_bytes)
    chosen = {low, *(bench.floor + round(share * (high - bench.floor)) for share in shares)}
    if not shares:
        chosen |= {low + (high - low) * k // (POINTS - 1) for k in range(POINTS)}
    points: list[Point] = []
    total = len(chosen | set(budgets))
    for number, budget in enumerate(sorted(chosen | set(budgets), reverse=True)):
        told(number, total, f"{budget:,} bytes")
        points += bench.points(budget)
    base = bench.base
    return Sweep(
        bench.entries.batch, goal.prices.name, goal.objective, bench.pages, bench.base_bytes, base.seconds,
        base.step.joules, bench.floor, low, tuple(points),
    )  # fmt: skip


class _Bench:
    """One model, and what is the same for all budgets."""

    def __init__(
        self, lowering: Lowering, options: Options, limit: Limit | None, goal: Goal, search: Search, work: Work,
        made: Made,
    ) -> None:  # fmt: skip
        self.lowering, self.options, self.goal, self.search, self.work = lowering, options, goal, search, work
        self.device = None if limit is None else limit.device
        self.made = made
        self.pages = goal.page and goal.prices.page is not None
        self.entries = lowering.entries(options)
        self.least = lowering.entries(options.least)  # with streams for the least memory
        self.base = candidate(None if limit is None else _unlimited(limit), self.entries, goal)
        need = self.base.need
        self.base_bytes = need.with_work(work)
        self.floor = self.base_bytes - need.arena_bytes
        self.smallest = Smallest(self.device, lowering, options, goal, search.effort_s)
        self.low = self.smallest.budget_bytes(work)
        self.parts = list(self._all_parts())

    def within(self, budget_bytes: int) -> Limit:
        return Limit.of_budget(self.work.left(budget_bytes), self.device)

    def _all_parts(self) -> list[Candidate]:
        """The step in ever smaller micro-batches, nothing recomputed for it."""
        tried: list[Candidate] = []
        samples = batch = self.entries.batch
        if takes_statistics(self.entries.graphs["train"]) or not one_by_one(self.lowering, self.options, samples):
            return tried
        while batch > 1:
            batch = ceil_div(batch, 2)
            entries = micro_batched(self.lowering, self.options, samples, batch)
            tried.append(candidate(self.base.limit, entries, self.goal))
        return tried

    def points(self, budget_bytes: int) -> list[Point]:
        limit = self.within(budget_bytes)
        start = time.monotonic()

        def since() -> float:
            nonlocal start
            before, start = start, time.monotonic()
            return start - before

        singles: list[Candidate] = []
        points: list[Point] = []
        may = {"page": self.pages, "stream": self.options.stream is not None}
        names = [name for name in MEANING if may.get(name, True)]
        if budget_bytes < self.low and not is_large(self.entries):  # as `compile` has it
            return [Point(name, budget_bytes, since()) for name in names]
        for name in names[:-1]:
            if name in SCHEDULED:
                best = self._alone(name, limit)
            else:
                tried = self.parts if name == "split" else [self.base]
                tried += [self._streamed(limit)] if name == "stream" else []
                good = [f for f in tried if f.fits(limit)]
                best = min(good, key=lambda f: self.goal.cost(f.step), default=None)
            points.append(self._point(name, budget_bytes, best, since()))
            singles += [best] if best is not None else []
        return [*points, self._joint(limit, budget_bytes, singles)]

    def _streamed(self, limit: Limit) -> Candidate:
        """With as much by rows as the limit asks for."""
        return eased(candidate(limit, self.least, self.goal), self.goal, room_for(limit, self.least))

    def _point(self, name: str, budget_bytes: int, best: Candidate | None, solve_s: float) -> Point:
        if best is None:
            return Point(name, budget_bytes, solve_s)
        entries = best.entries
        parts = ceil_div(entries.step_samples, entries.batch) if entries.step_samples else 1
        point = Point(
            name, budget_bytes, solve_s, parts, best.need.with_work(self.work), best.seconds, best.step.joules
        )
        self.made(point, entries)
        return point

    def _alone(self, name: str, limit: Limit) -> Candidate | None:
        """A technique that makes a schedule. Where the base fits, nothing has to be done."""
        return self.base if self.base.fits(limit) else alone(name, limit, self.entries, self.goal, self.search)

    def _joint(self, limit: Limit, budget_bytes: int, singles: Sequence[Candidate]) -> Point:
        """As `compile` finds it, or one of the single techniques if that is cheaper: never worse than any."""
        start = time.monotonic()
        best = found_for(limit, self.lowering, self.options, self.goal, self.search, self.smallest)[0]
        solve_s = time.monotonic() - start
        best = cheapest(limit, [best, *singles], self.goal)
        made = self._point("joint", budget_bytes, best if best.fits(limit) else None, solve_s)
        goal, effort_s = replace(self.goal, objective="time"), max(self.search.effort_s, LEAST_BOUND_S)
        least = lower_bound.least_alike(limit, self.least, goal, effort_s=effort_s)
        return replace(made, bound_s=least if least < math.inf else None)


def _unlimited(limit: Limit) -> Limit:
    """The same machine, with room for whatever it takes."""
    return replace(limit, ram_banks=(replace(limit.ram_banks[0], bytes=1 << 50),))


__all__ = ["MEANING", "Point", "Sweep", "Told", "sweep"]
