"""Layers whose constant weights are stored as int8 with a scale for each output: w = q·scale, rounded to f32 once, so
that the result has the same bits as with those weights in f32. Made by
compiler/passes/narrow.py, after all gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Dim, DType, Tensor
from . import conv, matrix
from .registry import NOT_DIFFERENTIABLE, Call, N, Op, Spec, case, define, get


def _wide(q: Tensor) -> Tensor:
    return Tensor(q.name, q.shape, DType.F32, q.role)


def dequantized(q: Array, scale: Array) -> Array:
    """Numbers from -128 to 127, times the scale of their output."""
    numbers: Array = np.asarray(q).astype(scale.dtype)
    return numbers * scale.reshape(-1, *[1] * (numbers.ndim - 1))


def _own(call: Call) -> Call:
    """The call of the op with f32 weights."""
    x, q, _, b = call.ins
    return Call((x, _wide(q), b), call.outs, call.attrs)


def _room(call: Call) -> Dim:
    """f32 weights of four outputs at a time; a convolution with one input channel a group needs none."""
    outputs, *filter = (int(d) for d in call.ins[1].shape)  # type: ignore[arg-type]
    groups = int(call.attrs.get("groups", 1))
    if len(filter) == 3 and filter[-1] == 1:
        return 0
    return min(4, outputs // groups) * math.prod(filter) * 4


def _define(op: Op, cases: Sequence[Any]) -> None:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        x, q, scale, b = ins
        check = matrix.demands(f"{op.name}_w8", ins, DType.F32, DType.I8, DType.F32, DType.F32)
        check(scale.shape == q.shape[:1], "the scale must have one value per output")
        return op.infer([x, _wide(q), b], attrs)

    def ref(x: Array, q: Array, scale: Array, b: Array, **attrs: Any) -> Sequence[Array]:
        return op.ref(x, dequantized(q, scale), b, **attrs)

    define(
        f"{op.name}_w8", doc=f"{op.name} with w = q·scale, q in int8",
        infer=infer, ref=ref, vjp=NOT_DIFFERENTIABLE, kernels={"f32,i8,f32,f32->f32": f"{op.name}_w8_f32"},
        params=lambda call: op.params(_own(call)), macs=lambda call: op.macs(_own(call)), work=op.work, scratch=_room,
        cases=cases,
    )  # fmt: skip


def _int8(*shape: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.integers(-128, 128, shape).astype(np.int8)


_define(
    get("conv2d"),
    [case(x, _int8(*conv._fixed(w)), (w[0],), (w[0],), **attrs) for x, w, attrs in conv._SETTINGS],
)
_define(
    get("linear"),
    [case((N, 10), _int8(4, 10), (4,), (4,)), case((N, 5, 37), _int8(9, 37), (9,), (9,)),
     case((1, 1), _int8(5, 1), (5,), (5,)), case((7,), _int8(1, 7), (1,), (1,))],
)  # fmt: skip
