"""How far a mean may be from the truth."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Final

T_95: Final = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 39: 2.024, 40: 2.023}
"""Of Student, two sides, by the number of values."""


def half_width(values: Sequence[float]) -> float:
    """Of the interval that holds the mean with 95 % probability."""
    return T_95[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
