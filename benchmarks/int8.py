"""Three published networks learn in int8 on an emulated STM32F746, with the published schemes of sparse updates:

python -m benchmarks.int8                  # writes docs/results/int8.json; rows that are there stay
python -m benchmarks.int8 mcunet --again   # those of this network again
python -m benchmarks.int8 --gradients int16

128 pixels, batch 1, ten kinds of traffic signs; a row for each network and kind of gradients. It says all RAM of the
smallest plan that is found (state, arena with the image, context and stack), that the firmware which is linked takes no
other, where the RAM is fullest, how many instructions a step takes (the second: the first one measures the exponents of
int16 gradients), and whether the board computes the bits of this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import smidgen
from benchmarks.boards import DATA, signs, tools
from benchmarks.nets import mobile
from benchmarks.parity import machine
from smidgen import files
from smidgen.deploy import emulate
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.errors import DoesNotFit
from smidgen.program.plan import Plan
from smidgen.program.program import Program
from smidgen.program.timeline import tensor_text

OUT: Final = Path(__file__).resolve().parents[1] / "docs" / "results" / "int8.json"
DEVICE: Final = "stm32f746"
CALIBRATION: Final = 32  # samples
STEPS: Final = 5
GRADIENTS: Final = ("f32", "int16")
KB: Final = 1024


@dataclass(frozen=True)
class Published:
    """`scheme` is the published one of about 100 KB; `goal_bytes` what all of its RAM should be."""

    file: str
    rows: list[mobile.Row]
    scheme: str
    goal_bytes: int


NETS: Final = {
    "mcunet": Published("mcunet-5fps", mobile.MCUNET_5FPS, "b22 w21:1,24:1,27:1,30:1,36:1/8,39:1/4", 150 * KB),
    "mobilenetv2_035": Published(
        "mbv2-w0.35", mobile.MOBILENETV2_035, "b25 w27:1,30:1,33:1,36:1,39:1,42:1/8,45:1/2,48:1", 141 * KB
    ),
    "proxyless_03": Published(
        "proxyless-w0.3", mobile.PROXYLESS_03, "b25 w36:1,39:1/2,42:1,45:1,48:1/4,51:1/2,54:1,57:1", 145 * KB
    ),
}


def network(published: Published) -> torch.nn.Module:
    """With the published weights where they are there; the classifier is new."""
    path = DATA / "weights" / f"{published.file}.fp32.npz"
    torch.manual_seed(0)
    if not path.exists():
        return mobile.Mobile(published.rows, 10, norm=False).eval()
    arrays = {name: torch.from_numpy(value) for name, value in np.load(path).items()}
    made = mobile.Mobile(published.rows, 10, norm=False, stem=len(arrays["stem.weight"]))
    mobile.load_published(made, arrays)
    return made.eval()


def smallest(published: Published, gradients: str) -> smidgen.Job:
    """The program for the least budget that is found."""
    x, _ = signs()
    options: dict[str, Any] = {
        "precision": smidgen.Int8(gradients=gradients), "data": x[:CALIBRATION], "device": DEVICE,
        "method": f"sparse_update:{published.scheme}",
        "optimizer": smidgen.SGD(0.01, momentum=0),
    }  # fmt: skip
    model, example = network(published), torch.zeros(1, *x.shape[1:])
    try:
        return smidgen.compile(model, example, budget=published.goal_bytes, **options)
    except DoesNotFit as error:
        found = re.search(r"\(([\d,]+) bytes\)", str(error))
        if found is None:
            raise
        return smidgen.compile(model, example, budget=int(found[1].replace(",", "")), **options)


def row(name: str, gradients: str) -> dict[str, Any]:
    published, (x, y) = NETS[name], signs()
    started = time.monotonic()
    job = smallest(published, gradients)
    seconds = time.monotonic() - started
    plan, device = job.plan, load_device(DEVICE)
    steps = [([x[i : i + 1], y[i : i + 1]], 1) for i in range(STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        job.save(Path(folder) / "net.smg")
        program = Program.from_bytes((Path(folder) / "net.smg").read_bytes())
        made = write_firmware(Path(folder) / "fw", program, device)
        emulate.make(Path(folder) / "fw")
        linked = emulate.sections(Path(folder) / "fw" / f"{made.boards[-1]}.elf")
        run = emulate.run_on_board(Path(folder) / "fw", program, steps, [], count=False)
        counts = [emulate.run_on_board(Path(folder) / "fw", program, steps[:n]).counts for n in (1, 2)]
    losses = np.array([job.engine.train(list(arrays), n) for arrays, n in steps], np.float32)
    state = job.engine.machine.state.tobytes()
    kernels = second_step(*counts)
    return {
        "net": name, "gradients": gradients, "scheme": published.scheme, "device": DEVICE,
        "goal_bytes": published.goal_bytes, "ram_bytes": plan.ram_bytes, "state_bytes": plan.state_bytes,
        "arena_bytes": plan.arena_bytes,
        "stack_bytes": linked.stack, "ram_linked_bytes": linked.ram_bytes,
        "program_bytes": linked.program, "text_bytes": linked.text, "fullest": fullest(plan),
        "streams": [d.why for d in plan.decisions if d.kind == "stream"],
        "instructions_per_step": counts[1].runs[1] if counts[1] else None,
        "kernels": {kernel: {"calls": calls, "instructions": count} for kernel, (calls, count) in kernels[:12]},
        "losses_equal": run.losses.tobytes() == losses.tobytes(), "state_equal": run.state == state,
        "state_sha256": hashlib.sha256(run.state).hexdigest(), "planned_in_s": round(seconds, 1),
    }  # fmt: skip


def second_step(one: emulate.Counts | None, two: emulate.Counts | None) -> list[tuple[str, tuple[int, int]]]:
    """Kernel → calls and instructions of the second of two steps, most of them first."""
    if one is None or two is None:
        return []
    found = {}
    for kernel, (calls, count) in two.kernels.items():
        before = one.kernels.get(kernel, (0, 0))
        found[kernel] = calls - before[0], count - before[1]
    return sorted(found.items(), key=lambda item: -item[1][1])


def fullest(plan: Plan) -> list[dict[str, Any]]:
    """What lives where the arena is fullest."""
    timeline = max(plan.facts.entries.values(), key=lambda entry: entry.peak()[1])
    return [{"tensor": tensor_text(span.tensor), "bytes": span.bytes} for span in timeline.alive(timeline.peak()[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", metavar="NET", help=", ".join(NETS))
    parser.add_argument("--again", action="store_true", help="measure rows that are there, too")
    parser.add_argument("--gradients", choices=GRADIENTS, action="append")
    args = parser.parse_args()
    known = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    rows = {(one["net"], one["gradients"]): one for one in known}
    for key in [(name, gradients) for name in args.nets or NETS for gradients in args.gradients or GRADIENTS]:
        if key in rows and not args.again:
            continue
        rows[key] = row(*key)
        print(json.dumps(rows[key]), flush=True)
        about = {"command": "python -m benchmarks.int8", "date": time.strftime("%Y-%m-%d"),
                 "machine": machine() | tools()}  # fmt: skip
        about["rows"] = [rows[net, kind] for net in NETS for kind in GRADIENTS if (net, kind) in rows]
        files.write(OUT, (json.dumps(about, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
