"""Entry points run with some of their buffers behind a channel."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from smidgen.program.program import Program
from smidgen.runtime.library import CBuffer, CSamples
from smidgen.runtime.machine import Machine

READ = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)


class Channel(ctypes.Structure):
    _fields_ = [("self", ctypes.c_void_p), ("read", READ), ("write", READ)]


class Through:
    """A machine whose entry points are run with some of their buffers behind a channel."""

    def __init__(self, program: Program, fails: bool = False) -> None:
        self.machine, self.fails, self.pieces = Machine(program.to_bytes()), fails, 0
        self.arrays: list[np.ndarray] = []
        self.lib = self.machine._lib
        self.lib.smg_run_channel.argtypes = [
            ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(CBuffer), ctypes.c_int, CSamples, ctypes.POINTER(Channel),
        ]  # fmt: skip
        self.channel = Channel(None, READ(self._read), READ(self._write))

    def _place(self, buffer: int, offset: int, count: int) -> int:
        array = self.arrays[buffer]
        assert offset + count <= array.nbytes
        self.pieces += 1
        return int(array.ctypes.data) + offset

    def _read(self, _: Any, buffer: int, offset: int, to: int, count: int) -> int:
        ctypes.memmove(to, self._place(buffer, offset, count), count)
        return int(self.fails)

    def _write(self, _: Any, buffer: int, offset: int, source: int, count: int) -> int:
        ctypes.memmove(self._place(buffer, offset, count), source, count)
        return int(self.fails)

    def run(self, entry: str, arrays: list[np.ndarray], hidden: tuple[bool, ...], n: int) -> tuple[int, str]:
        self.arrays = arrays
        buffers = (CBuffer * len(arrays))(
            *[CBuffer(None if h else a.ctypes.data, 0 if h else a.nbytes) for a, h in zip(arrays, hidden, strict=True)]
        )
        context = self.machine._open().context
        number = list(self.machine.entries).index(entry)
        status = self.lib.smg_run_channel(context, number, buffers, len(arrays), CSamples(n, n, 0), self.channel)
        return status, self.lib.smg_error(context).decode()


class InOrder(Through):
    """A source that cannot seek: each byte is read once, in order."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.read: list[tuple[int, int]] = []

    def _read(self, _: object, buffer: int, offset: int, to: int, count: int) -> int:
        if buffer == 0:
            self.read.append((offset, count))
        return super()._read(_, buffer, offset, to, count)
