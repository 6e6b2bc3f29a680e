"""Effort, counted in deterministic work: planning reads this meter and never a clock, so a plan depends on the model,
the options and the versions alone, not on how fast or busy the machine is.

A unit of work is about a nanosecond of one core of a desktop computer, and "5 seconds of effort" are 5e9 units on every
machine. Wall time is an emergency stop: it is far away, and a plan that it cut short says so.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

UNITS: Final = 10**9  # of work in one second of effort
EMERGENCY_S: Final = 600.0  # of wall time, beside EMERGENCY times the effort
EMERGENCY: Final = 40.0
MOST_S: Final = 1e6  # that solvers are given

# What planning consists of, in units: benchmarks.answers records effort and processor time side by side.
PROFILE: Final = 75_000  # one profile of a schedule,
PROFILE_STEP: Final = 280  # and each of its actions
DROPS: Final = 46_000  # looking for what a schedule could drop,
DROP: Final = 7_000  # each value among it,
CLOSURE: Final = 3_000  # and each step that makes one again
EVICTION: Final = 1_000  # of an online policy: each step looked at to choose a victim
NODE: Final = 110_000  # of a graph that was rewritten and checked
BLOCK: Final = 27_000  # of memory to be placed,
PAIR: Final = 62  # and each comparison with a neighbour
SOLVER: Final = 3 * UNITS // 2  # one unit of CP-SAT's deterministic time
CHOICE: Final = 42_000  # a variable of a model that CP-SAT gets
COLUMN: Final = 3_600  # a row or a column of a linear program,
PIVOT: Final = 5  # and each of them in each of its iterations


@dataclass
class Meter:
    """Work done so far, and the emergency stop."""

    units: int = 0
    emergency_at: float = math.inf  # as time.monotonic() says
    stopped: bool = False  # by the clock: the plan is not reproducible

    def left_s(self) -> float:
        """Of wall time, until the emergency stop."""
        left = min(max(self.emergency_at - time.monotonic(), 0.0), MOST_S)
        self.stopped = self.stopped or not left
        return left


_METER: ContextVar[Meter] = ContextVar("meter")


def meter() -> Meter:
    """That of the compilation which is under way, or one without an emergency stop."""
    found = _METER.get(None)
    if found is None:
        found = Meter()
        _METER.set(found)
    return found


@contextlib.contextmanager
def metered(effort_s: float = 0.0) -> Iterator[Meter]:
    """A meter of its own for what is planned inside."""
    made = Meter(emergency_at=time.monotonic() + EMERGENCY_S + EMERGENCY * effort_s)
    token = _METER.set(made)
    try:
        yield made
    finally:
        _METER.reset(token)


def spend(units: float) -> None:
    meter().units += int(units)


@dataclass(frozen=True, slots=True)
class Effort:
    """An amount of work that runs out while planning goes on."""

    end: int  # on the meter

    @staticmethod
    def of(seconds: float) -> Effort:
        """So much from now on."""
        return Effort(meter().units + int(min(seconds, 1e9) * UNITS))

    @property
    def left_s(self) -> float:
        now = meter()
        return max(self.end - now.units, 0) / UNITS if now.left_s() else 0.0

    @property
    def is_spent(self) -> bool:
        return not self.left_s


__all__ = ["Effort", "Meter", "meter", "metered", "spend"]
