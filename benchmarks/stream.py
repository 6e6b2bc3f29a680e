"""RAM and time with layers that run row by row, against layers that run as a whole → docs/results/stream.json.

python -m benchmarks.stream                 # all networks
python -m benchmarks.stream --net mcunet    # some of them

f32, batch 1, ten classes, SGD without momentum, `last_layer` (or `infer` alone: a program's arena for that entry). RAM
is all of it (STATE, ARENA, context, stack). Seconds are those of an inference, the least of some, by turns.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import smidgen
from smidgen import files
from smidgen.terminal import bytes_text

from .nets import mobile, residual
from .peers.machine import describe

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "stream.json"
ROUNDS: Final = 7
KERNELS: Final = ("exact", "fast:1")
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
    "resnet18": (lambda: residual.ResNet18(10), 224, "last_layer"),
    "unet3": (lambda: UNet(3), 256, "infer"),
    "unet4": (lambda: UNet(4), 256, "infer"),
    "unet3_nearest": (lambda: UNet(3, "nearest"), 256, "infer"),
    "unet4_nearest": (lambda: UNet(4, "nearest"), 256, "infer"),
    "unet3_bilinear": (lambda: UNet(3, "bilinear"), 256, "infer"),
    "unet4_bilinear": (lambda: UNet(4, "bilinear"), 256, "infer"),
}


def job_of(net: str, kernels: str, stream: bool) -> smidgen.Job:
    build, size, kind = NETS[net]
    torch.manual_seed(0)
    options: Json = {"optimizer": smidgen.SGD(0.01), "kernels": kernels, "memory": smidgen.Memory(stream=stream)}
    x = torch.zeros(1, 3, size, size)
    if kind == "infer":
        return smidgen.compile(build().eval(), x, target=torch.zeros(1, size, size, dtype=torch.long),
                               method="last_layer", **options)  # fmt: skip
    return smidgen.compile(build().eval(), x, method=kind, **options)


def measured(net: str, kernels: str) -> Json:
    _, size, kind = NETS[net]
    jobs = {stream: job_of(net, kernels, stream) for stream in (False, True)}
    x = np.random.default_rng(0).standard_normal((1, 3, size, size)).astype(np.float32)
    results = [job.predict(x) for job in jobs.values()]
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for stream, job in jobs.items():
            begin = time.perf_counter()
            job.predict(x)
            times[stream].append(time.perf_counter() - begin)
    plans = {stream: job.plan for stream, job in jobs.items()}
    ram = {s: p.arena_by_entry["infer"] if kind == "infer" else p.ram_bytes for s, p in plans.items()}
    said = [d.why for d in plans[True].decisions if d.kind == "stream"]
    return {"net": net, "size": size, "of": kind, "kernels": kernels, "whole_bytes": ram[False],
            "streamed_bytes": ram[True], "same_bits": bool(np.array_equal(*results)), "whole_s": min(times[False]),
            "streamed_s": min(times[True]), "decision": said[0] if said else ""}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append", choices=list(NETS))
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows: list[Json] = []
    for net in args.net or NETS:
        for kernels in KERNELS:
            row = measured(net, kernels)
            rows.append(row)
            sizes = f"{bytes_text(row['whole_bytes'])} → {bytes_text(row['streamed_bytes'])}"
            share = f"time × {row['streamed_s'] / row['whole_s']:.2f}, same bits: {row['same_bits']}"
            print(f"{net} {row['of']} {kernels}: {sizes}, {share}", flush=True)
    report = {"command": "python -m benchmarks.stream", "date": str(datetime.date.today()), "machine": describe(),
              "rows": rows}  # fmt: skip
    files.write(args.out, (json.dumps(report, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
