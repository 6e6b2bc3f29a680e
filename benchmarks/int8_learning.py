"""What learning in int8 costs: accuracy beside f32, with gradients in f32 and in int16.

python -m benchmarks.int8_learning           # → docs/results/int8_learning.json; goes on where it was interrupted
python -m benchmarks.int8_learning --task mcunet/flowers --way f32  # one of them, learned in one way
python -m benchmarks.int8_learning --table                          # only the table of what is known

A board's training: batch 1, SGD without momentum, the cosine schedule, the published scheme of 99 KB (MCUNet) or all
of the network (DS-CNN). Each way has the learning rate that is best on the validation part, chosen with one seed; then
five other seeds learn with it, and the test part is looked at once for each. Differences to f32 are paired by seed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import smidgen
from benchmarks.int8 import NETS
from benchmarks.methods.intervals import half_width
from benchmarks.methods.tasks import TASKS, Data, Task
from benchmarks.parity import machine
from smidgen import files

OUT: Final = Path(__file__).resolve().parents[1] / "docs" / "results" / "int8_learning.json"
WAYS: Final[dict[str, Any]] = {
    "f32": "f32",
    "int8": smidgen.Int8(),
    "int8, int16 gradients": smidgen.Int8(gradients="int16"),
    "int8, nearest": smidgen.Int8(rounding="nearest"),
}
EPOCHS: Final = {"mcunet/flowers": 5, "mcunet/cifar10": 3, "dscnn/words": 5}
SCHEMES: Final = {"mcunet": f"sparse_update:{NETS['mcunet'].scheme}"}
RATES: Final = (0.002, 0.005, 0.001)
CHOOSING, REPORTED = 0, (1, 2, 3, 4, 5)  # seeds
CALIBRATION: Final = 64  # samples, of those that are learned
Json = dict[str, Any]


class Known:
    """Runs, kept after each."""

    def __init__(self) -> None:
        self.runs: dict[str, Json] = json.loads(OUT.read_text())["runs"] if OUT.exists() else {}
        self._data: dict[str, Data] = {}

    def run(self, task: Task, way: str, rate: float, seed: int, report: bool) -> Json:
        key = json.dumps([task.name, way, rate, seed])
        if key not in self.runs or (report and "report" not in self.runs[key]):
            if task.name not in self._data:
                self._data[task.name] = task.data()
            self.runs[key] = learned(task, self._data[task.name], way, rate, seed, report)
            print(key, json.dumps(self.runs[key]), flush=True)
            self.save()
        return self.runs[key]

    def save(self) -> None:
        found = {"command": "python -m benchmarks.int8_learning", "date": time.strftime("%Y-%m-%d"),
                 "machine": machine(), "rows": table(self.runs), "runs": self.runs}  # fmt: skip
        files.write(OUT, (json.dumps(found, indent=1) + "\n").encode())


def learned(task: Task, data: Data, way: str, rate: float, seed: int, report: bool) -> Json:
    """Accuracy on what is chosen by; on what is reported only if it is asked for."""
    some = np.random.default_rng(seed).permutation(len(data.learn.x))[:CALIBRATION]
    begun = time.process_time()
    job = smidgen.compile(
        task.build(seed).eval(), torch.zeros(1, *task.shape), method=SCHEMES.get(task.net, "full"),
        precision=WAYS[way], data=None if way == "f32" else data.learn.x[some], optimizer=smidgen.SGD(rate, momentum=0),
        kernels="fast:1",
    )  # fmt: skip
    try:
        job.fit(data.learn.x, data.learn.y, epochs=EPOCHS[task.name], seed=seed, schedule="cosine", warmup=0.05,
                progress=False)  # fmt: skip
    except smidgen.errors.NotFinite:
        return {"choose": 0.0, "report": 0.0, "diverged": True}
    found: Json = {"choose": float(job.evaluate(data.choose.x, data.choose.y)["accuracy"])}
    if report:
        found["report"] = float(job.evaluate(data.report.x, data.report.y)["accuracy"])
    return {**found, "seconds": round(time.process_time() - begun, 1)}


def best_rate(known: Known, task: Task, way: str) -> float:
    scores = {rate: known.run(task, way, rate, CHOOSING, False)["choose"] for rate in RATES}
    return max(scores, key=lambda rate: scores[rate])


def table(runs: dict[str, Json]) -> list[Json]:
    """For each task and way: accuracies by seed, their mean, and the difference to f32 of the same seeds."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    for key, run in runs.items():
        task, way, _, seed = json.loads(key)
        if "report" in run and seed in REPORTED:
            found.setdefault((task, way), {})[seed] = run["report"]
    rows = []
    for (task, way), scores in found.items():
        base = found.get((task, "f32"), {})
        pairs = [scores[seed] - base[seed] for seed in scores if seed in base]
        row: Json = {"task": task, "way": way, "accuracies": [scores[seed] for seed in sorted(scores)],
                     "mean": statistics.mean(scores.values())}  # fmt: skip
        if way != "f32" and pairs:
            row["difference"] = statistics.mean(pairs)
            row["half_width_95"] = half_width(pairs) if len(pairs) > 1 else None
        rows.append(row)
    return rows


def shown(rows: Sequence[Json]) -> str:
    lines = []
    for row in rows:
        text = f"{row['task']:16} {row['way']:22} {row['mean']:.1%} of {len(row['accuracies'])}"
        if "difference" in row:
            text += f"  {100 * row['difference']:+.1f} points"
            text += f" ± {100 * row['half_width_95']:.1f}" if row["half_width_95"] is not None else ""
        lines.append(text)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(EPOCHS), action="append")
    parser.add_argument("--way", choices=list(WAYS), action="append")
    parser.add_argument("--seeds", type=int, default=len(REPORTED), help="of those that are reported")
    parser.add_argument("--rate", type=float, help="instead of the one that is best on the validation part")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    known = Known()
    for name in () if args.table else args.task or EPOCHS:
        for way in args.way or WAYS:
            rate = args.rate or best_rate(known, TASKS[name], way)
            for seed in REPORTED[: args.seeds]:
                known.run(TASKS[name], way, rate, seed, True)
    print(shown(table(known.runs)))


if __name__ == "__main__":
    main()
