"""A part of a table in which every two settings meet at least once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

Row = TypeVar("Row", bound=Any)  # a dataclass with a batch, in order


def meeting(rows: Sequence[Row]) -> list[Row]:
    """Of rows that bring as many new pairs the one with the smaller batch."""
    missing = {pair for row in rows for pair in _pairs(row)}
    chosen: list[Row] = []
    while missing:
        best = max(rows, key=lambda row: (len(missing & _pairs(row)), -row.batch))
        chosen.append(best)
        missing -= _pairs(best)
    return sorted(chosen)


def _pairs(row: Any) -> set[tuple[tuple[str, Any], ...]]:
    return set(itertools.combinations(sorted(asdict(row).items()), 2))


__all__ = ["meeting"]
