"""Where repeated steps may stand: *stage* t is what stands between the steps t−1 and t of the plain order. In a stage a
step is repeated at most once, and in the order of the graph (after Moccasin, Bartan et al. 2023, and Checkmate).

A value read from PAGE comes right before the first of the stage that reads it; it was written out right after
its maker, where it is alive anyway, so that writing takes no memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .problem import NEVER, Action, PageIn, PageOut, Problem, Schedule, profile

MOST = 9000  # repeated steps that a model may choose from


@dataclass(frozen=True)
class Stages:
    """What may be done in each stage. `complete`: nothing was left out that could be part of an optimum."""

    again: tuple[tuple[int, ...], ...]  # stage → steps that may be repeated there, in order
    page: bool
    complete: bool
    first: int  # no stage before this one has anything to choose


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule of such stages: what is repeated, and what is read in right before which step."""

    again: frozenset[tuple[int, int]]  # (stage, step)
    inward: frozenset[tuple[int, int, int]]  # (stage, step, value)


def stages_of(problem: Problem, budget_bytes: int, page: bool, most: int = MOST, also: Choice | None = None) -> Stages:
    """Everything that could help, or, where that is more than `most`, what is near to a value that lies over a moment
    above the budget. The choice `also` is always among it."""
    n = len(problem.steps)
    first = _first(problem, budget_bytes)
    latest = _latest(problem)
    ranges = [range(max(first, k + 2), latest[k] + 1) for k in range(n)]
    complete = sum(map(len, ranges)) <= most
    found: list[set[int]] = [set() for _ in range(n)]
    if complete:
        for k, stages in enumerate(ranges):
            for t in stages:
                found[t].add(k)
    else:
        depth = 1
        found = _near(problem, budget_bytes, ranges, depth)
        while depth < 64:
            depth *= 2
            wider = _near(problem, budget_bytes, ranges, depth)
            if sum(map(len, wider)) > most or wider == found:
                break
            found = wider
    for t, k in also.again if also else ():
        found[t].add(k)
    return Stages(tuple(tuple(sorted(ks)) for ks in found), page, complete, first)


def _first(problem: Problem, budget_bytes: int) -> int:
    """The first step that exceeds the budget if nothing that was ever written is forgotten: until there, nothing has to
    be repeated."""
    total = problem.pinned_bytes
    for k, step in enumerate(problem.steps):
        total += sum(problem.bytes[v] for v in step.writes)
        if total + step.own_bytes > budget_bytes:
            return k
    return len(problem.steps)


def _latest(problem: Problem) -> list[int]:
    """Step → the last stage in which repeating it can be of use."""
    latest = [-1] * len(problem.steps)
    for k in reversed(range(len(problem.steps))):
        step = problem.steps[k]
        if step.limit == NEVER:
            continue
        readers = [r for v in step.writes for r in problem.readers[v]]
        use = max((max(r, latest[r]) for r in readers), default=-1)
        latest[k] = min(step.limit, use)
    return latest


def gaps(problem: Problem) -> list[tuple[int, int, int]]:
    """(value, a, b): the value is alive over steps between its neighbouring uses a and b."""
    return [
        (v, a, b)
        for v in range(len(problem.bytes))
        for a, b in pairwise((problem.maker[v], *problem.readers[v]))
        if b - a > 1
    ]


def highest(problem: Problem, budget_bytes: int) -> list[int]:
    """Steps above the budget in the plain order, the highest first."""
    live = profile(problem, problem.plain()).live
    above = np.flatnonzero(live > budget_bytes)
    return [int(t) for t in above[np.argsort(-live[above], kind="stable")]]


def moments(problem: Problem, budget_bytes: int, count: int) -> list[int]:
    """Steps above the budget in the plain order, the highest one of each of `count` parts; fewer if there are fewer."""
    live = profile(problem, problem.plain()).live
    above = [int(t) for t in np.flatnonzero(live > budget_bytes)]
    count = min(count, len(above))
    edges = [i * len(above) // count for i in range(count)] + [len(above)]
    return [max(above[a:b], key=lambda t: int(live[t])) for a, b in pairwise(edges)] if above else []


def _near(problem: Problem, budget_bytes: int, ranges: list[range], depth: int) -> list[set[int]]:
    """For values that lie over a moment above the budget: their makers, and theirs, in the stage that reads them."""
    live = profile(problem, problem.plain()).live
    over = np.concatenate([[0], np.cumsum(live > budget_bytes)])
    least = max(int(live.max()) - budget_bytes, 0) // 1000
    found: list[set[int]] = [set() for _ in problem.steps]
    for v, a, b in gaps(problem):
        if over[b] - over[a + 1] == 0 or problem.bytes[v] < least:
            continue
        edge = {problem.maker[v]}
        for _ in range(depth):
            edge = {k for k in edge if b in ranges[k]} - found[b]
            found[b] |= edge
            edge = {problem.maker[u] for k in edge for u in problem.steps[k].reads}
    return found


def schedule_of(problem: Problem, choice: Choice) -> Schedule:
    n = len(problem.steps)
    before: list[list[int]] = [[] for _ in range(n)]
    for t, k in sorted(choice.again):
        before[t].append(k)
    inward: dict[tuple[int, int], list[int]] = {}
    for t, k, v in sorted(choice.inward):
        inward.setdefault((t, k), []).append(v)
    paged = {v for _, _, v in choice.inward}
    schedule: list[Action] = []
    for t in range(n):
        for k in (*before[t], t):
            schedule += [PageIn(v) for v in inward.get((t, k), ())]
            schedule.append(k)
        schedule += [PageOut(v) for v in problem.steps[t].writes if v in paged]
    return schedule


def choice_of(problem: Problem, schedule: Schedule) -> Choice | None:
    """None: a stage repeats a step twice, or not in the order of the graph."""
    again: set[tuple[int, int]] = set()
    inward: set[tuple[int, int, int]] = set()
    stage: list[Action] = []
    first = 0
    for k in schedule:
        stage.append(k)
        if k != first:
            continue
        steps = [s for s in stage if isinstance(s, int)]
        if steps != sorted(set(steps)):
            return None
        again |= {(first, s) for s in steps[:-1]}
        for position, one in enumerate(stage):
            if isinstance(one, PageIn):
                reader = _reader(problem, stage[position:], one.value)
                if reader is None:
                    return None
                inward.add((first, reader, one.value))
        stage = []
        first += 1
    return Choice(frozenset(again), frozenset(inward))


def _reader(problem: Problem, stage: Iterable[Action], value: int) -> int | None:
    return next((k for k in stage if isinstance(k, int) and value in problem.steps[k].reads), None)


def held(problem: Problem, schedule: Schedule) -> set[tuple[int, int]]:
    """(stage, value) for what is alive from the step before the stage into it."""
    starts: list[int] = []
    for p, k in enumerate(schedule):
        if k == len(starts):
            starts.append(p)
    found: set[tuple[int, int]] = set()
    for v, born, uses in profile(problem, schedule).lives:
        if uses:
            inside: Iterable[int] = range(bisect_left(starts, born), bisect_left(starts, uses[-1]))
            found |= {(t + 1, v) for t in inside}
    return found
