"""Prices of this machine: every kernel is timed once, on the shapes that it is asked about, and remembered in a file.
Paging is timed each time, since every folder may be on another disk.

Plans are made with the fixed prices of cost.py unless these are asked for: a model then gives the same program
everywhere. What cannot be timed has its fixed price.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from ... import files, ops
from ...devices.device import Paging
from ...errors import SmidgenError
from ...ir import Array, DType, Graph, Role, at
from ...ops.build import Builder
from ...runtime.library import library_path
from ...runtime.machine import Machine
from ...terminal import Progress
from ..encode import encode
from ..place import arena
from . import row_cost
from .cost import DISK, HOST, Prices

LEAST_S: Final = 4e-5  # of one timed run; more copies of a kernel, and branches on its numbers are learned by heart
MOST_COPIES: Final = 64
ROUNDS: Final = (7, 31)  # at least and at most, as long as they fit
ROUNDS_S: Final = 3e-3
LONG_S: Final = 0.2  # is run once more, not ROUNDS times
INSIDE: Final = (0x00, 0x44)
"""Bytes of integer inputs: class or token 0; or the middle of a 3×3 window, at whose edge 0 would lie outside."""
PAGES_BYTES: Final = 1 << 22  # of the file with which paging is timed
PIECES_BYTES: Final = (1 << 12, 1 << 20)  # that go there and back
PIECES_S: Final = 0.05  # for each of them, out or in, as long as ROUNDS allow
LEAST_PIECE_S, LEAST_BYTE_S = 1e-7, 1e-11  # what a line through noise would fall below
FORMAT: Final = 1  # of the file


@dataclass(frozen=True, slots=True)
class Measured(Prices):
    """Seconds of each call, looked up or measured now."""

    kernels: str = "fast"
    threads: int = 1
    path: Path | None = None  # None: not remembered
    known: dict[str, float | None] = field(default_factory=dict, compare=False)  # None: cannot be timed
    new: dict[str, float | None] = field(default_factory=dict, compare=False)
    bar: Progress = field(default_factory=lambda: Progress("measuring kernels"), compare=False, repr=False)

    def seconds(self, op: str, call: ops.Call, n: int) -> float:
        record = ops.get(op)
        if record.is_view or record.page or record.border:
            return Prices.seconds(self, op, call, n)
        key = signature(op, call, n)
        if key not in self.known:
            self.bar.advance(1, op)
            self.known[key] = self.new[key] = self._timed(op, call, n)
        found = self.known[key]
        return Prices.seconds(self, op, call, n) if found is None else found

    def _timed(self, op: str, call: ops.Call, n: int) -> float | None:
        for integer in INSIDE:
            with contextlib.suppress(SmidgenError, MemoryError):
                return timed(op, call, n, Prices.seconds(self, op, call, n), self.kernels, self.threads, integer)
        return None

    def __enter__(self) -> Measured:
        return self

    def __exit__(self, *_: object) -> None:
        self.remember()

    def remember(self) -> None:
        """Add what is new to the file. A cache: if it cannot be written, the next run measures again."""
        self.bar.clear()
        if self.path is None or not self.new:
            return
        with contextlib.suppress(OSError, SmidgenError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"format": FORMAT, "seconds": {**_read(self.path), **self.new}})
            files.write(self.path, text.encode())
        self.new.clear()


def measured(
    kernels: str = "fast", threads: int = 1, folder: Path | None = None, page_to: str | os.PathLike[str] | None = None
) -> Measured:
    """Prices of this machine with these kernels, as far as they are known; the rest is timed when it is asked for.
    Paging is timed now, where the file `page_to` would be."""
    path = (folder or cache_folder()) / f"prices-{machine_key(kernels, threads)}.json"
    page = DISK if page_to is None else timed_pages(Path(os.path.realpath(page_to)).parent)
    return Measured(
        HOST.macs_per_s, HOST.bytes_per_s, HOST.call_s, "this machine", HOST.watts, page, HOST.rates,
        rows=row_cost.rates()["host"]["fast" if kernels == "fast" else "exact"], kernels=kernels, threads=threads, path=path, known=_read(path),
    )  # fmt: skip


def signature(op: str, call: ops.Call, n: int) -> str:
    """Everything that a kernel's time can depend on."""
    types = [(at(t.shape, n), t.dtype.value) for t in (*call.ins, *call.outs)]
    attrs = sorted((k, repr(at(v, n))) for k, v in call.attrs.items() if k not in ("key", "yields"))
    return hashlib.sha256(repr((op, types, attrs)).encode()).hexdigest()[:24]


# -- the clock ---------------------------------------------------------------------------------------------------------


def timed(op: str, call: ops.Call, n: int, guess_s: float, kernels: str, threads: int, integer: int = 0) -> float:
    """Seconds of one call, from a program with so many copies of it that it takes LEAST_S."""
    copies = min(MOST_COPIES, max(1, math.ceil(LEAST_S / max(guess_s, 1e-9))))
    whole = _run(_copies(op, call, n, copies), n, kernels, threads, integer)
    return max(whole - _empty(kernels, threads), 0.0) / copies


@functools.cache
def _empty(kernels: str, threads: int) -> float:
    """Seconds of a run that does next to nothing."""
    b = Builder()
    b.add("fill", shape=(1,), value=0.0)
    return _run(b.graph(), 1, kernels, threads, 0)


def _copies(op: str, call: ops.Call, n: int, copies: int) -> Graph:
    """The call, `copies` times over, on state as inputs; what it updates goes on from copy to copy."""
    b = Builder()
    names: dict[str, str] = {}
    for t in call.ins:
        if t.name not in names:
            names[t.name] = b.tensor(t.name, at(t.shape, n), t.dtype, Role.PARAM)
            b.data[names[t.name]] = np.zeros(at(t.shape, n), t.dtype.numpy)
    ins = [names[t.name] for t in call.ins]
    attrs = {k: at(v, n) for k, v in call.attrs.items()}
    for _ in range(copies):
        outs = b.add_many(op, *ins, **attrs)
        for out, source in ops.get(op).shares.items():
            ins[source] = outs[out]
    return b.graph()


@functools.cache
def _numbers() -> Array:
    """So many that a processor does not learn the way through their comparisons by heart."""
    return np.random.default_rng(0).uniform(0.1, 1.0, 1 << 18).astype(np.float32)


def _run(graph: Graph, n: int, kernels: str, threads: int, integer: int) -> float:
    stored, const_bytes, state_bytes = arena.place_state([graph])
    layout = arena.place(graph, n, stored, const_bytes, state_bytes)
    machine = Machine(encode({"train": (graph, layout)}, n, {}).to_bytes(), kernels=kernels, threads=threads)
    numbers = _numbers().view(np.uint8)
    for name, slot in stored.items():
        memory = machine.state[slot.offset : slot.offset + graph[name].bytes(n)]
        memory[...] = np.resize(numbers, len(memory)) if graph[name].dtype is DType.F32 else integer
    clock = time.thread_time if threads == 1 else time.perf_counter  # of one thread, what others take does not count
    spent: list[float] = []

    def once() -> float:
        start = clock()
        machine.run("train", [], [], n, n)
        return clock() - start

    first = once()  # also proves extents and touches the memory
    if first > LONG_S:
        return min(first, once())
    least, most = ROUNDS
    while len(spent) < most and (len(spent) < least or sum(spent) < ROUNDS_S):
        spent.append(once())
    return statistics.median(spent)


def timed_pages(folder: Path) -> Paging:
    """What a file there takes, written and read as runtime/ports/posix_pager.c does: reserved, and never synced. The
    fixed price, if there can be none: that is said when the page file is opened."""
    data = memoryview(bytearray(PAGES_BYTES))
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            number = file.fileno()
            os.posix_fallocate(number, 0, PAGES_BYTES)
            out_s, out_rate = _line(lambda start, end: os.pwrite(number, data[start:end], start))
            in_s, in_rate = _line(lambda start, end: os.preadv(number, [data[start:end]], start))
    except OSError:
        return DISK
    return Paging(out_s, out_rate, in_s, in_rate, DISK.watts)


def _line(move: Callable[[int, int], int]) -> tuple[float, float]:
    """Seconds of a transfer, and bytes per second."""
    move(0, PAGES_BYTES)
    small, large = PIECES_BYTES
    small_s, large_s = (_median(move, piece) for piece in PIECES_BYTES)
    byte_s = max((large_s - small_s) / (large - small), LEAST_BYTE_S)
    return max(small_s - small * byte_s, LEAST_PIECE_S), 1 / byte_s


def _median(move: Callable[[int, int], int], piece: int) -> float:
    """Of one piece after the other: each step of training writes and reads other memory too."""
    spent: list[float] = []
    least, most = ROUNDS
    while len(spent) < most and (len(spent) < least or sum(spent) < PIECES_S):
        at = len(spent) * piece % PAGES_BYTES
        start = time.perf_counter()  # the disk's time counts too
        move(at, at + piece)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


# -- the file ----------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """As the XDG base directory specification says."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "smidgen"


def machine_key(kernels: str, threads: int) -> str:
    """Names the processor, the kernels and the library that were timed."""
    told = ("model name", "cpu implementer", "cpu part", "hardware", "uarch")
    lines = {line.strip() for line in _lines(Path("/proc/cpuinfo")) if line.lower().startswith(told)}
    library = hashlib.sha256(library_path().read_bytes()).hexdigest()
    facts = (platform.machine(), sorted(lines), library, kernels, threads)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _read(path: Path) -> dict[str, float | None]:
    """Nothing, if it is not such a file."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            return {}
        known = {str(k): None if v is None else float(v) for k, v in found["seconds"].items()}
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return {}
    return {k: v for k, v in known.items() if v is None or 0 <= v < 1e6}


__all__ = ["Measured", "cache_folder", "machine_key", "measured", "signature", "timed", "timed_pages"]
