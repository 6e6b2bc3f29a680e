"""The fast kernels of one instruction set in a library of their own, for tests and benchmarks of single kernels."""

from __future__ import annotations

import ctypes
import platform
import re
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smidgen.runtime import build as compile
from smidgen.runtime.library import CRun, fault_text, param_words

HERE = Path(__file__).resolve().parent
RUNTIME = HERE.parent / "src" / "smidgen" / "runtime"
STRICT = ("-Wall", "-Wextra", "-Wshadow", "-Werror")
SETS = {one.name: one.flags for sets in compile.SETS.values() for one in sets}
"""Instruction set → the compiler flags that allow it."""


def best_set() -> str:
    """The widest instruction set of this machine."""
    if platform.machine() in ("aarch64", "arm64"):
        return "neon"
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    return "avx512" if " avx512vl " in flags else "avx2" if " avx2 " in flags and " fma " in flags else "sse2"


def build(out: Path, isa: str, cc: str = "cc", flags: Sequence[str] = (), main: Sequence[Path] = ()) -> Path:
    """Compile fast/*.c for one instruction set with the probe beside this file; with `main`, into a program."""
    command = [*shlex.split(cc), *compile.FAST, *STRICT, *SETS[isa], f"-DSMG_ISA={isa}", f"-I{RUNTIME}", *flags]
    sources = sorted((RUNTIME / "fast").glob("*.c"))
    with tempfile.TemporaryDirectory() as folder:
        names: set[str] = set()
        for path in sources:
            text = subprocess.run([*command, "-E", str(path)], check=True, capture_output=True, text=True).stdout
            names.update(re.findall(rf"smg_fast_{isa}_(\w+)\(const SmgCall \*c\);", text))
        table = Path(folder) / "table.inc"
        table.write_text("".join(f"ENTRY({name})\n" for name in sorted(names)))
        objects, jobs = [], []
        probe = HERE / "c" / "fast_probe.c"
        threads = [] if isa in ("sse2", "neon") else [RUNTIME / "fast" / "threads.c"]
        for i, path in enumerate([*sources, probe, *threads, *main]):
            objects.append(f"{folder}/{i}.o")
            own = [*command, f'-DFAST_TABLE="{table}"']
            if i > len(sources) and path in threads:
                own = [*command, "-USMG_ISA", "-DSMG_ISA=plain"]
            jobs.append(subprocess.Popen([*own, "-c", str(path), "-o", objects[-1]]))
        codes = [job.wait() for job in jobs]  # all of them, or some would be left running
        if any(codes):
            raise RuntimeError("compilation failed")
        kind = [] if main else ["-shared", "-Wl,-z,defs"]
        subprocess.run([*shlex.split(cc), *flags, *objects, *kind, "-o", str(out), "-lpthread"], check=True)
    return out


class FastLibrary:
    """Fast kernels with a pool of `threads` threads; `wide`: with the memory that they have beside a large program."""

    def __init__(self, path: Path, threads: int = 1, wide: bool = False) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.fast_open.restype = ctypes.c_void_p
        self.lib.fast_close.argtypes = [ctypes.c_void_p]
        self.lib.fast_time.restype = self.lib.fast_peak.restype = ctypes.c_double
        call = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, CRun,
        ]  # fmt: skip
        self.lib.fast_run.argtypes = call
        self.lib.fast_time.argtypes = [*call, ctypes.c_double, ctypes.c_int]
        self.threads = threads
        self.work = self.lib.fast_open(threads, wide)

    def close(self) -> None:
        self.lib.fast_close(self.work)

    def has(self, name: str) -> bool:
        return bool(self.lib.fast_has(name.encode()))

    def _call(
        self, name: str, operands: Sequence[Any], params: Sequence[int | float], run: tuple[int, int, int]
    ) -> Any:
        words = param_words(params)
        pointers = (ctypes.c_void_p * max(len(operands), 1))(*[None if a is None else a.ctypes.data for a in operands])
        kept = (words, pointers)
        return kept, (self.work, name.encode(), pointers, len(operands), words.ctypes.data, len(words), CRun(*run))

    def run(
        self, name: str, operands: Sequence[Any], params: Sequence[int | float], run: tuple[int, int, int] = (1, 1, 0)
    ) -> str | None:
        _kept, call = self._call(name, operands, params, run)
        return fault_text(self.lib.fast_run(*call))

    def seconds(
        self,
        name: str,
        operands: Sequence[Any],
        params: Sequence[int | float],
        round_s: float = 0.004,
        rounds: int = 15,
    ) -> float:
        """The best time of one call."""
        _kept, call = self._call(name, operands, params, (1, 1, 0))
        return float(self.lib.fast_time(*call, round_s, rounds))

    def peak_flops(self) -> float:
        return float(self.lib.fast_peak(20)) * 1e9


def aligned(shape: Sequence[int], rng: np.random.Generator, scale: float = 1.0) -> np.ndarray[Any, Any]:
    """Random floats that start at a multiple of 64 bytes."""
    count = int(np.prod(shape))
    raw = np.empty(count + 16, np.float32)
    skip = (-raw.ctypes.data % 64) // 4
    array = raw[skip : skip + count].reshape(shape)
    array[...] = scale * rng.standard_normal(shape)
    return array
