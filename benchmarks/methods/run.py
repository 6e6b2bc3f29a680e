"""What each method learns on real data → docs/results/methods.json; needs `../shared/data` and Pillow.

python -m benchmarks.methods                       # all tasks; goes on where it was interrupted
python -m benchmarks.methods --task mcunet/flowers # one of them
python -m benchmarks.methods --processes 1
python -m benchmarks.methods --table               # only docs/results/methods.md and methods.svg

For each task and method a learning rate is chosen by the validation part, with one seed; then five other seeds (three
where no published scheme is compared) learn with it, and the test part is looked at once for each. A scheme of
`sparse_update` is searched in the learning part alone, within the bytes that the published one takes (MCUNet), else
within a tenth of what `full` takes (or the classifier and a quarter more, if that is above). `bias` is `tinytl:bias`: a
new classifier has to learn as a whole. All learn with SGD and momentum 0.9, batch 8, the cosine schedule and a
twentieth of warm-up.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Final

from smidgen import files

from ..peers.machine import describe

ROOT: Final = Path(__file__).parents[2]
OUT: Final = ROOT / "docs" / "results" / "methods.json"
RATES: Final = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001)
FIRST: Final = 3  # of the rates
CHOOSING, REPORTED = 0, (1, 2, 3, 4, 5)  # seeds
FEWER: Final = 3  # of them where no published scheme is compared
PUBLISHED: Final = {"mcunet": "b22 w21:1,24:1,27:1,30:1,36:1/8,39:1/4"}  # tiny-training, the scheme of 100 KB
METHODS: Final = ("last_layer", "tinytl:bias", "tinytl", "sparse_update", "lora:4", "full")
Json = dict[str, Any]


class Results:
    """What is known, kept after each run."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, Lock()
        self.runs: dict[str, Json] = json.loads(path.read_text())["runs"] if path.exists() else {}

    def of(self, given: Json) -> Json:
        key = json.dumps(given, sort_keys=True)
        if key not in self.runs:
            found = _ran(given)
            with self.lock:
                self.runs[key] = found
                self.save()
                print(f"{_text(given)}: {json.dumps(found)}", flush=True)
        return self.runs[key]

    def save(self) -> None:
        report = {
            "command": "python -m benchmarks.methods",
            "date": str(datetime.date.today()),
            "machine": describe(),
            "runs": self.runs,
        }
        files.write(self.path, (json.dumps(report, indent=1, sort_keys=True) + "\n").encode())


def _ran(given: Json) -> Json:
    command = [sys.executable, "-m", "benchmarks.methods.one", json.dumps(given)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise RuntimeError(f"{_text(given)} failed:\n{done.stderr[-2000:]}")
    found: Json = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def _text(given: Mapping[str, Any]) -> str:
    return " ".join(str(value) for key, value in given.items() if key != "report")


class Comparison:
    """All methods of one task."""

    def __init__(self, task: str, results: Results) -> None:
        self.task, self.results = task, results

    @property
    def published(self) -> str | None:
        return PUBLISHED.get(self.task.split("/")[0])

    def sizes(self, method: str) -> Json:
        return self.results.of({"do": "sizes", "task": self.task, "method": method})

    def methods(self) -> Iterator[str]:
        """As `compile` takes them."""
        for method in METHODS:
            if method != "sparse_update":
                yield method
                continue
            yield f"sparse_update:{self.found_scheme()}"
            if self.published:
                yield f"sparse_update:{self.published}"

    def found_scheme(self) -> str:
        found = self.results.of({"do": "search", "task": self.task, "budget_bytes": self.budget_bytes()})
        return str(found["scheme"])

    def budget_bytes(self) -> int:
        if self.published:
            return int(self.sizes(f"sparse_update:{self.published}")["ram_bytes_8"])
        return max(int(self.sizes("full")["ram_bytes_8"]) // 10, int(self.sizes("last_layer")["ram_bytes_8"]) * 5 // 4)

    def rate(self, method: str) -> float:
        """The best by the validation part: outwards from the usual one, as long as it gets better."""

        def score(place: int) -> float:
            given = {"do": "learn", "task": self.task, "method": method, "rate": RATES[place], "seed": CHOOSING}
            return float(self.results.of(given)["choose"])

        return RATES[climbed(score, FIRST, len(RATES))]

    def run(self) -> None:
        for method in self.methods():
            self.sizes(method)
            rate = self.rate(method)
            for seed in REPORTED if self.published else REPORTED[:FEWER]:
                self.results.of({"do": "learn", "task": self.task, "method": method, "rate": rate, "seed": seed,
                                 "report": True})  # fmt: skip


def climbed(score: Callable[[int], float], start: int, count: int) -> int:
    """The place of the highest score, looked for from `start` in both directions; 0 is that of what diverged."""
    best = start
    for step in (1, -1):
        while 0 <= best + step < count and (score(best) == 0 or score(best + step) > score(best)):
            best += step
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", help="NET/DATA")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="write the page and the picture, and learn nothing")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    from .tasks import TASKS

    results = Results(args.out)
    if args.table:
        write_table(args.out, {name: task.split for name, task in TASKS.items()})
        return 0
    with ThreadPoolExecutor(args.processes) as pool:
        for done in pool.map(lambda task: Comparison(task, results).run(), args.task or TASKS):
            assert done is None
    write_table(args.out, {name: task.split for name, task in TASKS.items()})
    return 0


def write_table(path: Path, splits: Mapping[str, str]) -> None:
    from . import table

    report = json.loads(path.read_text())
    files.write(path.with_suffix(".md"), table.page(report, splits).encode())
    files.write(path.with_suffix(".svg"), table.svg(table.rows(report["runs"])).encode())
