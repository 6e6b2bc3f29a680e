"""What a node costs, and what a byte costs outside RAM: seconds and joules on a machine of known speed."""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from ..device import Device
from ..ir import at


@dataclass(frozen=True, slots=True)
class Paging:
    """Storage outside RAM. One transfer at a time, while nothing is computed."""

    out_s: float  # of one transfer, whatever its size
    out_bytes_per_s: float
    in_s: float
    in_bytes_per_s: float
    watts: float

    def out_seconds(self, count: int) -> float:
        return self.out_s + count / self.out_bytes_per_s

    def in_seconds(self, count: int) -> float:
        return self.in_s + count / self.in_bytes_per_s


@dataclass(frozen=True, slots=True)
class Prices:
    """Speed of one machine. Arithmetic and traffic are added up: kernels are in order, and most are bound by one."""

    macs_per_s: float
    bytes_per_s: float
    call_s: float  # of one instruction, whatever it does
    name: str = ""
    watts: float = 1.0  # while it computes
    page: Paging | None = None  # None: it has nowhere to page to

    def seconds(self, op: str, call: ops.Call, n: int) -> float:
        record = ops.get(op)
        if record.is_view:
            return 0.0
        macs = int(at(record.macs(call), n))
        traffic = sum(t.bytes(n) for t in (*call.ins, *call.outs))
        return self.call_s + macs / self.macs_per_s + traffic / self.bytes_per_s


DISK = Paging(out_s=5e-5, out_bytes_per_s=1e9, in_s=5e-5, in_bytes_per_s=1e9, watts=2.0)
CARD = Paging(out_s=1.13e-4, out_bytes_per_s=4.44e6, in_s=1.09e-4, in_bytes_per_s=4.6e6, watts=0.33)
"""An SD card on a Cortex-M4; figures of POET's repository, poet/chipsets.py."""
HOST = Prices(macs_per_s=40e9, bytes_per_s=20e9, call_s=3e-7, name="host", watts=15.0, page=DISK)
INSTRUCTIONS_A_MAC = 12.0  # of exact kernels, LeNet-5 on an emulated Cortex-M7: 14.0 M for 1.14 M


def prices_of(device: Device | None) -> Prices:
    """A microcontroller does one instruction a cycle, and has a card to page to; anything else is like the host."""
    if device is None or device.kind != "microcontroller" or not device.clock_hz:
        return HOST
    hz = float(device.clock_hz)
    return Prices(hz / INSTRUCTIONS_A_MAC, hz, 200 / hz, device.name, watts=0.33, page=CARD)
