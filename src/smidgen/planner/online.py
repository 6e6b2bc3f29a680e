"""Eviction while the program runs, as systems without a plan ahead do: steps come in order, and when there is no room
the least useful value goes; whoever reads it later has it computed again.

The run is recorded as a schedule. What nobody will read again goes at once, and costs nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

from ..effort import EVICTION, spend
from .problem import NEVER, Problem, Schedule

MOST_AGAIN = 50  # times the length of the program: then it is given up


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value in RAM that could go now."""

    bytes: int
    seconds: float  # to have it again, from what is in RAM
    own_seconds: float  # of its maker alone
    idle_s: float  # since it was written or read
    away: int  # steps until it is read again


Merit = Callable[[Candidate], float]
"""The value with the largest one goes."""


def melon(c: Candidate) -> float:
    return c.bytes * c.away / max(c.seconds, 1e-12)


def sage(c: Candidate) -> float:
    return -(c.own_seconds * 1e6 + 1) / (c.bytes + 1)


def dtr(c: Candidate) -> float:
    return -c.seconds / (c.bytes * max(c.idle_s, 1e-12))


def run(problem: Problem, budget_bytes: int, merit: Merit) -> Schedule | None:
    """None: at some step nothing more can go."""
    work = _Run(problem, budget_bytes, merit)
    try:
        for t in range(len(problem.steps)):
            work.do(t, frozenset())
    except _Full:
        return None
    return work.schedule


class _Full(Exception):
    pass


@dataclass
class _Run:
    problem: Problem
    budget_bytes: int
    merit: Merit
    schedule: Schedule = field(default_factory=list)
    resident: set[int] = field(default_factory=set)
    touched: dict[int, float] = field(default_factory=dict)  # value → when
    clock: float = 0.0
    now: int = 0  # the step of the plain order that is next

    def do(self, k: int, locked: frozenset[int]) -> None:
        """Run a step with everything that it reads; what is locked stays."""
        step = self.problem.steps[k]
        if k != self.now and (step.limit == NEVER or self.now > step.limit):
            raise _Full
        keep = locked
        locked |= set(step.reads)
        for v in step.reads:
            if v not in self.resident:
                self.do(self.problem.maker[v], locked)
        if len(self.schedule) > MOST_AGAIN * len(self.problem.steps):
            raise _Full
        self._make_room(k, locked)
        self.schedule.append(k)
        self.clock += step.seconds
        self.resident |= set(step.writes)
        for v in (*step.reads, *step.writes):
            self.touched[v] = self.clock
        self.now += k == self.now
        self.resident -= {v for v in self.resident if v not in keep and self._next(v) == math.inf}

    def _next(self, v: int) -> float:
        """The step of the plain order that reads it next."""
        readers = self.problem.readers[v]
        at = bisect_left(readers, self.now)
        return readers[at] if at < len(readers) else math.inf

    def _make_room(self, k: int, locked: frozenset[int]) -> None:
        problem, step = self.problem, self.problem.steps[k]
        need = problem.pinned_bytes + step.own_bytes
        need += sum(problem.bytes[v] for v in step.writes if v not in self.resident)
        dying = [v for v in step.takes if k == self.now and problem.last[v] == k]
        need -= problem.bytes[dying[0]] if dying else 0
        while need + sum(problem.bytes[v] for v in self.resident) > self.budget_bytes:
            free = [v for v in self.resident if v not in locked and self._again(v)]
            if not free:
                raise _Full
            self.resident.remove(max(sorted(free), key=lambda v: self.merit(self._candidate(v))))

    def _again(self, v: int) -> bool:
        """Can it be made again when it is read, from what is in RAM?"""
        steps = [self.problem.steps[k] for k in self._closure(v)]
        return all(step.limit != NEVER and self._next(v) <= step.limit for step in steps)

    def _closure(self, v: int) -> set[int]:
        again: set[int] = set()
        todo = [self.problem.maker[v]]
        while todo:
            k = todo.pop()
            if k not in again:
                again.add(k)
                todo += [self.problem.maker[u] for u in self.problem.steps[k].reads if u not in self.resident]
        spend(EVICTION * len(again))
        return again

    def _candidate(self, v: int) -> Candidate:
        steps = self.problem.steps
        seconds = sum(steps[k].seconds for k in self._closure(v))
        away = min(self._next(v), len(steps)) - self.now
        own = steps[self.problem.maker[v]].seconds
        return Candidate(self.problem.bytes[v], seconds, own, self.clock - self.touched[v], int(away))
