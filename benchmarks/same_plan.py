"""One model, one program: compiled twenty times, half of them while all cores are busy → docs/results/same_plan.json.

python -m benchmarks.same_plan
python -m benchmarks.same_plan --net resnet8 --times 6

Every compilation is a process of its own with a hash seed of its own: budgets of 50 and 30 % of the arena, paging at
20 %, a ladder. Status 1 if two hashes of one case differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from smidgen import files

from .parity import machine

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "same_plan.json"
NETWORKS: Final = ("resnet8", "encoder", "mobilenetv2")
CASES: Final = ("budget 50 %", "budget 30 %", "paging 20 %", "ladder")
COMPILE: Final = "import sys; from tests.acceptance.test_same_plan import programs; print(*programs(*sys.argv[1:]))"
SPIN: Final = "while True: pass"


def hashes(net: str, times: int, seed: int) -> list[list[str]]:
    """The hashes of all cases, for each of so many processes, two of them at a time."""
    found: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, times, 2):
            runs = [
                subprocess.Popen(
                    [sys.executable, "-c", COMPILE, net, f"{folder}/{k}.page"], stdout=subprocess.PIPE, text=True,
                    env={**os.environ, "PYTHONHASHSEED": str(seed + k)},
                )
                for k in range(start, min(times, start + 2))
            ]  # fmt: skip
            found += [run.communicate()[0].split() for run in runs]
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append")
    parser.add_argument("--times", type=int, default=20)
    args = parser.parse_args(argv)
    rows = []
    for net in args.net or NETWORKS:
        quiet = hashes(net, args.times - args.times // 2, seed=1)
        loads = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(os.cpu_count() or 1)]
        try:
            busy = hashes(net, args.times // 2, seed=1000)
        finally:
            for load in loads:
                load.kill()
                load.wait()
        for k, case in enumerate(CASES):
            distinct = sorted({run[k] for run in quiet + busy})
            rows.append({"net": net, "case": case, "quiet": len(quiet), "busy": len(busy), "hashes": distinct})
            print(f"{net:<14}{case:<14}{len(quiet)} quiet + {len(busy)} busy: {len(distinct)} hash(es)", flush=True)
    if not args.net and args.times == 20:
        date = time.strftime("%Y-%m-%d")
        report = {"command": "python -m benchmarks.same_plan", "date": date, "machine": machine(), "rows": rows}
        files.write(OUT, (json.dumps(report, indent=1) + "\n").encode())
    return 0 if all(len(row["hashes"]) == 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
