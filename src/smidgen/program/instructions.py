"""What a program is made of: instructions of entry points. Data only; a job that trains never looks at them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from ..ir import Batch, at
from .buffer import Buffer

# What one instruction may have; the same figures are in runtime/kernel.h.
MAX_PARAMS: Final = 96
MAX_OPERANDS: Final = 24
# Of a stream's table, as in runtime/rows.h: sizes, kinds of rules, and that old rows are forgotten before new are made.
VALUE_WORDS, RULE_WORDS = 6, 8
EACH, WINDOW, SPREAD, PLACED, SUM, FORGETS = 0, 1, 2, 3, 4, 16

OperandRegion = Literal["const", "state", "arena", "page", "input", "output", "list", "none"]
Word = int | Batch
"""A kernel's parameter: 32 bits, or that many per sample."""


@dataclass(frozen=True, slots=True)
class Operand:
    """`offset` is in bytes, or the number of the entry's buffer; in a loop the address advances by `stride` bytes, in
    those around that one by `outer`. In a stream it moves by rows: `rows` - 1 is their number in the stream's table, 0
    means that it stays. Region "list" is an index list in STATE."""

    region: OperandRegion
    offset: int
    stride: int = 0
    outer: tuple[int, ...] = ()
    rows: int = 0

    @property
    def strides(self) -> tuple[int, ...]:
        """Of the innermost loop first, without the zeros at the end."""
        found = (self.stride, *self.outer)
        return found[: max((k + 1 for k, stride in enumerate(found) if stride), default=0)]

    @property
    def levels(self) -> int:
        return len(self.strides)

    @staticmethod
    def at(region: OperandRegion, offset: int, strides: tuple[int, ...], rows: int = 0) -> Operand:
        while strides and not strides[-1]:
            strides = strides[:-1]
        return Operand(region, offset, strides[0] if strides else 0, strides[1:], rows)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A kernel with its operands and parameters; or, without a kernel, a loop over the next `body` instructions:
    `count` times, or once per sample; of the loop around it in iterations i with i % period == phase; or, with a
    `table` (StreamTable), a stream of the next `body` instructions. `guard` names the selectable part that it belongs
    to, `unit` the processor that runs it; 0: all, the only one."""

    kernel: str
    operands: tuple[Operand, ...] = ()
    params: tuple[Word, ...] = ()
    body: int = 0
    count: int = 0
    period: int = 0
    phase: int = 0
    guard: int = 0
    unit: int = 0
    table: tuple[int, ...] = ()

    @property
    def is_loop(self) -> bool:
        return not self.kernel and not self.table

    @property
    def is_stream(self) -> bool:
        return bool(self.table)

    def params_at(self, n: int) -> list[int]:
        return [int(w) for w in at(self.params, n)]


@dataclass(frozen=True, slots=True)
class StreamTable:
    """How a stream moves, as runtime/rows.h describes it: which rows of each value there are in iteration i, and how
    each instruction of the body makes some of them."""

    iterations: int
    values: tuple[tuple[int, ...], ...]  # rows, step, period, ahead, kept, bytes of a row
    rules: tuple[tuple[int, ...], ...]  # kind, reach, step, by, padding; parameters: rows of x, of y, what is above

    @property
    def words(self) -> tuple[int, ...]:
        both = (*self.values, *self.rules)
        return (self.iterations, len(self.values), *(word for one in both for word in one))

    @staticmethod
    def of(words: tuple[int, ...], body: int) -> StreamTable | None:
        """None if they are none, for a body of so many instructions."""
        count = words[1] if len(words) > 1 else -1
        if count < 0 or len(words) != 2 + VALUE_WORDS * count + RULE_WORDS * body:
            return None
        rules = 2 + VALUE_WORDS * count
        values = tuple(words[i : i + VALUE_WORDS] for i in range(2, rules, VALUE_WORDS))
        return StreamTable(
            words[0], values, tuple(words[i : i + RULE_WORDS] for i in range(rules, len(words), RULE_WORDS))
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry point; `buffers` are its inputs, then its outputs."""

    buffers: tuple[Buffer, ...]
    code: tuple[Instruction, ...]
