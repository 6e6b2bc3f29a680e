"""What each method learns on real data → docs/results/methods.json; needs `../shared/data` and Pillow.

python -m benchmarks.methods                       # all tasks; goes on where it was interrupted
python -m benchmarks.methods --task mcunet/flowers # one of them
python -m benchmarks.methods --processes 1
python -m benchmarks.methods --table               # only docs/results/methods.md and methods.svg

For each task and method an optimizer (SGD with momentum 0.9, or Adam) and its rate are chosen by the validation part,
with one seed; then three other seeds learn with them, five where the 95 % interval of three is wide or schemes are
compared in pairs (MCUNet), and the test part is looked at once for each. A scheme of `sparse_update` is searched in the
learning part alone, within the bytes that the published one takes (MCUNet), else within a tenth of what `full` takes
(or the classifier and a quarter more, if that is above). `bias` is `tinytl:bias`: a new classifier has to learn as a
whole. All learn with batch 8, the cosine schedule and a twentieth of warm-up.
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
from .intervals import half_width

ROOT: Final = Path(__file__).parents[2]
OUT: Final = ROOT / "docs" / "results" / "methods.json"
RATES: Final = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003, 0.0001, 0.00003)
OPTIMIZERS: Final = {"momentum": 0.003, "adam": 0.001}
"""With the rate that is tried first."""
CHOOSING, REPORTED = 0, (1, 2, 3, 4, 5)  # seeds
FEWER: Final = 3  # of them are enough, if
WIDE: Final = 0.02  # half of their interval is no wider
PUBLISHED: Final = {"mcunet": "b22 w21:1,24:1,27:1,30:1,36:1/8,39:1/4"}  # tiny-training, the scheme of 100 KB
METHODS: Final = ("last_layer", "tinytl:bias", "tinytl", "sparse_update", "lora:4", "full")
Json = dict[str, Any]
Choice = tuple[str, float]
"""An optimizer and its rate."""


class Results:
    """What is known, kept after each run."""

    def __init__(self, path: Path) -> None:
        self.path, self.lock = path, Lock()
        self.runs: dict[str, Json] = json.loads(path.read_text())["runs"] if path.exists() else {}

    def of(self, given: Json, ask: Callable[[Json], Json]) -> Json:
        key = json.dumps(given, sort_keys=True)
        if key not in self.runs:
            found = ask(given)
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


class Worker:
    """A process that has the data of a task; begun when it is asked for the first time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def ask(self, given: Json) -> Json:
        if self._process is None:
            command = [sys.executable, "-m", "benchmarks.methods.one"]
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        pipe = self._process
        assert pipe.stdin is not None and pipe.stdout is not None  # noqa: PT018
        print(json.dumps(given), file=pipe.stdin, flush=True)
        for line in pipe.stdout:
            if line.startswith("RESULT "):
                found: Json = json.loads(line.removeprefix("RESULT "))
                return found
        raise RuntimeError(f"{_text(given)} failed")

    def end(self) -> None:
        if self._process is not None:
            self._process.communicate()


def _text(given: Mapping[str, Any]) -> str:
    return " ".join(str(value) for key, value in given.items() if key != "report")


class Comparison:
    """All methods of one task."""

    def __init__(self, task: str, results: Results, ask: Callable[[Json], Json]) -> None:
        self.task, self.results, self.ask = task, results, ask

    @property
    def published(self) -> str | None:
        return PUBLISHED.get(self.task.split("/")[0])

    def of(self, do: str, **given: Any) -> Json:
        """Momentum goes without saying."""
        if given.get("optimizer") == "momentum":
            del given["optimizer"]
        return self.results.of({"do": do, "task": self.task, **given}, self.ask)

    def sizes(self, method: str, optimizer: str = "momentum") -> Json:
        return self.of("sizes", method=method, optimizer=optimizer)

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
        """Searched once: it stays when a later planner needs fewer bytes."""

        def ask(given: Json) -> Json:
            return self.ask({**given, "budget_bytes": self.budget_bytes()})

        return str(self.results.of({"do": "search", "task": self.task}, ask)["scheme"])

    def budget_bytes(self) -> int:
        if self.published:
            return int(self.sizes(f"sparse_update:{self.published}")["ram_bytes_8"])
        return max(int(self.sizes("full")["ram_bytes_8"]) // 10, int(self.sizes("last_layer")["ram_bytes_8"]) * 5 // 4)

    def chosen(self, method: str) -> Choice:
        """The optimizer and the rate that are best by the validation part."""
        for optimizer in OPTIMIZERS:
            self.climb(method, optimizer)
        return chosen(self.results.runs)[self.task, method]

    def climb(self, method: str, optimizer: str) -> None:
        """Rates outwards from the usual one, as long as it gets better."""
        first = RATES.index(OPTIMIZERS[optimizer])
        climbed(lambda place: self.score(method, optimizer, RATES[place]), first, len(RATES))

    def score(self, method: str, optimizer: str, rate: float) -> float:
        return float(self.of("learn", method=method, optimizer=optimizer, rate=rate, seed=CHOOSING)["choose"])

    def run(self) -> None:
        for method in self.methods():
            optimizer, rate = self.chosen(method)
            self.sizes(method, optimizer)
            found: list[float] = []
            for seed in REPORTED:
                pairs = self.published is not None and method.startswith("sparse_update")
                if len(found) >= FEWER and not pairs and half_width(found[:FEWER]) <= WIDE:
                    break
                known = self.of("learn", method=method, optimizer=optimizer, rate=rate, seed=seed, report=True)
                found.append(float(known.get("report", 0.0)))


def chosen(runs: Mapping[str, Json]) -> dict[tuple[str, str], Choice]:
    """For each task and method what does best on the validation part, of all that was tried."""
    best: dict[tuple[str, str], tuple[float, Choice]] = {}
    for key, found in runs.items():
        given = json.loads(key)
        if given["do"] == "learn" and given["seed"] == CHOOSING:
            place, choice = (given["task"], given["method"]), (given.get("optimizer", "momentum"), given["rate"])
            best[place] = max(best.get(place, (-1.0, choice)), (float(found["choose"]), choice))
    return {place: choice for place, (_, choice) in best.items()}


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

    def run(task: str) -> None:
        worker = Worker()
        Comparison(task, results, worker.ask).run()
        worker.end()

    with ThreadPoolExecutor(args.processes) as pool:
        for done in pool.map(run, args.task or TASKS):
            assert done is None
    write_table(args.out, {name: task.split for name, task in TASKS.items()})
    return 0


def write_table(path: Path, splits: Mapping[str, str]) -> None:
    from . import table

    report = json.loads(path.read_text())
    files.write(path.with_suffix(".md"), table.page(report, splits).encode())
    files.write(path.with_suffix(".svg"), table.svg(table.rows(report["runs"])).encode())
