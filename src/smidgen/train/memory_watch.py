"""How much memory a job may take, and which rung of its ladder that allows. Nothing here raises: where nothing can be
read, the job stays on its rung and goes on. It goes down at once, and up only when that has been safe for a while."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol

from ..program.arguments import is_number
from ..terminal import bytes_text

RESERVE: Final = 0.05  # of all memory, or of a group's limit, is left to others
SPARE_PERCENT: Final = 10  # more than its RAM has to be there before a job goes up to a rung
CALM_BATCHES: Final = 8  # for so many batches in a row
MOST_PRESSURE: Final = 10.0  # per cent of the last ten seconds in which some task waited for memory
PRESSURE_S: Final = 10.0  # the average falls slowly: so long, one rung is enough
# Files of control groups, version 2 and then version 1.
LIMITS: Final = ("memory.max", "memory.high", "memory.limit_in_bytes")
USED: Final = ("memory.current", "memory.usage_in_bytes")
NO_LIMIT: Final = 2**60  # version 1 writes a number even larger
CACHE: Final = ("inactive_file", "total_inactive_file")  # in memory.stat


@dataclass(frozen=True, slots=True)
class Reading:
    allowed_bytes: float  # for all of the job's RAM, what it holds already included
    pressure: float = 0.0  # per cent


class Source(Protocol):
    missing: str  # why nothing could be read, the last time

    def read(self, held_bytes: int) -> Reading | None: ...


class System:
    """Free memory of this machine and of the control groups that the process is in, and memory pressure."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._meminfo, self._pressure = root / "proc/meminfo", root / "proc/pressure/memory"
        self._groups = [group for folder in _groups(root) if (group := _Group.at(folder)) is not None]
        self.missing = ""

    def read(self, held_bytes: int) -> Reading | None:
        everywhere = _machine_free(self._meminfo), *(group.free() for group in self._groups)
        free = [count for count in everywhere if count is not None]
        if not free:
            self.missing = f"neither {self._meminfo} nor a control group says how much memory is free"
            return None
        return Reading(max(min(free) + held_bytes, 0), _pressure(self._pressure))


class Callback:
    """A function of the user's that returns how many bytes the job may take."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.missing = ""

    def read(self, held_bytes: int) -> Reading | None:
        try:
            given = self._function()
            allowed = float(given) if is_number(given) else math.nan
            if allowed > -math.inf:
                return Reading(allowed)
            self.missing = f"the function of follow_memory gave {given!r:.60}, which is not a number of bytes"
        except Exception as error:  # the job must not end because a reading does
            said = traceback.format_exception_only(error)[-1].strip()  # even if its own text fails
            self.missing = f"the function of follow_memory raised {said}"
        return None


class Watch:
    """Which rung comes next; asked before each batch. Rungs are numbered from the largest."""

    def __init__(
        self, ram_bytes: Sequence[int], source: Source, clock: Callable[[], float] = time.monotonic
    ) -> None:  # fmt: skip
        self._ram, self._source, self._clock = ram_bytes, source, clock
        self._calm, self._reachable = 0, 0  # batches in a row that had room for a larger rung, and for which one
        self._relieved_at = -math.inf  # when pressure last took a rung

    @property
    def missing(self) -> str:
        return self._source.missing

    def next_rung(self, rung: int, held_bytes: int) -> tuple[int, str]:
        """The rung for the next batch, and why if it is another one."""
        reading = self._source.read(held_bytes)
        if reading is None:
            self._calm = 0
            return rung, ""
        allowed = reading.allowed_bytes
        said = f"{bytes_text(int(allowed))} allowed" if math.isfinite(allowed) else "no limit"
        largest = self._largest(allowed)
        if largest > rung:
            self._calm = 0
            return largest, said
        if reading.pressure > MOST_PRESSURE:
            self._calm = 0
            return self._relieved(rung, reading.pressure)
        roomy = self._largest(allowed, SPARE_PERCENT)
        if roomy >= rung:
            self._calm = 0
            return rung, ""
        self._reachable = max(roomy, self._reachable) if self._calm else roomy
        self._calm += 1
        if self._calm < CALM_BATCHES:
            return rung, ""
        self._calm = 0
        return self._reachable, said

    def _largest(self, allowed: float, spare_percent: int = 0) -> int:
        """The largest rung within that, or the smallest of all."""
        fits = (k for k, ram in enumerate(self._ram) if ram * (100 + spare_percent) <= allowed * 100)
        return next(fits, len(self._ram) - 1)

    def _relieved(self, rung: int, pressure: float) -> tuple[int, str]:
        now = self._clock()
        if rung + 1 >= len(self._ram) or now - self._relieved_at < PRESSURE_S:
            return rung, ""
        self._relieved_at = now
        return rung + 1, f"tasks wait for memory {pressure:.0f} % of the time"


# -- what Linux says -----------------------------------------------------------------------------------------------


def _machine_free(path: Path) -> int | None:
    """MemAvailable, which counts caches that can be dropped, without the reserve."""
    found: dict[str, int] = {}
    for line in _lines(path):
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            count = _number(rest.removesuffix("kB"))
            if count is not None:
                found[name] = count * 1024
    if "MemAvailable" not in found:
        return None
    return found["MemAvailable"] - int(found.get("MemTotal", 0) * RESERVE)


def _groups(root: Path) -> Iterator[Path]:
    """Folders of the process's own control group and of those around it."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, name = (*line.split(":", 2), "", "")[:3]
        own = PurePosixPath(name.lstrip("/"))
        mounts = ["", "unified"] if number == "0" else ["memory"] if "memory" in controllers.split(",") else []
        if ".." not in own.parts:
            yield from (root / "sys/fs/cgroup" / mount / part for mount in mounts for part in (own, *own.parents))


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group, by its files that are there."""

    limits: tuple[Path, ...]
    used: Path
    facts: Path

    @staticmethod
    def at(folder: Path) -> _Group | None:
        limits = tuple(folder / name for name in LIMITS if _lines(folder / name))
        used = [folder / name for name in USED if _lines(folder / name)]
        return _Group(limits, used[0], folder / "memory.stat") if limits and used else None

    def free(self) -> int | None:
        """What the group may take before it is throttled or killed; pages of files that nobody used lately do not
        count. None without a limit."""
        limits = [count for path in self.limits if (count := _first(path)) is not None and count < NO_LIMIT]
        used = _first(self.used) if limits else None
        if used is None:
            return None
        cache = 0
        for line in _lines(self.facts):
            name, _, rest = line.partition(" ")
            cache = max(cache, _number(rest) or 0) if name in CACHE else cache
        return min(limits) - int(min(limits) * RESERVE) - max(used - cache, 0)


def _pressure(path: Path) -> float:
    """`some avg10=…`; 0 where the system does not say."""
    for line in _lines(path):
        kind, *parts = line.split()
        for part in parts if kind == "some" else ():
            if part.startswith("avg10="):
                with contextlib.suppress(ValueError):
                    share = float(part.removeprefix("avg10="))
                    return share if math.isfinite(share) else 0.0
    return 0.0


def _first(path: Path) -> int | None:
    """The number that a file holds; None for the word `max`, and if it cannot be read."""
    lines = _lines(path)
    return _number(lines[0]) if lines else None


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _lines(path: Path) -> list[str]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return [line for line in file.read().splitlines() if line.strip()]
    except OSError:
        return []


__all__ = ["Callback", "Reading", "Source", "System", "Watch"]
