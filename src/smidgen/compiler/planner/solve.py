"""The best schedule for a budget: the fast methods first, then the exact one while there is time and doubt."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ..effort import Effort
from . import online
from .chen import chen
from .cpsat import exact, lowest
from .greedy import fit, thinned
from .least_peak import least_peak
from .lower_bound import least_extra
from .problem import Problem, Profile, Schedule, profile
from .stages import MOST, Stages, choice_of, schedule_of, stages_of
from .varied import lower, varied

MOST_AT_LAST = 3 * MOST  # repeated steps to choose from, once the best among `MOST` is known
LARGE = 400  # steps: with more, some of the fast methods take seconds, and are left out when time is over; and making
# the model whose answer would be the lowest peak takes longer than the search that is left
RESERVE, MOST_RESERVE_S = 0.07, 4.0  # of the time: solvers end a little later than they are told to
BOUND = 0.15  # of the time, for the bound
VARIED = 0.3  # of the time that is left then, for the greedy with other prices,
TRIES = 2  # or until there were so many tries for each step: a proof takes less for few steps
CHOICE_S = 2.5e-4  # that making a model takes for each repeated step to choose from, about
MODEL = 0.4  # of the time, for that
SAME = 1e-6  # of the plain program's cost: what differs by less is equal


@dataclass(frozen=True)
class Solution:
    """`bound` is on the extra cost, in seconds or joules as asked for: no schedule is cheaper (if search has proven it,
    none that repeats a step at most once between two steps of the plain order, in the order of the graph)."""

    schedule: Schedule
    seconds: float
    joules: float
    extra: float  # seconds or joules more than the plain program
    bound: float
    proven: bool
    peak_bytes: int
    tried: Mapping[str, float]  # method → its extra cost; infinite if it did not fit

    @property
    def gap(self) -> float:
        """How far the extra cost may be above the least, as a share of it."""
        return 0.0 if self.proven or self.extra <= self.bound else self.extra / max(self.bound, 1e-30) - 1


def solve(
    problem: Problem, budget_bytes: int, *, objective: str = "time", deadline_s: float | None = None,
    page: bool = False, effort_s: float = 10.0, known: Sequence[Schedule] = (),
) -> Solution | None:  # fmt: skip
    """None: nothing found fits the budget (and the deadline). `known` are schedules that the answer must not be worse
    than."""
    effort = Effort.of(effort_s - min(RESERVE * effort_s, MOST_RESERVE_S))
    work = _Search(problem, budget_bytes, objective, deadline_s, effort)
    work.offer("plain", problem.plain())
    for k, one in enumerate(known):
        work.offer(f"known {k + 1}", one)
    if work.best is None or work.extra > 0:
        work.fast(page)
        work.bound = least_extra(problem, budget_bytes, objective=objective, page=page, effort_s=BOUND * effort_s)
        work.vary(page)
        work.search(page)
    return work.solution()


def smallest(
    problem: Problem, *, page: bool = False, effort_s: float = 10.0, known: Sequence[Schedule] = ()
) -> tuple[Schedule, int]:
    """The schedule with the lowest peak that was found, and a bound: no schedule has a lower one. Without `known` ones
    the fast methods make some to begin with."""
    found = known or [fit(problem, 0, page=page)[0], fit(problem, 0, hasty=True)[0]]
    best = min(found, key=lambda s: profile(problem, s).peak_bytes)
    floor = least_peak(problem, page=page)
    peak = profile(problem, best).peak_bytes
    if peak > floor and len(problem.steps) <= LARGE:
        hint = choice_of(problem, best)
        stages = stages_of(problem, floor, page, _most(MOST, effort_s), hint)
        answer = lowest(problem, floor, stages, hint, (1 - MODEL) * effort_s)
        if answer.choice is not None:
            best = min(best, schedule_of(problem, answer.choice), key=lambda s: profile(problem, s).peak_bytes)
    return best, floor


def _most(wanted: int, left_s: float) -> int:
    """So many repeated steps that making their model leaves time to solve it."""
    return min(wanted, int(MODEL * left_s / CHOICE_S))


@dataclass
class _Search:
    problem: Problem
    budget_bytes: int
    objective: str
    deadline_s: float | None
    effort: Effort
    best: Schedule | None = None
    extra: float = math.inf
    bound: float = 0.0
    proven: bool = False
    tried: dict[str, float] = field(default_factory=dict)
    fits: bool = False  # something does, in time or not

    def __post_init__(self) -> None:
        plain = profile(self.problem, self.problem.plain())
        self.base = self._cost(plain)

    def _cost(self, one: Profile) -> float:
        return one.joules if self.objective == "energy" else one.seconds

    def offer(self, name: str, schedule: Schedule | None) -> None:
        extra = math.inf
        if schedule is not None:
            one = profile(self.problem, schedule)
            late = self.deadline_s is not None and one.seconds > self.deadline_s
            self.fits = self.fits or one.peak_bytes <= self.budget_bytes
            if one.peak_bytes <= self.budget_bytes and not late:
                extra = self._cost(one) - self.base
        self.tried[name] = min(extra, self.tried.get(name, math.inf))
        if schedule is not None and (self.best is None or extra < self.extra) and extra < math.inf:
            self.best, self.extra = schedule, extra

    def fast(self, page: bool) -> None:
        problem, budget = self.problem, self.budget_bytes
        named: dict[str, Callable[[], Schedule | None]] = {
            "greedy": lambda: fit(problem, budget, objective=self.objective)[0]
        }
        if page:
            named["page"] = lambda: fit(problem, budget, lambda step: False, page=True, objective=self.objective)[0]
            named["greedy and page"] = lambda: fit(problem, budget, page=True, objective=self.objective)[0]
        named |= {
            "hasty": lambda: thinned(problem, fit(problem, budget, hasty=True)[0], budget, self.objective)[0],
            "chen": lambda: chen(problem),
            "melon": lambda: online.run(problem, budget, online.melon),
            "sage": lambda: online.run(problem, budget, online.sage),
            "dtr": lambda: online.run(problem, budget, online.dtr),
        }
        for name, method in named.items():
            if self.fits and self.effort.is_spent:
                break
            made = method()
            self.offer(name, made)
            if made is not None and self.tried[name] < math.inf:
                self.offer(name, thinned(problem, made, budget, self.objective)[0])
        for paged in (False, True) if page else (False,):
            for made in lower(problem, budget, page=paged, objective=self.objective):
                self.offer("for less", made)
                if self.effort.is_spent and (self.fits or len(problem.steps) > LARGE):
                    break

    def vary(self, page: bool) -> None:
        """Tries for a while, in turn without paging and with it."""
        trying = Effort.of(VARIED * self.effort.left_s)
        ways = [varied(self.problem, self.budget_bytes, page=p, objective=self.objective) for p in {False, page}]
        every = itertools.chain.from_iterable(itertools.zip_longest(*ways))
        for made in itertools.islice(every, TRIES * len(self.problem.steps)):
            if self.sure or trying.is_spent:
                break
            self.offer("varied", made)

    @property
    def sure(self) -> bool:
        return self.proven or self.extra <= self.bound + SAME * self.base

    def search(self, page: bool) -> None:
        """First without paging, where there is less to choose from; then with it."""
        if page:
            self._exactly(False, "exact without paging", self.effort.left_s / 2)
        self._exactly(page, "exact", self.effort.left_s, final=True)

    def _exactly(self, page: bool, name: str, effort_s: float, final: bool = False) -> None:
        """Among few choices; if the best of them is found and effort is left, among more."""
        effort = Effort.of(effort_s)
        before: Stages | None = None
        last_s = 0.0  # what the try before took: making a model takes effort too, and more for more choices
        for most in (MOST, MOST_AT_LAST):
            left = effort.left_s
            if self.sure or left < max(0.5, last_s * MOST_AT_LAST / MOST):
                return
            hint = choice_of(self.problem, self.best) if self.best is not None else None
            if hint is not None and hint.inward and not page:
                hint = None
            stages = stages_of(self.problem, self.budget_bytes, page, _most(most, left), hint)
            if stages == before:
                return
            answer = exact(
                self.problem, self.budget_bytes, stages, objective=self.objective, hint=hint,
                deadline_s=self.deadline_s, effort_s=effort.left_s,
            )  # fmt: skip
            self.offer(name, schedule_of(self.problem, answer.choice) if answer.choice else None)
            beyond = answer.impossible and self.best is not None  # what was found is no schedule of stages
            if stages.complete and final and not beyond:
                self.bound = max(self.bound, answer.bound)
                self.proven = answer.proven
            if stages.complete or not answer.proven:
                return
            before, last_s = stages, left - effort.left_s

    def solution(self) -> Solution | None:
        if self.best is None:
            return None
        one = profile(self.problem, self.best)
        sure = self.sure
        bound = self.extra if sure else min(self.bound, self.extra)
        return Solution(self.best, one.seconds, one.joules, self.extra, bound, sure, one.peak_bytes, self.tried)
