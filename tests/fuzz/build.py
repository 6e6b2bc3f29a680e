"""Builds the fuzz target under the sanitizers: `fuzz` with libFuzzer (clang), or `replay` without it (clang or gcc)."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from smidgen.runtime.build import compile_runtime

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
OUT = HERE.parents[1] / "build" / "fuzz"

TARGET = (HERE / "fuzz_program.c", HERE / "apart.c", HERE / "mutate.c")
CHECKS = "address,undefined,float-cast-overflow"
SANITIZE = (f"-fsanitize={CHECKS}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1")
# The target counts basic blocks; libFuzzer has a function of this name already.
COUNT = ("-fsanitize-coverage=trace-pc", "-Wl,--wrap=__sanitizer_cov_trace_pc")
CLANG = ("-Wno-unused-command-line-argument", f"-fsanitize-coverage-ignorelist={HERE / 'ignore.txt'}")


def build_fuzz(out: Path) -> Path:
    """With libFuzzer. Uninitialised memory is not looked for: that takes MSan and a build of its own."""
    flags = ("-O1", *SANITIZE, "-fsanitize=fuzzer", *COUNT, *CLANG)
    return compile_runtime(out, "clang", flags, main=TARGET, fast=False)


def build_replay(out: Path, cc: str = "") -> Path:
    """A program that runs files and mutations of them, and prints what became of each."""
    cc = cc or ("clang" if shutil.which("clang") else "gcc")
    flags = ("-O0", *SANITIZE, *COUNT, *(CLANG if cc == "clang" else ()))
    return compile_runtime(out, cc, flags, main=[HERE / "replay.c", *TARGET], fast=False)


if __name__ == "__main__":
    kind = sys.argv[1] if len(sys.argv) > 1 else "fuzz"
    print({"fuzz": build_fuzz, "replay": build_replay}[kind](OUT / kind))
