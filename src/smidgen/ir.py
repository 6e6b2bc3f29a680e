"""The central types: Dim, Tensor, Node, Graph. Data only; every value is assigned exactly once.

A Graph is one entry point: a flat list of nodes in execution order. Sizes that grow with the number of
samples are `Batch(k)`, meaning k·n with n known at run time, so one program serves every n up to its bound.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]  # NDArray[Any], without its import
ALIGN = 16  # bytes: where tensors may begin, unless a device says otherwise


@dataclass(frozen=True, slots=True)
class Batch:
    """The size times·n, n being the number of samples at hand."""

    times: int = 1

    def __mul__(self, other: int) -> Batch:
        if not isinstance(other, (int, np.integer)):
            raise BatchSquared
        return Batch(self.times * int(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Batch) -> int | Batch:
        divisor = other.times if isinstance(other, Batch) else other
        if self.times % divisor:
            raise ArithmeticError(f"{self} is not a multiple of {other}")
        return self.times // divisor if isinstance(other, Batch) else Batch(self.times // divisor)

    def __add__(self, other: Batch) -> Batch:
        if not isinstance(other, Batch):
            raise ArithmeticError(f"{self} + {other} is not a multiple of the batch")
        return Batch(self.times + other.times)

    def __radd__(self, other: object) -> Batch:
        if other == 0:  # the start value of sum()
            return self
        raise ArithmeticError(f"{other} + {self} is not a multiple of the batch")

    def __lt__(self, other: Batch) -> bool:
        return self.times < other.times

    def at(self, n: int) -> int:
        return self.times * n

    def __str__(self) -> str:
        return "n" if self.times == 1 else f"{self.times}n"

    __repr__ = __str__


class BatchSquared(ArithmeticError):
    """A size would grow with the square of the batch."""


Dim = int | Batch
Shape = tuple[Dim, ...]


LR, COUNTER = ":lr", ":counter"
"""Settings of training: the learning rate, and (seed, steps done). No name in a torch module starts with a colon."""
CLASSES, CLASS_NAMES = ":classes", ":class_names"
"""Settings of a network with spare classes: what is added to the score of each, and names of those that were added."""
REPLAY = ":replay"
"""The buffer of past samples, as runtime/replay.h describes it."""
REPLAY_ROWS = ":replay_rows"
"""Its samples, where they are in PAGE and not in the buffer."""


def size(shape: Iterable[Dim]) -> Dim:
    """Number of elements."""
    total: Dim = 1
    for dim in shape:
        total = dim * total if isinstance(dim, Batch) else total * dim  # type: ignore[operator]
    return total


@lru_cache(maxsize=1 << 16)
def _known_size(shape: Shape) -> Dim:
    """Asked for so often that it is remembered."""
    return size(shape)


def at(value: Any, n: int) -> Any:
    """`value` with every Batch inside it, also in tuples and dicts, resolved for n samples."""
    if isinstance(value, Batch):
        return value.at(n)
    if isinstance(value, (tuple, list)):
        return tuple(at(v, n) for v in value)
    if isinstance(value, dict):
        return {k: at(v, n) for k, v in value.items()}
    return value


def batch_axis(shape: Shape) -> int | None:
    """The axis that grows with the number of samples."""
    return next((i for i, dim in enumerate(shape) if isinstance(dim, Batch)), None)


_TYPES: Final[Mapping[str, tuple[int, Any]]] = {
    "f32": (0, np.float32),
    "i32": (1, np.int32),
    "u8": (2, np.uint8),  # booleans, and bits packed eight to a byte
    "i8": (3, np.int8),
    "i16": (4, np.int16),
    "f16": (5, np.float16),  # no kernel takes it yet
    "bf16": (6, np.uint16),  # no kernel takes it yet; numpy has no such type, and holds its bits
}
"""Every fact about a type of elements: its name, its number in files and in C (SmgType of smidgen.h, where smg_types
has the same rows), and its numpy type."""


class DType(enum.Enum):
    F32 = "f32"
    I32 = "i32"
    U8 = "u8"
    I8 = "i8"
    I16 = "i16"
    F16 = "f16"
    BF16 = "bf16"

    def __init__(self, name: str) -> None:
        self.code, numpy = _TYPES[name]
        self.numpy: np.dtype[Any] = np.dtype(numpy)
        self.bytes: int = self.numpy.itemsize

    @property
    def is_integer(self) -> bool:
        return self.value[0] in "iu"

    @staticmethod
    def of_code(code: int) -> DType | None:
        """The type of a number in a file; None if there is none."""
        return _BY_CODE.get(code)

    @staticmethod
    def of_numpy(kind: np.dtype[Any]) -> DType:
        """The type in which an array is stored: one of the same numbers if there is one, else f32 or i32."""
        return DType.F32 if kind.kind == "f" else _BY_INTEGER.get(kind.str[1:], DType.I32)


_BY_CODE: Final = {dtype.code: dtype for dtype in DType}
_BY_INTEGER: Final = {"b1": DType.U8, "u1": DType.U8, "i1": DType.I8, "i2": DType.I16}


class Role(enum.Enum):
    """Where a tensor lives and who may change it."""

    INPUT = "input"  # the caller's memory, read by `feed`
    OUTPUT = "output"  # the caller's memory, written by `fetch`
    CONST = "const"  # never changes: flash or the mapped file
    PARAM = "param"  # learns: STATE
    OPTIM = "optim"  # optimizer state: STATE
    STAT = "stat"  # running statistics: STATE
    SETTING = "setting"  # learning rate, step counter, seed: STATE
    ACCUM = "accum"  # gradient accumulators, alive between entry points: ARENA, pinned
    VALUE = "value"  # everything computed: ARENA

    @property
    def is_state(self) -> bool:
        return self in (Role.PARAM, Role.OPTIM, Role.STAT, Role.SETTING)


@dataclass(frozen=True, slots=True)
class Quant:
    """What the integers of a tensor stand for: scale * (q - zero_point). One scale and zero point for all elements, or
    one for each entry of `axis`. Of a parameter that something was folded into, that is factor * user's + shift."""

    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    axis: int | None = None
    factors: tuple[float, ...] = ()  # one for each scale, or none at all: 1
    shifts: tuple[float, ...] = ()  # the same: 0

    def wrong(self, shape: Shape, dtype: DType) -> str:
        """Why a tensor of this shape and type cannot have it; empty if it can."""
        if not dtype.is_integer:
            return f"{dtype.value} numbers are not quantized"
        if len(self.scales) != len(self.zero_points):
            return f"{len(self.scales)} scales and {len(self.zero_points)} zero points"
        if self.axis is not None and not 0 <= self.axis < len(shape):
            return f"there is no axis {self.axis}"
        wanted = 1 if self.axis is None else shape[self.axis]
        if wanted != len(self.scales):
            return f"{len(self.scales)} scales, {wanted} needed"
        if not all(math.isfinite(s) and s > 0 for s in self.scales):
            return "a scale is not above zero"
        for folded in filter(None, (self.factors, self.shifts)):
            if len(folded) != wanted or not all(map(math.isfinite, folded)):
                return f"what was folded into it is not {wanted} finite numbers"
        limits = np.iinfo(dtype.numpy)
        if not all(limits.min <= z <= limits.max for z in self.zero_points):
            return f"a zero point is outside {dtype.value}"
        return ""

    def permuted(self, axes: tuple[int, ...]) -> Quant:
        return self if self.axis is None else replace(self, axis=axes.index(self.axis))

    def reshaped(self, old: Shape, new: Shape) -> Quant | None:
        """None if the axis does not survive."""
        if self.axis is None:
            return self
        for axis, size_ in enumerate(new):
            if size_ == old[self.axis] and size(new[:axis]) == size(old[: self.axis]):
                return replace(self, axis=axis)
        return None


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: Shape
    dtype: DType = DType.F32
    role: Role = Role.VALUE
    paged: bool = False  # it lives in PAGE, not in RAM: only page ops touch it
    quant: Quant | None = None  # of integers that stand for real numbers

    @property
    def size(self) -> Dim:
        return _known_size(self.shape)

    @property
    def has_gradient(self) -> bool:
        """Does it hold real numbers, or integers that stand for some?"""
        return self.dtype is DType.F32 or self.quant is not None

    def bytes(self, n: int) -> int:
        count = _known_size(self.shape)
        return (count.at(n) if isinstance(count, Batch) else int(count)) * self.dtype.bytes

    def __str__(self) -> str:
        dims = ",".join(str(d) for d in self.shape)
        return f"{self.name}: {self.dtype.value}[{dims}]"


@dataclass(frozen=True, slots=True)
class Node:
    """One operation. `stage` is forward, backward, update, or io; `src` the module path in the user's model."""

    op: str
    ins: tuple[str, ...]
    outs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    stage: str = "forward"
    src: str = ""

    def with_(self, **changes: Any) -> Node:
        return replace(self, **changes)


Step = tuple[str, tuple[int, ...]]
"""("reshape", shape) or ("permute", axes): one step from the user's layout of a parameter to the stored one."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Graph:
    """One entry point. `inputs`/`outputs` name the caller's buffers; `data` holds values of constants and state.

    `layouts` says, for parameters and statistics stored in another layout than the user's, how to get there. `merged`
    are constants that others were computed from: another value for one of these would not reach them.
    """

    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    data: Mapping[str, Array] = field(default_factory=dict)
    layouts: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    merged: frozenset[str] = field(default=frozenset(), compare=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def with_(self, **changes: Any) -> Graph:
        return replace(self, **changes)

    def of_role(self, *roles: Role) -> list[Tensor]:
        return [t for t in self.tensors.values() if t.role in roles]

    def producer(self) -> dict[str, Node]:
        return {out: node for node in self.nodes for out in node.outs}

    def readers(self) -> dict[str, list[int]]:
        """Tensor → positions of the nodes that read it."""
        found: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for name in node.ins:
                found.setdefault(name, []).append(i)
        return found


def samples(graph: Graph, batch: int) -> int:
    """The most that one run of an entry point takes: one, where nothing in it grows with them."""
    return batch if any(batch_axis(t.shape) is not None for t in graph.tensors.values()) else 1


def dead_removed(graph: Graph) -> Graph:
    """Without nodes whose results nobody uses; those that write the caller's memory or state stay."""
    used: set[str] = set()
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(o in used or graph[o].role is not Role.VALUE for o in node.outs):
            kept.append(node)
            used.update(node.ins)
    return unnamed_removed(graph.with_(nodes=tuple(reversed(kept))))


def unnamed_removed(graph: Graph, state: bool = True) -> Graph:
    """Without tensors that no node names, or without those of them that are no state."""
    named = set() if state else {t.name for t in graph.tensors.values() if t.role.is_state}
    named |= {t for node in graph.nodes for t in (*node.ins, *node.outs)}
    named |= set(graph.inputs) | set(graph.outputs)
    return graph.with_(
        tensors={k: t for k, t in graph.tensors.items() if k in named},
        data={k: v for k, v in graph.data.items() if k in named},
    )


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
