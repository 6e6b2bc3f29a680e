"""Compiles the C runtime into a shared library with the system's compiler. Needs the standard library only.

The kernel table is made from the sources: every `KERNEL(...)` the preprocessor finds, in name order.
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
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY = HERE / "libsmidgen.so"

# Exact kernels allow no contraction and no reordering of floating-point operations.
EXACT = ("-std=c11", "-ffp-contract=off", "-fno-math-errno", "-fPIC")
STRICT = ("-Wall", "-Wextra", "-Wshadow", "-Werror=implicit-function-declaration")


def sources() -> list[Path]:
    return sorted(HERE.glob("*.c")) + sorted(HERE.glob("kernels/*.c")) + sorted(HERE.glob("ports/posix*.c"))


def kernel_names(cc: Sequence[str]) -> list[str]:
    """Every kernel that the sources define."""
    names: set[str] = set()
    for path in sorted(HERE.glob("kernels/*.c")):
        text = subprocess.run([*cc, "-E", str(path)], check=True, capture_output=True, text=True).stdout
        names.update(re.findall(r"const SmgKernel smg_kernel_(\w+)\s*=", text))
    return sorted(names)


def table_source(names: Sequence[str]) -> str:
    lines = ['#include "kernel.h"']
    lines += [f"extern const SmgKernel smg_kernel_{name};" for name in names]
    lines += ["const SmgKernel *const smg_kernels[] = {"]
    lines += [f"    &smg_kernel_{name}," for name in names]
    lines += ["};", f"const int smg_kernel_count = {len(names)};", ""]
    return "\n".join(lines)


def compile_runtime(out: Path, cc: str = "", flags: Sequence[str] = ("-O3",), checks: bool = True) -> Path:
    """Write the shared library to `out`; it appears there complete or not at all."""
    command = shlex.split(cc or os.environ.get("CC", "cc"))
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"C compiler '{command[0]}' not found: install gcc or set CC")
    warnings = STRICT if checks else ()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "kernel_table.c"
        table.write_text(table_source(kernel_names(command)))
        objects: list[str] = []
        jobs: list[list[str]] = []
        for path in [*sources(), table]:
            obj = str(Path(folder) / (path.parent.name + "_" + path.stem + ".o"))
            jobs.append([*command, *EXACT, *flags, *warnings, f"-I{HERE}", "-c", str(path), "-o", obj])
            objects.append(obj)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            for done in pool.map(lambda job: subprocess.run(job, capture_output=True, text=True), jobs):
                if done.stderr:
                    sys.stderr.write(done.stderr)
                if done.returncode:
                    raise RuntimeError(f"C compilation failed: {' '.join(done.args)}")
        built = Path(folder) / "lib.so"
        subprocess.run([*command, "-shared", *objects, "-o", str(built), "-lpthread"], check=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(out.name + ".part")
        shutil.copyfile(built, partial)
        os.replace(partial, out)
    return out


if __name__ == "__main__":
    print(compile_runtime(Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY))
