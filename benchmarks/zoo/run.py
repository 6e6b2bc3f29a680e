"""Models as they come from public packages: does smidgen train them as PyTorch does?

python -m benchmarks.zoo                       # makes its environment, runs what has no result yet, writes the table
python -m benchmarks.zoo --again failed        # once more what did not pass
python -m benchmarks.zoo --only 'timm/res*'    # these again, the others stay
python -m benchmarks.zoo --table               # only docs/results/zoo.md
python -m benchmarks.zoo --setup               # only its environment
python -m benchmarks.zoo --draw                # the list itself; it was drawn once, and stays as it is

Each model runs in a process of its own, with a limit of time and memory; a result is written after each.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import resource
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from smidgen import files

from . import env, judge, table
from . import one as one_model

LIST = Path(__file__).with_name("models.json")
OUT = env.ROOT / "docs" / "results" / "zoo.json"
PAGE = OUT.with_suffix(".md")
PROCESSOR_S, WALL_S, MEMORY_BYTES = 400, 7200, 12 << 30
MARK = "zoo-report: "
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PACKAGES = ("timm", "transformers", "segmentation_models_pytorch", "vit_pytorch", "x_transformers", "pytorchcv",
            "pretrainedmodels", "efficientnet_pytorch", "small")  # fmt: skip

Row = dict[str, Any]


def key(row: Row) -> str:
    return f"{row['package']}/{row['name']}"


def chosen(rows: Sequence[Row], results: dict[str, Row], again: str, only: str | None) -> list[Row]:
    """What is to be run: what has no result, or what is asked for."""
    if only:
        return [row for row in rows if fnmatch.fnmatch(key(row), only)]
    if again == "all":
        return list(rows)
    failed = {name for name, found in results.items() if found["outcome"] != judge.PASS}
    return [row for row in rows if key(row) not in results or (again == "failed" and key(row) in failed)]


def one(row: Row, python: Path, prefix: Sequence[str]) -> Row:
    """The result of one model: whatever happens in its process is a result."""
    command = [*prefix, str(python), "-m", "benchmarks.zoo.one", json.dumps(row)]
    try:
        done = subprocess.run(command, cwd=env.ROOT, env=_variables(), capture_output=True, text=True, timeout=WALL_S,
                              preexec_fn=_limited)  # fmt: skip
    except subprocess.TimeoutExpired as late:
        found = judge.ended(-9, _text(late.stderr), PROCESSOR_S, lost=f"more than {WALL_S} s")
    else:
        lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
        if lines:
            found = json.loads(lines[-1].removeprefix(MARK))
        else:
            found = judge.ended(done.returncode, done.stderr, PROCESSOR_S, one_model.COMPARE_S)
    return {"package": row["package"], "name": row["name"], "outcome": judge.judged(found), **found}


def _variables() -> dict[str, str]:
    """One thread, this project's sources, and no download."""
    path = os.pathsep.join([str(env.ROOT / "src"), str(env.ROOT)])
    return {**os.environ, **dict.fromkeys(THREADS, "1"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": path}


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_S, PROCESSOR_S + one_model.COMPARE_S))


def _text(said: str | bytes | None) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


def written(results: dict[str, Row], rows: Sequence[Row]) -> None:
    """In the order of the list; what is not in the list any more is left out."""
    ordered = [results[key(row)] for row in rows if key(row) in results]
    report = {"command": "python -m benchmarks.zoo", "date": time.strftime("%Y-%m-%d"), "machine": machine(),
              "limits": {"processor_s": PROCESSOR_S, "compare_s": one_model.COMPARE_S, "memory_bytes": MEMORY_BYTES},
              "listed": len(rows), "rows": ordered}  # fmt: skip
    files.write(OUT, (json.dumps(report, indent=1) + "\n").encode())
    files.write(PAGE, table.page(report).encode())


def machine() -> dict[str, str]:
    from benchmarks.parity import machine as described

    return described()


def read(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    return {key(row): row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def drawn(python: Path, prefix: Sequence[str]) -> None:
    """The list, each package in a process of its own."""
    rows: list[Row] = []
    for package in PACKAGES:
        command = [*prefix, str(python), "-m", "benchmarks.zoo.draw", package]
        done = subprocess.run(command, cwd=env.ROOT, env=_variables(), check=True, stdout=subprocess.PIPE, text=True)
        rows += json.loads(done.stdout.splitlines()[-1])
        print(f"{package}: {len(rows)} models so far", flush=True)
    lines = ",\n".join(json.dumps(row) for row in rows)
    files.write(LIST, f"[\n{lines}\n]\n".encode())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", choices=("none", "failed", "all"), default="none", help="run these once more")
    parser.add_argument("--only", metavar="PATTERN", help="package/name, with * and ?")
    parser.add_argument("--prefix", default="", help="a command that each model is run with, as in 'nice -n 5'")
    parser.add_argument("--table", action="store_true", help="write the table from what has been measured")
    parser.add_argument("--setup", action="store_true", help="make the environment, nothing else")
    parser.add_argument("--draw", action="store_true", help="draw the list again")
    args = parser.parse_args()
    prefix = shlex.split(args.prefix)
    if args.setup:
        env.made()
        return 0
    if args.draw:
        drawn(env.made(), prefix)
        return 0
    rows: list[Row] = json.loads(LIST.read_text(encoding="utf-8"))
    results = read(OUT)
    todo = [] if args.table else chosen(rows, results, args.again, args.only)
    python = env.made() if todo else env.PYTHON
    for count, row in enumerate(todo, 1):
        begin = time.monotonic()
        results[key(row)] = found = one(row, python, prefix)
        written(results, rows)
        said = found.get("error", {}).get("text", "").partition("\n")[0]
        spent = f"{time.monotonic() - begin:.0f} s"
        print(f"{count:4}/{len(todo)} {found['outcome']:8} {key(row)}  {spent}  {said}"[:200], flush=True)
    written(results, rows)
    bad = [name for name, found in results.items() if found["outcome"] in (judge.WRONG, judge.CRASH)]
    print(table.totals(list(results.values())))
    return 1 if bad else 0
