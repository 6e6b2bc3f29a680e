"""What an operation is: one record holding every rule about it. `define` is the only way in.

Rules see a `Call`: the tensors and attributes of one node. Nothing outside the record may depend on an op's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import numpy as np

from ..errors import Internal
from ..ir import Array, Batch, Dim, DType, Node, Shape, Tensor

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


Infer = Callable[[Sequence[Tensor], Mapping[str, Any]], Sequence[Spec]]
Vjp = Callable[[Builder, Node, Sequence[str | None]], Sequence[str | None]]
Param = int | float | Batch


Page = Literal["", "out", "in", "start", "wait", "write"]
"""What an op does with PAGE: out and write put the last input there, in and start read input 0, wait reads its last
input (which must not change before) and ends what start began. Result 0 of `PAGE_WRITERS` is in PAGE."""
PAGE_WRITERS: Final = ("out", "write")
PAGE_READERS: Final[Mapping[Page, int]] = {"in": 0, "start": 0, "write": 0, "wait": 1}
"""The input that is in PAGE; all others are in RAM."""


class _NotDifferentiable:
    def __repr__(self) -> str:
        return "NOT_DIFFERENTIABLE"


NOT_DIFFERENTIABLE: Final = _NotDifferentiable()


@dataclass(frozen=True)
class Case:
    """One example of an op's use; the same table drives correctness tests, gradient checks and benchmarks.

    `inputs` are shapes (filled from a normal distribution) or functions of a random generator that return an array.
    Shapes may contain `N`.
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


@dataclass(frozen=True)
class Running:
    """The op of a sum that goes on where the micro-batch before ended: it takes what is carried, then the inputs of the
    sum, and yields the result so far (after the last one, with the bits of the whole batch) and what is carried on."""

    op: str
    carried: Callable[[Shape], Shape]  # shape of the result → shape of what is carried, f32, first all zero


@dataclass(frozen=True)
class Op:
    name: str
    doc: str
    infer: Infer
    ref: Callable[..., Sequence[Array]]  # ref(*arrays, **attrs) in the arrays' own precision; `run=` if needs_run
    vjp: Vjp | _NotDifferentiable
    kernels: Mapping[str, str]  # dtype of the first output → name of the C function
    params: Callable[[Call], Sequence[Param]]  # the C function's int32 parameters; floats go as their f32 bits
    scratch: Callable[[Call], Dim]  # bytes
    macs: Callable[[Call], Dim]
    inplace: tuple[int, ...]  # inputs whose slot output 0 may take, if that input dies here
    shares: Mapping[int, int]  # output → input whose memory it IS: views and updates
    batchwise: bool  # mixes samples: never run sample by sample
    needs_run: bool
    sink: bool  # a weight gradient that can be consumed tile by tile by an optimizer
    bits: Callable[[Mapping[str, Any]], Bits] | None
    lean: str | None  # the op to use instead when only output 0 is read
    running: Running | None  # a sum over samples: how it goes on over micro-batches
    page: Page
    cases: tuple[Case, ...]

    @property
    def is_view(self) -> bool:
        """Occupies no time and no memory of its own."""
        return not self.kernels


_OPS: dict[str, Op] = {}


def define(
    name: str,
    *,
    doc: str,
    infer: Infer,
    ref: Callable[..., Sequence[Array]],
    vjp: Vjp | _NotDifferentiable,
    kernels: Mapping[str, str] | None = None,
    params: Callable[[Call], Sequence[Param]] | None = None,
    scratch: Callable[[Call], Dim] | None = None,
    macs: Callable[[Call], Dim] | None = None,
    inplace: tuple[int, ...] = (),
    shares: Mapping[int, int] | None = None,
    batchwise: bool = False,
    needs_run: bool = False,
    sink: bool = False,
    bits: Callable[[Mapping[str, Any]], Bits] | None = None,
    lean: str | None = None,
    running: Running | None = None,
    page: Page = "",
    cases: Sequence[Case] = (),
) -> Op:
    if name in _OPS:
        raise Internal(f"op '{name}' is defined twice")
    op = Op(
        name, doc, infer, ref, vjp,
        dict(kernels or {}),
        params or (lambda call: ()),
        scratch or (lambda call: 0),
        macs or (lambda call: 0),
        inplace, dict(shares or {}), batchwise, needs_run, sink, bits, lean, running, page, tuple(cases),
    )  # fmt: skip
    _OPS[name] = op
    return op


def get(name: str) -> Op:
    if name not in _OPS:
        raise Internal(f"no op named '{name}'")
    return _OPS[name]


def all_ops() -> dict[str, Op]:
    return dict(_OPS)


# Rules that many ops share.


def same_shape(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Output 0 looks like input 0."""
    return [(ins[0].shape, ins[0].dtype)]


def out_size(call: Call) -> Sequence[Param]:
    """The one parameter of elementwise kernels."""
    return [call.outs[0].size]
