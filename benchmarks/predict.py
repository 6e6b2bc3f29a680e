"""Predicted and measured time of a training step on this machine: `python -m benchmarks.predict` writes
docs/results/predict.json.

Fast kernels, one thread, the processor's time of that thread. Round after round, every network's kernels are timed
anew, one by one, and then its whole step is; what counts is the median over rounds. Fixed prices, with which plans are
made, stand beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from smidgen import SGD, api, files
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.planner.cost import HOST, ROUGH, spent
from smidgen.compiler.planner.measure import measured
from smidgen.ir import Array
from smidgen.terminal import seconds_text
from smidgen.train.job import Job

from .nets import NETS
from .nets.large import REDUCED
from .nets.workloads import WORKLOADS
from .parity import machine

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "predict.json"
BATCH = 8
WITHIN = 0.2
STEPS_S, LEAST_STEPS, MOST_STEPS = 1.5, 5, 60  # of one network in one round
NETWORKS = {
    **{name: NETS[name] for name in ("lenet5", "dscnn", "resnet8", "mobilenetv2", "resnet18", "vgg11")},
    **{name: WORKLOADS[name] for name in ("mcunet", "transformer")},
    **{name: REDUCED[name] for name in ("densenet121_reduced", "bert_small_reduced")},
}
MEANING = {
    "measured_s": "median over rounds of the median step",
    "predicted_s": "sum of the kernels, each timed on its own; median over rounds",
    "fixed_s": "sum of the kernels by the fixed prices of src/smidgen/compiler/planner/host.json",
    "rough_s": "the same with one rate for arithmetic and one for bytes",
    "ratio": "predicted_s / measured_s",
    "ratio_rounds": "predicted / measured of each round: how far a single prediction may be off",
    "timing_s": "what timing the kernels took by the clock, most of the rounds",
    "load_average": "of the last five minutes, at the end: programs that wanted a processor",
}


class Case:
    def __init__(self, name: str) -> None:
        self.net = NETWORKS[name]
        inputs, _ = self.net.batch(BATCH)
        self.entries: Entries = api.build(
            self.net.model().eval(), inputs, loss=self.net.loss, optimizer=SGD(1e-4, momentum=0.9)
        )
        self.job = Job(encode(self.entries), kernels="fast")
        self.arrays = self._arrays()
        self.predicted: list[float] = []
        self.timing: list[float] = []
        self.steps: list[float] = []

    def _arrays(self) -> tuple[list[Array], list[Array]]:
        rng = np.random.default_rng(0)
        inputs: list[Array] = []
        outputs: list[Array] = []
        for buffer in self.job.program.entry_buffers("train"):
            value = np.zeros(buffer.shape(BATCH), buffer.dtype.numpy)
            if value.dtype.kind == "f":
                value[...] = rng.standard_normal(value.shape)
            (inputs if buffer.direction == "input" else outputs).append(value)
        return inputs, outputs

    def predict(self, folder: Path) -> None:
        start = time.perf_counter()
        self.predicted.append(spent(self.entries.graphs["train"], BATCH, measured(folder=folder)).seconds)
        self.timing.append(time.perf_counter() - start)

    def measure(self) -> None:
        machine, found = self.job.engine.machine, list[float]()
        machine.run("train", *self.arrays, BATCH, BATCH)
        while len(found) < MOST_STEPS and (len(found) < LEAST_STEPS or sum(found) < STEPS_S):
            start = time.thread_time()
            machine.run("train", *self.arrays, BATCH, BATCH)
            found.append(time.thread_time() - start)
        self.steps.append(statistics.median(found))

    def row(self, name: str) -> dict[str, Any]:
        graph = self.entries.graphs["train"]
        predicted, took = statistics.median(self.predicted), statistics.median(self.steps)
        return {
            "net": name, "shape": list(self.net.shape), "batch": BATCH, "measured_s": took, "predicted_s": predicted,
            "ratio": predicted / took, "fixed_s": spent(graph, BATCH, HOST).seconds,
            "rough_s": spent(graph, BATCH, ROUGH).seconds, "timing_s": max(self.timing),
            "measured_rounds_s": self.steps, "predicted_rounds_s": self.predicted,
            "ratio_rounds": [round(p / m, 3) for p, m in zip(self.predicted, self.steps, strict=True)],
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="*", choices=[[], *NETWORKS], help="default: all of them")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    names = args.net or list(NETWORKS)
    cases = {name: Case(name) for name in names}
    nowhere = Path("/proc/smidgen")  # nothing is remembered there
    for _ in range(args.rounds):
        for case in cases.values():
            case.predict(nowhere)
            case.measure()
    rows = [case.row(name) for name, case in cases.items()]
    for row in rows:
        print(
            f"{row['net']:20} measured {seconds_text(row['measured_s']):>8}  predicted "
            f"{seconds_text(row['predicted_s']):>8}  ratio {row['ratio']:.2f} ({min(row['ratio_rounds']):.2f} to "
            f"{max(row['ratio_rounds']):.2f})  fixed "
            f"{row['fixed_s'] / row['measured_s']:.2f}  rough {row['rough_s'] / row['measured_s']:.2f}  "
            f"timed in {row['timing_s']:.1f} s"
        )
    good = sum(abs(row["ratio"] - 1) <= WITHIN for row in rows)
    print(f"{good} of {len(rows)} within {WITHIN:.0%}")
    if not args.net:
        said = {
            "command": f"python -m benchmarks.predict --rounds {args.rounds}", "date": time.strftime("%Y-%m-%d"),
            "machine": machine(), "load_average": os.getloadavg()[1], "kernels": "fast", "threads": 1,
            "meaning": MEANING, "rows": rows,
        }  # fmt: skip
        files.write(OUT, (json.dumps(said, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
