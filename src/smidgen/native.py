"""The C runtime from Python, through ctypes. The only file that knows the library's C signatures. Needs numpy only."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from .errors import (
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
from .ir import Array

LIBRARY: Final = Path(__file__).parent / "runtime" / "libsmidgen.so"
MESSAGE_BYTES: Final = 192
TYPES: Final = (np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.uint8))
BAD_PROGRAM, BAD_CALL, STOPPED = 1, 2, 3


class Fault(enum.IntEnum):
    """SmgFault of smidgen.h: what went wrong."""

    NONE = 0
    PROGRAM = 1
    VERSION = 2
    KERNEL = 3
    ROOM = 4
    LATER = 5
    CALL = 6
    LABEL = 7
    SPARE_LABEL = 8
    IGNORED_LABELS = 9
    TOO_FEW = 10
    EMBEDDING_INDEX = 11
    AXIS_INDEX = 12
    POOL_WINDOW = 13
    POOL_INDEX = 14
    CHANNEL_READ = 15
    CHANNEL_WRITE = 16
    PAGER = 17
    PAGE_DAMAGED = 18
    SLOTS = 19


HELP: Final = {
    Fault.VERSION: "compile the model again with this version of smidgen",
    Fault.LATER: "run it with the version of smidgen that compiled it",
    Fault.LABEL: "labels must be below the number of classes, and at least 0",
    Fault.SPARE_LABEL: "job.add_class takes a spare class into use",
    Fault.IGNORED_LABELS: "leave ignored samples out, or compile with a batch that takes all samples of a step",
    Fault.TOO_FEW: "give more samples per step, or bn='frozen'",
}
"""What went wrong → what to do about it."""


class Paged(NamedTuple):
    """Bytes that a program read from its pages, and wrote to them."""

    in_bytes: int
    out_bytes: int


class Stopped(NamedTuple):
    """Where a run stopped: entry point and number of the instruction; and why."""

    entry: str
    at: int
    fault: Fault


class CRun(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32), ("total", ctypes.c_int32), ("index", ctypes.c_int32)]


class CSamples(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32), ("total", ctypes.c_int32), ("first", ctypes.c_int32)]


class CBuffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


class CPlace(ctypes.Structure):
    _fields_ = [("entry", ctypes.c_int), ("instruction", ctypes.c_uint32)]


class CBufferInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("is_output", ctypes.c_int), ("rank", ctypes.c_int),
        ("batch_axis", ctypes.c_int), ("dims", ctypes.c_int32 * 8),
    ]  # fmt: skip


def library_path() -> Path:
    """The library of this installation, or the one named by SMIDGEN_LIBRARY."""
    return Path(os.environ.get("SMIDGEN_LIBRARY") or LIBRARY)


def library(path: Path | None = None) -> ctypes.CDLL:
    return _opened(path or library_path())


@functools.cache
def _opened(path: Path) -> ctypes.CDLL:
    if not path.exists():
        raise MissingPart(
            "the C runtime is not built", at=path.name, help="python -m smidgen.runtime.compile (needs a C compiler)"
        )
    lib = ctypes.CDLL(str(path))
    lib.smg_probe_signature.restype = ctypes.c_char_p
    lib.smg_probe_extent.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, CRun, ctypes.c_void_p,
    ]  # fmt: skip
    lib.smg_probe_run.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, CRun,
    ]  # fmt: skip
    _declare(lib)
    return lib


_library = library  # where an argument has the same name


def load_early() -> None:
    """With the import, so that a job's memory is its own. Where there is no library, whoever needs it says so."""
    with contextlib.suppress(MissingPart, OSError):
        library()


def _declare(lib: ctypes.CDLL) -> None:
    """Signatures of smidgen.h and ports/posix.h."""
    handle, size, number, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
    run = [handle, number, ctypes.POINTER(CBuffer), number, CSamples]
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "smg_posix_open": (handle, [text, text, size, ctypes.c_uint, ctypes.POINTER(number), text]),
        "smg_posix_close": (None, [handle]),
        "smg_posix_use_fast": (text, [handle, text, number]),
        "smg_posix_set": (text, [handle]),
        "smg_posix_work_bytes": (size, [number, size]),
        "smg_posix_wide_from": (size, []),
        "smg_posix_context": (handle, [handle]),
        "smg_posix_state": (handle, [handle]),
        "smg_posix_arena": (handle, [handle]),
        "smg_posix_mapped_bytes": (size, [handle]),
        "smg_posix_trim": (None, [handle, size]),
        "smg_posix_stack_used": (number, [*run, ctypes.POINTER(size)]),
        "smg_posix_page_to": (number, [handle, text, text]),
        "smg_posix_paged": (None, [handle, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)]),
        "smg_posix_page_read": (text, [handle, size, ctypes.c_void_p, size]),
        "smg_posix_page_write": (text, [handle, size, ctypes.c_void_p, size]),
        "smg_page_bytes": (ctypes.c_uint32, [handle]),
        "smg_page_state_bytes": (ctypes.c_uint32, [handle]),
        "smg_run": (number, run),
        "smg_reset_state": (number, [handle]),
        "smg_error": (text, [handle]),
        "smg_fault": (number, [handle, ctypes.POINTER(CPlace)]),
        "smg_fault_text": (text, [number]),
        "smg_batch": (ctypes.c_int32, [handle]),
        "smg_state_bytes": (ctypes.c_uint32, [handle]),
        "smg_arena_bytes": (ctypes.c_uint32, [handle]),
        "smg_entry_count": (number, [handle]),
        "smg_entry_name": (text, [handle, number]),
        "smg_buffer_count": (number, [handle, number]),
        "smg_buffer_info": (number, [handle, number, number, ctypes.POINTER(CBufferInfo)]),
        "smg_context_bytes": (size, []),
        "smg_stack_bytes": (size, []),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name, None)
        if function is None:
            how = "python -m smidgen.runtime.compile"
            raise MissingPart("the C runtime is out of date", why=f"it has no {name}", help=how)
        function.restype, function.argtypes = result, arguments


def context_bytes() -> int:
    """RAM of the runtime's own bookkeeping."""
    return int(library().smg_context_bytes())


def stack_bytes() -> int:
    """The most stack that any call into the runtime uses."""
    return int(library().smg_stack_bytes())


@dataclass(frozen=True, slots=True)
class Work:
    """RAM that kernels need beside STATE and ARENA: none if they are exact."""

    kernels: str
    threads: int

    def beside(self, program_bytes: int) -> int:
        """Beside a program with so many bytes of STATE and ARENA."""
        return int(library().smg_posix_work_bytes(self.threads, program_bytes)) if self.kernels == "fast" else 0

    def left(self, budget_bytes: int) -> int:
        """What a budget leaves for the program and all else: more work memory is taken beside a large program, so one
        that is a little smaller may have more room."""
        if self.kernels != "fast":
            return budget_bytes
        large = int(library().smg_posix_wide_from())
        return max(budget_bytes - self.beside(large), min(budget_bytes - self.beside(0), large - 1))


EXACT: Final = Work("exact", 1)


def checked_page_to(page_to: Any) -> None:
    """A path or None. Whether a file can be made there is found out when it is opened."""
    if page_to is None:
        return
    try:
        is_path = isinstance(page_to, str | os.PathLike) and b"\0" not in os.fsencode(page_to)
    except UnicodeEncodeError:  # half of a surrogate pair
        is_path = False
    if not is_path:
        raise BadOption(f"page_to={page_to!r} is not a path", help="page_to='page.bin'")


def has_fast() -> bool:
    """Whether the runtime was built with fast kernels."""
    return Work("fast", 1).beside(0) > 0


def asked_kernels() -> str | None:
    """What the environment says."""
    return os.environ.get("SMIDGEN_KERNELS") or None


def checked_kernels(kernels: Any, threads: Any) -> tuple[str, int]:
    """None: what SMIDGEN_KERNELS says; without it fast ones, if the runtime was built with them."""
    if kernels is None:
        kernels = asked_kernels() or ("fast" if has_fast() else "exact")
    if kernels not in ("exact", "fast"):
        raise BadOption(f"kernels={kernels!r} is not understood", help="kernels='exact' or kernels='fast'")
    if type(threads) is not int or not 1 <= threads <= 64:
        raise BadOption(f"threads={threads!r} is not a number of threads", why="1 to 64", help="threads=2")
    if kernels == "exact" and threads != 1:
        raise BadOption("exact kernels run on one thread", help="kernels='fast', or threads=1")
    return str(kernels), int(threads)


def release_freed() -> None:
    """Give freed memory back to the system; glibc keeps up to 64 MB of it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def fault_text(fault: int) -> str | None:
    """What a fault means; None if it is none."""
    return str(library().smg_fault_text(fault).decode()) if fault else None


def param_words(params: Sequence[int | float]) -> Array:
    """int32 words as kernels read them; floats become their f32 bits."""
    words = [int(np.float32(p).view(np.int32)) if isinstance(p, (float, np.floating)) else int(p) for p in params]
    return np.array(words, np.int32)


def kernel_needs(
    name: str, params: Sequence[int | float], operands: int, run: tuple[int, int, int] = (1, 1, 0)
) -> list[int] | None:
    """Bytes that a kernel declares for each operand, or None if it refuses the parameters."""
    words = param_words(params)
    need = np.zeros(max(operands, 1), np.uint64)
    status = library().smg_probe_extent(
        name.encode(), words.ctypes.data, len(words), operands, CRun(*run), need.ctypes.data
    )
    if status == -2:
        raise Internal(f"the runtime has no kernel '{name}'")
    return None if status else [int(v) for v in need[:operands]]


def kernel_signature(name: str) -> str:
    found = library().smg_probe_signature(name.encode())
    if found is None:
        raise Internal(f"the runtime has no kernel '{name}'")
    return str(found.decode())


def run_kernel(
    name: str, operands: Sequence[Array | None], params: Sequence[int | float], run: tuple[int, int, int] = (1, 1, 0)
) -> str | None:
    """Run one kernel on numpy arrays; returns its complaint about the data, if any."""
    words = param_words(params)
    pointers = (ctypes.c_void_p * max(len(operands), 1))(*[None if a is None else a.ctypes.data for a in operands])
    return fault_text(
        library().smg_probe_run(name.encode(), pointers, len(operands), words.ctypes.data, len(words), CRun(*run))
    )


# -- whole programs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an entry point expects of one array. `batch_axis` grows with n; -1: none does."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int, ...]
    batch_axis: int
    is_output: bool

    def shape(self, n: int) -> tuple[int, ...]:
        return tuple(d * n if i == self.batch_axis else d for i, d in enumerate(self.dims))


@dataclass(slots=True)
class _Call:
    """Of one entry with n samples: what it wants, the arrays that were given last, and their addresses for C."""

    n: int
    wanted: list[tuple[Wanted, tuple[int, ...]]]
    arrays: list[Array | None]
    buffers: Any


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
    _Memory(library(), program, "end")


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
        self._lib = _library(library)
        self._memory: _Memory | None = _Memory(self._lib, program, guard)
        context = self._memory.context
        if kernels != "exact":
            wanted = b"" if kernels == "fast" else kernels.encode()
            why = self._lib.smg_posix_use_fast(self._memory.handle, wanted, threads)
            if why:
                raise MissingPart(f"kernels='{kernels}' on {threads} threads cannot be had", why=why.decode(),
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
    def alone(self) -> contextlib.AbstractContextManager[bool]:
        """To hold over runs that belong together, and over changes of STATE: every run uses the same ARENA, where
        gradients of a batch in parts are. The thread that holds it may take it again."""
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

    def read_page(self, offset: int, count: int) -> Array:
        """Bytes of state in PAGE."""
        found = np.empty(count, np.uint8)
        with self.alone:
            why = self._lib.smg_posix_page_read(self._open().handle, offset, found.ctypes.data, count)
        if why:
            raise RunFailed("the state cannot be read from its pages", why=why.decode(errors="replace"))
        return found

    def write_page(self, offset: int, data: Array) -> None:
        with self.alone:
            why = self._lib.smg_posix_page_write(self._open().handle, offset, data.ctypes.data, data.nbytes)
        if why:
            raise RunFailed("the state cannot be written to its pages", why=why.decode(errors="replace"))

    def _wanted(self, context: int, entry: int, buffer: int) -> Wanted:
        info = CBufferInfo()
        self._lib.smg_buffer_info(context, entry, buffer, ctypes.byref(info))
        dims = tuple(info.dims[: info.rank])
        return Wanted(info.name.decode(errors="replace"), TYPES[info.type], dims, info.batch_axis, bool(info.is_output))

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
        with self.alone:
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
        with self.alone:
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
        with self.alone:
            context = self._open().context
            status = self._lib.smg_reset_state(context)
            if status:
                raise self._error(context, status)

    def trim(self, keep_bytes: int) -> None:
        """Give ARENA beyond its first bytes back to the system; touched again, it is zero."""
        with self.alone:
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
            self.stopped = None
            if place.entry >= 0:
                entry = self._lib.smg_entry_name(context, place.entry).decode(errors="replace")
                self.stopped = Stopped(entry, place.instruction, fault)
            if fault is Fault.TOO_FEW:
                text = fault_text(fault) or ""
                return BatchStatistics(text, at=said.removesuffix(f": {text}"), help=help)
            return RunFailed(said, help=help)
        kinds: dict[int, type[SmidgenError]] = {BAD_PROGRAM: BadProgram, BAD_CALL: BadData}
        return kinds.get(status, Internal)(said, help=help)


def _check_array(array: Array, slot: Wanted, shape: tuple[int, ...]) -> None:
    if array.dtype != slot.dtype or array.shape != shape:
        raise BadData(f"'{slot.name}' is {array.dtype}{list(array.shape)}, the program wants {slot.dtype}{list(shape)}")
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned or (slot.is_output and not flags.writeable):
        raise BadData(f"'{slot.name}' is not contiguous, aligned and, as an output, writable")


class FastProbe:
    """Fast kernels by name, outside any program: for op tests and benchmarks."""

    def __init__(self, instruction_set: str = "", threads: int = 1) -> None:
        self._lib = library()
        self._lib.smg_posix_empty.restype = ctypes.c_void_p
        self._handle = ctypes.c_void_p(self._lib.smg_posix_empty())
        why = self._lib.smg_posix_use_fast(self._handle, instruction_set.encode(), threads)
        if why:
            raise MissingPart("no fast kernels", why=why.decode(), help="python -m smidgen.runtime")

    def run(
        self, name: str, operands: Sequence[Array | None], params: Sequence[int | float], run: tuple[int, int, int]
    ) -> tuple[bool, str | None]:
        """Is there a fast kernel of that name, and its complaint about the data."""
        words, found = param_words(params), ctypes.c_int(0)
        pointers = (ctypes.c_void_p * max(len(operands), 1))(*[None if a is None else a.ctypes.data for a in operands])
        fault = self._lib.smg_probe_run_fast(
            self._handle, name.encode(), pointers, len(operands), ctypes.c_void_p(words.ctypes.data), len(words),
            CRun(*run), ctypes.byref(found),
        )  # fmt: skip
        return bool(found.value), fault_text(fault)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.smg_posix_close(self._handle)
