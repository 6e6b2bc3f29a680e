"""What a node costs: seconds on a machine of known speed."""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from ..ir import at


@dataclass(frozen=True, slots=True)
class Prices:
    """Speed of one machine. Arithmetic and traffic are added up: kernels are in order, and most are bound by one."""

    macs_per_s: float
    bytes_per_s: float
    call_s: float  # of one instruction, whatever it does
    name: str = ""

    def seconds(self, op: str, call: ops.Call, n: int) -> float:
        record = ops.get(op)
        if record.is_view:
            return 0.0
        macs = int(at(record.macs(call), n))
        traffic = sum(t.bytes(n) for t in (*call.ins, *call.outs))
        return self.call_s + macs / self.macs_per_s + traffic / self.bytes_per_s


HOST = Prices(macs_per_s=40e9, bytes_per_s=20e9, call_s=3e-7, name="host")
