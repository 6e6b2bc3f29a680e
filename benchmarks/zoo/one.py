"""One model, in a process of its own: made, trained for a step by PyTorch and by smidgen, compared. The report is the
last line that it writes. `python -m benchmarks.zoo.one ROW` with a row of the list as JSON."""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MARK = "zoo-report: "
BATCH, SEED = 2, 1
CALIBRATE = 8  # samples a pass
TRIES = 32  # as `make parity` has for values at a threshold
TIMED_S = 0.5
LR = 0.01
COMPARE_S = 3600  # of processor time: values at a threshold are tried again and again


def report(row: dict[str, Any], told: Callable[[str], None] = lambda stage: None) -> dict[str, Any]:
    """Facts of one model; `error` and the stage it happened in if it did not come to the end."""
    found: dict[str, Any] = {"stage": "make"}

    def at(stage: str) -> None:
        found["stage"] = stage
        told(stage)

    try:
        _run(row, found, at)
        at("done")
    except Exception as error:  # whatever a package, torch or smidgen raises is what is reported
        found["error"] = described(error)
    return found


def described(error: BaseException) -> dict[str, Any]:
    from smidgen.errors import SmidgenError

    if isinstance(error, SmidgenError):
        return {"type": type(error).__name__, "code": error.code, "help": error.help, "text": plain(str(error))}
    text = plain(f"{type(error).__name__}: {error}")
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    at = f" ({os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno})" if where else ""
    return {"type": type(error).__name__, "text": text[:2000] + at}


def plain(text: str) -> str:
    """Without where packages and this project happen to be installed."""
    return re.sub(r"[\w./-]*site-packages/", "", text).replace(f"{ROOT}/", "")


def _run(row: dict[str, Any], found: dict[str, Any], at: Callable[[str], None]) -> None:
    import numpy as np
    import torch

    import smidgen
    from smidgen import api
    from smidgen.report import parity

    from . import draw, weights

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    made = draw.make(row)
    model = made.model
    found["parameters"] = sum(p.numel() for p in model.parameters())
    at("torch")
    note = weights.prepared(model, lambda: [torch.from_numpy(x) for x in made.inputs(rng, CALIBRATE)], SEED)
    if note:
        found["note"] = note
    inputs = tuple(made.inputs(rng, BATCH))
    output = model(*[torch.from_numpy(x) for x in inputs])
    loss, target = made.named_loss(output), made.targets(output, rng)
    optimizer = smidgen.SGD(LR, momentum=0.9)
    found["loss"], found["output"] = loss, list(output.shape)
    gradients, found["torch_ms"] = _torch_step(model, loss, inputs, target)

    at("compile")
    begin = time.process_time()
    job = smidgen.compile(model, inputs, loss=loss, target=target, optimizer=optimizer, kernels="fast")
    found["compile_s"] = round(time.process_time() - begin, 2)
    found["ram_bytes"] = job.plan.ram_bytes
    learns = set(job.plan.learns)
    found["not_learned"] = {name: size for name, size in gradients.items() if name not in learns}

    at("step")
    start = {name: value.copy() for name, value in job.state_dict().items()}
    found["step_ms"], found["step_s"] = _our_step(job, inputs, target)
    job.load_state_dict(start)

    at("compare")
    allow(COMPARE_S)
    begin = time.process_time()
    dtype, why = _reference_type(model, inputs)
    if why:
        found["reference"] = f"torch-f32: {why}"
    reference = parity.Reference(model, loss, optimizer, job.plan.learns, "frozen", dtype)
    verdict = parity.restarted(job, reference, optimizer, [(inputs, target)], TRIES)
    found |= {"worst": verdict.worst, "limit": verdict.limit, "where": verdict.where, "beyond": verdict.beyond,
              "compare_s": round(time.process_time() - begin, 2)}  # fmt: skip
    if verdict.beyond and dtype is torch.float64:
        # float32 cannot decide here: what is computed must be right in float64, where no threshold is near.
        at("exact")
        entries = api.build(model, inputs, loss=loss, target=target, optimizer=optimizer, batch=BATCH)
        exact = parity.free_run(
            entries, lambda kind: parity.Reference(model, loss, optimizer, entries.learns, "frozen", kind),
            [(inputs, target)],
        )  # fmt: skip
        found |= {"exact": exact.worst, "exact_limit": exact.limit}


def allow(more_s: int) -> None:
    """So much processor time from here on, where the process has a limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft != resource.RLIM_INFINITY:
        limit = int(time.process_time()) + more_s
        resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _torch_step(model: Any, loss: str, inputs: Any, target: Any) -> tuple[dict[str, float], float]:
    """The largest gradient of each parameter that has one, and milliseconds of an eager step."""
    import copy

    import torch

    from smidgen.report.parity import LOSSES

    twin = copy.deepcopy(model)
    xs, y = [torch.from_numpy(x) for x in inputs], torch.from_numpy(target)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.0, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        LOSSES[loss](twin(*xs), y).backward()
        optimizer.step()

    best, _ = timed(step)
    sizes = {name: float(p.grad.abs().max()) for name, p in twin.named_parameters() if p.grad is not None and p.numel()}
    if not all(size == size and size < float("inf") for size in sizes.values()):
        raise ArithmeticError("PyTorch's gradients are not finite with random weights")
    return sizes, best


def _our_step(job: Any, inputs: Any, target: Any) -> tuple[float, float]:
    begin = time.process_time()
    job.train_step(inputs, target)
    first = time.process_time() - begin
    return timed(lambda: job.train_step(inputs, target))[0], round(first, 4)


def timed(run: Callable[[], Any]) -> tuple[float, int]:
    """Milliseconds of processor time (one thread) of a run, and how many there were, after one to warm up. The mean of
    half a second: where other threads exist, the clock may stand still for as long as a short run takes."""
    run()
    runs, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < TIMED_S or runs < 3:
        run()
        runs += 1
    return round(spent / runs * 1e3, 3), runs


def _reference_type(model: Any, inputs: Any) -> tuple[Any, str]:
    """float64, unless the package's code only runs in float32; and why."""
    import copy

    import torch

    double = [torch.from_numpy(x).double() if x.dtype.kind == "f" else torch.from_numpy(x) for x in inputs]
    try:
        with torch.no_grad():
            copy.deepcopy(model).double()(*double)
    except Exception as error:  # some packages write float32 into their code
        return torch.float32, f"in float64 the model raises {type(error).__name__}: {str(error).splitlines()[0][:120]}"
    return torch.float64, ""


def main() -> int:
    warnings.simplefilter("ignore")
    from . import absent

    absent.stand_in()
    row = json.loads(sys.argv[1])
    found = report(row, lambda stage: print(f"stage {stage}", file=sys.stderr, flush=True))
    print(MARK + json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
