"""Numbers that callers give, checked by type: Python's and numpy's, but no booleans."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadOption


def is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_integer(value) or isinstance(value, (float, np.floating))


def checked_seed(seed: Any) -> int:
    if not is_integer(seed) or not 0 <= seed < 2**31:
        raise BadOption(f"seed={seed!r} is not a seed", why="it is an integer from 0 to 2**31 - 1", help="seed=0")
    return int(seed)


__all__ = ["checked_seed", "is_integer", "is_number"]
