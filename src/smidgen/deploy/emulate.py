"""Firmware on an emulated board: QEMU runs it, files carry data in and results out, a plugin counts instructions."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ..devices.overhead import replay_shape
from ..errors import MissingPart, RunFailed
from ..ir import Array
from ..program.arrays import rows
from ..program.program import Program
from ..runtime.machine import Paged
from ..train.replay import calls_of, sample_buffers
from .firmware import manifest

QEMU: Final = "qemu-system-arm"
CROSS: Final = "arm-none-eabi-"
PLUGIN: Final = Path(__file__).parent / "count.c"
FAULT: Final = 70  # exit status of startup.c
APT: Final = {
    QEMU: "apt-get install qemu-system-arm",
    f"{CROSS}gcc": "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "make": "apt-get install make",
}
Step = tuple[Sequence[Array], int]
"""The arrays of a step or prediction, and its number of samples: more than the program's batch are micro-batches."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions: of each training step, then of each prediction, and of each kernel over all of them."""

    runs: tuple[int, ...]
    kernels: Mapping[str, tuple[int, int]]  # calls and instructions
    total: int
    calls: tuple[tuple[tuple[str, int], ...], ...] = ()  # of every run of an entry, if asked for: kernel, instructions


@dataclass(frozen=True, slots=True)
class BoardRun:
    losses: Array
    state: bytes
    outputs: tuple[tuple[Array, ...], ...]  # of each prediction
    stack_used: int
    counts: Counts | None
    paged: Paged  # by all training steps


@dataclass(frozen=True, slots=True)
class Sections:
    """Bytes of a linked firmware, from its section headers."""

    text: int
    program: int
    data: int
    bss: int
    stack: int

    @property
    def ram_bytes(self) -> int:
        return self.data + self.bss + self.stack


def needed(tool: str) -> str:
    """The tool's path. Raises MissingPart with what to install."""
    found = shutil.which(tool)
    if found is None:
        raise MissingPart(f"{tool} is not installed", help=APT.get(tool, ""))
    return found


def make(folder: Path, *arguments: str) -> str:
    """`make` in a project; returns what it says."""
    needed("make"), needed(f"{CROSS}gcc")
    done = subprocess.run(["make", "-C", str(folder), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunFailed("the firmware does not build", at=str(folder), why=_last_lines(done.stderr))
    return done.stdout + done.stderr


def _last_lines(text: str, count: int = 3) -> str:
    return "; ".join(line.strip() for line in text.strip().splitlines()[-count:])


def sections(elf: Path) -> Sections:
    """Read from the ELF file itself: 32 bits, little-endian."""
    data = elf.read_bytes()
    start, size, count, names_at = struct.unpack_from("<I", data, 32) + struct.unpack_from("<3H", data, 46)
    headers = [struct.unpack_from("<10I", data, start + size * i) for i in range(count)]
    names = data[headers[names_at][4] :]
    found = {names[h[0] : names.index(b"\0", h[0])].decode(): h[5] for h in headers}
    banks = sum(bytes_ for name, bytes_ in found.items() if name.startswith(".ram_"))
    return Sections(
        found[".text"], found.get(".program", 0), found.get(".data", 0), found.get(".bss", 0) + banks, found[".stack"]
    )


def execute(elf: Path, machine: str, folder: Path, plugin: str = "", seconds: float = 3600) -> tuple[int, str]:
    """Exit status of a firmware and what it prints; its files are in `folder`."""
    command = [
        needed(QEMU), "-M", machine, "-nographic", "-monitor", "none", "-serial", "null",
        "-semihosting-config", "enable=on,target=native", "-kernel", str(elf.resolve()),
        *(["-plugin", plugin] if plugin else []),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise RunFailed(f"{elf.name} did not end within {seconds:g} s", at=machine) from error
    return done.returncode, done.stdout + done.stderr


def run_on_board(
    folder: Path, program: Program, steps: Iterable[Step], predictions: Iterable[Step] = (), *, count: bool = True,
    elf: Path | None = None, machine: str = "", state: bytes = b"", calls: bool = False, new: int | None = None,
) -> BoardRun:  # fmt: skip
    """Train, then predict, on the emulated board of a built project, from `state` if it is given. `calls` counts each
    call of a kernel, too; with replay, samples are new in the first `new` steps (default: all)."""
    facts = manifest(folder)
    elf = elf or folder / f"{facts['boards'][-1]}.elf"
    if not elf.exists():
        raise RunFailed(f"'{elf}' is not built", help=f"make -C {folder}")
    _check_main(folder)
    with tempfile.TemporaryDirectory() as place:
        trained, predicted = write_data(Path(place) / "data.bin", program, steps, predictions, state, new)
        plugin = counting(elf, program, Path(place) / "counts", calls) if count else ""
        status, said = execute(elf, machine or facts["machine"], Path(place), plugin)
        if status:
            raise _failed(elf, status, said)
        counts = read_counts(Path(place) / "counts", program, trained, new) if plugin else None
        return read_result((Path(place) / "result.bin").read_bytes(), program, len(trained), predicted, counts)


def _check_main(folder: Path) -> None:
    """Another main may never end, and does not write the result."""
    with contextlib.suppress(OSError):
        main = (folder / "build" / "options").read_text().split()[0].removeprefix("MAIN=")
        if main != "main.c":
            raise RunFailed(
                f"'{folder}' is built with {main}", why="main.c reads the data and reports", help=f"make -C {folder}"
            )


def _failed(elf: Path, status: int, said: str) -> RunFailed:
    why = _last_lines(said, 1).removeprefix("error: ")
    what = f"{elf.name} stopped with a fault" if status == FAULT else f"{elf.name} ended with status {status}"
    return RunFailed(what, at="the emulated board", why=why)


def write_data(
    path: Path, program: Program, steps: Iterable[Step], predictions: Iterable[Step], state: bytes = b"",
    new: int | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """The file that main.c describes; returns the samples of every step and prediction."""
    sizes: list[list[int]] = []
    with path.open("wb") as file:
        file.write(struct.pack("<i", len(state)) + state)
        infer = [b for b in program.entry_buffers("infer") if b.direction == "input"]
        replays = replay_shape(program) is not None
        for buffers, runs in ((sample_buffers(program), steps), (infer, predictions)):
            sizes.append([])
            for i, (arrays, n) in enumerate(runs):
                is_old = replays and buffers is not infer and new is not None and i >= new
                file.write(struct.pack("<i", -n if is_old else n))
                most = n if replays and buffers is not infer else program.batch
                for first in range(0, n, most):
                    for array, buffer in zip(arrays, buffers, strict=True):
                        file.write(rows(array, buffer, first, min(most, n - first)).tobytes())
                sizes[-1].append(n)
            file.write(struct.pack("<i", 0))
    return sizes[0], sizes[1]


def read_result(data: bytes, program: Program, steps: int, predicted: Sequence[int], counts: Counts | None) -> BoardRun:
    losses = np.frombuffer(data, np.float32, steps).copy()
    at = losses.nbytes
    state = data[at : at + program.saved_bytes]
    at += program.saved_bytes
    outs = [b for b in program.entry_buffers("infer") if b.direction == "output"]
    found: list[tuple[Array, ...]] = []
    for n in predicted:
        arrays = []
        for out in outs:
            arrays.append(np.frombuffer(data[at : at + out.bytes(n)], out.dtype.numpy).reshape(out.shape(n)))
            at += out.bytes(n)
        found.append(tuple(arrays))
    (stack,) = struct.unpack_from("<I", data, at)
    paged = Paged(*struct.unpack_from("<2I", data, at + 4)) if program.page_bytes else Paged(0, 0)
    return BoardRun(losses, state, tuple(found), stack, counts, paged)


# -- instructions ----------------------------------------------------------------------------------------------------


def counting(elf: Path, program: Program, out: Path, calls: bool = False) -> str:
    """What `execute` takes as plugin to have instructions counted into a file; empty without the tools for that."""
    marks = _plugin_marks(elf, program)
    return f"{_plugin()},out={out},{marks},calls={calls:d}" if marks and _plugin() else ""


@functools.cache
def _plugin() -> str:
    """The plugin, compiled by the machine's own compiler; empty if there is none."""
    cc = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(cc[0]) is None:
        return ""
    folder = Path(tempfile.mkdtemp(prefix="smidgen-"))
    made = folder / "count.so"
    subprocess.run([*cc, "-O2", "-shared", "-fPIC", "-o", str(made), str(PLUGIN)], check=True)
    return str(made)


def _plugin_marks(elf: Path, program: Program) -> str:
    """Where runs and kernels start, and where kernels return to; empty without the tools that can tell."""
    if shutil.which(f"{CROSS}nm") is None or shutil.which(f"{CROSS}objdump") is None:
        return ""
    symbols = subprocess.run([f"{CROSS}nm", str(elf)], capture_output=True, text=True, check=True).stdout
    found = {name: int(address, 16) & ~1 for address, name in re.findall(r"^(\w+) [tT] (\S+)$", symbols, re.MULTILINE)}
    places: dict[int, int] = {}
    for i, kernel in enumerate(program.kernels):
        if f"{kernel}_run" in found:
            places.setdefault(found[f"{kernel}_run"], i)  # equal functions may have been made one
    code = subprocess.run([f"{CROSS}objdump", "-d", str(elf)], capture_output=True, text=True, check=True).stdout
    leaves: list[int] = []
    for name, body in re.findall(r"^\w+ <([^>]+)>:\n(.*?)(?=\n\n|\Z)", code, re.MULTILINE | re.DOTALL):
        if name.partition(".")[0] in ("execute", "smg_run_channel"):  # the one jumps into a kernel, the other calls it
            leaves += [int(a, 16) for a in re.findall(r"\sbl(?:x\s+r\d+|\s+\w+ <execute)[^\n]*\n\s*([0-9a-f]+):", body)]
    words = [f"run=0x{found['smg_run_channel']:x}"]
    words += [f"enter=0x{address:x}:{i}" for address, i in places.items()] + [f"leave=0x{a:x}" for a in leaves]
    return ",".join(words)


def read_counts(path: Path, program: Program, trained: Sequence[int] = (), new: int | None = None) -> Counts:
    """Of the file that the plugin wrote; the first runs belong to steps of so many samples."""
    runs: list[int] = []
    kernels: dict[str, tuple[int, int]] = {}
    calls: list[tuple[tuple[str, int], ...]] = []
    present: list[tuple[str, int]] = []
    total = 0
    for line in path.read_text().splitlines():
        kind, *numbers = line.split()
        values = [int(number) for number in numbers]
        if kind == "run":
            runs.append(values[0])
            calls.append(tuple(present))
            present = []
        elif kind == "call":
            present.append((program.kernels[values[0]], values[1]))
        elif kind == "kernel":
            kernels[program.kernels[values[0]]] = (values[1], values[2])
        else:
            total = values[0]
    left = iter(runs)
    shape = replay_shape(program)
    entries = [_entries(n, program.batch) for n in trained]
    if shape is not None:
        entries = calls_of(program, shape, trained, len(trained) if new is None else new)
    steps = [sum(itertools.islice(left, count)) for count in entries]
    return Counts((*steps, *left), kernels, total, tuple(calls))


def _entries(n: int, batch: int) -> int:
    """How many a step of n samples runs: `train`, or `zero`, `grad` for each part, and `apply`."""
    return 1 if n <= batch else -(-n // batch) + 2


__all__ = [
    "BoardRun", "Counts", "Sections", "counting", "execute", "make", "read_counts", "run_on_board", "sections",
]  # fmt: skip
