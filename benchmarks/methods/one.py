"""One training run, or one search, in a process of its own: a JSON object in, one line `RESULT {...}` out."""

from __future__ import annotations

import json
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
Json = dict[str, Any]


def compiled(task: Task, method: str, rate: float, seed: int, batch: int, kernels: str) -> smidgen.Job:
    model, x = task.build(seed).eval(), torch.zeros(batch, *task.shape)
    return smidgen.compile(model, x, method=method, optimizer=smidgen.SGD(rate, momentum=MOMENTUM), kernels=kernels)


def learn(task: Task, data: Data, given: Json) -> Json:
    """Accuracy on what is chosen by; on what is reported only if it is asked for."""
    job = compiled(task, given["method"], given["rate"], given["seed"], BATCH, "fast:1")
    x, y = data.learn.x, data.learn.y
    begin = time.process_time()
    try:
        job.fit(x, y, epochs=task.epochs, seed=given["seed"], schedule="cosine", warmup=0.05, progress=False)
    except smidgen.errors.NotFinite:
        return {"choose": 0.0, "diverged": True}
    steps = task.epochs * -(-len(x) // BATCH)
    found = {"choose": _accuracy(job, data.choose.x, data.choose.y),
             "step_s": round((time.process_time() - begin) / steps, 6)}  # fmt: skip
    if given.get("report"):
        found["report"] = _accuracy(job, data.report.x, data.report.y)
    return found


def _accuracy(job: smidgen.Job, x: np.ndarray, y: np.ndarray) -> float:
    return float(job.evaluate(x, y)["accuracy"])


def sizes(task: Task, method: str) -> Json:
    """What a step takes, with the exact kernels of boards: RAM at batch 8 and 1, MACs of a sample."""
    found: Json = {}
    for batch in (BATCH, 1):
        plan = compiled(task, method, 0.01, 0, batch, "exact").plan
        found[f"ram_bytes_{batch}"] = plan.ram_bytes
    return {**found, "macs": plan.cost.macs["train"], "learned": plan.learned_parameters,
            "flash_bytes": plan.flash_bytes}  # fmt: skip


def search(task: Task, data: Data, budget_bytes: int) -> Json:
    begin = time.monotonic(), time.process_time()
    model, x = task.build(0).eval(), torch.zeros(BATCH, *task.shape)
    found = smidgen.search(model, x, data=(data.learn.x, data.learn.y), budget=budget_bytes, kernels="exact",
                           optimizer=smidgen.SGD(0.01, momentum=MOMENTUM))  # fmt: skip
    return {"scheme": found.scheme, "ram_bytes": found.ram_bytes, "seconds": round(time.monotonic() - begin[0], 1),
            "cpu_s": round(time.process_time() - begin[1], 1)}  # fmt: skip


def main() -> None:
    given: Json = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    task = TASKS[given["task"]]
    if given["do"] == "sizes":
        result = sizes(task, given["method"])
    elif given["do"] == "search":
        result = search(task, task.data(), given["budget_bytes"])
    else:
        result = learn(task, task.data(), given)
    print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
