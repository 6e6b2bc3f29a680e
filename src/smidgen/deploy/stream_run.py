"""A stream on an emulated board: what firmware with `stream.c` is told, and what it answers."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ..errors import RunFailed
from ..ir import Array
from ..program.arrays import as_buffer, check_number_of_arrays
from ..program.buffer import Buffer
from ..program.program import Program
from .emulate import Counts, counting, execute, read_counts
from .firmware import manifest

NUMBERS: Final = {"learn": 1, "observe": 2, "detect": 3, "restart": 4}
"""Entry point → what stream.c calls it."""
Told = tuple[str, Sequence[Array]]
"""An entry point and its inputs, each with an axis of one sample; `restart`: the number of samples."""


@dataclass(frozen=True, slots=True)
class StreamRun:
    answers: tuple[tuple[Array, ...], ...]  # the outputs of each
    usual: tuple[float, float, float]  # drift; mean and deviation of scores
    state: bytes
    stack_used: int
    counts: Counts | None  # of each that was told, in order, then of the report


def run_stream(folder: Path, program: Program, told: Iterable[Told], *, count: bool = False) -> StreamRun:
    """Needs a project that was built with `make MAIN=stream.c`. `count` counts instructions."""
    facts = manifest(folder)
    elf = folder / f"{facts['boards'][-1]}.elf"
    options = folder / "build" / "options"
    if not elf.exists() or "MAIN=stream.c" not in options.read_text().split():
        raise RunFailed(f"'{folder}' is not built with stream.c", help=f"make -C {folder} MAIN=stream.c")
    said: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        with (Path(place) / "data.bin").open("wb") as file:
            for entry, arrays in told:
                file.write(struct.pack("<i", NUMBERS[entry]))
                said.append(entry)
                for data in _inputs(program, entry, arrays):
                    file.write(data)
            file.write(struct.pack("<i", 0))
        plugin = counting(elf, program, Path(place) / "counts") if count else ""
        status, text = execute(elf, facts["machine"], Path(place), plugin)
        if status:
            why = (text.strip().splitlines() or [""])[-1].removeprefix("error: ")
            raise RunFailed(f"{elf.name} ended with status {status}", at="the emulated board", why=why)
        counts = read_counts(Path(place) / "counts", program) if plugin else None
        return _answers((Path(place) / "result.bin").read_bytes(), program, said, counts)


def _buffers(program: Program, entry: str, direction: str) -> list[Buffer]:
    return [b for b in program.entry_buffers(entry) if b.direction == direction]


def _inputs(program: Program, entry: str, arrays: Sequence[Array]) -> list[bytes]:
    if entry == "restart":
        return [struct.pack("<i", int(np.asarray(arrays[0]).item()))]
    buffers = _buffers(program, entry, "input")
    check_number_of_arrays(arrays, buffers)
    return [as_buffer(array, buffer).tobytes() for array, buffer in zip(arrays, buffers, strict=True)]


def _answers(data: bytes, program: Program, told: Sequence[str], counts: Counts | None) -> StreamRun:
    at = 0
    found: list[tuple[Array, ...]] = []
    for entry in told:
        outputs: list[Array] = []
        for buffer in _buffers(program, entry, "output"):
            count = buffer.bytes(1)
            outputs.append(np.frombuffer(data[at : at + count], buffer.dtype.numpy).reshape(buffer.shape(1)))
            at += count
        found.append(tuple(outputs))
    usual = struct.unpack_from("<3f", data, at)
    state = data[at + 12 : at + 12 + program.state_bytes]
    (stack,) = struct.unpack_from("<I", data, at + 12 + program.state_bytes)
    return StreamRun(tuple(found), (usual[0], usual[1], usual[2]), state, stack, counts)


__all__ = ["NUMBERS", "StreamRun", "run_stream"]
