"""Instructions of exact kernels on each core: `python -m benchmarks.board_prices [core …]` fits rates of families of
kernels into src/smidgen/compiler/planner/cores.json, and judges them by other networks in docs/results/board_time.json.

Both from firmware under QEMU with a plugin that counts every call of a kernel in the second of two training steps.
Rates are fitted to networks of random layout (benchmarks/nets/boards.py). They are judged by LeNet-5, DS-CNN, MCUNet
and five 1-D networks of other layouts: instructions of a whole step and of an inference, predicted before they are
run. Software floating point depends on values, so all of them are as in use: batch norms know their inputs, two
activations of three are rectified, MCUNet has its published weights and LeNet-5, DS-CNN and MCUNet recorded samples.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from smidgen import SGD, api, files, ops
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries, narrowed
from smidgen.compiler.graph.alias import loop_range
from smidgen.compiler.planner import core_rates
from smidgen.compiler.planner.core_rates import CoreRates, Features, core_family, features
from smidgen.deploy import emulate
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import Device, load_device
from smidgen.errors import DoesNotFit
from smidgen.ir import Graph
from smidgen.ops.build import typed
from smidgen.ops.optim import SINKS, fused_op
from smidgen.program.program import Program

from .boards import DSCNN_LAST, SAMPLES, tools
from .nets import NETS
from .nets.boards import FITTED, ONE_DIMENSIONAL, Options, Samples, Small, small
from .parity import machine

OUT = Path(__file__).resolve().parents[1] / "docs" / "results" / "board_time.json"
WITHIN = 0.2
BOARDS = {
    "cortex-m4": ("mps2-an386", "cortex-m4", "fpv4-sp-d16"),
    "cortex-m7": ("mps2-an500", "cortex-m7", "fpv5-sp-d16"),
    "cortex-m3": ("mps2-an385", "cortex-m3", ""),
    "cortex-m33": ("mps2-an505", "cortex-m33", "fpv5-sp-d16"),
    "cortex-m0": ("mps2-an385", "cortex-m0", ""),
    "cortex-m55": ("mps3-an547", "cortex-m55", "auto"),
    "cortex-m0plus": ("mps2-an385", "cortex-m0plus", ""),
    "cortex-m7-double": ("mps2-an500", "cortex-m7", "fpv5-d16"),
}
"""Core → the emulated board that runs its code, and how a device names it."""
SOURCE = (
    "instructions of smidgen's exact kernels on this core under QEMU, one a cycle; rates of {families} families of "
    "kernels, fitted to networks of random layout (python -m benchmarks.board_prices); {judged} other networks, "
    "among them LeNet-5, DS-CNN and five 1-D networks, are predicted within {worst:.0f} %; wait states, "
    "caches and double issue are not counted"
)


def board_of(core: str) -> Device:
    """With as much RAM as the board's largest bank, whatever the core."""
    board, mcpu, fpu = BOARDS[core]
    return replace(load_device(board), core=mcpu, fpu=fpu, speed=None)


@functools.cache
def fitted_nets() -> tuple[Small, ...]:
    return tuple(small(name, *given) for name, given in FITTED.items())


@functools.cache
def judged() -> dict[str, Small]:
    """The networks that rates are judged by; none of them is fitted to."""
    found = {
        "lenet5": (NETS["lenet5"], Options(SGD(1e-3))),
        "dscnn": (NETS["dscnn"], Options(SGD(1e-3))),
        "dscnn-last": (NETS["dscnn"], Options(SGD(1e-3), method=DSCNN_LAST)),
        "mcunet-last": (replace(NETS["mcunet"], shape=(3, 128, 128)), Options(SGD(1e-3), "last_layer", int8=True)),
    }
    nets = {
        name: Small(name, net.model().eval(), (net.shape,), net.classes, options, recorded(net.name)).in_use()
        for name, (net, options) in found.items()
    }
    return nets | {name: small(name, *given) for name, given in ONE_DIMENSIONAL.items()}


def recorded(net: str) -> Callable[[int], Samples]:
    """Digits, words or signs, as it would be used with; MCUNet has published weights, too, where they are there."""

    def samples(count: int) -> Samples:
        x, y = SAMPLES[net]()
        return [x[:count]], y[:count]

    return samples


# -- counting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """A training step: its graphs in the order they run, each call with its instructions, and those of the whole."""

    graphs: tuple[tuple[Graph, int], ...]  # and samples
    calls: tuple[tuple[str, ops.Call, int, int], ...]  # op, call, samples, instructions
    instructions: int
    infer: Graph  # of one sample
    infer_instructions: int

    def nodes(self) -> Iterator[tuple[str, ops.Call, int]]:
        for graph, batch in self.graphs:
            yield from executed(graph, batch)

    def predicted(self, rates: CoreRates) -> float:
        return sum(rates.instructions(op, call, n) for op, call, n in self.nodes())

    def infer_predicted(self, rates: CoreRates) -> float:
        return sum(rates.instructions(op, call, n) for op, call, n in executed(self.infer, 1))


def executed(graph: Graph, batch: int) -> Iterator[tuple[str, ops.Call, int]]:
    """Nodes in the order in which they run, a loop's body for each sample."""
    body = sorted(loop_range(graph))
    order = list(range(len(graph.nodes)))
    if body:
        order[body[0] : body[-1] + 1] = body * batch
    inside = set(body)
    for i in order:
        yield graph.nodes[i].op, typed(graph, graph.nodes[i]), 1 if i in inside else batch


@functools.cache
def built(net: Small) -> tuple[Entries, Program]:
    given = net.options
    inputs = tuple(torch.zeros(given.batch, *shape) for shape in net.shapes)
    entries = api.build(
        net.model, inputs if len(inputs) > 1 else inputs[0], batch=given.batch, optimizer=given.optimizer,
        method=given.method, bn=given.bn, accumulate=True if given.parts > 1 else None,
    )  # fmt: skip
    entries = narrowed(entries) if given.int8 else entries
    return entries, encode(entries)


def counted(net: Small, device: Device, infer: bool = True) -> Counted:
    """The second of two equal steps, since the first one also proves the program's extents; then an inference."""
    entries, program = built(net)
    given = net.options
    n = given.batch * given.parts
    arrays, labels = net.samples(n)
    step, once = ([*arrays, labels], n), ([x[:1] for x in arrays], 1)
    with tempfile.TemporaryDirectory() as folder:
        write_firmware(Path(folder), program, device)
        emulate.make(Path(folder), "-j2")
        run = emulate.run_on_board(Path(folder), program, [step, step], [once] if infer else [], calls=True)
    if run.counts is None:
        raise SystemExit("nothing was counted: a C compiler and arm-none-eabi-objdump are needed")
    names = ["train"] if given.parts == 1 else ["zero", *["grad"] * given.parts, "apply"]
    graphs = tuple((entries.graphs[name], given.batch) for name in names)
    calls: list[tuple[str, ops.Call, int, int]] = []
    for (graph, batch), found in zip(graphs, run.counts.calls[len(names) : 2 * len(names)], strict=True):
        calls += matched(graph, batch, found)
    once_took = run.counts.runs[2] if infer else 0
    return Counted(graphs, tuple(calls), run.counts.runs[1], entries.graphs["infer"], once_took)


def matched(graph: Graph, batch: int, found: Sequence[tuple[str, int]]) -> Iterator[tuple[str, ops.Call, int, int]]:
    """Nodes with the instructions of their kernels; what passes through the channel may run none."""
    left = list(reversed(found))
    for op, call, n in executed(graph, batch):
        record = ops.get(op)
        if record.is_view or record.loops:
            continue
        if left and left[-1][0] == record.kernel(call):
            instructions = left.pop()[1]
            if not record.border:
                yield op, call, n, instructions
        elif not record.border:
            raise SystemExit(f"{op} should have run, and {left[-1][0] if left else 'nothing'} did")
    if left:
        raise SystemExit(f"{left[-1][0]} ran, and is no node")


# -- fitting ---------------------------------------------------------------------------------------------------------


def least_squares(a: np.ndarray, y: np.ndarray, passes: int = 400) -> np.ndarray:
    """Figures that are not negative (Lawson and Hanson), by relative error for the most part: rows of a are divided by
    y to the power of 3/4, so that large kernels count somewhat more."""
    scale, weight = a.max(0), y**-0.75
    scale[scale == 0] = 1.0
    m, b = a / scale * weight[:, None], y * weight
    x, active = np.zeros(a.shape[1]), np.zeros(a.shape[1], bool)
    for _ in range(passes):
        slope = np.where(active, -np.inf, m.T @ (b - m @ x))
        if slope.max() <= 1e-9 * np.abs(m.T @ b).max():
            break
        active[slope.argmax()] = True
        while True:
            trial = np.zeros_like(x)
            trial[active] = np.linalg.lstsq(m[:, active], b, rcond=None)[0]
            if (trial[active] > 0).all():
                break
            wrong = active & (trial <= 0)
            step = (x[wrong] / np.maximum(x[wrong] - trial[wrong], 1e-300)).min()
            x = x + step * (trial - x)
            active &= x > 1e-12
            x[~active] = 0.0
        x = trial
    return x / scale


Row = tuple[str, str, Features, int]  # family, sink or nothing, counts, instructions
SINK_OF = {
    fused_op(op.name, sink.name): (op.name, sink.name) for op in ops.all_ops().values() if op.sink for sink in SINKS
}


def row_of(op: str, call: ops.Call, n: int, instructions: int) -> Row:
    """A weight gradient with its consumer is priced in two parts: the gradient, whoever takes it, and the consumer."""
    family, (base, sink) = core_family(op, call, n), SINK_OF.get(op, (op, ""))
    return base + family.removeprefix(op), sink, features(op, call, n), instructions


def fitted(rows: Sequence[Row]) -> dict[str, Features]:
    """Rates of families, where those with a sink share what a call and a written byte cost by the sink."""
    rates: dict[str, Features] = {}
    plain, fused = defaultdict[str, list[Row]](list), [row for row in rows if row[1]]
    for row in rows:
        if not row[1]:
            plain[row[0]].append(row)
    for family, own in plain.items():
        found = least_squares(np.array([row[2] for row in own]), np.array([float(row[3]) for row in own]))
        rates[family] = Features(*found)
    families, sinks = sorted({row[0] for row in fused}), sorted({row[1] for row in fused})
    width = len(Features._fields)
    a = np.zeros((len(fused), width * len(families) + 2 * len(sinks)))
    for line, (family, sink, counts, _) in zip(a, fused, strict=True):
        at, to = width * families.index(family), width * len(families) + 2 * sinks.index(sink)
        line[at : at + width - 1] = counts[:-1]  # written bytes are the sink's
        line[to : to + 2] = counts.calls, counts.written
    found = least_squares(a, np.array([float(row[3]) for row in fused]))
    for i, family in enumerate(families):
        base, _, way = family.partition(" ")
        own = found[width * i : width * (i + 1)]
        for j, sink in enumerate(sinks):
            call, written = found[width * len(families) + 2 * j :][:2]
            name = fused_op(base, sink) + (f" {way}" if way else "")
            rates[name] = Features(own[0] + call, *own[1:-1], written)
    return rates


def rates_from(core: str, steps: Sequence[Counted]) -> CoreRates:
    rows = [row_of(*call) for step in steps for call in step.calls]
    rates = {name: Features(*(float(f"{v:.4g}") for v in rate)) for name, rate in sorted(fitted(rows).items())}
    rest = least_squares(np.array([row[2] for row in rows]), np.array([float(row[3]) for row in rows]))
    around, beside = [], []  # calls and bytes through the channel; instructions outside of kernels
    for step in steps:
        nodes = [(op, features(op, call, n).written) for op, call, n in step.nodes() if not ops.get(op).is_view]
        around.append((len(nodes), sum(written for op, written in nodes if ops.get(op).border)))
        beside.append(float(step.instructions - sum(call[-1] for call in step.calls)))
    dispatch, channel = least_squares(np.array(around, float), np.array(beside))
    return CoreRates(
        core, rates, Features(*(float(f"{v:.4g}") for v in rest)), float(f"{dispatch:.4g}"), float(f"{channel:.4g}"), ""
    )


# -- the files -------------------------------------------------------------------------------------------------------


def errors_of(core: str, rates: CoreRates) -> list[dict[str, Any]]:
    found = []
    for name, net in judged().items():
        try:
            step = counted(net, board_of(core))
        except DoesNotFit as error:  # the flash of the only board with this core
            print(f"{core} {name}: left out, {error}", flush=True)
            continue
        predicted, infer = step.predicted(rates), step.infer_predicted(rates)
        error, infer_error = predicted / step.instructions - 1, infer / step.infer_instructions - 1
        found.append({
            "core": core, "net": name, "kind": "1d" if name in ONE_DIMENSIONAL else "2d",
            "method": net.options.method if name != "dscnn-last" else "last four blocks",
            "batch": net.options.batch, "counted": step.instructions, "predicted": round(predicted),
            "error": round(error, 4), "off": round(abs(error), 4),
            "infer_counted": step.infer_instructions, "infer_predicted": round(infer),
            "infer_error": round(infer_error, 4), "infer_off": round(abs(infer_error), 4),
        })  # fmt: skip
        print(f"{core} {name}: {step.instructions:,} counted, {error:+.1%}; inference {infer_error:+.1%}", flush=True)
    return found


def write_rates(rates: CoreRates) -> None:
    old = json.loads(core_rates.PATH.read_text())["cores"] if core_rates.PATH.exists() else {}
    old[rates.name] = {
        "source": rates.source, "dispatch": rates.dispatch, "channel_byte": rates.channel_byte,
        "rest": list(rates.rest), "rates": {family: list(rate) for family, rate in rates.rates.items()},
    }  # fmt: skip
    said = {
        "what": "instructions of a call, of a multiply-accumulate in a block and one by one, of the start of an inner "
        "loop, of a byte read and of a byte written; exact kernels",
        "command": "python -m benchmarks.board_prices", "date": time.strftime("%Y-%m-%d"), "tools": tools(),
        "cores": {core: old[core] for core in BOARDS if core in old},
    }  # fmt: skip
    text = json.dumps(said, indent=1)
    text = re.sub(r"\[[^\[\]]*\]", lambda m: " ".join(m[0].split()).replace("[ ", "[").replace(" ]", "]"), text)
    files.write(core_rates.PATH, (text + "\n").encode())


def write_errors(core: str, rows: list[dict[str, Any]]) -> None:
    old = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
    kept = [row for row in old if row["core"] != core] + rows
    said = {
        "what": "instructions of a training step: counted under QEMU, and predicted by cores.json, which was fitted to "
        "other networks",
        "command": "python -m benchmarks.board_prices", "date": time.strftime("%Y-%m-%d"),
        "machine": machine() | tools(), "rows": sorted(kept, key=lambda row: list(BOARDS).index(row["core"])),
    }  # fmt: skip
    files.write(OUT, (json.dumps(said, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cores", nargs="*", choices=[*BOARDS, []], help="default: all")
    for core in parser.parse_args().cores or BOARDS:
        steps = [counted(net, board_of(core), infer=False) for net in fitted_nets()]
        rates = rates_from(core, steps)
        rows = errors_of(core, rates)
        worst = max(max(row["off"], row["infer_off"]) for row in rows)
        source = SOURCE.format(families=len(rates.rates), worst=100 * worst, judged=len(rows))
        write_rates(replace(rates, source=source))
        write_errors(core, rows)
        print(f"{core}: {len(rates.rates)} families, at most {worst:.1%} off", flush=True)


if __name__ == "__main__":
    main()
