"""The C runtime from Python, through ctypes. The only file that knows the library's C signatures."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .errors import Internal, MissingPart
from .ir import Array
from .runtime.compile import LIBRARY


class CRun(ctypes.Structure):
    _fields_ = [("n", ctypes.c_int32), ("total", ctypes.c_int32), ("index", ctypes.c_int32)]


def library_path() -> Path:
    """The library of this installation, or the one named by SMIDGEN_LIBRARY."""
    return Path(os.environ.get("SMIDGEN_LIBRARY", LIBRARY))


@functools.cache
def library(path: Path | None = None) -> ctypes.CDLL:
    path = path or library_path()
    if not path.exists():
        raise MissingPart(
            "the C runtime is not built", at=path.name, help="python -m smidgen.runtime.compile (needs a C compiler)"
        )
    lib = ctypes.CDLL(str(path))
    lib.smg_probe_signature.restype = ctypes.c_char_p
    lib.smg_probe_run.restype = ctypes.c_char_p
    lib.smg_probe_extent.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, CRun, ctypes.c_void_p,
    ]  # fmt: skip
    lib.smg_probe_run.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, CRun,
    ]  # fmt: skip
    return lib


def param_words(params: Sequence[int | float]) -> Array:
    """int32 words as kernels read them; floats become their f32 bits."""
    words = [
        int(np.float32(p).view(np.int32)) if isinstance(p, (float, np.floating)) else int(p) for p in params
    ]
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
    pointers = (ctypes.c_void_p * max(len(operands), 1))(
        *[None if a is None else a.ctypes.data for a in operands]
    )
    said = library().smg_probe_run(name.encode(), pointers, len(operands), words.ctypes.data, len(words), CRun(*run))
    return said.decode() if said else None
