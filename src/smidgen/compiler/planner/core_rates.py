"""Instructions of exact kernels on cores without an operating system: cores.json, which benchmarks/board_prices.py
writes. A kernel's work (ops/work.py) and its bytes, each times a rate of its family."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from ... import ops
from ...devices.cores import core_of, is_ported
from ...devices.device import Device
from ...ir import Batch, at
from ...ops.work import Work

SAME_CODE: Final = {"cortex-m0plus": "cortex-m0"}
"""Cores with the instruction set of another one: the compiler writes the same code for both."""
PATH: Final = Path(__file__).parent / "cores.json"


class Features(NamedTuple):
    """Of one call: what its instructions are told from. As rates: instructions for each of them."""

    calls: float
    blocked: float  # multiply-accumulates
    single: float
    starts: float  # of an inner loop
    read: float  # bytes
    written: float


@dataclass(frozen=True, slots=True)
class CoreRates:
    """Of one core. `rest` is for families that were not counted; each instruction of a program is dispatched."""

    name: str
    rates: Mapping[str, Features]
    rest: Features
    dispatch: float
    channel_byte: float  # fed from the caller, or fetched
    source: str

    def instructions(self, op: str, call: ops.Call, n: int) -> float:
        record = ops.get(op)
        if not record.kernels:
            return 0.0
        counts = features(op, call, n)
        if record.border:
            return self.dispatch + counts.written * self.channel_byte
        rate = self.rates.get(core_family(op, call, n), self.rest)
        return self.dispatch + sum(count * each for count, each in zip(counts, rate, strict=True))

    def again(self, op: str, call: ops.Call, again_bytes: int) -> float:
        """Of starting a kernel once more, which reads so many bytes again."""
        rate = self.rates.get(core_family(op, call, 1), self.rest)
        return self.dispatch + rate.calls + again_bytes * max(rate.read, self.rest.read)


def work_of(op: str, call: ops.Call, n: int) -> Work:
    record = ops.get(op)
    if record.work is None:
        return Work(int(at(record.macs(call), n)))
    return record.work([int(at(p, n)) if isinstance(p, (int, Batch)) else 0 for p in record.params(call)])


def core_family(op: str, call: ops.Call, n: int) -> str:
    """Kernels with the same rates: an op, and each way through its kernel."""
    way = work_of(op, call, n).way
    return f"{op} {way}" if way else op


def features(op: str, call: ops.Call, n: int) -> Features:
    blocked, single, starts, _ = work_of(op, call, n)
    read, written = (float(sum(t.bytes(n) for t in side)) for side in (call.ins, call.outs))
    return Features(1.0, float(blocked), float(single), float(starts), read, written)


@functools.cache
def core_rates() -> Mapping[str, CoreRates]:
    """By the names of devices/cores.py, those that were counted."""
    found = json.loads(PATH.read_text()) if PATH.exists() else {"cores": {}}
    cores = found["cores"]
    cores |= {name: cores[other] for name, other in SAME_CODE.items() if other in cores and name not in cores}
    return {
        name: CoreRates(
            name, {family: Features(*figures) for family, figures in core["rates"].items()}, Features(*core["rest"]),
            core["dispatch"], core["channel_byte"], core["source"],
        )
        for name, core in cores.items()
    }  # fmt: skip


def rates_of(device: Device) -> CoreRates | None:
    """None: the device has figures of its own, or its core was not counted."""
    if device.speed is not None or not is_ported(device):
        return None
    return core_rates().get(core_of(device).name)
