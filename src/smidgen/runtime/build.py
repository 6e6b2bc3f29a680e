"""Compiles the C runtime, into a shared library or together with a `main`, with the system's compiler.

The kernel table is made from the sources: every `KERNEL(...)` the preprocessor finds, in name order. Fast kernels are
compiled once per instruction set, and the set is picked when a program is opened.
"""

from __future__ import annotations

import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "libsmidgen.so"
INPLACE = HERE / "kernels" / "inplace.txt"

# Exact kernels allow no contraction and no reordering of floating-point operations.
# Traps are never looked at, and without promising so gcc does not vectorise a choice between two values.
EXACT = ("-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fPIC")
STRICT = ("-Wall", "-Wextra", "-Wshadow", "-Werror=implicit-function-declaration")
# Symbols are bound at start, so that the dynamic linker does not eat stack in the middle of a step; all must be there.
LINK = ("-Wl,-z,now", "-Wl,-z,defs")


# Fast kernels: sums in any order that the source allows, fused multiply-add, wider vectors.
FAST = ("-std=c11", "-O3", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-Wno-psabi")


class InstructionSet(NamedTuple):
    """`plain`: the exact kernels' sources are compiled for it too, for all that fast/ does not have."""

    name: str
    flags: tuple[str, ...]
    plain: bool = False


SETS = {
    "x86_64": (
        InstructionSet("avx512", ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mavx2", "-mfma")),
        InstructionSet("avx2", ("-mavx2", "-mfma", "-mno-avx512f"), plain=True),
        InstructionSet("sse2", ("-mno-avx",)),
    ),
    "aarch64": (InstructionSet("neon", (), plain=True),),
}
"""The best first; the last needs nothing that a machine of its kind lacks. What a set must not use is switched off by
name, because some compilers (zig, or CC="gcc -march=native") begin with all that the building machine has.
ports/posix_cpu.c lists what each needs of the machine."""


def instruction_sets(cc: Sequence[str]) -> tuple[InstructionSet, ...]:
    """Those that this compiler makes code for: none if it has no vectors (tcc)."""
    asked = subprocess.run([*cc, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True, check=False)
    names = set(re.findall(r"#define __(\w+?)__ 1$", asked.stdout, re.MULTILINE))
    found = next((sets for machine, sets in SETS.items() if machine in names), ())
    return found if "__GNUC__" in asked.stdout and "__TINYC__" not in asked.stdout else ()


def fast_names(cc: Sequence[str]) -> list[str]:
    """Every kernel that fast/ defines."""
    names: set[str] = set()
    for path in sorted(HERE.glob("fast/*.c")):
        made = subprocess.run([*cc, "-DSMG_ISA=x", "-E", str(path)], check=True, capture_output=True, text=True)
        names.update(re.findall(r"smg_fast_x_(\w+)\s*\(", made.stdout))
    return sorted(names)


def sources() -> list[Path]:
    return sorted(HERE.glob("*.c")) + sorted(HERE.glob("kernels/*.c")) + sorted(HERE.glob("ports/posix*.c"))


def kernel_names(cc: Sequence[str]) -> list[str]:
    """Every kernel that the sources define."""
    names: set[str] = set()
    for path in sorted(HERE.glob("kernels/*.c")):
        text = subprocess.run([*cc, "-E", str(path)], check=True, capture_output=True, text=True).stdout
        names.update(re.findall(r"const SmgKernel smg_kernel_(\w+)\s*=", text))
    return sorted(names)


def inplace_inputs() -> dict[str, int]:
    """Kernel → a bit for each of its inputs whose memory output 0 may take.

    The op records say so; `python -m tools.make_inplace` copies it from there, so that a build needs no numpy.
    """
    return {name: int(mask) for name, mask in (line.split() for line in INPLACE.read_text().splitlines())}


def table_source(
    names: Sequence[str], inplace: Mapping[str, int], sets: Sequence[InstructionSet] = (), fast: Sequence[str] = ()
) -> str:
    """C source that lists the kernels of one build, exact and for each instruction set; the linker drops all others."""
    lines = ['#include "format.h"']
    lines += [f"extern const SmgKernel smg_kernel_{name};" for name in names]
    lines += ["const SmgKernel *const smg_kernels[] = {"]
    lines += [f"    &smg_kernel_{name}," for name in names]
    lines += ["};", "const uint32_t smg_kernel_inplace[] = {"]
    lines += [f"    {inplace.get(name, 0)}, /* {name} */" for name in names]
    lines += ["};", f"const int smg_kernel_count = {len(names)};", ""]
    plain = next((s.name for s in sets if s.plain), "")
    for one in sets:
        # A set that needs more of the machine than the one with plain kernels can use those as well.
        can_plain = bool(plain) and [s.name for s in sets].index(one.name) <= [s.name for s in sets].index(plain)
        symbols = [
            f"smg_fast_{one.name}_{name}" if name in fast else f"smg_plain_{plain}_{name}" if can_plain else ""
            for name in names
        ]
        lines += [f"SmgFault {symbol}(const SmgCall *c);" for symbol in symbols if symbol]
        lines += [f"static const SmgKernelFn runs_{one.name}[] = {{"]
        lines += [f"    {symbol or 0}, /* {name} */" for symbol, name in zip(symbols, names, strict=True)]
        lines += ["};"]
    lines += ["const SmgKernelSet smg_kernel_sets[] = {"]
    lines += [f'    {{"{one.name}", runs_{one.name}}},' for one in sets]
    lines += ["    {0, 0},", "};", ""]
    return "\n".join(lines)


def compile_runtime(
    out: Path,
    cc: str = "",
    flags: Sequence[str] = ("-O3",),
    checks: bool = True,
    main: Sequence[Path] = (),
    fast: bool = False,
) -> Path:
    """Write the shared library, or the program whose sources `main` are, to `out`: complete or not at all.
    Without `fast` it has the exact kernels only."""
    command = shlex.split(cc or os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"C compiler '{command[0]}' not found: install gcc or set CC")
    warnings = STRICT if checks else ()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "kernel_table.c"
        sets = instruction_sets(command) if fast else ()
        names = fast_names(command) if sets else []
        table.write_text(table_source(kernel_names(command), inplace_inputs(), sets, names))
        objects: list[str] = []
        jobs: list[list[str]] = []

        def add(path: Path, options: Sequence[str], suffix: str = "") -> None:
            obj = str(Path(folder) / f"{path.parent.name}_{path.stem}{suffix}.o")
            jobs.append([*command, *options, *warnings, f"-I{HERE}", "-c", str(path), "-o", obj])
            objects.append(obj)

        for one in sets:  # first, because they take longest
            options = (*flags, *FAST, *one.flags, f"-DSMG_ISA={one.name}")
            for path in sorted(HERE.glob("fast/*.c")) + (sorted(HERE.glob("kernels/*.c")) if one.plain else []):
                add(path, options, f"_{one.name}")
        exact = (*EXACT, *flags, *(["-DSMG_HAS_FAST"] if sets else []))
        for path in [*sources(), table, *main]:
            add(path, exact)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done in pool.map(lambda job: subprocess.run(job, capture_output=True, text=True), jobs):
                if done.stderr:
                    sys.stderr.write(done.stderr)
                if done.returncode:
                    raise RuntimeError(f"C compilation failed: {' '.join(done.args)}")
        built = Path(folder) / "built"
        linking = [*(() if main else ("-shared",)), *(() if Path(command[0]).name == "tcc" else LINK)]
        subprocess.run([*command, *flags, *objects, *linking, "-o", str(built), "-lpthread"], check=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + f".{os.getpid()}.part")
        shutil.copy(built, partial)
        os.replace(partial, out)
    return out


if __name__ == "__main__":
    print(compile_runtime(Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY, fast=True))
