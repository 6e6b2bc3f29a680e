"""What a translation rule sees: values, constants known at import, and the graph being written.

A rule `@aten("name")` gets an `Emit` and the torch op's arguments in the order of its schema. Tensors arrive as `Value`
(a tensor of the graph) or as `torch.Tensor` (a constant known at import); sizes as int or `Batch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from .... import ops
from ....errors import Internal
from ....ir import COUNTER, Batch, Dim, DType, Role, Shape, batch_axis
from ....ops.build import Builder

Rule = Callable[..., Any]
TABLE: dict[str, Rule] = {}
MOST_PIECES = 64
COMPLEX = ("it needs complex numbers", "keep real and imaginary parts as two tensors")


class Value(str):
    """The name of a tensor in the graph; a plain str argument is an option such as "reflect"."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Complex:
    """A value that torch says is complex, as two real ones; see fourier.py."""

    real: Any
    imag: Any


class Virtual:
    """What torch has as a tensor and the graph has not: it is known what it stands for, and some ops can use that."""

    __slots__ = ()
    shape: Any


Operand: TypeAlias = Value | torch.Tensor
Number = int | float | bool


class Unsupported(Exception):
    """A rule cannot translate its arguments; the walker adds the place and raises the user's error."""

    def __init__(self, why: str, help: str = "") -> None:
        super().__init__(why)
        self.why, self.help = why, help


def aten(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for torch ops, by name or by name and overload (`conv2d`, `conv2d.padding`)."""

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in TABLE:
                raise Internal(f"torch op '{name}' has two rules")
            TABLE[name] = rule
        return rule

    return register


def is_tensor(x: object) -> bool:
    return isinstance(x, (Value, torch.Tensor))


def dtype_of(kind: torch.dtype) -> DType:
    if kind is torch.bool:
        return DType.U8
    if kind.is_complex:
        raise Unsupported(*COMPLEX)
    return DType.F32 if kind.is_floating_point else DType.I32


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise result."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))


def static(shape: Sequence[Dim]) -> tuple[int, ...]:
    """A shape without the batch."""
    fixed = tuple(d for d in shape if not isinstance(d, Batch))
    if len(fixed) < len(shape):
        raise Unsupported("a fixed size is needed here, but it grows with the batch")
    return fixed


def axis_of(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


class Writer:
    """Looks at tensors, stores constants, adds nodes, converts types.

    `node_shapes` and `node_dtypes` are torch's own results for the op being translated.
    """

    def __init__(self, builder: Builder, *, training: bool, bn: str) -> None:
        self.b = builder
        self.training = training
        self.bn = bn
        self.node_shapes: list[Shape] = []
        self.node_dtypes: list[torch.dtype] = []
        self.names: dict[int, str] = {}  # id of a constant → its name in the model
        self._kept: list[torch.Tensor] = []  # so that ids stay unique
        self._tables: dict[Any, torch.Tensor] = {}
        self._stored: dict[tuple[int, int], Value] = {}  # a constant → its tensor; of statistics the newest version
        self._overwritten: Counter[int] = Counter()
        self._dropouts = 0

    # Looking.

    @property
    def out_shape(self) -> Shape:
        return self.node_shapes[0]

    def shape(self, x: Operand) -> Shape:
        return tuple(x.shape) if isinstance(x, torch.Tensor) else self.b[x].shape

    def rank(self, x: Operand) -> int:
        return len(self.shape(x))

    def length(self, x: Operand, axis: int) -> int:
        """The size of an axis that is not the batch."""
        return static((self.shape(x)[axis],))[0]

    def dtype(self, x: Operand) -> DType:
        return dtype_of(x.dtype) if isinstance(x, torch.Tensor) else self.b[x].dtype

    def batch_axis(self, x: Operand) -> int | None:
        return batch_axis(self.shape(x))

    # Adding.

    def add_many(self, op: str, *ins: Operand, **attrs: Any) -> tuple[Value, ...]:
        return tuple(Value(v) for v in self.b.add_many(op, *[self.value(i) for i in ins], **attrs))

    def add(self, op: str, *ins: Operand, **attrs: Any) -> Value:
        return self.add_many(op, *ins, **attrs)[0]

    def keep(self, constant: torch.Tensor, name: str) -> torch.Tensor:
        """Give a constant the name it has in the user's model."""
        self._kept.append(constant)
        self.names[id(constant)] = name
        return constant

    def value(self, x: Operand, role: Role = Role.CONST) -> Value:
        """A tensor of the graph; constants are stored at their first use."""
        if isinstance(x, Value):
            return x
        key = (id(x), x._version)
        if key not in self._stored:
            dtype_of(x.dtype)  # refuses what cannot be stored
            self._kept.append(x)
            data = x.detach().resolve_neg().cpu()
            array = (data.double() if data.is_floating_point() else data).numpy()
            hint = self.names.get(id(x)) or f"{self.b.src or 'v'}.const"
            self._stored[key] = Value(self.b.stored(hint, array, role))
        name = self._stored[key]
        if role is Role.STAT and self.b[name].role is Role.CONST:
            old = self.b[name]
            self.b.tensors[name] = replace(old, role=role)
        return name

    def overwritten(self, x: Operand | None, by: Value) -> None:
        """From here on `x` is what an update made of it: a layer used twice moves its statistics twice."""
        if isinstance(x, torch.Tensor):
            self._stored[id(x), x._version] = by
            self._overwritten[id(x)] += 1

    def times_overwritten(self, x: Operand | None) -> int:
        return self._overwritten[id(x)]

    def constant(self, value: Any, kind: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.tensor(value, dtype=kind)

    def table(self, key: Any, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A constant that several layers may need, made and stored once."""
        if key not in self._tables:
            self._tables[key] = make()
        return self._tables[key]

    def fill(self, shape: Shape, value: float) -> Operand:
        if batch_axis(shape) is None:
            return torch.full(static(shape), float(value), dtype=torch.float64)
        return self.add("fill", shape=tuple(shape), value=float(value))

    def counter(self) -> Value:
        """(seed, steps done): what random numbers are drawn from."""
        if COUNTER not in self.b.tensors:
            self.b.stored(COUNTER, torch.zeros(2, dtype=torch.int32).numpy(), Role.SETTING)
        return Value(COUNTER)

    def draw(self, times: int = 1) -> int:
        """The number of the next random draw."""
        self._dropouts += times
        return self._dropouts

    def dropout(self, x: Operand, p: float, op: str = "dropout") -> Value:
        return self.add(op, self.f32(x), self.counter(), p=float(p), key=self.draw())

    def detach(self, x: Any) -> Any:
        """The same value, through which no gradient flows."""
        if isinstance(x, (tuple, list)):
            return [self.detach(v) for v in x]
        if isinstance(x, Complex):
            return Complex(self.detach(x.real), self.detach(x.imag))
        if not isinstance(x, Value) or not self.training or self.b[x].dtype is not DType.F32:
            return x
        if "detach" not in ops.all_ops():
            raise Unsupported("stopping a gradient needs the op 'detach'")
        return self.add("detach", x)

    # Types.

    def f32(self, x: Operand) -> Operand:
        """As floats; integers computed by the model are floats here, exact below 2²⁴."""
        if isinstance(x, torch.Tensor):
            return x if dtype_of(x.dtype) is DType.F32 else x.double()
        return x if self.b[x].dtype is DType.F32 else self.add("cast", x, dtype="f32")

    def i32(self, x: Operand) -> Operand:
        if isinstance(x, torch.Tensor):
            return x.to(torch.int64) if x.is_floating_point() or x.dtype is torch.bool else x
        return x if self.b[x].dtype is DType.I32 else self.add("cast", x, dtype="i32")

    def truth(self, x: Operand) -> Operand:
        """As booleans."""
        if isinstance(x, torch.Tensor):
            return x.bool()
        if self.b[x].dtype is DType.U8:
            return x
        zero = torch.zeros((), dtype=torch.float64 if self.b[x].dtype is DType.F32 else torch.int32)
        return self.add("ne", x, zero)

    def cast(self, x: Operand, kind: torch.dtype) -> Operand:
        if isinstance(x, torch.Tensor):
            return x.to(kind)
        return {DType.F32: self.f32, DType.I32: self.i32, DType.U8: self.truth}[dtype_of(kind)](x)
