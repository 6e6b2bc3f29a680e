"""Checkpoints at every √n-th of n kept values; the others are recomputed, segment by segment (Chen et al. 2016)."""

from __future__ import annotations

import math

from .problem import NEVER, Problem, Schedule, profile


def chen(problem: Problem) -> Schedule:
    """Values count that lie over the highest moment of the plain program and can be recomputed."""
    live = profile(problem, problem.plain()).live
    top = int(live.argmax()) if len(live) else 0
    over = [
        v for v in range(len(problem.bytes)) if problem.maker[v] < top < problem.last[v] and _again(problem, v, top)
    ]
    over.sort(key=lambda v: problem.maker[v])
    length = max(1, math.isqrt(len(over)))
    dropped = {v for i, v in enumerate(over) if i % length != length - 1}
    stages: dict[int, set[int]] = {}  # before this step → steps to repeat
    for start in range(0, len(over), length):
        segment = [v for v in over[start : start + length] if v in dropped]
        if segment:
            t = min(_next(problem, v, top) for v in segment)
            stages.setdefault(t, set()).update(k for v in segment for k in _closure(problem, v, top, dropped))
    schedule: Schedule = []
    for t in range(len(problem.steps)):
        schedule += [*sorted(stages.get(t, ())), t]
    return schedule


def _next(problem: Problem, v: int, after: int) -> int:
    return next(r for r in problem.readers[v] if r > after)


def _closure(problem: Problem, v: int, top: int, dropped: set[int]) -> set[int]:
    """Its maker, and what makes its operands unless they are kept over the highest moment."""
    found: set[int] = set()
    todo = [problem.maker[v]]
    while todo:
        k = todo.pop()
        if k not in found:
            found.add(k)
            reads = problem.steps[k].reads
            todo += [problem.maker[u] for u in reads if u in dropped or problem.last[u] <= top]
    return found


def _again(problem: Problem, v: int, top: int) -> bool:
    """True if it can be recomputed, if need be from the inputs, when it is read after the peak."""
    steps = [problem.steps[k] for k in _closure(problem, v, top, set())]
    return all(step.limit != NEVER and _next(problem, v, top) <= step.limit for step in steps)
