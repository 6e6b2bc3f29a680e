"""The tables of README and docs: which figures of docs/results they show, and how. `fill_figures.py` writes them.

A table is its rows, the titles first. A cell is text, or a `Figure`: a file of docs/results, the path of one value in
it, and how to write it. A path has keys and positions with dots between, `[key=value,…]` for the items of a list that
have these values, `[*]` for all; max, min, sum or len of (…) where there are several. A value is written as `bytes`,
`count` or `seconds`, as smidgen.terminal does; anything else is a Python format, as .2f or ,d.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Figure:
    file: str
    path: str
    how: str


Cell = str | Figure
Table = Sequence[Sequence[Cell]]


def _board_time() -> Table:
    """Predicted against counted instructions of a step, and of an inference, by core."""
    cores = ("m0", "m3", "m4", "m7", "m7-double", "m33", "m55")
    nets = {"LeNet-5": "lenet5", "DS-CNN": "dscnn", "MCUNet, last layer": "mcunet-last"}
    rows: list[list[Cell]] = [["core", *nets, "five 1-D networks, at most", "an inference of any, at most"]]
    for core in cores:
        own = f"rows[core=cortex-{core}"
        found: list[Cell] = [Figure("board_time.json", f"{own},net={net}].error", "+.1%") for net in nets.values()]
        if core == "m55":  # the flash of its only board is too small for MCUNet
            found[-1] = "–"
        most = Figure("board_time.json", f"max({own},kind=1d].off)", ".1%")
        infer = Figure("board_time.json", f"max({own}].infer_off)", ".1%")
        rows.append([f"cortex-{core}", *found, most, infer])
    return rows


def _parity() -> Table:
    nets = {
        "lenet5": "LeNet-5, 28 px",
        "dscnn": "DS-CNN keyword spotting",
        "resnet8": "ResNet-8, 32 px",
        "mcunet": "MCUNet-5fps, 64 px",
        "mobilenetv2": "MobileNetV2-0.35, 64 px",
        "resnet18": "ResNet-18, 64 px",
        "encoder": "Transformer encoder, 2 layers",
    }
    columns = [(1, "full", "full"), (8, "full", "full"), (8, "bias", "biases"), (8, "last_layer", "last layer")]

    def ram(net: str, batch: int, method: str) -> Figure:
        row = f"rows[net={net},optimizer=momentum,batch={batch},method={method},bn=frozen]"
        return Figure("parity.json", f"{row}.ram_bytes", "bytes")

    def differs(net: str) -> Figure:
        return Figure("parity.json", f"max(rows[net={net},bn=frozen].b.worst)", ".0e")

    head = ["network", *(f"{title}, batch {batch}" for batch, _, title in columns), "gradients differ by"]
    return [head] + [[title, *(ram(net, b, m) for b, m, _ in columns), differs(net)] for net, title in nets.items()]


def _int8() -> Table:
    """RAM and instructions of a step on a board, and what calibration costs."""
    nets = {"mcunet": "MCUNet-5fps", "mobilenetv2_035": "MobileNetV2-0.35", "proxyless_03": "ProxylessNAS-0.3"}
    head: list[Cell] = ["network", "gradients", "all RAM of learning", "instructions of a step", "accuracy in f32",
                        "accuracy in int8"]  # fmt: skip
    rows: list[list[Cell]] = [head]
    for net, title in nets.items():
        for gradients in ("f32", "int16"):
            own, observed = f"rows[net={net},gradients={gradients}]", f"rows[net={net}]"
            rows.append([
                title, gradients, Figure("int8.json", f"{own}.ram_bytes", "bytes"),
                Figure("int8.json", f"{own}.instructions_per_step", ",d"),
                Figure("int8_accuracy.json", f"{observed}.accuracy_f32", ".1%"),
                Figure("int8_accuracy.json", f"{observed}.accuracy_minmax", ".1%"),
            ])  # fmt: skip
    return rows


def _step() -> Table:
    nets = [
        ("lenet5", "LeNet-5, 28 px", 1),
        ("dscnn", "DS-CNN keyword spotting", 8),
        ("resnet8", "ResNet-8, 32 px", 8),
        ("mcunet", "MCUNet-5fps, 128 px", 1),
        ("mcunet", "MCUNet-5fps, 128 px", 32),
        ("mobilenetv2_035", "MobileNetV2-0.35, 128 px", 8),
        ("mobilenetv2_100", "MobileNetV2-1.0, 224 px", 8),
        ("resnet18", "ResNet-18, 224 px", 8),
        ("transformer", "Transformer, 4 × 512, 128 long", 8),
    ]
    head = ["network", "batch", "smidgen", "fastest other", "which is", "memory", "PyTorch's memory"]
    figures = [
        ("results.smidgen.step_s", "seconds"),
        ("fastest_s", "seconds"),
        ("fastest_label", "s"),
        ("results.smidgen.anon_bytes", "bytes"),
        ("results.torch.anon_bytes", "bytes"),
    ]

    def row(net: str, title: str, batch: int) -> list[Cell]:
        found = f"rows[net={net},batch={batch},method=full,threads=1]"
        return [title, str(batch), *(Figure("step.json", f"{found}.{path}", how) for path, how in figures)]

    return [head] + [row(*net) for net in nets]


def _demo() -> Table:
    def share(when: str, which: str) -> Figure:
        return Figure("demo.json", f"{when}.{which}", ".0%")

    kinds = {"rotated": "rotated", "inverted": "inverted", "unseen": "8 and 9, never seen", "known": "known before"}
    return [["digits", "read right before", "after"]] + [
        [title, share("before", kind), share("after", kind)] for kind, title in kinds.items()
    ]


def _stream() -> Table:
    nets = {
        "mcunet": "MCUNet-5fps, 128 px",
        "mobilenetv2_035": "MobileNetV2-0.35, 128 px",
        "proxyless_03": "ProxylessNAS-0.3, 128 px",
        "mobilenetv2": "MobileNetV2-1.0, 224 px",
        "unet3": "U-Net of three levels, 256 px, inference alone",
        "unet4": "U-Net of four levels, 256 px, inference alone",
    }

    def row(net: str) -> list[Cell]:
        return [
            Figure("stream.json", f"ram[net={net}].{way}_bytes", "bytes") for way in ("whole", "image", "bytes", "rows")
        ]

    return [["network", "layer by layer", "image in RAM", "image as bytes in RAM", "rows of the image"]] + [
        [title, *row(net)] for net, title in nets.items()
    ]


def _stream_time() -> Table:
    nets = {"mobilenetv2": "MobileNetV2-1.0", "resnet18": "ResNet-18", "vgg16": "VGG-16"}

    def ratio(net: str, of: str) -> Figure:
        return Figure("stream.json", f"time[net={net},of={of}].ratio", ".2f")

    rows: Table = [[f"{title}, 224 px", ratio(net, "infer"), ratio(net, "last_layer")] for net, title in nets.items()]
    board = Figure("stream.json", "board[net=mcunet].ratio", ".3f")
    return [["time, against layer by layer", "inference", "step of the last layer"], *rows,
            ["MCUNet on a Cortex-M7 with 320 KB, instructions", "–", board]]  # fmt: skip


TABLES: Final[dict[str, Table]] = {
    "demo": _demo(),
    "demo_ram": [
        ["RAM of one training step", "bytes"],
        ["smidgen: weights, optimizer, arena, runtime and stack", Figure("demo.json", "ram_bytes", ",")],
        ["PyTorch: its tensors alone", Figure("demo_torch_memory.json", "tensor_bytes", ",")],
        ["PyTorch: the process, Python included", Figure("demo_torch_memory.json", "process_bytes.median", ",")],
    ],
    "int8": _int8(),
    "parity": _parity(),
    "step": _step(),
    "board_time": _board_time(),
    "stream": _stream(),
    "stream_time": _stream_time(),
    "limited": [
        ["network", "limit", "time of a step, against one without the limit"],
        [
            "ResNet-18, 224 px, batch 8, momentum",
            "a quarter of PyTorch's memory (`ulimit -v`)",
            Figure("limited.json", "resnet18.ratio", ".2f"),
        ],
        ["MCUNet, 128 px, batch 1", "half of its RAM", Figure("limited.json", "mcunet.ratio", ".2f")],
        [
            "MCUNet, 128 px, batch 1, momentum",
            "half of its RAM",
            Figure("limited.json", "mcunet_momentum.ratio", ".2f"),
        ],
    ],
}
"""Name in `<!-- table: name -->` → rows."""
