"""Offsets by constraint programming, for the placements that heuristics leave above the room there is.

Asked for any placement within a room, the solver mostly answers at once, even if not a byte is to spare; asked for the
lowest one it does not. Small blocks mislead it, so it is asked about the larger ones first, and the small ones go into
the gaps; then about more of them. One worker and a limit of work, not of time: the same blocks give the same offsets on
every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ..effort import SOLVER, meter, spend
from .first_fit import Block, gaps_filled

WORK: Final = 0.007  # CP-SAT's own unit, for each try
PLACING: Final = 46  # times the effort of other models, for one of its units
TRIES: Final = ((0.003, 720), (0.0003, 600), (0.0, 600))
"""Share of the room: blocks that are smaller come last; and how many there may be: with more, a try takes too long for
what it finds, even more so one that the first did not succeed in."""
HALVINGS: Final = 3  # of the distance to the bound, if that cannot be reached
Placement = tuple[dict[str, int], int]


def within(blocks: Sequence[Block], room: int, align: int) -> Placement | None:
    """Offsets and their end, at most `room`; None if the solver finds none, or is not installed."""
    tried: set[int] = set()
    for small, most in TRIES:
        large = [b for b in blocks if b.bytes and b.bytes >= small * room]
        if len(large) in tried or not large or len(large) > most:
            continue
        tried.add(len(large))
        offsets = _solved(large, room, align)
        made = None if offsets is None else gaps_filled(blocks, offsets, room)
        if made is not None:
            return made
    return None


def nearer(blocks: Sequence[Block], offsets: Mapping[str, int], top: int, bound: int, align: int) -> Placement:
    """A lower top than the given one, if any is found halfway to the bound, or halfway there, and so on."""
    best, low = (dict(offsets), top), bound
    for _ in range(HALVINGS):
        made = within(blocks, low + (best[1] - low) // 2, align)
        if made is None:
            low += (best[1] - low) // 2
        else:
            best = made
    return best


Rectangle = tuple[int, int, int, int, int]
"""Birth, death, size in units of alignment; the number of the block that it is a part of, and where it is in that."""


def _solved(blocks: Sequence[Block], room: int, align: int) -> dict[str, int] | None:
    rectangles = [(p.birth, p.death, p.bytes // align, i, p.at // align) for i, b in enumerate(blocks) for p in b.parts]
    found = _starts(rectangles, room // align)
    return None if found is None else {b.name: start * align for b, start in zip(blocks, found, strict=True)}


_KNOWN: Final[dict[tuple[object, ...], tuple[list[int] | None, float]]] = {}
_MOST_KNOWN: Final = 256


def _starts(rectangles: Sequence[Rectangle], height: int) -> list[int] | None:
    """What was asked before is known: a search comes back to the same graph. It counts as the effort that it took."""
    key = (*rectangles, height)
    if key not in _KNOWN:
        starts, units, is_whole = _asked(rectangles, height)
        if not is_whole:
            spend(units)
            return starts
        while len(_KNOWN) >= _MOST_KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = starts, units
    starts, units = _KNOWN[key]
    spend(units)
    return starts


def _asked(rectangles: Sequence[Rectangle], height: int) -> tuple[list[int] | None, float, bool]:
    """The solver's answer, its effort, and whether the clock let it finish."""
    ends: dict[int, int] = {}  # block → bytes
    for _, _, size, block, at in rectangles:
        ends[block] = max(ends.get(block, 0), at + size)
    if max(ends.values()) > height:
        return None, 0.0, True
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError:
        return None, 0.0, False
    model = cp_model.CpModel()
    sizes = [size for _, _, size, _, _ in rectangles]
    starts = {block: model.new_int_var(0, height - end, "") for block, end in ends.items()}
    across = [model.new_fixed_size_interval_var(birth, death + 1 - birth, "") for birth, death, *_ in rectangles]
    up = [model.new_fixed_size_interval_var(starts[block] + at if at else starts[block], size, "")
          for _, _, size, block, at in rectangles]  # fmt: skip
    model.add_no_overlap_2d(across, up)
    model.add_cumulative(across, sizes, height)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = WORK
    most_s = max(meter().left_s(), 0.1)
    solver.parameters.max_time_in_seconds = most_s  # an emergency
    status = solver.solve(model)
    units = PLACING * SOLVER * solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, units, solver.wall_time < most_s
    return [solver.value(start) for start in starts.values()], units, True
