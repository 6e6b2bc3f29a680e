"""Offsets by constraint programming, for the placements that heuristics leave above their bound.

One worker and a limit of work, not of time: the same blocks give the same offsets on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from .place_search import Block

WORK: Final = 3.0  # CP-SAT's own unit, roughly seconds
MOST_BLOCKS: Final = 200  # with more, a second of work takes many of the clock, and finds little


def improved(
    blocks: Sequence[Block], offsets: Mapping[str, int], top: int, bound: int, align: int
) -> tuple[dict[str, int], int]:
    """Offsets with a lower top, if the solver finds any; `offsets` otherwise, with too many blocks, or if it is not
    installed."""
    if len(blocks) > MOST_BLOCKS:
        return dict(offsets), top
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError:
        return dict(offsets), top
    model = cp_model.CpModel()
    height = model.new_int_var(bound // align, top // align - 1, "top")
    starts, across, up = {}, [], []
    for k, block in enumerate(blocks):
        size = block.bytes // align
        if not size:
            continue
        start = starts[block.name] = model.new_int_var(0, top // align - 1 - size, f"o{k}")
        across.append(model.new_fixed_size_interval_var(block.birth, block.death + 1 - block.birth, f"t{k}"))
        up.append(model.new_fixed_size_interval_var(start, size, f"y{k}"))
        model.add(start + size <= height)
        model.add_hint(start, min(offsets[block.name] // align, top // align - 1 - size))
    model.add_no_overlap_2d(across, up)
    model.add_cumulative(across, [b.bytes // align for b in blocks if b.bytes], height)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = WORK
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return dict(offsets), top
    found = {b.name: solver.value(starts[b.name]) * align if b.name in starts else 0 for b in blocks}
    return found, max(found[b.name] + b.bytes for b in blocks)
