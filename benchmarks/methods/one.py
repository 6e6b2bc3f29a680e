"""Training runs, searches and sizes, in a process of their own: a line of JSON in, a line `RESULT {...}` out."""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any, Final

import numpy as np
import torch

import smidgen

from .tasks import TASKS, Data, Task

MARK: Final = "RESULT "
BATCH: Final = 8
MOMENTUM: Final = 0.9
STEPS: Final = 30  # that are timed
Json = dict[str, Any]


def optimizer(given: Json) -> smidgen.SGD | smidgen.Adam:
    rate = given.get("rate", 0.01)
    return smidgen.Adam(rate) if given.get("optimizer") == "adam" else smidgen.SGD(rate, momentum=MOMENTUM)


def compiled(task: Task, given: Json, batch: int, kernels: str) -> smidgen.Job:
    model, x = task.build(given.get("seed", 0)).eval(), torch.zeros(batch, *task.shape)
    return smidgen.compile(model, x, method=given["method"], optimizer=optimizer(given), kernels=kernels)


def learn(task: Task, data: Data, given: Json) -> Json:
    """Accuracy on what is chosen by; on what is reported only if it is asked for."""
    job = compiled(task, given, BATCH, "fast:1")
    x, y = data.learn.x, data.learn.y
    try:
        job.fit(x, y, epochs=task.epochs, seed=given["seed"], schedule="cosine", warmup=0.05, progress=False)
    except smidgen.errors.NotFinite:
        return {"choose": 0.0, "diverged": True}
    found: Json = {"choose": _accuracy(job, data.choose.x, data.choose.y)}
    if given.get("report"):
        found["report"] = _accuracy(job, data.report.x, data.report.y)
    return found


def _accuracy(job: smidgen.Job, x: np.ndarray, y: np.ndarray) -> float:
    return float(job.evaluate(x, y)["accuracy"])


def sizes(task: Task, data: Data, given: Json) -> Json:
    """What a step takes, with the exact kernels of boards: RAM at batch 8 and 1, MACs of a sample. And seconds of one
    processor for a step of eight, with fast kernels."""
    found: Json = {}
    for batch in (BATCH, 1):
        plan = compiled(task, given, batch, "exact").plan
        found[f"ram_bytes_{batch}"] = plan.ram_bytes
    step_s = _step_s(compiled(task, given, BATCH, "fast:1"), data)
    return {**found, "macs": plan.cost.macs["train"], "learned": plan.learned_parameters,
            "flash_bytes": plan.flash_bytes, "step_s": round(step_s, 6)}  # fmt: skip


def _step_s(job: smidgen.Job, data: Data) -> float:
    x, y = data.learn.x[:BATCH], data.learn.y[:BATCH]
    seconds = []
    for _ in range(STEPS):
        begin = time.process_time()
        job.train_step(x, y)
        seconds.append(time.process_time() - begin)
    return statistics.median(seconds)


def search(task: Task, data: Data, budget_bytes: int) -> Json:
    begin = time.monotonic(), time.process_time()
    model, x = task.build(0).eval(), torch.zeros(BATCH, *task.shape)
    found = smidgen.search(model, x, data=(data.learn.x, data.learn.y), budget=budget_bytes, kernels="exact",
                           optimizer=smidgen.SGD(0.01, momentum=MOMENTUM))  # fmt: skip
    return {"scheme": found.scheme, "budget_bytes": budget_bytes, "ram_bytes": found.ram_bytes,
            "seconds": round(time.monotonic() - begin[0], 1),
            "cpu_s": round(time.process_time() - begin[1], 1)}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    known: dict[str, Data] = {}
    for line in sys.stdin:
        given: Json = json.loads(line)
        task = TASKS[given["task"]]
        data = known[task.name] = known.get(task.name) or task.data()
        if given["do"] == "sizes":
            result = sizes(task, data, given)
        elif given["do"] == "search":
            result = search(task, data, given["budget_bytes"])
        else:
            result = learn(task, data, given)
        print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
