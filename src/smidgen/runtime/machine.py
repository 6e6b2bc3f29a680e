"""A program, open in the C runtime: its memory, its entry points, and its errors as ours. Needs numpy only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from ..errors import (
    BadData,
    BadOption,
    BadProgram,
    BatchStatistics,
    CannotWrite,
    Internal,
    MissingPart,
    RunFailed,
    SmidgenError,
    did_you_mean,
)
from ..ir import Array, DType
from . import library as native
from .library import (
    BAD_CALL,
    BAD_PROGRAM,
    MESSAGE_BYTES,
    STOPPED,
    CBuffer,
    CBufferInfo,
    CPlace,
    CSamples,
    Fault,
    fault_text,
)
from .work import checked_page_to

HELP: Final = {
    Fault.LABEL: "labels must be below the number of classes, and at least 0",
    Fault.EMBEDDING_INDEX: "indices must be below the rows of the table, and at least 0: look at x.min() and x.max()",
    Fault.SPARE_LABEL: "add the class first: job.add_class(name), or --add-class NAME on a command line",
    Fault.IGNORED_LABELS: "leave ignored samples out, or compile with a batch that takes all samples of a step",
    Fault.TOO_FEW: "give more samples per step, or bn='frozen'",
}
"""What went wrong → what to do about it."""
ONE_VALUE: Final = "with bn='batch' a norm takes the mean and variance of the values at hand; one value has no variance"


class Paged(NamedTuple):
    """Bytes that a program read from its pages, and wrote to them."""

    in_bytes: int
    out_bytes: int


class Stopped(NamedTuple):
    """Where a run stopped: entry point and number of the instruction; and why."""

    entry: str
    at: int
    fault: Fault


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an entry point expects of one array. `batch_axis` grows with n; -1: none does."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...]
    batch_axis: int
    is_output: bool
    scale: float = 1.0  # integers q stand for scale * q + offset
    offset: float = 0.0

    def shape(self, n: int) -> tuple[int, ...]:
        return tuple(d * n if i == self.batch_axis else d for i, d in enumerate(self.dims))


class _Call:
    """Of one entry with n samples: what it wants, the arrays that were given last, and their addresses for C."""

    __slots__ = ("arrays", "buffers", "n", "wanted")

    def __init__(
        self, n: int, wanted: list[tuple[Wanted, tuple[int, ...]]], arrays: list[Array | None], buffers: Any
    ) -> None:
        self.n, self.wanted, self.arrays, self.buffers = n, wanted, arrays, buffers


class _Memory:
    """A program with its memory in C; freed when neither a Machine nor a view of STATE or ARENA refers to it."""

    def __init__(self, lib: ctypes.CDLL, program: bytes | str | os.PathLike[str], guard: str) -> None:
        self.lib = lib
        self.pages_of: int | None = None  # the process whose pages they are, if it pages
        self.handle: int | None = None
        status, message = ctypes.c_int(0), ctypes.create_string_buffer(MESSAGE_BYTES)
        path, data = (None, program) if isinstance(program, bytes) else (os.fsencode(program), None)
        flags = {"end": 0, "start": 1}[guard]
        self.handle = lib.smg_posix_open(path, data, len(data or b""), flags, ctypes.byref(status), message)
        if not self.handle:
            place = "" if isinstance(program, bytes) else str(program)
            raise BadProgram(message.value.decode(errors="replace"), at=place)
        self.context = lib.smg_posix_context(self.handle)

    def __del__(self) -> None:
        if self.handle and self.is_own:
            self.lib.smg_posix_close(self.handle)

    @property
    def is_own(self) -> bool:
        """A fork shares the pages of its parent, and does not have the thread that reads them."""
        return self.pages_of is None or self.pages_of == os.getpid()

    def view(self, address: int | None, count: int) -> Array:
        if not count or not address:
            return np.zeros(0, np.uint8)
        return np.asarray(_Lent(self, address, count))


class _Lent:
    """Bytes of the mapping for numpy, whose arrays keep it alive as long as one exists."""

    __slots__ = ("__array_interface__", "memory")

    def __init__(self, memory: _Memory, address: int, count: int) -> None:
        self.memory = memory
        self.__array_interface__ = {"version": 3, "shape": (count,), "typestr": "|u1", "data": (address, False)}


def check_program(program: bytes | str | os.PathLike[str]) -> None:
    """Raise BadProgram unless the runtime would open it."""
    _Memory(native.library(), program, "end")


class Machine:
    """One program, open, with its own STATE and ARENA between guard pages. Safe to use from several threads."""

    def __init__(
        self,
        program: bytes | str | os.PathLike[str],
        library: Path | None = None,
        guard: Literal["end", "start"] = "end",
        kernels: str = "exact",
        threads: int = 1,
        page_to: str | os.PathLike[str] | None = None,
    ) -> None:
        """`kernels`: "exact", "fast" (of the best instruction set that the machine has), or the name of a set.
        `page_to`: the file for a program that pages; others do not touch it."""
        self._lib = native.library(library)
        self._memory: _Memory | None = _Memory(self._lib, program, guard)
        context = self._memory.context
        if kernels != "exact":
            wanted = b"" if kernels == "fast" else kernels.encode()
            why = self._lib.smg_posix_use_fast(self._memory.handle, wanted, threads)
            if why:
                raise MissingPart(f"kernels='{kernels}' with {threads} threads is not available", why=why.decode(),
                                  help="kernels='exact'")  # fmt: skip
        self.page_bytes = int(self._lib.smg_page_bytes(context))
        self.page_state_bytes = int(self._lib.smg_page_state_bytes(context))
        if self.page_bytes:
            self._page_to(page_to)
        self.instruction_set = self._lib.smg_posix_set(self._memory.handle).decode()
        self.batch = int(self._lib.smg_batch(context))
        self.entries: dict[str, tuple[Wanted, ...]] = {}
        for i in range(self._lib.smg_entry_count(context)):
            name = self._lib.smg_entry_name(context, i).decode(errors="replace")
            self.entries[name] = tuple(
                self._wanted(context, i, k) for k in range(self._lib.smg_buffer_count(context, i))
            )
        self._numbers = {name: i for i, name in enumerate(self.entries)}
        self._lock = threading.RLock()
        # The last call of each entry: looking up an array's address takes longer than a small step.
        self._last: dict[str, _Call] = {}
        self.stopped: Stopped | None = None  # of the last run that did
        handle = self._memory.handle
        self.state = self._memory.view(self._lib.smg_posix_state(handle), self._lib.smg_state_bytes(context))
        """STATE as bytes; writable."""
        self.arena = self._memory.view(self._lib.smg_posix_arena(handle), self._lib.smg_arena_bytes(context))

    @property
    def lock(self) -> contextlib.AbstractContextManager[bool]:
        """To hold over runs that belong together, and over changes of STATE: every run uses the same ARENA, where
        gradients of micro-batches are. The thread that holds it may take it again."""
        if self._memory is not None and not self._memory.is_own:
            raise RunFailed("the program was opened by another process", why="a fork shares the pages of its parent",
                            help='smidgen.load("net.smg", page_to="other.bin") in this process')  # fmt: skip
        return self._lock

    def _page_to(self, path: str | os.PathLike[str] | None) -> None:
        checked_page_to(path)
        if path is None:
            raise BadOption(
                f"the program pages, and has nowhere to page to: {self.page_bytes:,} bytes",
                help='smidgen.load("net.smg", page_to="page.bin"), or --page-to page.bin',
            )
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        memory = self._open()
        memory.pages_of = os.getpid()
        if self._lib.smg_posix_page_to(memory.handle, os.fsencode(path), message):
            raise CannotWrite(
                f"cannot page to '{os.fspath(path)}'", why=message.value.decode(errors="replace"),
                help=f"page_to with a file that can have {self.page_bytes:,} bytes",
            )  # fmt: skip

    @property
    def paged(self) -> Paged:
        """Since the program was opened."""
        read, written = ctypes.c_uint64(0), ctypes.c_uint64(0)
        self._lib.smg_posix_paged(self._open().handle, ctypes.byref(read), ctypes.byref(written))
        return Paged(read.value, written.value)

    @property
    def pager(self) -> int | None:
        """The SmgPager of a program that pages, for functions of the library."""
        found: int | None = self._lib.smg_posix_pager(self._open().handle)
        return found

    def read_page(self, offset: int, count: int) -> Array:
        """Bytes of state in PAGE."""
        found = np.empty(count, np.uint8)
        with self.lock:
            why = self._lib.smg_posix_page_read(self._open().handle, offset, found.ctypes.data, count)
        if why:
            raise RunFailed("the state cannot be read from its pages", why=why.decode(errors="replace"))
        return found

    def write_page(self, offset: int, data: Array) -> None:
        with self.lock:
            why = self._lib.smg_posix_page_write(self._open().handle, offset, data.ctypes.data, data.nbytes)
        if why:
            raise RunFailed("the state cannot be written to its pages", why=why.decode(errors="replace"))

    def _wanted(self, context: int, entry: int, buffer: int) -> Wanted:
        info = CBufferInfo()
        self._lib.smg_buffer_info(context, entry, buffer, ctypes.byref(info))
        dims = tuple(info.dims[: info.rank])
        dtype = DType.of_code(info.type)
        assert dtype is not None  # the runtime knows the same types
        name = info.name.decode(errors="replace")
        return Wanted(name, dtype.numpy, dims, info.batch_axis, bool(info.is_output), info.scale, info.offset)

    def run(
        self,
        entry: str,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        n: int,
        total: int | None = None,
        first: int = 0,
    ) -> None:
        """One step on n samples, after `first` others of a batch of `total` (default: n). Writes into `outputs`."""
        with self.lock:
            context = self._open().context
            buffers = self._buffers(entry, (*inputs, *outputs), n)
            samples = CSamples(n, n if total is None else total, first)
            status = self._lib.smg_run(context, self._numbers[entry], buffers, len(buffers), samples)
            if status:
                raise self._error(context, status)

    def stack_used(
        self, entry: str, inputs: Sequence[Array], outputs: Sequence[Array], n: int, total: int | None = None
    ) -> int:
        """Like `run`; returns the bytes of stack that the step touched."""
        with self.lock:
            memory = self._open()
            buffers = self._buffers(entry, (*inputs, *outputs), n)
            samples, used = CSamples(n, n if total is None else total, 0), ctypes.c_size_t(0)
            status = self._lib.smg_posix_stack_used(
                memory.handle, self._numbers[entry], buffers, len(buffers), samples, ctypes.byref(used)
            )
            if status:
                raise self._error(memory.context, status)
            return used.value

    def reset(self) -> None:
        """STATE as the file has it, ARENA and with it the accumulators zero."""
        with self.lock:
            context = self._open().context
            status = self._lib.smg_reset_state(context)
            if status:
                raise self._error(context, status)

    def trim(self, keep_bytes: int) -> None:
        """Give ARENA beyond its first bytes back to the system; touched again, it is zero."""
        with self.lock:
            self._lib.smg_posix_trim(self._open().handle, keep_bytes)

    def close(self) -> None:
        """Give the memory back, once no view of `state` or `arena` is left outside."""
        with self._lock:
            self._memory = None
            self._last.clear()
            self.state = self.arena = np.zeros(0, np.uint8)

    @property
    def mapped_bytes(self) -> int:
        """RAM asked of the system for STATE, ARENA and the work memory of fast kernels."""
        return int(self._lib.smg_posix_mapped_bytes(self._open().handle))

    def _open(self) -> _Memory:
        if self._memory is None:
            raise RunFailed("the program is closed")
        return self._memory

    def _buffers(self, entry: str, arrays: tuple[Array, ...], n: int) -> Any:
        last = self._last.get(entry)
        if last is None or last.n != n:
            last = self._last[entry] = self._call(entry, n)
        if len(arrays) != len(last.wanted):
            names = ", ".join(slot.name for slot, _ in last.wanted)
            raise BadData(f"'{entry}' takes {len(last.wanted)} arrays, {len(arrays)} given", why=f"they are {names}")
        for i, array in enumerate(arrays):
            if array is last.arrays[i]:
                continue
            slot, shape = last.wanted[i]
            _check_array(array, slot, shape)
            # array.ctypes would leave a cycle behind for the garbage collector, each step
            last.buffers[i].data, last.buffers[i].bytes = array.__array_interface__["data"][0], array.nbytes
            last.arrays[i] = array
        return last.buffers

    def _call(self, entry: str, n: int) -> _Call:
        if entry not in self.entries:
            raise BadData(f"no entry point '{entry}'", help=did_you_mean(entry, self.entries))
        if not 1 <= n <= self.batch:
            raise BadData(f"{n} samples given, the program takes 1 to {self.batch} at a time")
        wanted = self.entries[entry]
        return _Call(n, [(w, w.shape(n)) for w in wanted], [None] * len(wanted), (CBuffer * len(wanted))())

    def _error(self, context: int, status: int) -> SmidgenError:
        said, place = self._lib.smg_error(context).decode(errors="replace"), CPlace()
        fault = Fault(self._lib.smg_fault(context, ctypes.byref(place)))
        help = HELP.get(fault, "")
        if status == STOPPED:
            self.stopped, entry = None, ""
            if place.entry >= 0:
                entry = self._lib.smg_entry_name(context, place.entry).decode(errors="replace")
                self.stopped = Stopped(entry, place.instruction, fault)
            if fault is Fault.TOO_FEW:
                kernel = self._lib.smg_probe_kernel_at(context, place.entry, place.instruction)
                at = f"{entry}, instruction {place.instruction}, {kernel.decode()}" if kernel else ""
                return BatchStatistics(fault_text(fault) or "", at=at, why=ONE_VALUE, help=help)
            return RunFailed(said, help=help)
        kinds: dict[int, type[SmidgenError]] = {BAD_PROGRAM: BadProgram, BAD_CALL: BadData}
        return kinds.get(status, Internal)(said, help=help)


def _check_array(array: Array, slot: Wanted, shape: tuple[int, ...]) -> None:
    if array.dtype != slot.dtype or array.shape != shape:
        raise BadData(f"'{slot.name}' is {array.dtype}{list(array.shape)}, the program wants {slot.dtype}{list(shape)}")
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned or (slot.is_output and not flags.writeable):
        raise BadData(f"'{slot.name}' is not contiguous, aligned and, as an output, writable")
