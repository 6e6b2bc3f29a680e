"""What others may ask about an op without knowing its name: the types of the fields of its record, see registry.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ..errors import Internal
from ..ir import DType, Quant

Attrs = Mapping[str, Any]

Page = Literal["", "out", "in", "start", "wait", "write"]
"""What an op does with PAGE: out and write put the last input there, in and start read input 0, wait reads its last
input (which must not change before) and ends what start began. Result 0 of `PAGE_WRITERS` is in PAGE."""
PAGE_WRITERS: Final = ("out", "write")
PAGE_READERS: Final[Mapping[Page, int]] = {"in": 0, "start": 0, "write": 0, "wait": 1}
"""The input that is in PAGE; all others are in RAM."""

Slices = Literal["", "take", "put"]
"""Some indices of the attribute `axis`, listed in the last input: take gives those of input 0, put gives input 0 with
input 1 in their place."""

Border = Literal["", "in", "out"]
"""The op copies between a buffer of the caller and the arena: in reads an input, out writes an output."""

OperandRole = Literal["weight", "bias", "scale", "shift", "table", "mean", "variance"]
"""What an input is to the op: weights and tables are multiplied or looked up, biases and shifts added."""

Norm = Literal["", "batch", "layer", "group"]
"""Over what the op normalises: the samples of a batch, trailing axes, groups of channels."""

Statistics = Literal["", "takes", "keeps"]
"""takes: the result depends on the statistics of all samples at hand, so that a micro-batch has others than the batch;
keeps: enters them into the running statistics, once for each batch."""

LinearIn = tuple[tuple[int, ...], ...]
"""Each entry names inputs in which the op is linear together while the others are held: f(a + b) = f(a) + f(b)."""

LayoutRule = Literal[
    "each",  # element by element, operands broadcast
    "along",  # along the attribute `axis`, on operands of one shape
    "over",  # reduces the attribute `axis` or `axes`
    "reorder",  # y has the axes of x in another order
    "regroup",  # y has the elements of x, in their order, under another shape
    "repeat",  # y repeats x along axes of size one
    "surround",  # y is x with something around it
    "join",  # y is its inputs one after the other along `axis`
    "rows",  # on the last axis of x whatever the others are, with a weight [outputs, inputs]
    "channels",  # on each channel, the last axis of x, whatever the others are
    "trailing",  # on the last `axes` axes of x together; the other inputs have their shape
    "product",  # of matrices, the last two axes; `ta` and `tb` say which of them are read transposed
    "enter",  # from the caller's buffer, axes in the order `perm`
    "leave",  # to the caller's buffer, axes in the order `perm`
]


@dataclass(frozen=True, slots=True)
class Layout:
    """What the op does with operands whose axes lie in another order in memory than written (compiler/passes/axes.py).

    Without one, the op sees its operands as written.
    """

    rule: LayoutRule
    operands: int | None = None  # how many inputs the rule is about; the others are taken as written. None: all
    once: bool = False  # equal nodes on the same input are written once for all readers


EACH: Final = Layout("each")


@dataclass(frozen=True, slots=True)
class Taken:
    """Some indices of an axis of the result without the others: the same op on inputs with only those indices."""

    inputs: tuple[tuple[int, int], ...]  # input, and its axis
    attrs: Attrs = field(default_factory=dict)  # that are others then
    packed: tuple[int, ...] = ()  # inputs that hold a bit for each element of the result, as `range_bits` packs them


@dataclass(frozen=True, slots=True)
class Channels:
    """The axes of a weight: of the results it makes and of what it reads. One of a depthwise layer is both; None:
    channels in groups are no axis of their own."""

    outputs: int | None
    inputs: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """The weight at `input` may be stored otherwise than whole and in f32: ops that take other inputs in its place.
    They have every input of this op, also one that it may leave out."""

    input: int
    int8: str | None = None  # q in int8, and a scale for each index of its first axis
    behind: int = 0  # inputs behind it that are no bias
    slice: str | None = None  # all of it, a slice that replaces a part along the attribute `axis`, its indices


@dataclass(frozen=True, slots=True)
class Integer:
    """How an op in f32 is written in integers (compiler/passes/quantize.py).

    layer     as `op`, with weight and bias in integers, and multipliers
    rescaled  as `op`, with the attributes that `attrs` makes of what its operands and its result stand for; the zero
              point and the bounds of the result are added to them; None where there is no such form
    same      as it is, on int8: the result stands for what its inputs stand for. `attrs` changes what is a number
    """

    kind: Literal["layer", "rescaled", "same"]
    op: str = ""
    attrs: Callable[[Any, Sequence[Quant], Quant], Attrs | None] | None = None
    """(call in f32, of the operands, of the result)"""


SAME: Final = Integer("same")


@dataclass(frozen=True, slots=True)
class Int16:
    """How an op on gradients in f32 is written on int16 mantissas (compiler/passes/int16.py): as `op`, with the
    exponents behind each of the gradients `inputs`; without one as it is, and the exponent stays. `delayed`: the op
    takes a gain behind all inputs. `constant` makes another of the constant at `constant_at`, and attributes (None:
    there is no such form); `write` adds other nodes, for a gradient in f32, and returns mantissas and exponent."""

    op: str = ""
    inputs: tuple[int, ...] = (0,)
    starts: bool = False  # a gradient in f32 is worth making mantissas of
    delayed: bool = False
    constant: Callable[[Any, Any], tuple[Any, Attrs] | None] | None = None
    constant_at: int = 2
    write: Callable[[Any, Any, str], tuple[str, str]] | None = None


SAME16: Final = Int16()


@dataclass(frozen=True, slots=True)
class Rows:
    """How an op whose operands exist only a few rows at a time makes some rows of its result. A row is one index of the
    first axis that is longer than 1, so that rows lie one behind the other. Row r of the result needs

    each    row r of all inputs that have as many rows; the kernel takes rows for samples
    window  rows r·step - pad to r·step - pad + reach - 1 of input 0, of which those outside it count as padding; the
            kernel is told how many rows it has of x and of y, and how many of the padding are above them
    spread  the inverse: row r of input 0 reaches rows r·step - pad to r·step - pad + reach - 1
    placed  rows ⌊(r·by - pad)/step⌋ to ⌊(r·by - pad + reach - 1)/step⌋ of input 0; the kernel is told how many rows it
            has of x and of y, which is the first of x and, in the parameter behind, which the first of y
    adds    the result adds up over the rows of input 0, in their order, each together with rows r·step - pad to
            r·step - pad + reach - 1 of input 1 if that is a source, too. A kernel of its own goes on where the call
            before has ended, and keeps the result and `carry_bytes` beside it between calls; it is told how many rows
            it has of the inputs, the padding, and in the parameter behind which row is the first
    """

    kind: Literal["each", "window", "spread", "placed", "adds"]
    reach: int = 1
    step: int = 1
    pad: int = 0
    words: tuple[int, int, int] = (0, 0, 0)  # parameters that tell rows of x, rows of y, and padding or first rows
    by: int = 1
    alone: bool = False  # windows in the padding alone are computed too
    params: Sequence[Any] | None = None  # of the kernel for N rows, if they are not those for N samples
    outside_bytes: int = 0  # from row to row of the caller's buffer
    kernel: str = ""  # of a sum
    sources: int = 0  # so many inputs come row by row; 0: input 0, of `each` those that have as many rows
    carry_bytes: int = 0

    @property
    def plain(self) -> tuple[int, ...]:
        """As a stream's table has it, without the kind."""
        return (self.reach, self.step, self.by, self.pad, *self.words)

    def of_input(self, k: int) -> Rows:
        """Which rows of one input it needs."""
        if self.kind != "adds":
            return self
        return Rows("window", self.reach, self.step, self.pad) if k == 1 else BY_ROWS

    @property
    def needs(self) -> tuple[int, int, int, int]:
        """(by, over, low, high): row r needs rows ⌊(r·by + low)/over⌋ to ⌊(r·by + high)/over⌋."""
        last = self.reach - 1 - self.pad
        if self.kind == "window":
            return self.step, 1, -self.pad, last
        if self.kind == "spread":
            return 1, self.step, self.step - 1 - last, self.pad
        return (self.by, self.step, -self.pad, last) if self.kind == "placed" else (1, 1, 0, 0)


BY_ROWS: Final = Rows("each")


Target = Literal["classes", "yes_no", "values"]
"""What a loss compares the model's output with: the number of a class for each row of scores; yes or no (1 or 0) for
each score; a number for each element."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss: op(output, target[, weights], reduction="mean" or "sum") → one number.

    With `target="classes"` the op takes scores[…, C], labels i32[…] and perhaps weights of classes [C]; a mean divides
    by the weight of the labels that count (`ignore_index`). Otherwise output and target have one shape.
    """

    target: Target
    name: str = ""  # for loss="…"; without one it is reached only through the torch operator it translates
    torch: Callable[[Any, Any, Any], Any] | None = None  # (torch, output, target) → the same; for what has a name
    attrs: Attrs = field(default_factory=dict)  # with which the op is added by name, beside the reduction
    in_torch: bool = (
        True  # torch has an operator for it, which compiler/torch_import/aten/loss.py translates into this op
    )


def signature(ins: Sequence[DType], outs: Sequence[DType]) -> str:
    """As in the keys of `kernels`: "u8,u8->i32"."""
    return "->".join(",".join(t.value for t in types) for types in (ins, outs))


def chosen_kernel(
    op: str, kernels: Mapping[str, str], ins: Sequence[DType], outs: Sequence[DType], shown: Sequence[Set[DType]]
) -> str:
    """The C function for operands of these types: by their whole signature. The type of the first output alone names it
    only where each operand has that type, or one that the op's cases show: a kernel never reads what it is not for."""
    asked = signature(ins, outs)
    usual = not shown or all(kind in {*shown[min(i, len(shown) - 1)], *outs[:1]} for i, kind in enumerate(ins))
    found = kernels.get(asked) or (kernels.get(outs[0].value) if outs and usual else None)
    if found is None:
        known = ", ".join(kernels) or "none at all"
        raise Internal(f"'{op}' has no kernel for {asked}", why=f"its record names one for {known}")
    return found
