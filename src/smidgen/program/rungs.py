"""Rungs of a ladder: plans of one program for less and less RAM, which share STATE. Rung 0 is the entry `train` (and
`grad`), rung k the entry `train@k`: the same step with the same bits, within less memory. Needs no torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

STEPS: Final = ("train", "grad")  # entries that each rung has its own of
MOST_DIGITS: Final = 4  # of the number of a rung


@dataclass(frozen=True, slots=True)
class Rung:
    """`arena_bytes` is the most that any entry touches on this rung; `ram_bytes` all of the job's RAM then."""

    name: str  # of the entry that trains
    arena_bytes: int
    ram_bytes: int


def entry_at(name: str, rung: int) -> str:
    return f"{name}@{rung}" if rung else name


def _rung_of(entry: str) -> int | None:
    """The rung that an entry belongs to; None: to all of them."""
    step, at, number = entry.partition("@")
    if step not in STEPS:
        return None
    if not at:
        return 0
    is_number = number.isascii() and number.isdigit() and number[0] != "0" and len(number) <= MOST_DIGITS
    return int(number) if is_number else None


def rungs_of(entries: Collection[str], arena_by_entry: Mapping[str, int], other_bytes: int) -> tuple[Rung, ...]:
    """All rungs, the largest first; `other_bytes` is RAM beside the arena. KeyError if an arena is not known."""
    found: list[Rung] = []
    while entry_at("train", len(found)) in entries:
        number = len(found)
        arena = max(arena_by_entry[entry] for entry in entries if _rung_of(entry) in (None, number))
        found.append(Rung(entry_at("train", number), arena, arena + other_bytes))
    return tuple(found)


__all__ = ["STEPS", "Rung", "entry_at", "rungs_of"]
