"""What a program is made of: instructions, and buffers of the caller. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ..ir import Batch, DType, Shape, Tensor, at

# What one instruction may have; the same figures are in runtime/kernel.h.
MAX_RANK: Final = 8
MAX_PARAMS: Final = 96
MAX_OPERANDS: Final = 24

OperandRegion = Literal["const", "state", "arena", "page", "input", "output", "none"]
Direction = Literal["input", "output"]
Word = int | Batch
"""A kernel's parameter: 32 bits, or that many per sample."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of the caller: one input or output of an entry point."""

    name: str
    dtype: DType
    dims: Shape
    direction: Direction

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
    """`offset` is in bytes, or the number of the entry's buffer; in a loop the address advances by `stride` bytes."""

    region: OperandRegion
    offset: int
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Instruction:
    """A kernel with its operands and parameters; or, without a kernel, a loop over the next `body` instructions."""

    kernel: str
    operands: tuple[Operand, ...] = ()
    params: tuple[Word, ...] = ()
    body: int = 0

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
