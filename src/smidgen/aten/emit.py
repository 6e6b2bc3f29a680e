"""What a translation rule works with: values, constants known at import, and the graph being written.

A rule `@aten("name")` gets an `Emit` and the torch op's arguments in the order of its schema. Tensors arrive as `Value`
(a tensor of the graph) or as `torch.Tensor` (a constant known at import); sizes as int or `Batch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from .. import ops
from ..build import Builder
from ..errors import Internal
from ..ir import Batch, Dim, DType, Role, Shape, Tensor, batch_axis, size

Rule = Callable[..., Any]
TABLE: dict[str, Rule] = {}
MOST_CONCAT = 16
MOST_PIECES = 64


class Value(str):
    """The name of a tensor in the graph; a plain str argument is an option such as "reflect"."""

    __slots__ = ()


Operand = Value | torch.Tensor
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
    return DType.F32 if kind.is_floating_point else DType.I32


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise result."""
    rank = max(len(s) for s in shapes)
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    return tuple(next((d for d in dims if d != 1), 1) for dims in zip(*padded, strict=True))


def static(shape: Sequence[Dim]) -> tuple[int, ...]:
    """A shape without the batch."""
    if any(isinstance(d, Batch) for d in shape):
        raise Unsupported("a fixed size is needed here, but it grows with the batch")
    return tuple(int(d) for d in shape)  # type: ignore[arg-type]


def axis_of(axis: int, rank: int) -> int:
    return axis % rank if rank else 0


class Emit:
    """Writes nodes. `node_shapes` and `node_dtypes` are torch's own results for the op being translated."""

    def __init__(self, builder: Builder, *, training: bool, bn: str) -> None:
        self.b = builder
        self.training = training
        self.bn = bn
        self.node_shapes: list[Shape] = []
        self.node_dtypes: list[torch.dtype] = []
        self.names: dict[int, str] = {}  # id of a constant → its name in the model
        self._kept: list[torch.Tensor] = []  # so that ids stay unique
        self._stored: dict[tuple[int, int], Value] = {}
        self._source: dict[str, Value] = {}  # result of reshape/permute/expand → what it was made from
        self._perm: dict[str, tuple[int, ...]] = {}
        self._dropouts = 0
        self.batch_sums: dict[str, tuple[Value, dict[str, Any], float]] = {}

    # Looking.

    @property
    def out_shape(self) -> Shape:
        return self.node_shapes[0]

    def shape(self, x: Operand) -> Shape:
        return tuple(x.shape) if isinstance(x, torch.Tensor) else self.b[x].shape

    def rank(self, x: Operand) -> int:
        return len(self.shape(x))

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
            self._kept.append(x)
            data = x.detach().resolve_conj().cpu()
            array = (data.double() if data.is_floating_point() else data).numpy()
            hint = self.names.get(id(x)) or f"{self.b.src or 'v'}.const"
            self._stored[key] = Value(self.b.stored(hint, array, role))
        name = self._stored[key]
        if role is Role.STAT and self.b[name].role is Role.CONST:
            old = self.b[name]
            self.b.tensors[name] = Tensor(old.name, old.shape, old.dtype, role)
        return name

    def constant(self, value: Any, kind: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.tensor(value, dtype=kind)

    def fill(self, shape: Shape, value: float) -> Operand:
        if batch_axis(shape) is None:
            return torch.full(static(shape), float(value), dtype=torch.float64)
        return self.add("fill", shape=tuple(shape), value=float(value))

    def counter(self) -> Value:
        """(seed, steps done): what random numbers are drawn from."""
        if "counter" not in self.b.tensors:
            self.b.stored("counter", torch.zeros(2, dtype=torch.int32).numpy(), Role.SETTING)
        return Value("counter")

    def dropout(self, x: Operand, p: float, op: str = "dropout") -> Value:
        self._dropouts += 1
        return self.add(op, self.f32(x), self.counter(), p=float(p), key=self._dropouts)

    def detach(self, x: Any) -> Any:
        """The same value, through which no gradient flows."""
        if isinstance(x, (tuple, list)):
            return [self.detach(v) for v in x]
        if not isinstance(x, Value) or not self.training or self.b[x].dtype is not DType.F32:
            return x
        if "detach" not in ops.all_ops():
            raise Unsupported("stopping a gradient needs the op 'detach'")
        return self.add("detach", x)

    # Types.

    def f32(self, x: Operand) -> Operand:
        """As floats; integers computed by the model are floats here, exact below 2²⁴."""
        if isinstance(x, torch.Tensor):
            return x if x.is_floating_point() else x.double()
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

    # Arithmetic with numbers and tensors in either place.

    def number(self, x: Any) -> Number | None:
        """The plain number behind `x`, if it is one."""
        if isinstance(x, (bool, int, float)):
            return x
        if isinstance(x, torch.Tensor) and x.dim() == 0:
            return x.item()
        if isinstance(x, Batch):
            raise Unsupported(
                "the batch size is used as a number", "use .mean(0) or .mean() instead of dividing by the batch size"
            )
        return None

    def binary(self, op: str, a: Any, b: Any) -> Value:
        """Both in f32, numbers as constants; an expanded operand is replaced by what it was made from."""
        pair = [self.f32(x) if is_tensor(x) else self.constant(float(self.number(x) or 0)) for x in (a, b)]
        shape = broadcast(*[self.shape(x) for x in pair])
        for i in (0, 1):
            smaller = self._expanded_from(pair[i])
            if broadcast(self.shape(smaller), self.shape(pair[1 - i])) == shape:
                pair[i] = smaller
        return self.add(op, *pair)

    def _expanded_from(self, x: Operand) -> Operand:
        source = self._source.get(x) if isinstance(x, Value) else None
        return source if source is not None and x not in self._perm and self._is_expand(x) else x

    def _is_expand(self, x: Value) -> bool:
        return self.b[x].size != self.b[self._source[x]].size

    def plus(self, a: Any, b: Any) -> Any:
        x, y = self.number(a), self.number(b)
        if x is not None and y is not None:
            return x + y
        if x is not None:
            a, y = b, x
        if y is not None:
            return a if y == 0 else self.add("shift", self.f32(a), by=float(y))
        return self.binary("add", a, b)

    def minus(self, a: Any, b: Any) -> Any:
        y = self.number(b)
        if y is not None:
            return self.plus(a, -y)
        if self.number(a) is not None:
            return self.plus(self.add("neg", self.f32(b)), a)
        return self.binary("sub", a, b)

    def times(self, a: Any, b: Any) -> Any:
        x, y = self.number(a), self.number(b)
        if x is not None and y is not None:
            return x * y
        if x is not None:
            a, y = b, x
        if y is not None:
            return a if y == 1 else self._scaled(a, float(y))
        return self.binary("mul", a, b)

    def _scaled(self, a: Operand, by: float) -> Value:
        scaled = self.add("scale", self.f32(a), by=by)
        if isinstance(a, Value) and a in self.batch_sums:
            x, attrs, factor = self.batch_sums[a]
            self.batch_sums[scaled] = (x, attrs, factor * by)
        return scaled

    def over(self, a: Any, b: Any) -> Any:
        if isinstance(b, Batch):
            return self._over_batch(a, b)
        y = self.number(b)
        if y is not None:
            return self.times(a, 1.0 / y if y else math.inf)
        if self.number(a) is not None:
            return self.times(self.add("reciprocal", self.f32(b)), a)
        return self.binary("div", a, b)

    def _over_batch(self, a: Operand, n: Batch) -> Any:
        """A sum over samples divided by their number is a mean, which stays right when a batch comes in parts."""
        if not isinstance(a, Value) or a not in self.batch_sums:
            return self.number(n)
        x, attrs, factor = self.batch_sums[a]
        count = math.prod(d.times if isinstance(d, Batch) else d for i, d in enumerate(self.shape(x))
                          if i in attrs["axes"])  # fmt: skip
        return self.times(self.add("batch_mean", x, **attrs), factor * count / n.times)

    # Movement.

    def reshape(self, x: Operand, shape: Sequence[Dim]) -> Operand:
        shape = tuple(shape)
        if self.shape(x) == shape:
            return x
        if isinstance(x, torch.Tensor):
            if batch_axis(shape) is None:
                return self._derived(x, x.reshape(static(shape)))
            x = self.value(x)
        source = self._source.get(x)
        if source is not None and x not in self._perm and not self._is_expand(x):
            x = source
            if self.shape(x) == shape:
                return x
        y = self.add("reshape", x, shape=shape)
        self._source[y] = x
        return y

    def _derived(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if id(x) in self.names and y is not x:
            self.keep(y, self.names[id(x)])
        return y

    def permute(self, x: Operand, perm: Sequence[int]) -> Operand:
        perm = tuple(perm)
        if isinstance(x, torch.Tensor):
            return x.permute(perm)
        if x in self._perm:
            before = self._perm[x]
            x, perm = self._source[x], tuple(before[p] for p in perm)
        if perm == tuple(range(len(perm))):
            return x
        y = self.add("permute", x, perm=perm)
        self._source[y], self._perm[y] = x, perm
        return y

    def transposed_from(self, x: Operand, flip: bool) -> tuple[Operand, bool]:
        """(y, flip) such that reading y, transposed if flip, gives what reading x did."""
        if not isinstance(x, Value) or x not in self._perm:
            return x, flip
        rank = self.rank(x)
        swapped = (*range(rank - 2), rank - 1, rank - 2)
        return (self._source[x], not flip) if self._perm[x] == swapped else (x, flip)

    def unmerged(self, x: Operand) -> Operand | None:
        """`x` before a reshape joined samples with an axis in front of them, which interleaves samples; else None."""
        source = self._source.get(x) if isinstance(x, Value) else None
        if source is None or x in self._perm or self._is_expand(x):  # type: ignore[arg-type]
            return None
        axis, before, after = self.batch_axis(source), self.shape(source), self.shape(x)
        if not axis or math.prod(static(before[:axis])) == 1 or self.batch_axis(x) != 0:
            return None
        ends = [k for k in range(axis + 1, len(before)) if size(before[:k]) == after[0]]
        return self.reshape(source, (*before[: ends[0]], *after[1:])) if ends else None

    def expand(self, x: Operand, shape: Sequence[Dim]) -> Operand:
        shape = tuple(shape)
        if isinstance(x, torch.Tensor) and batch_axis(shape) is None:
            return x.expand(static(shape))
        x = self.reshape(x, (1,) * (len(shape) - self.rank(x)) + self.shape(x))
        if self.shape(x) == shape:
            return x
        x = self.value(x)
        y = self.add("expand", x, shape=shape)
        self._source[y] = x
        return y

    def slice(self, x: Operand, axis: int, start: Dim, stop: Dim, step: int = 1) -> Operand:
        """x[start:stop:step] along an axis; along the samples only whole multiples of the batch."""
        length = self.shape(x)[axis]
        if (start, stop, step) == (0, length, 1):
            return x
        if isinstance(length, Batch):
            return self._slice_batch(x, axis, length, start, stop, step)
        if isinstance(start, Batch) or isinstance(stop, Batch):
            raise Unsupported("a slice depends on the batch size")
        if isinstance(x, torch.Tensor):
            return x[(slice(None),) * axis + (slice(start, stop, step),)]
        return self.add("slice", x, axis=axis, start=start, stop=stop, step=step)

    def _slice_batch(self, x: Operand, axis: int, length: Batch, start: Dim, stop: Dim, step: int) -> Operand:
        ends = [end.times if isinstance(end, Batch) else None if end else 0 for end in (start, stop)]
        if step != 1 or None in ends:
            raise Unsupported(
                "samples are picked out of the batch", "treat all samples alike; select samples before training"
            )
        shape = self.shape(x)
        apart = self.reshape(x, (*shape[:axis], length.times, Batch(1), *shape[axis + 1 :]))
        part = self.slice(apart, axis, int(ends[0] or 0), int(ends[1] or 0))
        return self.reshape(part, (*shape[:axis], Batch(self.shape(part)[axis]), *shape[axis + 1 :]))  # type: ignore[arg-type]

    def concat(self, parts: Iterable[Operand], axis: int) -> Operand:
        xs = list(parts)
        if len({self.dtype(x) for x in xs}) > 1:
            xs = [self.f32(x) for x in xs]
        if isinstance(self.shape(xs[0])[axis], Batch) and len(xs) > 1:
            return self._concat_batch(xs, axis)
        while len(xs) > 1:
            groups = [xs[i : i + MOST_CONCAT] for i in range(0, len(xs), MOST_CONCAT)]
            xs = [self.add("concat", *g, axis=axis) if len(g) > 1 else g[0] for g in groups]
        return xs[0]

    def _concat_batch(self, xs: list[Operand], axis: int) -> Operand:
        """All samples of the first, then all of the second: a concatenation along a new axis before the samples."""
        shapes = [self.shape(x) for x in xs]
        apart = [self.reshape(x, (*s[:axis], s[axis].times, Batch(1), *s[axis + 1 :]))  # type: ignore[union-attr]
                 for x, s in zip(xs, shapes, strict=True)]  # fmt: skip
        whole = self.concat(apart, axis)
        return self.reshape(whole, (*shapes[0][:axis], Batch(self.shape(whole)[axis]), *shapes[0][axis + 1 :]))  # type: ignore[arg-type]

    def take(self, x: Operand, axis: int, indices: Sequence[int]) -> Operand:
        """x at the given places along an axis, as slices joined; equal neighbours become an expand."""
        runs: list[list[int]] = []
        for i in indices:
            if runs and (i == runs[-1][-1] + 1 and (len(runs[-1]) == 1 or runs[-1][0] != runs[-1][1])):
                runs[-1].append(i)
            elif runs and i == runs[-1][-1] and runs[-1][0] == i:
                runs[-1].append(i)
            else:
                runs.append([i])
        if len(runs) > MOST_PIECES:
            raise Unsupported(f"it would need {len(runs)} slices", f"keep reordered axes below {MOST_PIECES} pieces")
        parts = []
        for run in runs:
            piece = self.slice(x, axis, run[0], run[-1] + 1)
            shape = self.shape(piece)
            parts.append(self.expand(piece, (*shape[:axis], len(run), *shape[axis + 1 :])))
        return self.concat(parts, axis)

    def put(self, x: Operand, piece: Operand, axis: int, start: int, stop: int, step: int = 1) -> Operand:
        """x with piece written to x[start:stop:step] along an axis."""
        length = self.shape(x)[axis]
        if (start, stop, step) == (0, length, 1):
            return piece
        if isinstance(length, Batch):
            raise Unsupported("single samples of the batch are overwritten", "treat all samples alike")
        places = range(start, stop, step)
        parts = [self.slice(x, axis, 0, places[0])] if places[0] else []
        if step == 1:
            parts.append(piece)
        else:
            for k, place in enumerate(places):
                end = places[k + 1] if k + 1 < len(places) else place + 1
                parts.append(self.slice(piece, axis, k, k + 1))
                parts += [self.slice(x, axis, place + 1, end)] if end > place + 1 else []
        parts += [self.slice(x, axis, places[-1] + 1, length)] if places[-1] + 1 < length else []
        return self.concat(parts, axis)

    # Reductions.

    def reduce(self, op: str, x: Operand, axes: Sequence[int] | None = None, keepdim: bool = False) -> Value:
        rank = self.rank(x)
        picked = tuple(range(rank)) if not axes else tuple(sorted(axis_of(a, rank) for a in axes))
        attrs: dict[str, Any] = {"axes": picked, "keepdim": bool(keepdim)}
        x = self.value(self.f32(x))
        if self.batch_axis(x) not in picked:
            return self.add(op, x, **attrs) if picked else x
        if op not in ("sum", "mean"):
            raise Unsupported("it mixes the samples of a batch", "over the batch, sum and mean work")
        y = self.add(f"batch_{op}", x, **attrs)
        if op == "sum":
            self.batch_sums[y] = (x, attrs, 1.0)
        return y
