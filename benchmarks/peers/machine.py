"""What is measured of the machine itself, in the same run: its arithmetic peak, and how long `import numpy` takes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from .table import ROOT

SOURCE = Path(__file__).with_name("fma_peak.c")
SOURCES = (SOURCE, SOURCE.parent.parent / "c" / "peak.h")
PROGRAM = ROOT / "build" / "step" / "fma_peak"
NUMPY = "import numpy, time; print(time.monotonic())"


def cpus(threads: int) -> set[int]:
    """The processors of a contestant with so many threads: the last ones, since the first serves the system."""
    return set(sorted(os.sched_getaffinity(0))[-threads:])


def peak_gflops(threads: int) -> float:
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < max(p.stat().st_mtime for p in SOURCES):
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        flags = ["-O3", "-march=native", "-ffp-contract=fast", "-pthread"]
        subprocess.run(["cc", *flags, str(SOURCE), "-o", str(PROGRAM)], check=True)
    chosen = cpus(threads)
    done = subprocess.run(
        [str(PROGRAM), str(threads)], check=True, stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )  # fmt: skip
    return float(done.stdout)


def numpy_s() -> float:
    """From the start of a process to the end of its `import numpy`."""
    chosen = cpus(1)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", NUMPY], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        preexec_fn=lambda: os.sched_setaffinity(0, chosen),
    )  # fmt: skip
    return float(done.stdout) - begin


def describe() -> dict[str, str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": next(named, platform.machine()), "cores": str(len(os.sched_getaffinity(0))), "system": platform.system(),
        "kernel": platform.release(), "memory": f"{int(total.split()[1]) // 1024} MB",
        "python": platform.python_version(),
    }  # fmt: skip


def busy_s() -> float:
    """Processor time that the whole machine has spent so far."""
    user, nice, system, _, _, irq, softirq, *_ = (int(v) for v in Path("/proc/stat").read_text().split()[1:11])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


__all__ = ["busy_s", "cpus", "describe", "numpy_s", "peak_gflops"]
