"""The C runtime from Python, through ctypes. The only file that knows the library's C signatures. Needs numpy only."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..errors import Internal, MissingPart
from ..ir import Array

LIBRARY: Final = Path(__file__).parent / "libsmidgen.so"
_OWN: Final = str(LIBRARY)
MESSAGE_BYTES: Final = 192
SPAN_BYTES: Final = 24  # of the working memory of first_fit.c, for each span
BAD_PROGRAM, BAD_CALL, STOPPED = 1, 2, 3
REPLAY_PARTS: Final = 9  # of a sample at most, with its target


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
    NOT_FINITE = 20


class KernelFlag(enum.IntFlag):
    """SmgKernelFlag of kernel.h: what a kernel's row of the table says of it."""

    COPIES = 1
    BYTES = 2
    STARTS = 4
    STATISTICS = 8
    PLACED = 16


class CRun(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32), ("total", ctypes.c_int32), ("index", ctypes.c_int32)]


class CSamples(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32), ("total", ctypes.c_int32), ("first", ctypes.c_int32)]


class CBuffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


PAGED = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)


class CPager(ctypes.Structure):
    """SmgPager of smidgen.h, without start and wait."""

    _fields_ = [("self", ctypes.c_void_p), ("read", PAGED), ("write", PAGED), ("start", ctypes.c_void_p),
                ("wait", ctypes.c_void_p)]  # fmt: skip


class CReplayPart(ctypes.Structure):
    _fields_ = [("elements", ctypes.c_uint32), ("kind", ctypes.c_uint32)]


class CReplay(ctypes.Structure):
    """SmgReplay of replay.h."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("at", "samples", "classes", "fresh", "step", "seed")),
        ("ignore", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("outside", "page", "parts")),
        ("part", CReplayPart * REPLAY_PARTS),
    ]


class CPlace(ctypes.Structure):
    _fields_ = [("entry", ctypes.c_int), ("instruction", ctypes.c_uint32)]


class CBufferInfo(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("is_output", ctypes.c_int), ("rank", ctypes.c_int),
        ("batch_axis", ctypes.c_int), ("dims", ctypes.c_int32 * 8), ("scale", ctypes.c_float),
        ("offset", ctypes.c_float),
    ]  # fmt: skip


def library_path() -> Path:
    """The library of this installation, or the one named by SMIDGEN_LIBRARY."""
    return Path(os.environ.get("SMIDGEN_LIBRARY") or LIBRARY)


def library(path: Path | None = None) -> ctypes.CDLL:
    return _opened(str(path) if path else os.environ.get("SMIDGEN_LIBRARY") or _OWN)


@functools.cache
def _opened(name: str) -> ctypes.CDLL:
    path = Path(name)
    if not path.exists():
        raise MissingPart(
            "the C runtime is not built", at=path.name, help="python -m smidgen.runtime.build (needs a C compiler)"
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


def load_early() -> None:
    """With the import, so that a job's memory is its own. Where there is no library, whoever needs it says so."""
    with contextlib.suppress(MissingPart, OSError):
        library()


def _declare(lib: ctypes.CDLL) -> None:
    """Signatures of smidgen.h, replay.h, ports/posix.h, probe.c and first_fit.c."""
    handle, size, number, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p
    run = [handle, number, ctypes.POINTER(CBuffer), number, CSamples]
    word, buffer = ctypes.c_uint32, [ctypes.POINTER(CReplay), handle]
    stored = [*buffer, handle]  # with the pager
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
        "smg_posix_pager": (handle, [handle]),
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
        "smg_probe_flags": (number, [text]),
        "smg_probe_kernel_at": (text, [handle, number, ctypes.c_uint32]),
        "smg_context_bytes": (size, []),
        "smg_stack_bytes": (size, []),
        "smg_replay_bytes": (word, buffer[:1]),
        "smg_replay_rows_bytes": (word, [buffer[0], word]),
        "smg_replay_page_bytes": (word, buffer[:1]),
        "smg_replay_check": (text, stored),
        "smg_replay_held": (word, buffer),
        "smg_replay_held_of": (word, [*buffer, word]),
        "smg_replay_seen_of": (word, [*buffer, word]),
        "smg_replay_add": (number, [*stored, handle]),
        "smg_replay_draw": (text, [*stored, word, handle]),
        "smg_replay_share": (word, [*buffer, word, number]),
        "smg_first_fit": (ctypes.c_int64, [number, *[handle] * 6, number, number, ctypes.c_int64, handle, handle]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name, None)
        if function is None:
            how = "python -m smidgen.runtime.build"
            raise MissingPart("the C runtime is out of date", why=f"it has no {name}", help=how)
        function.restype, function.argtypes = result, arguments


def context_bytes() -> int:
    """RAM of the runtime's own bookkeeping."""
    return int(library().smg_context_bytes())


def stack_bytes() -> int:
    """The most stack that any call into the runtime uses."""
    return int(library().smg_stack_bytes())


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


def first_fit(
    parts: Sequence[Array], order: Sequence[int], offsets: Array, *, same: int, tightest: bool, most: int
) -> int:
    """Blocks of memory one by one to where they fit, see first_fit.c: sets their offsets and returns the end of the
    last, or -1 if that would be above `most`. The first `same` of the order are at their offsets already. `parts` are
    the first part of each block, and of each part its offset in the block, bytes, birth and death."""
    numbers, spans = np.array(order, np.int32), np.empty(2 * len(parts[1]) * SPAN_BYTES, np.uint8)
    given = [a.ctypes.data for a in (*parts, numbers)]
    made = [a.ctypes.data for a in (offsets, spans)]
    return int(library().smg_first_fit(len(order), *given, same, tightest, most, *made))


def kernel_signature(name: str) -> str:
    found = library().smg_probe_signature(name.encode())
    if found is None:
        raise Internal(f"the runtime has no kernel '{name}'")
    return str(found.decode())


def kernel_flags(name: str) -> KernelFlag:
    found = int(library().smg_probe_flags(name.encode()))
    if found < 0:
        raise Internal(f"the runtime has no kernel '{name}'")
    return KernelFlag(found)


def run_kernel(
    name: str, operands: Sequence[Array | None], params: Sequence[int | float], run: tuple[int, int, int] = (1, 1, 0)
) -> str | None:
    """Run one kernel on numpy arrays; returns its complaint about the data, if any."""
    words = param_words(params)
    pointers = (ctypes.c_void_p * max(len(operands), 1))(*[None if a is None else a.ctypes.data for a in operands])
    return fault_text(
        library().smg_probe_run(name.encode(), pointers, len(operands), words.ctypes.data, len(words), CRun(*run))
    )


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
