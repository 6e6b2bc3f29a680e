"""What PyTorch needs for one training step of the demo's network: the same layers, batch and optimizer.

python -m benchmarks.torch_step_memory     # writes src/smidgen/demo/demo_torch_memory.json, which the demo shows

Each run is a fresh process with one thread. Choices favour PyTorch: the smallest of all runs is what the demo shows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "src" / "smidgen" / "demo" / "demo_torch_memory.json"
BATCH = 8
STEPS = 3
MEANING = {
    "tensor_bytes": "peak of all live tensors: weights, gradients, momentum, activations, the batch itself",
    "above_import_bytes": "growth of anonymous memory from `import torch` through the steps, modules that the optimizer"
    " imports included",
    "process_bytes": "anonymous memory of the whole process: nothing that the system could read back from a file",
}


def memory(field: str) -> int:
    """Bytes, as the kernel counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def train(after: Callable[[], None]) -> tuple[Any, ...]:
    """Model, optimizer and a few steps; `after` is called wherever memory may be highest. Returns all that is alive at
    the end: weights, gradients, momentum and the batch."""
    import torch

    from tools.demo_net import build

    torch.set_num_threads(1)
    model = build().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    x, y = torch.zeros(BATCH, 1, 8, 8), torch.zeros(BATCH, dtype=torch.long)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        after()
        loss.backward()
        after()
        optimizer.step()
        after()
        del loss
    weights = list(model.parameters())
    return weights, [w.grad for w in weights], [optimizer.state[w]["momentum_buffer"] for w in weights], [x, y]


def process_run() -> dict[str, int]:
    """In a fresh process: what the kernel says."""
    import torch

    start, seen = memory("RssAnon"), [0]
    train(lambda: seen.append(memory("RssAnon")))
    return {"above_import_bytes": max(seen) - start, "process_bytes": max(seen), "torch": torch.__version__}


def tensor_run() -> dict[str, int]:
    """In a fresh process: what PyTorch's own profiler says that tensors take."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = train(lambda: None)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    expected = sum(t.nbytes for tensors in kept for t in tensors)
    if live != expected:
        raise SystemExit(f"the profiler missed something: {live} bytes alive at the end, the tensors have {expected}")
    return {"tensor_bytes": peak, "weight_bytes": sum(w.nbytes for w in kept[0])}


def child(what: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.torch_step_memory", "--child", what]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(runs: int) -> dict[str, Any]:
    from benchmarks.parity import machine

    processes, tensors = [child("process") for _ in range(runs)], child("tensors")
    report: dict[str, Any] = {
        "command": "python -m benchmarks.torch_step_memory", "date": time.strftime("%Y-%m-%d"), "machine": machine(),
        "torch": processes[0]["torch"], "batch": BATCH, "steps": STEPS, "threads": 1, "runs": runs, "meaning": MEANING,
        "weight_bytes": tensors["weight_bytes"], "tensor_bytes": tensors["tensor_bytes"],
    }  # fmt: skip
    for key in ("above_import_bytes", "process_bytes"):
        values = [p[key] for p in processes]
        report[key] = {"min": min(values), "median": int(statistics.median(values)), "max": max(values)}
    return report


def write(path: Path, text: str) -> None:
    partial = path.with_suffix(".part")
    partial.write_text(text)
    os.replace(partial, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--child", choices=["process", "tensors"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(process_run() if args.child == "process" else tensor_run()))
        return 0
    text = json.dumps(measure(args.runs), indent=1) + "\n"
    write(OUT, text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
