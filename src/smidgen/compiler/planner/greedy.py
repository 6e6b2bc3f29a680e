"""Drop values that are kept over a peak and recompute or page them, the best ratio of bytes to cost first.

In the manner of Melon (Wang et al., MobiSys 2022): bytes times the time they are free, over the price of having them
again. Here only bytes and moments above the budget count, so nothing is dropped that does not help.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import chain, tee

import numpy as np

from ..effort import CLOSURE, DROP, DROPS, spend
from .problem import NEVER, Action, PageIn, PageOut, Problem, Profile, Schedule, count_profile, profile

MOST_ROUNDS = 4000


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget `value` after position `last`; do `actions` before position `next`, where it is read again."""

    value: int
    last: int
    next: int
    actions: tuple[Action, ...]
    score: float  # byte-moments above the budget that go away for a second (or a joule)


Allowed = Callable[[int], bool]
"""May this step be repeated?"""
Price = Callable[[Action], float]


@dataclass(frozen=True, slots=True)
class Means:
    """How a value may come back."""

    price: Price
    allowed: Allowed = lambda step: True
    page: bool = False


def fit(
    problem: Problem, budget_bytes: int, allowed: Allowed = lambda step: True, *, hasty: bool = False,
    page: bool = False, objective: str = "time", price: Price | None = None,
) -> tuple[Schedule, Profile]:  # fmt: skip
    """A schedule whose peak is at most the budget, or the lowest one found. `hasty`: many drops a round, and none is
    reconsidered. `price`: what drops are judged by, if not the problem's own."""
    means = Means(price or price_of(problem, objective), allowed, page)
    schedule = problem.plain()
    now = profile(problem, schedule)
    for _ in range(MOST_ROUNDS):
        if now.peak_bytes <= budget_bytes:
            break
        better = _dropped(problem, schedule, now, budget_bytes, means, hasty)
        if better is None:
            break
        schedule, now = better
    return (schedule, now) if hasty else thinned(problem, schedule, max(budget_bytes, now.peak_bytes), objective)


def price_of(problem: Problem, objective: str) -> Price:
    return problem.action_joules if objective == "energy" else problem.action_seconds


def thinned(
    problem: Problem, schedule: Schedule, budget_bytes: int, objective: str = "time"
) -> tuple[Schedule, Profile]:
    """Without what turned out to be needless, the dearest first: the value is then kept from before. A budget that a
    schedule met is met afterwards."""
    price = price_of(problem, objective)
    schedule = _tidy(schedule)
    now = profile(problem, schedule)
    budget_bytes = max(budget_bytes, 0)
    left = list(range(len(schedule)))  # positions whose actions stay
    extra = [p for p, first in enumerate(_firsts(schedule)) if not first]
    for p in sorted(extra, key=lambda p: -price(schedule[p])):
        at = bisect_left(left, p)
        if _must_stay(problem, now, schedule[p], at, budget_bytes):
            continue
        trial = _tidy_places(schedule, left[:at] + left[at + 1 :], schedule[p])
        after = profile(problem, [schedule[q] for q in trial])
        if after.peak_bytes <= budget_bytes:
            left, now = trial, after
    return [schedule[q] for q in left], now


def _must_stay(problem: Problem, now: Profile, action: Action, position: int, budget_bytes: int) -> bool:
    """True: without the action that stands here the budget is surely exceeded, which is told without a profile. What it
    makes would be alive since its use before; what dies here would die at its use before."""
    if isinstance(action, PageOut):
        return False
    earlier: list[tuple[int, int]] = []  # (position, bytes that may be free from there on)
    for u in () if isinstance(action, PageIn) else problem.steps[action].reads:
        i = now.instance(u, position - 1)
        if now.death[i] == position:
            uses = now.uses(i)
            earlier.append((uses[-2] if len(uses) > 1 else int(now.birth[i]), problem.bytes[u]))
    for v in (action.value,) if isinstance(action, PageIn) else problem.steps[action].writes:
        i = now.instance(v, position)
        if now.death[i] == position:  # nobody reads it
            continue
        start = int(now.death[i - 1]) + 1
        between = now.live[start:position] + problem.bytes[v]
        for since, count in earlier:
            between[max(since - start, 0) :] -= count
        if between.max(initial=0) > budget_bytes:
            return True
    return False


def _tidy_places(schedule: Schedule, places: list[int], gone: Action) -> list[int]:
    """The places without that of writing out a value, if `gone` was the last to read it in."""
    if not isinstance(gone, PageIn) or any(schedule[q] == gone for q in places):
        return places
    return [q for q in places if schedule[q] != PageOut(gone.value)]


def _firsts(schedule: Schedule) -> list[bool]:
    """Position → does its step stand there for the first time? Writing out is looked after by `_tidy`."""
    found, first = [], 0
    for k in schedule:
        found.append(k == first or isinstance(k, PageOut))
        first += k == first
    return found


def _tidy(schedule: Schedule) -> Schedule:
    """Nothing is written out that is not read in."""
    inward = {k.value for k in schedule if isinstance(k, PageIn)}
    return [k for k in schedule if not isinstance(k, PageOut) or k.value in inward]


def _dropped(
    problem: Problem, schedule: Schedule, now: Profile, budget_bytes: int, means: Means, hasty: bool
) -> tuple[Schedule, Profile] | None:
    """One round. In haste so many drops that the highest moment is within the budget; if that does not lower the peak,
    since recomputing is a peak of its own, or without haste, the best drop that does."""
    closure, highest = _Closure(problem, schedule, now, means.allowed), int(now.live.max())
    drops, again = tee(_drops(problem, schedule, now, budget_bytes, means, closure))
    several = _independent(problem, again, highest - budget_bytes) if hasty else []
    for chosen in chain([several] if len(several) > 1 else [], ([drop] for drop in drops)):
        if len(chosen) == 1 and closure.least_bytes(chosen[0]) >= highest:
            count_profile(len(schedule) + len(chosen[0].actions))
            continue
        trial = list(schedule)
        for drop in sorted(chosen, key=lambda d: -d.next):
            trial[drop.next : drop.next] = drop.actions
        shift = _write_out(problem, trial, chosen)
        after = profile(problem, trial)
        at_highest = after.live.max() < highest
        if at_highest or (len(chosen) == 1 and _falls(now, after, chosen[0], shift)):
            return trial, after
    return None


def _write_out(problem: Problem, schedule: Schedule, drops: list[Drop]) -> int:
    """Behind the maker of what is read in, if it is not done yet. Returns how many actions came in."""
    outward = {PageOut(k.value) for drop in drops for k in drop.actions if isinstance(k, PageIn)} - set(schedule)
    for out in sorted(outward, key=lambda k: k.value):
        schedule.insert(schedule.index(problem.maker[out.value]) + 1, out)
    return len(outward)


def _falls(now: Profile, after: Profile, drop: Drop, shift: int) -> bool:
    """Does the drop help where the peak is, without a moment as high where it computes? Another peak may stay."""
    start = drop.next + shift
    return bool(after.live[start : start + len(drop.actions) + 1].max() < now.live.max())


def _drops(
    problem: Problem, schedule: Schedule, now: Profile, budget_bytes: int, means: Means, closure: _Closure
) -> Iterator[Drop]:
    """All drops over the highest moment, the best ratio first. What a value takes to be made again is found out only
    when a drop that ends with its maker would be the best."""
    over = np.maximum(now.live - budget_bytes, 0)
    highest = int(np.argmax(now.live))
    price = means.price
    written = {k.value for k in schedule if isinstance(k, PageOut)} if means.page else set()
    heap: list[tuple[float, int, float, Drop]] = []  # score or more, negative; number; gain of what is not priced yet
    for instance in np.flatnonzero((now.birth < highest) & (highest < now.death)).tolist():
        value, birth, uses = int(now.value[instance]), int(now.birth[instance]), now.uses(instance)
        later = bisect_left(uses, highest)
        if uses[later] == highest:
            continue
        last, nxt = uses[later - 1] if later else birth, uses[later]
        gain = float(np.minimum(over[last + 1 : nxt], problem.bytes[value]).sum())
        maker = problem.maker[value]
        if problem.steps[maker].limit != NEVER and means.allowed(maker):
            most = gain / price(maker)
            heap.append((-most, len(heap), gain, Drop(value, last, nxt, (), most)))
        if means.page and problem.pageable[value] and not isinstance(schedule[nxt], PageOut):
            seconds = price(PageIn(value)) + (0.0 if value in written else price(PageOut(value)))
            heap.append((-gain / seconds, len(heap), 0.0, Drop(value, last, nxt, (PageIn(value),), gain / seconds)))
    spend(DROPS + DROP * len(heap))
    heapify(heap)
    while heap:
        _, number, gain, drop = heappop(heap)
        if drop.actions:
            yield drop
            continue
        steps = closure.of(drop.value, drop.next)
        if steps is not None:
            score = gain / sum(map(price, steps))
            heappush(heap, (-score, number, 0.0, replace(drop, actions=steps, score=score)))


def _independent(problem: Problem, drops: Iterable[Drop], enough_bytes: int) -> list[Drop]:
    """The best drops that together free `enough_bytes`, none of which computes from what another one forgets."""
    chosen: list[Drop] = []
    freed = 0
    places, forgotten, read = set[int](), set[int](), set[int]()  # of what is chosen
    for drop in drops:
        again = [problem.steps[k] for k in drop.actions if isinstance(k, int)]
        reads = {v for step in again for v in step.reads}
        if drop.next in places or drop.value in forgotten or drop.value in read or not forgotten.isdisjoint(reads):
            continue
        if any(not forgotten.isdisjoint(step.writes) for step in again):
            continue
        chosen.append(drop)
        places.add(drop.next)
        forgotten.add(drop.value)
        read |= reads
        freed += problem.bytes[drop.value]
        if freed >= enough_bytes:
            break
    return chosen


class _Closure:
    """What has to be repeated before a position so that a value exists there."""

    def __init__(self, problem: Problem, schedule: Schedule, now: Profile, allowed: Allowed) -> None:
        self.problem, self.allowed = problem, allowed
        self.where: dict[Action, int] = {}  # step → where it stands first
        for p, k in enumerate(schedule):
            self.where.setdefault(k, p)
        self.birth, self.death = now.birth.tolist(), now.death.tolist()
        self.instances = np.searchsorted(now.value, np.arange(len(problem.bytes) + 1)).tolist()  # value → its first
        self.kept = _kept(problem, now)

    def of(self, value: int, position: int) -> tuple[int, ...] | None:
        """In order; None if a step among them cannot be repeated there."""
        found: set[int] = set()
        todo = [value]
        while todo:
            k = self.problem.maker[todo.pop()]
            if k in found:
                continue
            step = self.problem.steps[k]
            if step.limit == NEVER or not self.allowed(k) or self.where.get(step.limit, position) < position:
                return None
            found.add(k)
            todo += [v for v in step.reads if not self._alive(v, position)]
        spend(CLOSURE * len(found))
        return tuple(sorted(found))

    def least_bytes(self, drop: Drop) -> int:
        """What is alive at the highest moment of what the drop does again, or less: told without a profile. (Without
        what it does in place, and 0 if it pages.)"""
        steps = [self.problem.steps[k] for k in drop.actions if isinstance(k, int)]
        if len(steps) < len(drop.actions):
            return 0
        size, needed = self.problem.bytes, Counter(v for step in steps for v in step.reads)
        made = {v for step in steps for v in step.writes}
        kept = {v for v in made if self._alive(v, drop.next)}  # until then, or from then on
        held, most = self.kept[drop.next] - sum(size[v] for v in kept), 0
        live: set[int] = set()
        for step in steps:
            now = live.union(step.writes)
            taken = max((size[v] for v in step.takes), default=0)
            most = max(most, held + sum(size[v] for v in now) + step.own_bytes - taken)
            needed.subtract(step.reads)
            live = {v for v in now if v in kept or needed[v] > 0}
        return most

    def _alive(self, value: int, position: int) -> bool:
        for i in range(self.instances[value], self.instances[value + 1]):
            if self.birth[i] < position <= self.death[i]:
                return True
        return False


def _kept(problem: Problem, now: Profile) -> list[int]:
    """Position → bytes of what is alive before it and there, with accumulators."""
    size = np.array(problem.bytes, np.int64)[now.value]
    change = np.zeros(len(now.live) + 2, np.int64)
    np.add.at(change, now.birth + 1, size)
    np.subtract.at(change, now.death + 1, size)
    found: list[int] = (np.cumsum(change) + problem.pinned_bytes).tolist()
    return found
