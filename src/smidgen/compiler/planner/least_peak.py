"""The lowest peak that is imaginable: what is found below it is a mistake, and a budget below it is impossible."""

from __future__ import annotations

import numpy as np

from .problem import Problem
from .stages import gaps


def least_peak(problem: Problem, *, page: bool = False) -> int:
    """No schedule has a lower peak: at each step its operands, its results, its own memory, and what can not be made
    again before it is read are in RAM."""
    kept = np.zeros(len(problem.steps) + 1, np.int64)
    free: set[tuple[int, int]] = set()  # (value, step) after which it may be dropped
    for v, a, b in gaps(problem):
        if (page and problem.pageable[v]) or a < problem.steps[problem.maker[v]].limit:
            free.add((v, a))
        else:
            kept[a + 1] += problem.bytes[v]
            kept[b] -= problem.bytes[v]
    over = np.cumsum(kept)
    peak = 0
    for k, step in enumerate(problem.steps):
        touched = sum(problem.bytes[v] for v in {*step.reads, *step.writes})
        taken = max((problem.bytes[v] for v in step.takes if problem.last[v] == k or (v, k) in free), default=0)
        peak = max(peak, problem.pinned_bytes + step.own_bytes + touched - taken + int(over[k]))
    return peak
