"""Training on emulated boards: `python -m benchmarks.boards [--steps 100] [case …]` writes docs/results/boards.json.

Every case builds firmware, checks that RAM is what the plan says, trains, and compares every loss and the final state
with this machine's exact kernels, bit for bit. The first one trains long enough to be seen learning: it is also asked
about digits that it was not trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from smidgen import api
from smidgen.compiler.entries import narrowed
from smidgen.compiler.fit.candidate import Candidate
from smidgen.compiler.fit.squeeze import squeezed
from smidgen.compiler.optimizers import SGD
from smidgen.compiler.planner.cost import prices_of
from smidgen.compiler.planner.goal import Goal
from smidgen.deploy import emulate
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import Bank, Device, load_device
from smidgen.devices.room import Limit
from smidgen.program.plan import Plan
from smidgen.program.program import Program
from smidgen.program.writer import HEADER, SECTIONS
from smidgen.train.job import Job

from .nets import NETS, Net
from .parity import machine

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "boards.json"
LAST_BLOCKS = ("16", "19", "22", "25")  # of DS-CNN: depthwise, pointwise, depthwise, pointwise
LAST_NORMS = ("17", "20", "23", "26")


@dataclass(frozen=True)
class Case:
    """`core` builds for another core than the board's; `tight` gives the board exactly the RAM that the plan needs."""

    name: str
    net: str
    method: str | tuple[str, ...]
    device: str
    batch: int = 1
    lr: float = 0.01
    core: str = ""
    tight: bool = False
    smallest: bool = False  # as much is computed again as it takes to need the least RAM
    pixels: int = 0  # other than the network's usual
    const: str = "f32"
    steps: int = 100  # of `make boards`
    test_steps: int = 10  # of `make test`
    held_out: int = 0  # samples that it predicts afterwards, for the accuracy


DSCNN_LAST = tuple(
    f"{layer}.{kind}"
    for layer in (*LAST_BLOCKS, *LAST_NORMS, "31")
    for kind in (("weight",) if layer in LAST_BLOCKS else ("weight", "bias"))
)
CASES = {
    case.name: case
    for case in (
        Case("lenet5-full", "lenet5", "full", "stm32f746", lr=0.02, steps=1000, held_out=200),
        Case("lenet5-bias-last2", "lenet5", ("bias", "last:2"), "netduinoplus2", batch=4, test_steps=5),
        Case("dscnn-last", "dscnn", DSCNN_LAST, "netduinoplus2", test_steps=3),
        Case("dscnn-full", "dscnn", "full", "mps2-an386", tight=True, smallest=True, test_steps=2),
        Case("lenet5-m0", "lenet5", "full", "mps2-an385", core="cortex-m0", tight=True, test_steps=2),
        Case("lenet5-m3", "lenet5", "full", "mps2-an385", tight=True, test_steps=3),
        Case("lenet5-m33", "lenet5", "full", "mps2-an505", tight=True),
        Case("lenet5-m55", "lenet5", "full", "mps3-an547", tight=True),
        # 320 KB and SDRAM; 1 MB of flash takes the frozen weights as int8, which they were, so nothing is lost.
        Case("mcunet-last", "mcunet", "last_layer", "stm32f746-disco", pixels=128, const="int8", test_steps=1),
    )
}


def digits() -> tuple[np.ndarray, np.ndarray]:
    """MNIST if it is there, else the smaller digits of scikit-learn; both with mean 0 and variance 1, about."""
    path = DATA / "vision" / "mnist5k_28.npz"
    if path.exists():
        found = np.load(path)
        images = found["images"].reshape(-1, 28, 28).astype(np.float32) / 255
        return standardized(images), found["label"].astype(np.int32)
    from sklearn.datasets import load_digits

    small = load_digits()
    images = np.repeat(np.repeat(small.images, 3, 1), 3, 2).astype(np.float32) / 16
    return standardized(np.pad(images, ((0, 0), (2, 2), (2, 2)))), small.target.astype(np.int32)


def standardized(images: np.ndarray) -> np.ndarray:
    return ((images - images.mean()) / images.std())[:, None].astype(np.float32)


def words() -> tuple[np.ndarray, np.ndarray]:
    """Twelve spoken words as MFCC; random numbers if the recordings are not there."""
    path = DATA / "signal" / "arabic_kws40_mfcc.npz"
    if not path.exists():
        rng = np.random.default_rng(0)
        return rng.standard_normal((400, 1, 49, 10)).astype(np.float32), rng.integers(0, 12, 400).astype(np.int32)
    found = np.load(path)
    x, y = found["mfcc"].astype(np.float32), found["label"].astype(np.int32)
    keep = y < 12
    x = (x - x.mean()) / x.std()
    return x[keep].reshape(-1, 1, 49, 10), y[keep]


def signs() -> tuple[np.ndarray, np.ndarray]:
    """Ten kinds of traffic signs, 128 pixels wide; random pixels if the pictures are not there."""
    path = DATA / "fewshot" / "gtsrb_64.npz"
    if path.exists():
        found = np.load(path)
        keep = found["label"] < 10
        images, labels = found["images"][keep], found["label"][keep].astype(np.int32)
    else:
        rng = np.random.default_rng(0)
        images, labels = rng.integers(0, 256, (40, 64, 64, 3), np.uint8), rng.integers(0, 10, 40).astype(np.int32)
    chosen = np.random.default_rng(1).permutation(len(images))[:100]
    large = images[chosen].repeat(2, 1).repeat(2, 2).transpose(0, 3, 1, 2)
    return np.ascontiguousarray((large.astype(np.float32) / 255 - 0.5) * 2), labels[chosen]


SAMPLES: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "lenet5": digits,
    "dscnn": words,
    "mcunet": signs,
}


def planned(case: Case) -> tuple[Program, Device]:
    found, device = fitting(case)
    return found.program(), device


def fitting(case: Case) -> tuple[Candidate, Device]:
    """The program with its graphs, and the device with no more RAM than it needs."""
    net: Net = NETS[case.net]
    if case.pixels:
        net = replace(net, shape=(net.shape[0], case.pixels, case.pixels))
    x, _ = net.data(2)
    options: dict[str, Any] = {"method": case.method, "batch": case.batch, "optimizer": SGD(case.lr)}
    device = load_device(case.device)
    if case.core:
        device = replace(device, core=case.core, fpu="")
    entries = api.build(net.model(), x, loss=net.loss, **options)
    entries = narrowed(entries) if case.const == "int8" else entries
    found = squeezed(
        Limit.nothing(device) if case.smallest else Limit.of_device(device), entries, Goal(prices=prices_of(device))
    )
    if case.tight:
        first, need = device.ram_banks[0], Plan.from_json(found.program().meta["plan"]).ram_bytes
        device = replace(device, ram_banks=(Bank(first.name, first.origin, -(-need // 32) * 32),))
    return found, device


Step = tuple[list[np.ndarray], int]


def steps_of(case: Case, count: int) -> tuple[list[Step], list[Step]]:
    """What it is trained on, and what it predicts: samples that are held out, or else the first batch again."""
    x, y = SAMPLES[case.net]()
    which = np.random.default_rng(0).permutation(len(x))
    train, test = which[case.held_out :], which[: case.held_out]

    def step(chosen: np.ndarray) -> Step:
        return [x[chosen], y[chosen]], len(chosen)

    steps = [step(train[(i * case.batch + np.arange(case.batch)) % len(train)]) for i in range(count)]
    tested = [step(test[i : i + case.batch]) for i in range(0, len(test), case.batch)]
    return steps, tested or steps[:1]


def bytes_per_instruction(program: Program) -> float:
    """Code and parameter blocks, over the instructions of all entry points."""
    data = program.to_bytes()
    sizes = {name: struct.unpack_from("<2I", data, HEADER.size + 8 * i)[1] for i, name in enumerate(SECTIONS)}
    return (sizes["code"] + sizes["params"]) / sum(len(e.code) for e in program.entries.values())


def measured(case: Case, steps: int, folder: Path, count: bool = True) -> dict[str, Any]:
    """Build, run, compare; everything that is published of a case."""
    program, device = planned(case)
    plan = Plan.from_json(program.meta["plan"])
    made = write_firmware(folder, program, device)
    emulate.make(folder)
    linked = emulate.sections(folder / f"{made.boards[-1]}.elf")
    batches, tested = steps_of(case, steps)
    started = time.monotonic()
    run = emulate.run_on_board(folder, program, batches, [(arrays[:1], n) for arrays, n in tested], count=False)
    seconds = time.monotonic() - started
    counted = emulate.run_on_board(folder, program, batches[:1]) if count else None  # slow: one step tells
    right = [(out[0].argmax(1) == arrays[1]).mean() for out, (arrays, _) in zip(run.outputs, tested, strict=True)]
    job = Job(program, kernels="exact")
    losses = np.array([job.engine.train(list(arrays), n) for arrays, n in batches], np.float32)
    state = job.engine.machine.state.tobytes()
    return {
        "case": case.name, "net": case.net, "method": case.method, "device": device.name, "core": device.core,
        "board": made.boards[-1], "batch": case.batch, "steps": steps,
        "ram_device_bytes": device.ram_bytes, "ram_plan_bytes": plan.ram_bytes, "ram_linked_bytes": linked.ram_bytes,
        "data_bytes": linked.data, "bss_bytes": linked.bss, "stack_bytes": linked.stack,
        "stack_used_bytes": run.stack_used, "text_bytes": linked.text, "program_bytes": linked.program,
        "bytes_per_instruction": round(bytes_per_instruction(program), 1),
        "instructions_per_step": counted.counts.runs[0] if counted and counted.counts else None,
        "lr": case.lr, "loss_first_ten": float(np.mean(losses[:10])), "loss_last_ten": float(np.mean(losses[-10:])),
        "held_out": case.held_out, "accuracy_held_out": float(np.mean(right)) if case.held_out else None,
        "losses_equal": run.losses.tobytes() == losses.tobytes(), "state_equal": run.state == state,
        "state_sha256": hashlib.sha256(run.state).hexdigest(), "seconds": round(seconds, 1),
    }  # fmt: skip


def tools() -> dict[str, str]:
    """Versions of what builds and runs firmware."""
    commands = {"emulator": emulate.QEMU, "compiler": f"{emulate.CROSS}gcc"}
    said = {
        name: subprocess.run([tool, "--version"], capture_output=True, text=True) for name, tool in commands.items()
    }
    return {name: done.stdout.partition("\n")[0] for name, done in said.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="default: all")
    parser.add_argument("--steps", type=int, help="default: 100")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    known = json.loads(args.out.read_text())["rows"] if args.cases and args.out.exists() else []
    rows = {row["case"]: row for row in known}
    for name in args.cases or CASES:
        case = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            row = measured(case, args.steps or case.steps, Path(folder) / "fw")
        rows[name] = row
        print(json.dumps(row), flush=True)
        done = [rows[case] for case in CASES if case in rows]
        report = {
            "command": "make boards",
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine() | tools(),
            "rows": done,
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    failed = [r["case"] for r in rows.values() if not (r["losses_equal"] and r["state_equal"])]
    if failed:
        raise SystemExit(f"other bits than on this machine: {', '.join(failed)}")


if __name__ == "__main__":
    main()
