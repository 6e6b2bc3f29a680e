"""The largest batch whose step, taken at once, fits a limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...devices.room import Limit
from ...program.plan import Decision
from ...runtime.work import EXACT, Work
from ..options import Options
from ..pipeline import Lowering
from ..plan_facts import traffic
from ..planner.goal import Goal, Search
from .candidate import Candidate, candidate, is_large
from .search import checked_fit, found_for
from .smallest import Smallest
from .squeeze import searched, squeezed
from .sweep import Told

MOST_BATCH: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Largest:
    """The most samples whose step, taken at once, fits; `seconds` of that step are predicted."""

    batch: int
    budget_bytes: int
    ram_bytes: int
    page_bytes: int  # that a step brings in; 0: it does not page
    seconds: float
    joules: float
    prices: str
    decisions: tuple[Decision, ...]
    at_most: bool = False  # more was not tried

    @property
    def samples_per_s(self) -> float:
        """Predicted."""
        return self.batch / self.seconds


def largest_batch(
    limit: Limit, lowering: Lowering, options: Options, goal: Goal, search: Search, work: Work = EXACT,
    budget_bytes: int | None = None, told: Told = lambda done, total, what: None,
) -> Largest:  # fmt: skip
    best = _largest(limit, lowering, options, goal, search, told)
    entries = best.entries
    return Largest(
        entries.batch, budget_bytes or limit.ram_bytes, best.need.with_work(work),
        traffic(entries.graphs["train"], entries.batch)[0], best.seconds, best.step.joules, goal.prices.name,
        entries.all_decisions, entries.batch >= MOST_BATCH,
    )  # fmt: skip


def _largest(limit: Limit, lowering: Lowering, options: Options, goal: Goal, search: Search, told: Told) -> Candidate:
    """The most samples whose step, taken at once, fits; with results recomputed, and paged if the goal allows. The
    error for one sample if not even that fits."""
    quick, tried = replace(goal, fill=False), 0

    def at(batch: int) -> Candidate | None:
        nonlocal tried
        tried += 1
        told(tried, 0, f"batch {batch}")
        one = candidate(limit, lowering.entries(replace(options, batch=batch)), goal)
        if not one.fits(limit):
            one = squeezed(limit, lowering.entries(replace(options.least, batch=batch)), quick)
        if not one.fits(limit):
            one = searched(limit, one, goal, Search(search.effort_s / 4))
        return one if one.fits(limit) and not goal.is_late(one.step) else None

    best = at(1)
    single = replace(options, batch=1)
    floor = Smallest(limit.device, lowering, single, goal, search.effort_s)
    if best is None or not (floor.given.fits(limit) or is_large(best.given) or floor.within(limit)):
        best = found_for(limit, lowering, single, goal, search, floor)[0]
        return checked_fit(limit, best, lowering, single, goal, search)
    low, high = 1, 2  # low fits
    while high <= MOST_BATCH and (more := at(high)) is not None:
        low, best, high = high, more, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        more = at(middle)
        if more is None:
            high = middle
        else:
            low, best = middle, more
    return searched(limit, best, goal, search)


__all__ = ["Largest", "largest_batch"]
