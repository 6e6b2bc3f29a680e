"""RAM of networks × methods, beside the table of docs/explain/memory.md → docs/results/method_memory.json.

python -m benchmarks.method_memory                # all networks and methods, batch 1 and 8
python -m benchmarks.method_memory --net mcunet

The sum, without the planner and without gradients: what learns and its optimizer state; the most that the forward pass
needs at a time beside what is kept (one sample at a time before the first layer that learns); what the table says is
kept; the runtime's context and stack.
Status 1 if a plan takes more than 2 % above its sum.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import smidgen
from smidgen import files, ops
from smidgen.compiler.entries import Entries
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.torch_import.capture import import_model
from smidgen.ir import Graph, Node, Role
from smidgen.methods import Update

from .nets import NETS, Net
from .peers.machine import describe

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "method_memory.json"
TTE: Final = "sparse_update:b22 w21:1,24:1,27:1,30:1,36:1/8,39:1/4"  # tiny-training's MCUNet, 100 KB
SPARSE: Final = {
    "mcunet": TTE,
    "mobilenetv2": "sparse_update:b18 w36:1,39:1/2,45:1/4",
    "proxyless": "sparse_update:b20 w42:1,48:1/2,54:1/8",
    "resnet18": "sparse_update:b6 w15:1/4,17:1/8",
    "dscnn": "sparse_update:b4 w6:1/4",
    "encoder": "sparse_update:b4 w5:1/2",
}
METHODS: Final = ("last_layer", "bias", "tinytl", "lora:4", "full")
PIXELS: Final = {"mcunet": 128, "mobilenetv2": 128, "proxyless": 128}
MOST: Final = 1.02
Json = dict[str, Any]


@dataclass(frozen=True)
class Sum:
    """Bytes."""

    state: int
    forward: int
    kept: int
    other: int  # context and stack

    @property
    def total(self) -> int:
        return self.state + self.forward + self.kept + self.other


# -- the table ---------------------------------------------------------------------------------------------------------

Sizes = dict[str, float]  # tensor that is kept → bytes
INPUT = ("silu", "gelu", "hardswish", "softplus", "mish", "layer_norm", "group_norm", "batch_norm")
OUTPUT = ("sigmoid", "tanh", "elu", "exp", "sqrt", "softmax", "log_softmax")
PRODUCTS = ("linear", "conv2d", "conv_transpose2d", "conv2d_put", "linear_put")
IN_PLACE = ("clamp", "relu", "add", "sub", "scale", "gelu", "softmax", "batch_norm")
BITS = ("clamp", "relu6", "hardtanh", "leaky_relu", "hardsigmoid")


class Table:
    """What a step keeps, by docs/explain/memory.md, of a forward graph and of what learns."""

    def __init__(self, graph: Graph, updates: Sequence[Update], n: int) -> None:
        self.graph, self.n = graph, n
        self.learns = {update.param: update for update in updates}
        self.flows: set[str] = set()  # what a gradient comes through
        for node in graph.nodes:
            if any(name in self.flows or name in self.learns for name in node.ins):
                self.flows.update(node.outs)
        self.made = {out: node for node in graph.nodes for out in node.outs}

    def bytes(self, name: str) -> int:
        return self.graph.tensors[name].bytes(self.n)

    def kept(self) -> Sizes:
        """One tensor counts once; bits only where nothing else keeps what they would be of."""
        found: Sizes = {}
        for node in self.graph.nodes:
            for name, size in self._whole(node):
                found[name] = max(found.get(name, 0), size)
        for node in self.graph.nodes:
            for name, size in self._bits(node, found):
                found[f"{name} as bits"] = size
        return found

    def _whole(self, node: Node) -> Iterator[tuple[str, float]]:
        x, y = (self._value(node.ins[0]) if node.ins else ""), node.outs[0] if node.outs else ""
        if node.op in PRODUCTS:
            weight = next((name for name in node.ins[1:] if name in self.learns and _is_weight(node, name)), None)
            if weight is not None:
                yield x, self.bytes(x) * self._share(node, weight)
            elif any(name in self.flows for name in node.ins[1:2]):  # a weight that is computed
                yield x, self.bytes(x)
        elif node.op in INPUT:
            if node.ins[0] in self.flows or _scale(node) in self.learns:
                yield x, self.bytes(x)
        elif node.op in OUTPUT and node.ins[0] in self.flows:
            yield y, self.bytes(y)
        elif node.op in ("matmul", "mul", "div"):
            left, right = node.ins[:2]
            yield from ((self._value(a), self.bytes(a)) for a, b in ((left, right), (right, left)) if b in self.flows)
        elif node.op in ("embedding", "cross_entropy"):
            yield from ((name, self.bytes(name)) for name in node.ins if self.graph.tensors[name].role is Role.VALUE)

    def _bits(self, node: Node, whole: Sizes) -> Iterator[tuple[str, float]]:
        if not node.ins or node.ins[0] not in self.flows:
            return
        x, y = self._value(node.ins[0]), node.outs[0]
        anyway = {"relu": y, **dict.fromkeys(BITS, x)}.get(node.op)
        if anyway is not None and whole.get(anyway, 0) < self.bytes(anyway):
            yield y, self.bytes(y) / 32
        if node.op == "max_pool2d":
            window = node.attrs["kernel"][0] * node.attrs["kernel"][1]
            yield y, self.bytes(y) / 4 * next(bits for bits in (1, 2, 4, 8) if window <= 1 << bits) / 8

    def _value(self, name: str) -> str:
        """What a view is of."""
        while name in self.made and ops.get(self.made[name].op).is_view:
            name = self.made[name].ins[0]
        return name

    def _share(self, node: Node, weight: str) -> float:
        """Of the input: the channels that learn, where they are channels of the input."""
        update = self.learns[weight]
        if update.indices is None or (update.axis == 0 and node.attrs.get("groups", 1) == 1):
            return 1.0
        channels = self.graph.tensors[node.ins[0]].shape[-1]
        return len(update.indices) / int(channels)

    # -- beside what is kept ------------------------------------------------------------------------------------------

    def forward(self) -> int:
        """The most at a time that is not kept, each tensor from its maker to its last reader; what can be computed in
        place, is. Before the first layer that learns, one sample after the other runs."""
        nodes, kept = self.graph.nodes, self.kept()
        first = next(i for i, node in enumerate(nodes) if any(name in self.learns for name in node.ins))
        last = {self._value(name): i for i, node in enumerate(nodes) for name in node.ins}
        alive: set[str] = set()
        most = 0
        for i, node in enumerate(nodes):
            alive |= {out for out in node.outs if self._value(out) == out and self._is_value(out)}
            dying = {name for name in alive if last.get(name, -1) <= i and name not in node.outs}
            n = 1 if i < first else self.n
            size = {name: self.graph.tensors[name].bytes(n) - kept.get(name, 0) * n / self.n for name in alive}
            reused = max((size[name] for name in dying), default=0) if node.op in IN_PLACE else 0
            most = max(most, round(sum(size.values()) - reused))
            alive -= dying
        return most

    def _is_value(self, name: str) -> bool:
        return self.graph.tensors[name].role is Role.VALUE


def _is_weight(node: Node, name: str) -> bool:
    return node.ins.index(name) == 1 or (node.op.endswith("_put") and node.ins.index(name) == 2)


def _scale(node: Node) -> str:
    return node.ins[1] if len(node.ins) > 1 else ""


# -- networks × methods ------------------------------------------------------------------------------------------------


def expected(entries: Entries, n: int, slots: int, other: int) -> Sum:
    table = Table(entries.forward["evaluate"], entries.updates, n)
    state = 4 * sum(_learned(update, entries.shapes) for update in entries.updates) * (1 + slots)
    return Sum(state, table.forward(), round(sum(table.kept().values())), other)


def _learned(update: Update, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Numbers that learn."""
    shape = shapes[update.param]
    if update.indices is None or update.axis is None:
        return math.prod(shape)
    return math.prod(shape) // shape[update.axis] * len(update.indices)


def row(net: Net, method: str, batch: int, pixels: int | None = None) -> Json:
    model = net.model().eval()
    inputs: Any = net.batch(batch)[0]
    if pixels is not None:
        inputs = (inputs[0].repeat(pixels // inputs[0].shape[-1], 2).repeat(pixels // inputs[0].shape[-2], 3),)
    options = {"method": method, "optimizer": smidgen.SGD(0.01, momentum=0.9), "loss": net.loss}
    job = smidgen.compile(model, inputs if len(inputs) > 1 else inputs[0], kernels="exact", **options)
    checked = checked_options(model, batch=batch, method=method, optimizer=options["optimizer"])
    entries = Lowering(import_model(model, inputs, loss=net.loss)).entries(checked)
    plan = job.plan
    found = expected(entries, batch, 1, plan.context_bytes + plan.stack_bytes)
    return {"net": net.name, "method": method, "batch": batch, "ram_bytes": plan.ram_bytes, "sum_bytes": found.total,
            "ratio": round(plan.ram_bytes / found.total, 4), "state_bytes": found.state,
            "forward_bytes": found.forward, "kept_bytes": found.kept}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append", choices=list(SPARSE))
    parser.add_argument("--method", action="append")
    args = parser.parse_args()
    rows: list[Json] = []
    for name in args.net or SPARSE:
        for method in args.method or (*METHODS, SPARSE[name]):
            for batch in (1, 8):
                rows.append(row(NETS[name], method, batch, PIXELS.get(name)))
                print(json.dumps(rows[-1]), flush=True)
    if not args.net and not args.method:
        report = {"command": "python -m benchmarks.method_memory", "machine": describe(), "rows": rows}
        files.write(OUT, (json.dumps(report, indent=1) + "\n").encode())
    return 1 if any(r["ratio"] > MOST for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
