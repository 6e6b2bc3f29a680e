"""Budget against time: what each technique alone, and all of them together, make of one model; and the largest batch.

Every point is placed: its RAM is that of a program, not of tensors. Times and energies are those of the prices.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from . import bounds, limits
from .alone import SCHEDULED, alone
from .device import Device
from .fitting import checked_fit, joint, one_by_one, part, smallest
from .found import Found, cheapest, found
from .ir import ceil_div
from .lower import Entries, Lowering
from .native import EXACT, Work
from .options import Options
from .passes.additive import takes_statistics
from .plan import Decision
from .planner.within import Aim
from .squeezing import searched, squeezed
from .timeline import traffic

POINTS: Final = 7  # from the smallest budget to that of the plan without one
MOST_BATCH: Final = 1 << 16
LEAST_BOUND_S: Final = 1.0  # for a bound, without any effort
MEANING: Final = {
    "none": "nothing is done to fit",
    "recompute": "results are computed again, the cheapest choice that was found",
    "page": "tensors leave RAM for a while; nothing is computed again",
    "split": "a step is taken in parts; nothing is computed again",
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
    parts: int = 1  # the step is taken in so many
    ram_bytes: int | None = None
    seconds: float | None = None
    joules: float | None = None
    bound_s: float | None = None  # of joint: no whole step within the budget takes less

    @property
    def fits(self) -> bool:
        return self.ram_bytes is not None


@dataclass(frozen=True, slots=True)
class Sweep:
    """`base` is the plan without a budget, with all that costs next to nothing already done; `floor_bytes` is state and
    the runtime's own memory: nothing goes below but a plan that keeps some of the state outside RAM.
    `smallest_bytes` is the smallest budget that was reached."""

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
        return list(dict.fromkeys(p.technique for p in self.points))

    @property
    def budgets(self) -> list[int]:
        return sorted({p.budget_bytes for p in self.points})

    def extra(self, point: Point) -> float | None:
        """Time more than without a budget, as a share; energy, if that is what should be small."""
        value, base = (point.joules, self.base_j) if self.objective == "energy" else (point.seconds, self.base_s)
        return None if value is None or not base else value / base - 1

    def at(self, technique: str, budget_bytes: int) -> Point:
        return next(p for p in self.points if (p.technique, p.budget_bytes) == (technique, budget_bytes))


def sweep(
    lowering: Lowering, options: Options, device: Device | None, aim: Aim, work: Work = EXACT,
    budgets: Sequence[int] = (), shares: Sequence[float] = (), told: Told = lambda done, total, what: None,
    made: Made = lambda point, entries: None,
) -> Sweep:  # fmt: skip
    """All techniques at `budgets`, at `shares` of the way from the floor to the plan without a budget, and at the
    smallest budget that is found to fit; without shares, at some budgets from there to the plan without one."""
    bench = _Bench(lowering, options, device, replace(aim, fills=True), work, made)
    low, high = bench.smallest.need.with_work(work), bench.base_bytes
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
        bench.entries.batch, aim.prices.name, aim.objective, bench.pages, bench.base_bytes, base.seconds, base.joules,
        bench.floor, low, tuple(points),
    )  # fmt: skip


class _Bench:
    """One model, and what is the same for all budgets."""

    def __init__(
        self, lowering: Lowering, options: Options, device: Device | None, aim: Aim, work: Work, made: Made
    ) -> None:
        self.lowering, self.options, self.device, self.aim, self.work = lowering, options, device, aim, work
        self.made = made
        self.pages = aim.page and aim.prices.page is not None
        self.entries = lowering.entries(options)
        self.base = found(None if device is None else _unlimited(device), self.entries, aim)
        need = self.base.need
        self.base_bytes = need.with_work(work)
        self.floor = self.base_bytes - need.arena_bytes
        least = smallest(device, lowering, options, aim)
        self.smallest = min(self.base, least, key=lambda f: f.need.ram_bytes)
        self.parts = list(self._all_parts())

    def within(self, budget_bytes: int) -> Device:
        return limits.within(self.work.left(budget_bytes), self.device)

    def _all_parts(self) -> list[Found]:
        """The step in ever smaller parts, nothing computed again for it."""
        tried: list[Found] = []
        samples = batch = self.entries.batch
        if takes_statistics(self.entries.graphs["train"]) or not one_by_one(self.lowering, self.options, samples):
            return tried
        while batch > 1:
            batch = ceil_div(batch, 2)
            entries = part(self.lowering, self.options, samples, batch)
            tried.append(found(self.base.device, entries, self.aim))
        return tried

    def points(self, budget_bytes: int) -> list[Point]:
        device = self.within(budget_bytes)
        start = time.monotonic()

        def since() -> float:
            nonlocal start
            before, start = start, time.monotonic()
            return start - before

        singles: list[Found] = []
        points: list[Point] = []
        for name in MEANING:
            if name == "joint" or (name == "page" and not self.pages):
                continue
            if name in SCHEDULED:
                best = self._alone(name, device)
            else:
                tried = self.parts if name == "split" else [self.base]
                good = [f for f in tried if limits.fits(device, f.need)]
                best = min(good, key=lambda f: f.cost(self.aim), default=None)
            points.append(self._point(name, budget_bytes, best, since()))
            singles += [best] if best is not None else []
        return [*points, self._joint(device, budget_bytes, singles)]

    def _point(self, name: str, budget_bytes: int, best: Found | None, solve_s: float) -> Point:
        if best is None:
            return Point(name, budget_bytes, solve_s)
        entries = best.entries
        parts = ceil_div(entries.step_samples, entries.batch) if entries.step_samples else 1
        point = Point(name, budget_bytes, solve_s, parts, best.need.with_work(self.work), best.seconds, best.joules)
        self.made(point, entries)
        return point

    def _alone(self, name: str, device: Device) -> Found | None:
        """A technique that makes a schedule. Where the base fits, nothing has to be done."""
        return self.base if limits.fits(device, self.base.need) else alone(name, device, self.entries, self.aim)

    def _joint(self, device: Device, budget_bytes: int, singles: Sequence[Found]) -> Point:
        """As `compile` finds it, or one of the single techniques if that is cheaper: never worse than any."""
        start = time.monotonic()
        best = cheapest(device, [joint(device, self.lowering, self.options, self.aim)[0], self.smallest], self.aim)
        solve_s = time.monotonic() - start
        best = cheapest(device, [best, *singles], self.aim)
        made = self._point("joint", budget_bytes, best if limits.fits(device, best.need) else None, solve_s)
        aim, limit_s = replace(self.aim, objective="time"), max(self.aim.effort_s, LEAST_BOUND_S)
        least = bounds.least_alike(device, self.entries, aim, effort_s=limit_s)
        return replace(made, bound_s=least if least < math.inf else None)


def _unlimited(device: Device) -> Device:
    """The same machine, with room for whatever it takes."""
    return replace(device, ram_banks=(replace(device.ram_banks[0], bytes=1 << 50),))


# -- the largest batch -------------------------------------------------------------------------------------------------


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
        return self.batch / self.seconds


def largest_batch(
    device: Device, lowering: Lowering, options: Options, aim: Aim, work: Work = EXACT,
    budget_bytes: int | None = None,
    told: Told = lambda done, total, what: None,
) -> Largest:  # fmt: skip
    best = _largest(device, lowering, options, aim, told)
    entries = best.entries
    return Largest(
        entries.batch, budget_bytes or device.ram_bytes, best.need.with_work(work),
        traffic(entries.graphs["train"], entries.batch)[0], best.seconds, best.joules, aim.prices.name,
        entries.decisions, entries.batch >= MOST_BATCH,
    )  # fmt: skip


def _largest(device: Device, lowering: Lowering, options: Options, aim: Aim, told: Told) -> Found:
    """The most samples whose step, taken at once, fits; with results computed again, and paged if the aim allows. The
    error for one sample if not even that fits."""
    quick, tried = replace(aim, effort_s=0.0, fills=False), 0

    def at(batch: int) -> Found | None:
        nonlocal tried
        tried += 1
        told(tried, 0, f"batch {batch}")
        one = squeezed(device, lowering.entries(replace(options, batch=batch)), quick)
        if not limits.fits(device, one.need):
            one = searched(device, one, replace(aim, effort_s=aim.effort_s / 4))
        late = aim.deadline_s is not None and one.seconds > aim.deadline_s
        return one if limits.fits(device, one.need) and not late else None

    best = at(1)
    if best is None:
        one = replace(options, batch=1)
        return checked_fit(device, joint(device, lowering, one, aim)[0], lowering, one, aim)
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
    return searched(device, best, aim)


__all__ = ["MEANING", "Largest", "Point", "Sweep", "Told", "largest_batch", "sweep"]
