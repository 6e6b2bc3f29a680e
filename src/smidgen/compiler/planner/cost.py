"""What a node costs, and what a paged byte costs: seconds and joules on a machine of known speed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ... import ops
from ...devices.device import Device, Paging
from ...errors import Internal
from ...ir import Graph, Role, at
from ...ops.build import typed
from ..graph.alias import loop_range
from ..graph.rows import Marked, marked, streamed_inputs
from .core_rates import CoreRates, rates_of

PAGES_OUT: Final = ("out", "write")
PAGES_IN: Final = ("in", "wait")  # `start` only asks; the time is counted where it is waited for


@dataclass(frozen=True, slots=True)
class Rate:
    """Of one kind of kernel: arithmetic and traffic are added up, since kernels are in order and most are bound by
    one of them."""

    call_s: float  # of one instruction, whatever it does
    mac_s: float
    byte_s: float  # read or written


@dataclass(frozen=True, slots=True)
class Prices:
    """Speed of one machine."""

    macs_per_s: float
    bytes_per_s: float
    call_s: float
    name: str = ""
    watts: float = 1.0  # while it computes
    page: Paging | None = None  # None: it has nowhere to page to
    rates: Mapping[str, Rate] = field(default_factory=dict)  # of families that are known better than by these figures

    def seconds(self, op: str, call: ops.Call, n: int) -> float:
        record = ops.get(op)
        if not record.kernels:
            return 0.0
        if record.page:
            return self._page_seconds(op, call.outs[0].bytes(n))
        macs = int(at(record.macs(call), n))
        traffic = sum(t.bytes(n) for t in (*call.ins, *call.outs))
        rate = self.rates.get(family(op, call))
        if rate is not None:
            return rate.call_s + macs * rate.mac_s + traffic * rate.byte_s
        return self.call_s + macs / self.macs_per_s + traffic / self.bytes_per_s

    def again_seconds(self, op: str, call: ops.Call, again_bytes: int) -> float:
        """What it takes to start a kernel once more for a part of its work, which reads so many bytes again."""
        rate = self.rates.get(family(op, call))
        byte_s = 1 / self.bytes_per_s if rate is None else max(rate.byte_s, 1 / self.bytes_per_s)
        return max(self.call_s, rate.call_s if rate else 0.0) + again_bytes * byte_s

    def joules(self, op: str, call: ops.Call, n: int) -> float:
        return self.seconds(op, call, n) * self.watts_of(op)

    def watts_of(self, op: str) -> float:
        page = self.page if ops.get(op).page else None
        return self.watts if page is None else page.watts

    def _page_seconds(self, op: str, count: int) -> float:
        if self.page is None:
            raise Internal(f"'{op}' pages, and there is nowhere to page to")
        kind = ops.get(op).page
        if kind in PAGES_OUT:
            return self.page.out_seconds(count)
        return self.page.in_seconds(count) if kind in PAGES_IN else self.call_s


@dataclass(frozen=True, slots=True)
class Spent:
    """What running something takes."""

    seconds: float = 0.0
    joules: float = 0.0

    def plus(self, other: Spent, times: int = 1) -> Spent:
        return Spent(self.seconds + times * other.seconds, self.joules + times * other.joules)


def spent(graph: Graph, batch: int, prices: Prices) -> Spent:
    """By one run of a graph with a full batch."""
    body, found = loop_range(graph), Spent()
    for i, node in enumerate(graph.nodes):
        n, times = (1, batch) if i in body else (batch, 1)
        seconds = prices.seconds(node.op, typed(graph, node), n)
        found = found.plus(Spent(seconds, seconds * prices.watts_of(node.op)), times)
    for mark in marked(graph):
        seconds = by_rows_seconds(mark, prices)
        found = found.plus(Spent(seconds, seconds * prices.watts))
    return found


def by_rows_seconds(mark: Marked, prices: Prices) -> float:
    """What a stream takes more than its nodes as a whole: kernels are started for each few rows, and read weights and
    sums again; rows that are still needed are moved."""
    extra = 0.0
    for i in mark.nodes:
        node = mark.graph.nodes[i]
        if ops.get(node.op).is_view:
            continue
        call, held = typed(mark.graph, node), mark.stream.values[node.outs[0]]
        by_rows = streamed_inputs(mark.graph, node)
        again = sum(t.bytes(1) for k, t in enumerate(call.ins) if k not in by_rows and t.role is not Role.INPUT)
        if not held.row_bytes and call.outs[0].role is Role.VALUE:  # a sum is read and written, with what is beside it
            again += 4 * call.outs[0].bytes(1)
        moved = max(held.most - held.turn, 0) * held.row_bytes if held.most < held.count else 0
        extra += (held.turns - 1) * (prices.again_seconds(node.op, call, again) + 2 * moved / prices.bytes_per_s)
    return extra


def family(op: str, call: ops.Call) -> str:
    """Kernels of one speed: an op, and apart from it the op on groups of channels."""
    return f"{op} in groups" if call.attrs.get("groups", 1) > 1 else op


def _rates() -> dict[str, Rate]:
    """Of fast kernels on one thread; written by benchmarks/prices.py."""
    found = json.loads((Path(__file__).parent / "host.json").read_text())
    return {name: Rate(*figures) for name, figures in found["rates"].items()}


DISK: Final = Paging(out_s=5e-5, out_bytes_per_s=1e9, in_s=5e-5, in_bytes_per_s=1e9, watts=2.0)
CARD: Final = Paging(out_s=1.13e-4, out_bytes_per_s=4.44e6, in_s=1.09e-4, in_bytes_per_s=4.6e6, watts=0.33)
"""An SD card on a Cortex-M4; figures of POET's repository, poet/chipsets.py."""
ROUGH: Final = Prices(macs_per_s=40e9, bytes_per_s=20e9, call_s=3e-7, name="host", watts=15.0, page=DISK)
"""Nothing but counts: for what is decided without a budget, so that it does not depend on anyone's measurements."""
HOST: Final = replace(ROUGH, rates=_rates())
"""The same on every machine. Watts are assumed."""
WATTS: Final = 0.33  # of a microcontroller that says nothing of its power
CYCLES_A_MAC: Final = {True: 12.0, False: 80.0}  # with an FPU or without, of exact kernels under QEMU


@dataclass(frozen=True, slots=True)
class CorePrices(Prices):
    """One instruction a cycle, as counted for the core."""

    core: CoreRates | None = None
    hz: float = 1.0

    def seconds(self, op: str, call: ops.Call, n: int) -> float:
        if self.core is None or ops.get(op).page:
            return Prices.seconds(self, op, call, n)
        return self.core.instructions(op, call, n) / self.hz

    def again_seconds(self, op: str, call: ops.Call, again_bytes: int) -> float:
        if self.core is None:
            return Prices.again_seconds(self, op, call, again_bytes)
        return self.core.again(op, call, again_bytes) / self.hz


def prices_of(device: Device | None) -> Prices:
    """From the device's own file; without figures there, from the instructions of its core. Of a core that was not
    counted, a microcontroller is guessed from its clock, and anything else is like the host."""
    if device is None or not device.clock_hz:
        return HOST
    hz, page = float(device.clock_hz), device.page or (CARD if device.is_bare else DISK)
    if device.speed is not None:
        v = device.speed
        rates = hz / v.cycles_per_mac, hz / v.cycles_per_byte, v.cycles_per_call / hz
        return Prices(*rates, device.name, device.watts or WATTS, page)
    counted = rates_of(device)
    if counted is not None:
        rates = hz / (counted.rest.blocked or 1.0), hz / (counted.rest.read or 1.0), counted.dispatch / hz
        return CorePrices(*rates, device.name, device.watts or WATTS, page, core=counted, hz=hz)
    if device.kind != "microcontroller":
        return replace(HOST, page=page)
    return Prices(hz / CYCLES_A_MAC[bool(device.fpu)], hz, 200 / hz, device.name, device.watts or WATTS, page)
