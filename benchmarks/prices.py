"""The fixed prices of plans for the host: `python -m benchmarks.prices` writes src/smidgen/compiler/planner/host.json.
Those of microcontrollers are counted by benchmarks/board_prices.py.

Times every kernel of the networks in benchmarks/nets on its own, and fits to each family of kernels what a call, a
multiply-accumulate and a byte take. Fast kernels, one thread. Plans are made with these figures on every machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from smidgen import SGD, Adam, api, files, ops
from smidgen.compiler.graph.alias import loop_range
from smidgen.compiler.planner import cost, measure
from smidgen.ir import at
from smidgen.ops.build import typed

from .nets import NETS, Net
from .nets.large import REDUCED
from .nets.workloads import WORKLOADS
from .parity import machine

OUT = Path(cost.__file__).parent / "host.json"
MORE = ("densenet121_reduced", "inceptionv3_reduced", "squeezenet_reduced", "bert_small_reduced")
BATCHES = (1, 8)
LEAST_KERNELS = 30  # of a family; fewer say nothing of other sizes
Row = tuple[float, float, float]  # calls (1), multiply-accumulates, bytes


def sampled(net: Net, batch: int, prices: measure.Measured, bn: str, adam: bool) -> list[tuple[str, Row, float]]:
    """Family, counts and seconds of every kernel of a training step."""
    inputs, _ = net.batch(max(batch, 2))
    optimizer = Adam(1e-3) if adam else SGD(1e-3, momentum=0.9)
    model = net.model().eval()
    entries = api.build(model, inputs, loss=net.loss, batch=batch, bn=bn, optimizer=optimizer)
    graph, found = entries.graphs["train"], []
    body = loop_range(graph)
    for i, node in enumerate(graph.nodes):
        record, call, n = ops.get(node.op), typed(graph, node), 1 if i in body else batch
        if record.is_view or record.page or node.op in ("feed", "fetch"):
            continue
        seconds = prices.seconds(node.op, call, n)
        if prices.known[measure.signature(node.op, call, n)] is None:
            continue
        traffic = sum(t.bytes(n) for t in (*call.ins, *call.outs))
        found.append((cost.family(node.op, call), (1.0, float(int(at(record.macs(call), n))), float(traffic)), seconds))
    return found


def fitted(rows: list[tuple[Row, float]]) -> tuple[cost.Rate, float]:
    """No figure is below 0. Of all choices of figures that are not 0, the one with the least error, where a kernel
    counts as much as the root of its time; and the median of the relative error."""
    counts = np.array([row for row, _ in rows])
    seconds = np.maximum(np.array([s for _, s in rows]), 1e-8)
    weight = 1 / np.sqrt(seconds)
    best, least = np.zeros(3), np.inf
    for size in (1, 2, 3):
        for chosen in itertools.combinations(range(3), size):
            found, *_ = np.linalg.lstsq(counts[:, chosen] * weight[:, None], seconds * weight, rcond=None)
            off = float(np.square((counts[:, chosen] @ found - seconds) * weight).sum())
            if (found >= 0).all() and off < least * (1 - 1e-6):
                best, least = np.zeros(3), off
                best[list(chosen)] = found
    return cost.Rate(*(float(f"{v:.3g}") for v in best)), float(np.median(np.abs(counts @ best / seconds - 1)))


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    nets = [*NETS.values(), *(REDUCED[name] for name in MORE), WORKLOADS["mcunet"], WORKLOADS["transformer"]]
    samples: dict[str, list[tuple[Row, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        prices = measure.measured(folder=Path(folder))
        for number, (net, batch) in enumerate(itertools.product(nets, BATCHES)):
            for bn in ("frozen", "batch") if net.has_norm and batch > 1 else ("frozen",):
                for name, row, seconds in sampled(net, batch, prices, bn, adam=number % 4 == 3):
                    samples[name].append((row, seconds))
            print(f"{net.name} at {batch}: {len(prices.known)} kernels", flush=True)
    rates, errors = {}, {}
    for name in sorted(samples):
        rate, error = fitted(samples[name])
        if len(samples[name]) >= LEAST_KERNELS and rate.mac_s + rate.byte_s > 0:
            rates[name], errors[name] = rate, error
    said = {
        "what": "seconds of a call, of a multiply-accumulate and of a byte; fast kernels, one thread",
        "command": "python -m benchmarks.prices", "date": time.strftime("%Y-%m-%d"), "machine": machine(),
        "rates": {name: [rate.call_s, rate.mac_s, rate.byte_s] for name, rate in rates.items()},
    }  # fmt: skip
    text = re.sub(r"\[\s+(\S+)\s+(\S+)\s+(\S+)\s+\]", r"[\1 \2 \3]", json.dumps(said, indent=1))  # a family, a line
    files.write(OUT, (text + "\n").encode())
    for name, error in errors.items():
        print(f"{name:32} {len(samples[name]):5} kernels, median error {error:.0%}")


if __name__ == "__main__":
    main()
