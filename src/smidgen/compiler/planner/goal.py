"""What a plan should achieve, and how hard to look for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from ..effort import Effort
from .cost import HOST, Prices, Spent

LEAST_S: Final = 0.1  # of search, when the effort for it is spent: the fast methods remain


@dataclass(frozen=True, slots=True)
class Goal:
    """What should be small, and by which means."""

    objective: str = "time"  # or energy
    deadline_s: float | None = None  # a step must not take longer
    page: bool = False  # tensors may leave RAM
    prices: Prices = HOST
    split: bool = True  # a step may run in micro-batches
    fill: bool = False  # room that is left is used to recompute less
    cached_threads: int = 0  # of kernels that are faster in micro-batches, though the whole fits; 0: they are not

    def cost(self, step: Spent) -> float:
        return step.joules if self.objective == "energy" else step.seconds

    def is_late(self, step: Spent) -> bool:
        return self.deadline_s is not None and step.seconds > self.deadline_s

    @property
    def at_leisure(self) -> Goal:
        """The same without a deadline."""
        return replace(self, deadline_s=None)


@dataclass(frozen=True, slots=True)
class Search:
    """`effort_s` of search for the optimum; 0: the first schedule that fits. Once `patience` is spent and nothing fits,
    nothing more is tried; None: without end."""

    effort_s: float = 0.0
    patience: Effort | None = None

    @property
    def left_s(self) -> float:
        """Seconds of patience."""
        return math.inf if self.patience is None else self.patience.left_s

    def quick(self, patience: Effort | None) -> Search:
        return Search(0.0, patience)

    def share(self, count: int, effort: Effort) -> Search:
        """One of `count` equal parts of what is left."""
        patience = None if self.patience is None else Effort.of(self.left_s / count)
        return Search(max(effort.left_s / count, LEAST_S), patience)


QUICK: Final = Search()
