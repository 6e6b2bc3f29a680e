"""A disk that is slow or fails when a test says so, in the place of the pager."""

from __future__ import annotations

import ctypes

import numpy as np

from smidgen.runtime.machine import Machine

CRead = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)


CWait = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class CPager(ctypes.Structure):
    _fields_ = [
        ("self", ctypes.c_void_p), ("read", CRead), ("write", CRead), ("start", CRead), ("wait", CWait),
    ]  # fmt: skip


class Disk:
    """A pager in Python. `fail_at`: so many calls are good, and no more; `late`: what is started arrives when it is
    waited for, else at once; `flip`: a bit of everything that is read."""

    def __init__(self, machine: Machine, *, late: bool = True, prefetch: bool = True, flip: bool = False) -> None:
        self.memory = np.zeros(machine.page_bytes, np.uint8)
        self.late, self.flip, self.fail_at = late, flip, -1
        self.calls = 0
        self.said: list[str] = []
        self.started: dict[int, tuple[int, int]] = {}
        self.why = ctypes.create_string_buffer(b"the disk is on fire")
        wait = CWait(self._wait) if prefetch else CWait()
        start = CRead(self._start) if prefetch else CRead()
        self.pager = CPager(None, CRead(self._read), CRead(self._write), start, wait)
        context = machine._open().context
        machine._lib.smg_set_pager.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        assert machine._lib.smg_set_pager(context, ctypes.addressof(self.pager)) == 0
        self.calls, self.said = 0, []

    def _fails(self, what: str) -> bool:
        self.calls += 1
        self.said.append(what)
        return 0 <= self.fail_at < self.calls

    def _read(self, _: int, offset: int, to: int, count: int) -> int | None:
        if self._fails("read"):
            return ctypes.addressof(self.why)
        ctypes.memmove(to, self.memory[offset : offset + count].tobytes(), count)
        if self.flip:
            ctypes.memset(to, ctypes.string_at(to, 1)[0] ^ 1, 1)
        return None

    def _write(self, _: int, offset: int, at: int, count: int) -> int | None:
        if self._fails("write"):
            return ctypes.addressof(self.why)
        self.memory[offset : offset + count] = np.frombuffer(ctypes.string_at(at, count), np.uint8)
        return None

    def _start(self, _: int, offset: int, to: int, count: int) -> int | None:
        if self._fails("start"):
            return ctypes.addressof(self.why)
        assert to not in self.started
        self.started[to] = (offset, count)
        if self.late:
            ctypes.memset(to, 0xFF, count)  # whoever reads it before it is waited for reads NaN
        else:
            ctypes.memmove(to, self.memory[offset : offset + count].tobytes(), count)
        return None

    def _wait(self, _: int, to: int | None) -> int | None:
        if to is None:
            self.said.append("wait for all")
            self.started.clear()
            return None
        if self._fails("wait"):
            return ctypes.addressof(self.why)
        offset, count = self.started.pop(to)
        ctypes.memmove(to, self.memory[offset : offset + count].tobytes(), count)
        return None
