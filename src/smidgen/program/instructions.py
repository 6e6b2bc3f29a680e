"""What a program is made of: instructions, and buffers of the caller. Data only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from ..ir import Batch, DType, Shape, Tensor, at

# What one instruction may have; the same figures are in runtime/kernel.h.
MAX_RANK: Final = 8
SCALED_RANK: Final = 6  # of a buffer with scale and offset
MAX_PARAMS: Final = 96
MAX_OPERANDS: Final = 24

OperandRegion = Literal["const", "state", "arena", "page", "input", "output", "list", "none"]
Direction = Literal["input", "output"]
Word = int | Batch
"""A kernel's parameter: 32 bits, or that many per sample."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of the caller: one input or output of an entry point. Integers q stand for scale * q + offset."""

    name: str
    dtype: DType
    dims: Shape
    direction: Direction
    scale: float = 1.0  # both are f32 numbers
    offset: float = 0.0

    @property
    def is_scaled(self) -> bool:
        return (self.scale, self.offset) != (1.0, 0.0)

    @property
    def wrong_scale(self) -> str:
        """Why it cannot have the scale that it has; empty if it can."""
        fits = math.isfinite(self.scale) and math.isfinite(self.offset) and self.scale > 0
        return "" if fits and self.dtype.is_integer else "a buffer cannot have its scale"

    def shape(self, n: int) -> tuple[int, ...]:
        return tuple(at(self.dims, n))

    def bytes(self, n: int) -> int:
        return Tensor(self.name, self.dims, self.dtype).bytes(n)

    @property
    def per_sample(self) -> int:
        """Entries of the batch axis for each sample; 1 if there is no such axis."""
        return next((d.times for d in self.dims if isinstance(d, Batch)), 1)


@dataclass(frozen=True, slots=True)
class Operand:
    """`offset` is in bytes, or the number of the entry's buffer; in a loop the address advances by `stride` bytes, in
    those around that one by `outer`; after `ring` bytes it begins anew. Region "list" is an index list in STATE."""

    region: OperandRegion
    offset: int
    stride: int = 0
    outer: tuple[int, ...] = ()
    ring: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the innermost loop first, without the zeros at the end."""
        found = (self.stride, *self.outer)
        return found[: max((k + 1 for k, stride in enumerate(found) if stride), default=0)]

    @property
    def levels(self) -> int:
        return len(self.strides)

    @staticmethod
    def at(region: OperandRegion, offset: int, strides: tuple[int, ...], ring: int = 0) -> Operand:
        while strides and not strides[-1]:
            strides = strides[:-1]
        return Operand(region, offset, strides[0] if strides else 0, strides[1:], ring)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A kernel with its operands and parameters; or, without a kernel, a loop over the next `body` instructions:
    `count` times, or once per sample; of the loop around it in iterations i with i % period == phase. `guard` names the
    selectable part that it belongs to, `unit` the processor that runs it; 0: all, the only one."""

    kernel: str
    operands: tuple[Operand, ...] = ()
    params: tuple[Word, ...] = ()
    body: int = 0
    count: int = 0
    period: int = 0
    phase: int = 0
    guard: int = 0
    unit: int = 0

    @property
    def is_loop(self) -> bool:
        return not self.kernel

    def params_at(self, n: int) -> list[int]:
        return [int(w) for w in at(self.params, n)]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry point; `buffers` are its inputs, then its outputs."""

    buffers: tuple[Buffer, ...]
    code: tuple[Instruction, ...]
