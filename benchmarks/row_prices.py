"""What it costs to run layers row by row: `python -m benchmarks.row_prices [host] [core …]` fits the rates of
src/smidgen/compiler/planner/rows.json.

The same network with many different streams, each against the network without any: on this machine the least of some
processor times, by turns; on each core instructions under QEMU. What streams do beside the work of the kernels is
counted (compiler/planner/row_cost.py), and the rates are those that explain the differences best.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import nn

from smidgen import SGD, api, files
from smidgen.compiler.assemble import encode
from smidgen.compiler.encode import encode as coded
from smidgen.compiler.entries import Entries, narrowed
from smidgen.compiler.graph.alias import loop_range
from smidgen.compiler.graph.rows import Body, Stream, streams
from smidgen.compiler.passes.stream_rows import with_streams
from smidgen.compiler.place import arena
from smidgen.compiler.planner import row_cost
from smidgen.compiler.planner.row_cost import Counts, counts_of
from smidgen.deploy import emulate
from smidgen.deploy.firmware import write_firmware
from smidgen.ir import Graph
from smidgen.program.program import Program
from smidgen.runtime.machine import Machine

from .board_prices import BOARDS, board_of
from .boards import tools
from .nets import mobile, plain, residual
from .parity import machine

ROUNDS: Final = 15
TILES: Final = (1, 2, 4, 8, 16)
LONGEST: Final = (40, 12, 4)  # nodes of a stream
HOST: Final[dict[str, dict[str, tuple[Callable[[], nn.Module], int]]]] = {
    "fast": {
        "MobileNetV2": (lambda: mobile.MobileNetV2(10), 224),
        "ResNet-18": (lambda: residual.ResNet18(10), 224),
        "VGG-16": (lambda: plain.VGG(16, 10), 224),
        "MCUNet": (lambda: mobile.Mobile(mobile.MCUNET_5FPS, 10, norm=False, stem=16), 128),
    },
    "exact": {
        "MobileNetV2": (lambda: mobile.MobileNetV2(10), 224),
        "MCUNet": (lambda: mobile.Mobile(mobile.MCUNET_5FPS, 10, norm=False, stem=16), 128),
    },
}
Row = tuple[Counts, float]  # what streams of a network do, and what they cost beside it


def small() -> nn.Module:
    """Convolutions, a skip, pooling and depthwise layers, that a board runs in little time."""
    block = mobile.Block(8, (24, 3, 1, 8, 1), norm=False)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), block, nn.MaxPool2d(2), nn.Conv2d(8, 24, 3, 1, 1), nn.ReLU(),
        nn.Conv2d(24, 24, 5, 2, 2, groups=24), nn.ReLU(), nn.Conv2d(24, 48, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(48, 4),
    )  # fmt: skip


def entries_of(model: nn.Module, size: int) -> Entries:
    x = torch.zeros(1, 3, size, size)
    return api.build(model.eval(), x, method="last_layer", optimizer=SGD(0.01))


def several(graph: Graph, seed: int = 0) -> Iterator[Graph]:
    """With streams of different length and height, of some parts of the loop each."""
    body, rng = loop_range(graph), random.Random(seed)
    rows = Body(graph, body)
    for longest in LONGEST:
        for tile in TILES:
            found, at = list[Stream](), 0
            while at < len(body):
                nodes = min(rng.randint(longest // 2, longest), len(body) - at)
                one = next((s for n in range(nodes, 1, -1) if (s := rows.stream(at, n, tile)) is not None), None)
                found += [one] if one else []
                at += one.nodes if one else 1
            yield with_streams(graph, found)


def counts(graph: Graph) -> Counts:
    body, total = loop_range(graph), row_cost.NONE
    for stream in streams(graph, graph.nodes[body.start - 1]):
        nodes = graph.nodes[body.start + stream.first : body.start + stream.first + stream.nodes]
        total = Counts(*map(sum, zip(total, counts_of(graph, nodes, stream), strict=True)))
    return total


def fitted(rows: list[Row]) -> Counts:
    """None is negative. A stream of a large network counts no more than one of a small one."""
    a, y = np.array([list(c) for c, _ in rows], float), np.array([extra for _, extra in rows])
    a[:, -1] *= -1
    shift = np.abs(y).max()  # costs below zero: what maps save that are far away
    best = _not_negative(a, y, 1 / np.maximum(np.abs(y), shift / 100))
    return Counts(*(float(f"{v:.3g}") for v in best))


def _not_negative(a: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Of all choices of rates that are not zero the one with the least error."""
    best, least = np.zeros(a.shape[1]), np.inf
    for mask in range(1 << a.shape[1]):
        chosen = [k for k in range(a.shape[1]) if mask >> k & 1]
        if any(not a[:, k].any() for k in chosen):
            continue
        found, *_ = np.linalg.lstsq(a[:, chosen] * weight[:, None], y * weight, rcond=None)
        off = float(np.square((a[:, chosen] @ found - y) * weight).sum())
        if (found >= 0).all() and off < least * (1 - 1e-6):
            best, least = np.zeros(a.shape[1]), off
            best[chosen] = found
    return best


# -- this machine ------------------------------------------------------------------------------------------------------


def program_of(graph: Graph) -> Program:
    stored, const, state = arena.place_state([graph])
    return coded({"infer": (graph, arena.place(graph, 1, stored, const, state))}, 1, {})


def timed(build: Callable[[], nn.Module], size: int, kernels: str) -> list[Row]:
    torch.manual_seed(0)
    whole = entries_of(build(), size).graphs["infer"]
    graphs = [whole, *several(whole)]
    machines = [Machine(program_of(graph).to_bytes(), kernels=kernels) for graph in graphs]
    x, y = (
        np.random.default_rng(0).standard_normal((1, 3, size, size)).astype(np.float32),
        np.zeros((1, 10), np.float32),
    )
    least = [np.inf] * len(machines)
    for _ in range(ROUNDS):
        for k, one in enumerate(machines):
            start = time.thread_time()
            one.run("infer", [x], [y], 1)
            least[k] = min(least[k], time.thread_time() - start)
    return [(counts(graph), took - least[0]) for graph, took in zip(graphs[1:], least[1:], strict=True)]


# -- boards ------------------------------------------------------------------------------------------------------------


def counted(core: str) -> list[Row]:
    """With weights in f32, and in int8 where they are exact in it."""
    torch.manual_seed(0)
    model, rows = small(), list[Row]()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((p * 64).round() / 64)
    for stored in (False, True):
        entries = entries_of(model, 32)
        entries = narrowed(entries) if stored else entries
        assert entries.const == ("int8" if stored else "f32")
        whole, found = entries.graphs["train"], list[tuple[Graph, int]]()
        for graph in (whole, *list(several(whole))[::2]):
            found.append((graph, instructions(replace(entries, graphs={**entries.graphs, "train": graph}), core)))
        rows += [(counts(graph), float(took - found[0][1])) for graph, took in found[1:]]
    return rows


def instructions(entries: Entries, core: str) -> int:
    """Of the second of two steps: the first one also proves the program's extents."""
    program, x, y = encode(entries), np.zeros((1, 3, 32, 32), np.float32), np.zeros(1, np.int32)
    with tempfile.TemporaryDirectory() as folder:
        write_firmware(Path(folder), program, board_of(core))
        emulate.make(Path(folder))
        run = emulate.run_on_board(Path(folder), program, [([x, y], 1)] * 2)
    if run.counts is None:
        raise SystemExit("nothing was counted: a C compiler and arm-none-eabi-objdump are needed")
    return run.counts.runs[1]


# -- the file ----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["host", *BOARDS, []], help="default: all")
    args = parser.parse_args()
    known = json.loads(row_cost.PATH.read_text()) if row_cost.PATH.exists() else {"host": {}, "cores": {}}
    for what in args.what or ("host", *BOARDS):
        if what == "host":
            for kernels, nets in HOST.items():
                rows = [row for build, size in nets.values() for row in timed(build, size, kernels)]
                known["host"][kernels] = said(kernels, rows)
        else:
            known["cores"][what] = said(what, counted(what))
        report = {
            "what": "of a stream: a visit of an instruction, a call, a byte that is moved, a weight that is read once "
            "more, the same of int8, and what a byte of a map beyond 4 MB saves; in seconds, on cores in instructions",
            "command": "python -m benchmarks.row_prices", "date": time.strftime("%Y-%m-%d"),
            "machine": machine() | tools(), "host": known["host"],
            "cores": {core: known["cores"][core] for core in BOARDS if core in known["cores"]},
        }  # fmt: skip
        files.write(row_cost.PATH, (json.dumps(report, indent=1) + "\n").encode())


def said(name: str, rows: list[Row]) -> list[float]:
    rates = fitted(rows)
    off = [abs(c.total(rates) - extra) for c, extra in rows]
    extra = [abs(extra) for _, extra in rows]
    print(
        f"{name}: {rates}, off by {sum(off) / sum(extra):.0%} of what {len(rows)} choices of streams cost", flush=True
    )
    return list(rates)


if __name__ == "__main__":
    main()
