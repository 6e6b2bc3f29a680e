"""Arguments of `fit`, checked before any work, and what identifies a run, so that only the same run is resumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..errors import BadOption, did_you_mean
from ..program.arguments import is_integer, is_number
from ..program.program import Program

if TYPE_CHECKING:
    from ..program.rungs import Rung
    from .memory_watch import Watch

Factor = Callable[[float], float]
SCHEDULES: Final[dict[str, Factor]] = {
    "constant": lambda progress: 1.0,
    "linear": lambda progress: 1.0 - progress,
    "cosine": lambda progress: 0.5 + 0.5 * math.cos(math.pi * progress),
}
"""Share of the learning rate by progress, from 0 to below 1."""


@dataclass(frozen=True, slots=True)
class Schedule:
    name: str
    factor: Factor
    warmup: float  # share of the run's steps in which the rate rises to its full value

    @property
    def is_constant(self) -> bool:
        return self.name == "constant" and not self.warmup

    def share(self, done: int, total: int) -> float:
        """Of the learning rate, in the step after `done` of `total` steps."""
        rising = math.ceil(self.warmup * total)
        if done < rising:
            return (done + 1) / (rising + 1)
        # Rounded, so that the last bit of a machine's cosine does not matter.
        return round(_checked_share(self.factor((done - rising) / (total - rising))), 12)


@dataclass(frozen=True, slots=True)
class Settings:
    """What decides the course of a run beside the program; data by size and checksum."""

    epochs: int
    batch: int
    seed: int
    shuffle: bool
    schedule: str
    warmup: float
    patience: int | None
    samples: int | None
    data: int
    eval_samples: int | None
    eval_data: int
    kernels: str

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """What is not as it was, in words."""
        said = {"data": "the data are others", "eval_data": "the eval data are others"}
        changed = [name for name, here in asdict(self).items() if other.get(name) != here]
        counts = {"data": "samples", "eval_data": "eval_samples"}
        return [
            said.get(name, f"{name} was {other.get(name)}, is {getattr(self, name)}")
            for name in changed
            if counts.get(name) not in changed
        ]


def positive(name: str, value: Any, help: str) -> int:
    if not is_integer(value) or value < 1:
        raise BadOption(f"{name}={value!r} is not a number of at least 1", help=help)
    return int(value)


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise BadOption(f"{name}={value!r} is not True or False", help=f"{name}=True")
    return bool(value)


def checked_batch(batch: Any, program: Program) -> int:
    """Samples of a step."""
    most = program.batch
    if batch is None:
        asked = program.figures.get("step_samples", 0)
        return asked if isinstance(asked, int) and asked > most and "grad" in program.entries else most
    batch = positive("batch", batch, f"batch={most}")
    if batch > most and "grad" not in program.entries:
        help = f"batch={most}, or compile with Memory(accumulate=True)"
        raise BadOption(f"batch={batch}, but the program takes at most {most} at a time", help=help)
    return int(batch)


def checked_schedule(schedule: Any, warmup: Any) -> Schedule:
    if not is_number(warmup) or not 0 <= warmup < 1:
        raise BadOption(f"warmup={warmup!r} is not a share of the run", why="from 0 to below 1", help="warmup=0.1")
    name = "constant" if schedule is None else schedule
    if isinstance(name, str):
        if name not in SCHEDULES:
            raise BadOption(f"no schedule named '{name}'", help=did_you_mean(name, SCHEDULES))
        return Schedule(name, SCHEDULES[name], float(warmup))
    if not callable(schedule):
        known = ", ".join(SCHEDULES)
        help = f"one of {known}, or a function of the progress from 0 to 1"
        raise BadOption(f"schedule={schedule!r} is not a schedule", help=help)
    # A function is known again by what it gives.
    points = ", ".join(f"{_checked_share(schedule(k / 4)):.9g}" for k in range(4))
    return Schedule(f"function({points})", schedule, float(warmup))


def checked_watch(follow_memory: Any, rungs: Sequence[Rung]) -> Watch:
    """Of the system's memory for True, else of what a function allows."""
    if follow_memory is not True and not callable(follow_memory):
        help = "follow_memory=True, or a function that returns a number of bytes"
        raise BadOption(f"follow_memory={follow_memory!r} is not understood", help=help)
    if len(rungs) < 2:
        help = "smidgen.compile(…, memory=smidgen.Memory(ladder=['64MB', '32MB']))"
        raise BadOption("follow_memory needs a program with a ladder", why="this one has one plan", help=help)
    from .memory_watch import Callback, System, Watch

    source = System() if follow_memory is True else Callback(follow_memory)
    return Watch([rung.ram_bytes for rung in rungs], source)


def _checked_share(share: Any) -> float:
    if not is_number(share) or not 0 <= share < math.inf:
        raise BadOption(
            f"the schedule gives {share!r}", why="it gives the share of job.lr, a number from 0",
            help="schedule=lambda progress: 1 - progress",
        )  # fmt: skip
    return float(share)


__all__ = ["Schedule", "Settings", "checked_batch", "checked_schedule", "checked_watch", "flag", "positive"]
