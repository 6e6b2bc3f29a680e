"""Training under a limit that the system enforces: what a budget costs in a real process.

python -m benchmarks.limited                   # writes docs/results/limited.json; about ten minutes
python -m benchmarks.limited --only mcunet     # these rows again, the others stay

ResNet-18 (224 px, batch 8, SGD with momentum, batch-norm statistics frozen) in the static runner of
`smidgen build --target`, under RLIMIT_AS of a quarter of what PyTorch takes for the same step; MCUNet (128 px,
batch 1, everything learns) in half of its RAM. Runs with and without the limit take turns; bits must be equal.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.parity import machine
from smidgen import files

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "results" / "limited.json"
SAMPLES = 8
CODE_BYTES = 3 << 20  # of address space: the runner's code, libc, its stack, the table of the program
MCUNET_LIMIT, RESNET_LIMIT = 1.35, 1.4
TORCH = """
import sys, torch
from pathlib import Path
def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))
torch.set_num_threads(1)
x, y = torch.randn(8, 3, 224, 224), torch.zeros(8, dtype=torch.long)
before = memory("VmHWM")
from benchmarks.nets.large import LARGE
model = LARGE["resnet18"].model().eval()
if sys.argv[1] == "channels_last":
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
for _ in range(3):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
print(memory("VmHWM") - before)
"""


@dataclass(frozen=True)
class Timed:
    seconds: float  # of the whole process
    facts: dict[str, Any]


def torch_bytes() -> dict[str, int]:
    """Peak above the process with torch and the batch in it, the whole of the step: weights, gradients, momentum."""
    return {
        layout: int(subprocess.run([sys.executable, "-c", TORCH, layout], cwd=ROOT, check=True, capture_output=True,
                                   text=True).stdout)
        for layout in ("default", "channels_last")
    }  # fmt: skip


def run(runner: Path, data: Path, pages: Path, epochs: int, limit: int | None) -> Timed:
    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [runner, "train", "--data", data, "--epochs", str(epochs), "--page-to", pages, "--json"]
    start = time.monotonic()
    done = subprocess.run(list(map(str, command)), preexec_fn=limited, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{runner.name}: {done.stderr}")
    return Timed(time.monotonic() - start, json.loads(done.stdout))


def interleaved(free: Callable[[int], Timed], tight: Callable[[int], Timed], rounds: int) -> dict[str, Any]:
    """Seconds a step of both, from runs of one and of three epochs: what comes before the first step falls out."""
    times: dict[str, list[float]] = {"free": [], "limited": []}
    facts: dict[str, Any] = {}
    for _ in range(rounds):
        for name, one in (("free", free), ("limited", tight)):
            short, long = one(1), one(3)
            steps = long.facts["steps"] - short.facts["steps"]
            times[name].append((long.seconds - short.seconds) / steps)
            facts[name] = long.facts
    ratios = [b / a for a, b in zip(times["free"], times["limited"], strict=True)]
    same = facts["free"]["loss"] == facts["limited"]["loss"]
    return {
        "step_s": {name: statistics.median(found) for name, found in times.items()}, "ratios": ratios,
        "ratio": statistics.median(ratios), "same_loss": same, "runs": facts,
    }  # fmt: skip


def resnet(folder: Path, rounds: int) -> dict[str, Any]:
    import smidgen
    from benchmarks.nets.large import LARGE
    from smidgen.deploy import linux_binary

    theirs = torch_bytes()
    limit = min(theirs.values()) // 4
    net = LARGE["resnet18"]
    x, y = net.data(SAMPLES)
    data = folder / "images.npz"
    np.savez(data, x=x[0] if isinstance(x, tuple) else x, y=y)
    budget = limit - CODE_BYTES - 2 * data.stat().st_size  # the file is mapped, and a batch of it copied
    runners = {}
    plans = {}
    for name, more in {"free": {}, "limited": {"memory": smidgen.Memory(budget, folder / "unused")}}.items():
        start = time.monotonic()
        job = smidgen.compile(net.model().eval(), x, batch=SAMPLES, kernels="exact",
                              optimizer=smidgen.SGD(lr=0.001, momentum=0.9), **more)  # fmt: skip
        plans[name] = {"ram_bytes": job.plan.ram_bytes, "page_bytes": job.plan.page_bytes,
                       "compile_s": round(time.monotonic() - start, 1),
                       "decisions": [f"{d.kind}: {d.why}" for d in job.plan.decisions]}  # fmt: skip
        job.save(folder / f"{name}.smg")
        runners[name] = folder / name
        linux_binary.build_binary(job.program, "x86_64-linux",
                           runners[name])  # fmt: skip
        print(name, plans[name], flush=True)
    found = interleaved(
        lambda epochs: run(runners["free"], data, folder / "pages", epochs, None),
        lambda epochs: run(runners["limited"], data, folder / "pages", epochs, limit), rounds,
    )  # fmt: skip
    return {"date": time.strftime("%Y-%m-%d"), "torch_bytes": theirs, "rlimit_as": limit, "budget": budget,
            "plans": plans, **found, "passed": found["ratio"] <= RESNET_LIMIT and found["same_loss"]}  # fmt: skip


def mcunet(rounds: int, steps: int, momentum: float, pages: Path) -> dict[str, Any]:
    import smidgen
    from benchmarks.nets import NETS

    net = NETS["mcunet"]
    x = np.random.default_rng(0).standard_normal((1, 3, 128, 128)).astype(np.float32)
    y = np.zeros(1, np.int64)
    jobs = {}
    plans: dict[str, Any] = {}
    for name in ("free", "limited"):
        more = {"memory": smidgen.Memory(plans["free"]["ram_bytes"] // 2, pages)} if plans else {}
        start = time.monotonic()
        optimizer = smidgen.SGD(lr=0.001, momentum=momentum)
        jobs[name] = job = smidgen.compile(net.model().eval(), x, optimizer=optimizer, **more)
        plans[name] = {"ram_bytes": job.plan.ram_bytes, "page_bytes": job.plan.page_bytes,
                       "compile_s": round(time.monotonic() - start, 1),
                       "decisions": [f"{d.kind}: {d.why}" for d in job.plan.decisions]}  # fmt: skip
        job.train_step(x, y)
        print(name, plans[name], flush=True)
    times: dict[str, list[float]] = {"free": [], "limited": []}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.monotonic()
            for _ in range(steps):
                job.train_step(x, y)
            times[name].append((time.monotonic() - start) / steps)
    ratios = [b / a for a, b in zip(times["free"], times["limited"], strict=True)]
    same = all(np.array_equal(v, jobs["limited"].state_dict()[k]) for k, v in jobs["free"].state_dict().items())
    ratio = statistics.median(ratios)
    step_s = {k: statistics.median(v) for k, v in times.items()}
    return {"date": time.strftime("%Y-%m-%d"), "momentum": momentum, "plans": plans, "step_s": step_s,
            "ratios": ratios, "ratio": ratio, "same_state": same, "passed": ratio <= MCUNET_LIMIT}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("resnet18", "mcunet"))
    args = parser.parse_args()
    found: dict[str, Any] = json.loads(OUT.read_text()) if args.only and OUT.exists() else {}
    found |= {"command": "python -m benchmarks.limited", "date": time.strftime("%Y-%m-%d"), "machine": machine()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.only != "resnet18":
            found["mcunet"] = mcunet(20 * args.rounds, 4, 0.0, folder / "pages")
            print(json.dumps(found["mcunet"], indent=1), flush=True)
            found["mcunet_momentum"] = mcunet(20 * args.rounds, 4, 0.9, folder / "pages")
            print(json.dumps(found["mcunet_momentum"], indent=1), flush=True)
        if args.only != "mcunet":
            found["resnet18"] = resnet(folder, args.rounds)
            print(json.dumps(found["resnet18"], indent=1), flush=True)
    files.write(OUT, (json.dumps(found, indent=1) + "\n").encode())
    return 0 if all(v["passed"] for v in found.values() if isinstance(v, dict) and "passed" in v) else 1


if __name__ == "__main__":
    sys.exit(main())
