"""What an operation is: one record holding every rule about it. `define` is the only way in.

Rules see a `Call`: the tensors and attributes of one node. Nothing outside the record may depend on an op's name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, ParamSpec, Protocol

import numpy as np

from ..errors import Internal
from ..ir import Array, Batch, Dim, DType, Node, Shape, Step, Tensor, at
from .traits import (
    Attrs,
    Border,
    Channels,
    Int16,
    Integer,
    Layout,
    LinearIn,
    Loss,
    Norm,
    OperandRole,
    Page,
    Rows,
    Slices,
    Statistics,
    Stored,
    Taken,
    chosen_kernel,
)
from .work import Work

N: Final = Batch(1)
"""The number of samples; cases and rules use it as a size."""


@dataclass(frozen=True, slots=True)
class Call:
    ins: tuple[Tensor, ...]
    outs: tuple[Tensor, ...]
    attrs: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.attrs[key]


@dataclass(frozen=True, slots=True)
class Run:
    """Facts of one execution: samples at hand, samples of the whole batch (over all micro-batches), loop index."""

    n: int = 1
    total: int = 1
    index: int = 0


Spec = tuple[Shape, DType]
"""Shape and dtype of one output."""


class Builder(Protocol):
    """What a gradient rule may do: look at tensors, ask what is wanted, add nodes."""

    def __getitem__(self, name: str) -> Tensor: ...
    def need(self, name: str) -> bool: ...
    def add(self, op: str, *ins: str, **attrs: Any) -> str: ...
    def add_many(self, op: str, *ins: str, **attrs: Any) -> tuple[str, ...]: ...
    def constant(self, hint: str, value: Array) -> str: ...


Infer = Callable[[Sequence[Tensor], Mapping[str, Any]], Sequence[Spec]]
Vjp = Callable[[Builder, Node, Sequence[str | None]], Sequence[str | None]]
Param = int | float | Batch


class _NotDifferentiable:
    def __repr__(self) -> str:
        return "NOT_DIFFERENTIABLE"


NOT_DIFFERENTIABLE: Final = _NotDifferentiable()


@dataclass(frozen=True)
class Integers:
    """An input of a case: any integers of a type, in a shape that may contain `N`."""

    shape: Shape
    dtype: DType
    least: int
    most: int

    def __call__(self, rng: np.random.Generator, n: int) -> Array:
        return np.asarray(rng.integers(self.least, self.most + 1, at(self.shape, n), self.dtype.numpy))


@dataclass(frozen=True)
class Case:
    """One example of an op's use; the same table drives correctness tests, gradient checks and benchmarks.

    `inputs` are shapes (filled from a normal distribution), `Integers`, or functions of a random generator that return
    an array. Shapes may contain `N`.
    """

    inputs: tuple[Shape | Callable[[np.random.Generator, int], Array], ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    smooth: bool = True  # False: finite differences are meaningless here (the point sits on a kink)
    tolerance: float = 2e-6  # of the C kernel against `ref`, relative to the largest magnitude


def case(*inputs: Any, smooth: bool = True, tolerance: float = 2e-6, **attrs: Any) -> Case:
    return Case(tuple(inputs), attrs, smooth, tolerance)


@dataclass(frozen=True)
class Bits:
    """How a gradient op's saved input can shrink to one bit an element: dx = dy · (inside if lo<x<hi else outside).

    `closed` means lo≤x≤hi. Only one input of the gradient op is replaced.
    """

    input: int
    lo: float
    hi: float
    inside: float = 1.0
    outside: float = 0.0
    closed: bool = False


def declared(spec: Any, value: Array) -> Shape:
    """The shape of an input of a case, whose value is given, with `N` where it says so."""
    return tuple(spec.shape if isinstance(spec, Integers) else value.shape if callable(spec) else spec)


def _none(call: Call) -> Sequence[Param]:
    return ()


def _zero(call: Call) -> Dim:
    return 0


@dataclass(frozen=True)
class Running:
    """The op of a sum that goes on where the micro-batch before ended: it takes what is carried, then the inputs of the
    sum, and yields the result so far (after the last one, with the bits of the whole batch) and what is carried on."""

    op: str
    carried: Callable[[Shape], Shape]  # shape of the result → shape of what is carried, f32, first all zero


@dataclass(frozen=True)
class Op:
    """Everything that is known of an op. Passes, planner and runtime ask these fields, never the name."""

    name: str
    _: KW_ONLY
    # What it computes.
    doc: str
    infer: Infer
    ref: Callable[..., Sequence[Array]]  # ref(*arrays, **attrs) in the arrays' own precision; `run=` if needs_run
    vjp: Vjp | _NotDifferentiable
    cases: Sequence[Case] = ()
    # How it runs.
    kernels: Mapping[str, str] = field(default_factory=dict)  # "u8,u8->i32", or the first output's type → C function
    params: Callable[[Call], Sequence[Param]] = _none  # the C function's int32 parameters; floats go as their f32 bits
    scratch: Callable[[Call], Dim] = _zero  # bytes
    macs: Callable[[Call], Dim] = _zero
    work: Callable[[Sequence[int]], Work] | None = None  # by its parameters: what its exact kernel does inside
    inplace: tuple[int, ...] = ()  # inputs whose slot output 0 may take, if that input dies here
    shrinks: bool = False  # output 0 is smaller than that input: it may take the beginning of the slot
    shares: Mapping[int, int] = field(default_factory=dict)  # output → input whose memory it IS: views and updates
    batchwise: bool = False  # mixes samples: never run sample by sample
    needs_run: bool = False
    running: Running | None = None  # a sum over samples: how it goes on over micro-batches
    page: Page = ""
    border: Border = ""
    loops: bool = False  # repeats the next nodes for each sample
    streams: bool = False  # the next nodes run row by row
    rows: Callable[[Call, int], Rows | None] | None = None  # (call, axis of the rows) → how it makes some of them
    row_sums: Callable[[Call, int], Rows | None] | None = None  # (call, axis of input 0) → how it sums over its rows
    # What passes may do with it.
    layout: Layout | None = None  # with axes in another order
    rearranges: Callable[[Attrs], Step] | None = None  # the step by which a stored tensor is laid out like the result
    identity: Callable[[Attrs], bool] | None = None  # y is x with these attributes, where their types are equal
    converts: bool = False  # y is x in another number type, or what it stands for
    linear_in: LinearIn = ()
    bounds: Callable[[Attrs], tuple[float, float]] | None = None  # y is x, cut off at these
    integer: Integer | None = None
    int16: Int16 | None = None
    lean: str | None = None  # the op to use instead when only output 0 is read
    bits: Callable[[Attrs], Bits] | None = None
    slices: Slices = ""
    taken: Callable[[Call, int], Mapping[int, Taken]] | None = None  # (call, how many indices) → axis of y → how
    tiled: Callable[[Call, int], Taken | None] | None = None  # (call, how many channels): the last axis of output 0
    adds_tiles: Callable[[Call], Taken | None] | None = None  # y is what tiles of these give, 64k indices each, added
    tiles: tuple[str, ...] = ()  # with that: the op that does a tile of it, and the one that adds it to the last input
    in_part: bool = False  # `first`, if there is one: what it updates is a part of the first axis, from there on
    sink: bool = False  # a weight gradient that can be consumed tile by tile by an optimizer
    rounded_sink: DType | None = None  # the same, of a weight in integers of this type
    factor: Callable[[Attrs], float] | None = None  # y is x times this number
    # Layers.
    operands: Mapping[int, OperandRole] = field(default_factory=dict)  # input → what it is, if it may be a parameter
    scaled_weight: Callable[[Array, Array, Attrs], Array] | None = None  # (weight, a, attrs) → weight of y·a, a[C]
    channels: Callable[[Call], Channels] | None = None  # of its weight
    zero_bias: bool = False  # without a bias the kernel adds 0: a bias of zeros gives the same bits
    widens: bool = False  # a row more in weight and bias is an element more in y's last axis; the others stay the same
    stored: Stored | None = None  # ops that read its weight in another form
    norm: Norm = ""
    statistics: Statistics = ""
    tracker: str = ""  # the op (*inputs but x, x) that enters x into the statistics, at the end of a step
    masks: bool = False  # an element of -1e30 in the last axis counts for nothing and leaves the others' bits alone
    loss: Loss | None = None

    @property
    def is_view(self) -> bool:
        """Occupies no time and no memory of its own."""
        return not self.kernels and not self.streams

    @property
    def has_scratch(self) -> bool:
        """Does the kernel ever ask for working memory?"""
        return self.scratch is not _zero

    @property
    def pointwise(self) -> bool:
        """Element by element in all operands, which broadcast."""
        return self.layout is not None and self.layout.rule == "each" and self.layout.operands is None

    def operand(self, role: OperandRole) -> int | None:
        """The first input with this role."""
        return next((i for i, own in self.operands.items() if own == role), None)

    @functools.cached_property
    def _shown(self) -> list[set[DType]]:
        """The types that each operand has in the cases; the last entry is also for those behind it."""
        found: list[set[DType]] = []
        for example in self.cases:
            for i, given in enumerate(example.inputs):
                kind = DType.of_numpy(given(np.random.default_rng(0), 1).dtype) if callable(given) else DType.F32
                found += [set()] if i == len(found) else []
                found[i].add(kind)
        return found

    def kernel(self, call: Call) -> str:
        """The C function for operands of the call's types."""
        return chosen_kernel(
            self.name, self.kernels, [t.dtype for t in call.ins], [t.dtype for t in call.outs], self._shown
        )


_OPS: dict[str, Op] = {}
Fields = ParamSpec("Fields")


def _defining(make: Callable[Fields, Op]) -> Callable[Fields, Op]:
    def define(*args: Fields.args, **fields: Fields.kwargs) -> Op:
        op = make(*args, **fields)
        if op.name in _OPS:
            raise Internal(f"op '{op.name}' is defined twice")
        _OPS[op.name] = op
        return op

    return define


define = _defining(Op)
"""Make a record and register it: `define(name, doc=…, infer=…, …)`, with the fields of `Op`."""


def get(name: str) -> Op:
    if name not in _OPS:
        raise Internal(f"no op named '{name}'")
    return _OPS[name]


def find(name: str) -> Op | None:
    return _OPS.get(name)


def all_ops() -> dict[str, Op]:
    return dict(_OPS)


def losses() -> dict[str, Op]:
    """What loss="…" may name → its op, in the order of their records."""
    return {op.loss.name: op for op in _OPS.values() if op.loss and op.loss.name}


def is_loop(node: Node) -> bool:
    """Also of nodes that may be wrong: an op that does not exist is no loop."""
    return node.op in _OPS and _OPS[node.op].loops


def is_stream(node: Node) -> bool:
    """As `is_loop`, for what runs row by row outside of loops."""
    return node.op in _OPS and _OPS[node.op].streams


def border(node: Node) -> Border:
    """As `is_loop`, for the border between caller and arena."""
    return _OPS[node.op].border if node.op in _OPS else ""


# Rules that many ops share.


def same_shape(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Output 0 looks like input 0."""
    return [(ins[0].shape, ins[0].dtype)]


def out_size(call: Call) -> Sequence[Param]:
    """The one parameter of elementwise kernels."""
    return [call.outs[0].size]
