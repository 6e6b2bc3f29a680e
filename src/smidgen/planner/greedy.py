"""Drop values that are kept over a peak and compute them again, the best bargain first.

In the manner of Melon (Wang et al., MobiSys 2022): bytes times the time they are free, over the price of computing them
again. Here only bytes and moments above the budget count, so nothing is dropped that does not help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .problem import NEVER, Problem, Profile, Schedule, profile

MOST_ROUNDS = 4000


@dataclass(frozen=True, slots=True)
class Drop:
    """Forget `value` after position `last`; run `steps` before position `next`, where it is read again."""

    value: int
    last: int
    next: int
    steps: tuple[int, ...]
    score: float  # byte-moments above the budget that go away for a second of computing


Allowed = Callable[[int], bool]
"""May this step be repeated?"""


def fit(
    problem: Problem, budget_bytes: int, allowed: Allowed = lambda step: True, *, hasty: bool = False
) -> tuple[Schedule, Profile]:
    """A schedule whose peak is at most the budget, or the lowest one found. `hasty`: many drops a round."""
    schedule = problem.plain()
    now = profile(problem, schedule)
    for _ in range(MOST_ROUNDS):
        if now.peak_bytes <= budget_bytes:
            break
        better = _dropped(problem, schedule, now, budget_bytes, allowed, hasty)
        if better is None:
            break
        schedule, now = better
    return schedule, now


def _dropped(
    problem: Problem, schedule: Schedule, now: Profile, budget_bytes: int, allowed: Allowed, hasty: bool
) -> tuple[Schedule, Profile] | None:
    """One round. In haste so many drops that the highest moment is within the budget; if that does not lower the peak,
    since computing again is a peak of its own, or without haste, the best drop that does."""
    drops = _drops(problem, schedule, now, budget_bytes, allowed)
    several = _independent(problem, drops, int(now.live.max()) - budget_bytes) if hasty else []
    for chosen in ([several] if len(several) > 1 else []) + [[drop] for drop in drops]:
        trial = list(schedule)
        for drop in sorted(chosen, key=lambda d: -d.next):
            trial[drop.next : drop.next] = drop.steps
        after = profile(problem, trial)
        at_highest = after.live.max() < now.live.max()
        if at_highest or (len(chosen) == 1 and _falls(now, after, chosen[0])):
            return trial, after
    return None


def _falls(now: Profile, after: Profile, drop: Drop) -> bool:
    """Does the drop help where the peak is, without a moment as high where it computes? Another peak may stay."""
    return bool(after.live[drop.next : drop.next + len(drop.steps) + 1].max() < now.live.max())


def _drops(problem: Problem, schedule: Schedule, now: Profile, budget_bytes: int, allowed: Allowed) -> list[Drop]:
    """All drops over the highest moment, the best bargain first."""
    over = np.maximum(now.live - budget_bytes, 0)
    highest = int(np.argmax(now.live))
    closure = _Closure(problem, schedule, now, allowed)
    found: list[Drop] = []
    for one in now.instances:
        if not one.birth < highest < one.death or highest in one.uses:
            continue
        moments = (one.birth, *one.uses)
        last = max(p for p in moments if p < highest)
        nxt = min(p for p in moments if p > highest)
        steps = closure.of(one.value, nxt)
        if steps is not None:
            gain = float(np.minimum(over[last + 1 : nxt], problem.bytes[one.value]).sum())
            seconds = sum(problem.steps[k].seconds for k in steps)
            found.append(Drop(one.value, last, nxt, steps, gain / seconds))
    return sorted(found, key=lambda drop: -drop.score)


def _independent(problem: Problem, drops: list[Drop], enough_bytes: int) -> list[Drop]:
    """The best drops that together free `enough_bytes`, none of which computes from what another one forgets."""
    chosen: list[Drop] = []
    freed = 0
    for drop in drops:
        if freed >= enough_bytes:
            break
        read = {v for k in drop.steps for v in problem.steps[k].reads}
        made = {v for k in drop.steps for v in problem.steps[k].writes}
        if any(_meet(drop, read, made, other, problem) for other in chosen):
            continue
        chosen.append(drop)
        freed += problem.bytes[drop.value]
    return chosen


def _meet(drop: Drop, read: set[int], made: set[int], other: Drop, problem: Problem) -> bool:
    others = {v for k in other.steps for v in problem.steps[k].reads}
    if drop.next == other.next or other.value in made or drop.value in others:
        return True
    return other.value in read


class _Closure:
    """What has to be repeated before a position so that a value exists there."""

    def __init__(self, problem: Problem, schedule: Schedule, now: Profile, allowed: Allowed) -> None:
        self.problem, self.allowed = problem, allowed
        self.where = {k: p for p, k in reversed(list(enumerate(schedule)))}  # step → where it stands first
        self.alive: dict[int, list[tuple[int, int]]] = {}  # value → (birth, death) of its instances
        for one in now.instances:
            self.alive.setdefault(one.value, []).append((one.birth, one.death))

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
            todo += [v for v in step.reads if not any(b < position <= d for b, d in self.alive[v])]
        return tuple(sorted(found))
