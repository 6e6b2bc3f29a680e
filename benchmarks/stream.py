"""RAM and time with layers that run row by row, against layers that run as a whole → docs/results/stream.json.

python -m benchmarks.stream                  # all of it
python -m benchmarks.stream --only ram       # or time, or board

f32, batch 1, ten classes, SGD without momentum.

ram    all of it (STATE, ARENA, context, stack) for `last_layer`, of U-Nets the arena of `infer`; exact kernels. Layer
       by layer; row by row with the image in RAM, which counts, in f32 and as bytes; and with rows of it from the
       channel, or from the caller.
time   of an inference and of a step of `last_layer` with fast kernels on one thread, as compiled without a budget:
       medians of the thread's processor time, by turns.
board  MCUNet, frozen weights as int8, with 320 KB of RAM: instructions of a step under QEMU, against the same layer by
       layer, with all the RAM that the emulator has.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import smidgen
from smidgen import files
from smidgen.deploy import emulate
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import Bank, load_device
from smidgen.terminal import bytes_text

from .boards import signs, tools
from .nets import NETS as PUBLISHED
from .nets import mobile, plain, residual
from .peers.machine import describe

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "stream.json"
ROUNDS: Final = 15
SCALE: Final = 1 / 127.5  # of an image given as bytes
BOARD: Final = "mps2-an500"
BOARD_RAM: Final = 320 * 1024
Json = dict[str, Any]


class UNet(nn.Module):
    """`levels` times half the size and twice the channels, and back beside what was there on the way down: by
    transposed convolution, or by upsampling of this mode and a convolution of single pixels."""

    def __init__(self, levels: int, mode: str = "transposed", width: int = 16) -> None:
        super().__init__()

        def twice(cin: int, cout: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(cin, cout, 3, 1, 1), nn.ReLU(), nn.Conv2d(cout, cout, 3, 1, 1), nn.ReLU())

        widths = [width * 2**k for k in range(levels + 1)]
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([3, *widths], widths[:-1], strict=False))
        self.middle = twice(widths[-2], widths[-1])
        if mode == "transposed":
            self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        else:
            align = None if mode == "nearest" else True
            ups = (nn.Upsample(scale_factor=2, mode=mode, align_corners=align) for _ in widths[:-1])
            narrow = (nn.Conv2d(2 * w, w, 1) for w in reversed(widths[:-1]))
            self.up = nn.ModuleList(nn.Sequential(*both) for both in zip(ups, narrow, strict=True))
        self.join = nn.ModuleList(twice(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        head: torch.Tensor = self.head(x)
        return head


def _mobile(rows: list[mobile.Row]) -> Callable[[], nn.Module]:
    return lambda: mobile.Mobile(rows, 10, norm=False, stem=16)


NETS: Final[dict[str, tuple[Callable[[], nn.Module], int, str]]] = {
    "mcunet": (_mobile(mobile.MCUNET_5FPS), 128, "last_layer"),
    "mobilenetv2_035": (_mobile(mobile.MOBILENETV2_035), 128, "last_layer"),
    "proxyless_03": (_mobile(mobile.PROXYLESS_03), 128, "last_layer"),
    "mobilenetv2": (lambda: mobile.MobileNetV2(10), 224, "last_layer"),
    "unet3": (lambda: UNet(3), 256, "infer"),
    "unet4": (lambda: UNet(4), 256, "infer"),
    "unet3_nearest": (lambda: UNet(3, "nearest"), 256, "infer"),
    "unet4_nearest": (lambda: UNet(4, "nearest"), 256, "infer"),
    "unet3_bilinear": (lambda: UNet(3, "bilinear"), 256, "infer"),
    "unet4_bilinear": (lambda: UNet(4, "bilinear"), 256, "infer"),
}


TIMED: Final[dict[str, tuple[Callable[[], nn.Module], int]]] = {
    "mobilenetv2": (lambda: mobile.MobileNetV2(10), 224),
    "resnet18": (lambda: residual.ResNet18(10), 224),
    "vgg16": (lambda: plain.VGG(16, 10), 224),
}


def job_of(
    build: Callable[[], nn.Module], size: int, kind: str, kernels: str, memory: smidgen.Memory, as_bytes: bool = False
) -> smidgen.Job:
    torch.manual_seed(0)
    x = smidgen.Bytes(np.zeros((1, 3, size, size), np.uint8), SCALE) if as_bytes else torch.zeros(1, 3, size, size)
    target = torch.zeros(1, size, size, dtype=torch.long) if kind == "infer" else None
    return smidgen.compile(build().eval(), x, target=target, method="last_layer", optimizer=smidgen.SGD(0.01),
                           kernels=kernels, memory=memory)  # fmt: skip


def ram_row(net: str) -> Json:
    build, size, kind = NETS[net]
    ways = {
        "whole": smidgen.Memory(stream=False), "image": smidgen.Memory(whole_inputs=True), "rows": smidgen.Memory(),
        "bytes": smidgen.Memory(whole_inputs=True),
    }  # fmt: skip
    jobs = {name: job_of(build, size, kind, "exact", memory, name == "bytes") for name, memory in ways.items()}
    q = np.random.default_rng(0).integers(0, 256, (1, 3, size, size)).astype(np.uint8)
    x = smidgen.Bytes(q, SCALE).numbers
    results = {job.predict(q if name == "bytes" else x).tobytes() for name, job in jobs.items()}
    plans = {name: job.plan for name, job in jobs.items()}
    ram = {f"{n}_bytes": p.arena_by_entry["infer"] if kind == "infer" else p.ram_bytes for n, p in plans.items()}
    said = [d.short for d in plans["rows"].decisions if d.kind == "stream"]
    share = round(ram["rows_bytes"] / ram["whole_bytes"], 4)
    return {"net": net, "size": size, "of": kind, **ram, "share": share, "same_bits": len(results) == 1,
            "decision": said[0] if said else ""}  # fmt: skip


def time_row(net: str, of: str) -> Json:
    build, size = TIMED[net]
    jobs = {stream: job_of(build, size, "last_layer", "fast:1", smidgen.Memory(stream=stream))
            for stream in (False, True)}  # fmt: skip
    x = np.random.default_rng(0).standard_normal((1, 3, size, size)).astype(np.float32)
    y = np.zeros(1, np.int64)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for stream, job in jobs.items():
            begin = time.thread_time()
            _ = job.predict(x) if of == "infer" else job.train_step(x, y)
            times[stream].append(time.thread_time() - begin)
    whole, rows = (statistics.median(times[stream]) for stream in (False, True))
    plans = [jobs[stream].plan for stream in (False, True)]
    entry = "infer" if of == "infer" else "train"
    said = [d.short for d in plans[1].decisions if d.kind == "stream"]
    return {"net": net, "size": size, "of": of, "kernels": "fast:1", "whole_s": whole, "rows_s": rows,
            "ratio": round(rows / whole, 4), "whole_bytes": plans[0].arena_by_entry[entry],
            "rows_bytes": plans[1].arena_by_entry[entry], "decision": said[0] if said else ""}  # fmt: skip


def board_row() -> Json:
    net, device = PUBLISHED["mcunet"], load_device(BOARD)
    first = device.ram_banks[0]
    small = replace(device, ram_banks=(Bank(first.name, first.origin, BOARD_RAM),))
    x, y = signs()
    found: Json = {"net": "mcunet", "size": 128, "of": "last_layer", "board": BOARD, "ram_bytes": BOARD_RAM}
    for name, board, stream in (("rows", small, True), ("whole", device, False)):
        torch.manual_seed(0)
        job = smidgen.compile(
            net.model(), torch.zeros(1, 3, 128, 128), method="last_layer", optimizer=smidgen.SGD(0.01), device=board,
            kernels="exact", memory=smidgen.Memory(const="int8", stream=stream),
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            made = write_firmware(Path(folder), job.program, board)
            emulate.make(Path(folder))
            linked = emulate.sections(Path(folder) / f"{made.boards[-1]}.elf")
            run = emulate.run_on_board(Path(folder), job.program, [([x[:1], y[:1]], 1)])
        loss = job.engine.train([x[:1], y[:1]], 1)
        found |= {
            f"{name}_bytes": linked.ram_bytes,
            f"{name}_instructions": run.counts.runs[0] if run.counts else None,
            f"{name}_predicted": round(job.plan.step_seconds * (device.clock_hz or 1)),
            f"{name}_same_bits": run.state == job.engine.machine.state.tobytes() and float(run.losses[0]) == loss,
        }
    if found["rows_instructions"] and found["whole_instructions"]:
        found["ratio"] = round(found["rows_instructions"] / found["whole_instructions"], 4)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["ram", "time", "board"])
    parser.add_argument("--net", action="append", choices=sorted({*NETS, *TIMED}))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    report: Json = json.loads(args.out.read_text()) if args.out.exists() else {}
    report |= {"command": "python -m benchmarks.stream", "date": str(datetime.date.today()),
               "machine": describe() | tools()}  # fmt: skip
    wanted = {"ram": [net for net in NETS if net in (args.net or NETS)],
              "time": [net for net in TIMED if net in (args.net or TIMED)]}  # fmt: skip
    rows: Json = {"ram": report.get("ram", []), "time": report.get("time", []), "board": report.get("board", [])}
    for net in wanted["ram"] if args.only in (None, "ram") else ():
        row = ram_row(net)
        _put(rows["ram"], row)
        sizes = ", ".join(f"{way} {bytes_text(row[f'{way}_bytes'])}" for way in ("whole", "image", "bytes", "rows"))
        print(f"{net} {row['of']}: {sizes}; same bits: {row['same_bits']}", flush=True)
    for net, of in ((net, of) for net in wanted["time"] for of in ("infer", "last_layer")):
        if args.only in (None, "time"):
            row = time_row(net, of)
            _put(rows["time"], row)
            print(f"{net} {of}: time × {row['ratio']:.3f}, {row['decision'] or 'without streams'}", flush=True)
    if args.only in (None, "board"):
        row = board_row()
        _put(rows["board"], row)
        print(f"{row['net']} on {row['board']}: instructions × {row.get('ratio')}", flush=True)
    files.write(args.out, (json.dumps(report | rows, indent=1) + "\n").encode())
    return 0


def _put(rows: list[Json], row: Json) -> None:
    """In the place of the one that it is newer than."""
    at = next((k for k, old in enumerate(rows) if (old["net"], old["of"]) == (row["net"], row["of"])), len(rows))
    rows[at : at + 1] = [row]


if __name__ == "__main__":
    raise SystemExit(main())
