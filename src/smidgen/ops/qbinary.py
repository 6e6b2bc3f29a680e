"""Sums and products of two int8 tensors, each with its own scale, in the scale of the result; numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Tensor
from .fixed_point import (
    FACTOR_BITS,
    FACTOR_SHIFT,
    check_requantize,
    check_types,
    check_zero,
    requantize_params,
    requantized,
)
from .movement import sum_to
from .quantize import int8, masked, of_step
from .registry import Builder, Call, Case, N, Param, Spec, case, define
from .strides import broadcast, broadcast_params
from .traits import EACH

Dys = Sequence[str | None]
_PAIRS: Final = (((3, 4), (3, 4)), ((N, 5, 4, 17), (N, 1, 1, 17)), ((2, N, 19), (19,)), ((), (3,)), ((4, 1), (3, 1, 7)))


def _infer(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_types(op, ins, DType.I8, DType.I8)
    check_zero(op, attrs["a_zero"], attrs["b_zero"])
    check_requantize(op, ins, attrs)
    return [(broadcast(op, *[x.shape for x in ins]), DType.I8)]


def _add_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if max(abs(attrs["a_m"]), abs(attrs["b_m"])) > 1 << FACTOR_BITS or attrs["shift"] > FACTOR_SHIFT:
        raise BadShape(f"qadd with {attrs['a_m']}, {attrs['b_m']} and the shift {attrs['shift']}",
                       why=f"it takes multipliers of {FACTOR_BITS} bits and shifts up to {FACTOR_SHIFT}")  # fmt: skip
    return _infer("qadd", ins, attrs)


def _add_ref(a: Array, b: Array, a_zero: int, b_zero: int, a_m: int, b_m: int, **ends: int) -> Sequence[Array]:
    total = (a.astype(np.int64) - a_zero) * a_m + (b.astype(np.int64) - b_zero) * b_m
    return (requantized(total, 1, **ends),)


def _add_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    """A negative multiplier is a difference."""
    if not any(map(b.need, node.ins)):
        return [None, None]
    dy = masked(b, node, str(dys[0]), node.attrs["lo"], node.attrs["hi"])
    found: list[str | None] = []
    for name, m in zip(node.ins, ("a_m", "b_m"), strict=True):
        own = sum_to(b, dy, b[name].shape) if b.need(name) else None
        found.append(b.add("neg", own) if own and node.attrs[m] < 0 else own)
    return found


def _tail(call: Call, *names: str) -> Sequence[Param]:
    walk = broadcast_params(call.outs[0].shape, *[x.shape for x in call.ins])
    return [*(call[name] for name in names), *requantize_params(call.attrs), *walk]


def _cases(**attrs: Any) -> list[Case]:
    return [case(int8(*a), int8(*b), **attrs) for a, b in _PAIRS]


define(
    "qadd", doc="y = clamp((((a - a_zero)·a_m + (b - b_zero)·b_m + 2^(s-1)) >> s) + y_zero)",
    infer=_add_infer, ref=_add_ref, vjp=_add_vjp, layout=EACH, inplace=(0, 1),
    kernels={"i8": "qadd_i8"}, params=lambda call: _tail(call, "a_zero", "b_zero", "a_m", "b_m"),
    cases=[
        *_cases(a_zero=-5, b_zero=17, a_m=1 << 21, b_m=1234567, shift=22, y_zero=-9, lo=-128, hi=127),
        case(int8(300), int8(300), a_zero=127, b_zero=-128, a_m=777777, b_m=-(1 << 21), shift=21, y_zero=3, lo=3,
             hi=90),
    ],
)  # fmt: skip


def _mul_ref(a: Array, b: Array, a_zero: int, b_zero: int, m: int, **ends: int) -> Sequence[Array]:
    return (requantized((a.astype(np.int64) - a_zero) * (b.astype(np.int64) - b_zero), m, **ends),)


def _mul_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    if not any(map(b.need, node.ins)):
        return [None, None]
    dy = masked(b, node, str(dys[0]), node.attrs["lo"], node.attrs["hi"])
    return [
        sum_to(b, b.add("mul", dy, real(b, other)), b[name].shape) if b.need(name) else None
        for name, other in (node.ins, node.ins[::-1])
    ]


def real(b: Builder, name: str) -> str:
    """What the integers stand for."""
    quant = b[name].quant
    assert quant is not None
    return b.add("dequantize", name, **of_step(quant))


define(
    "qmul", doc="y = clamp((((a - a_zero)·(b - b_zero)·m + 2^(s-1)) >> s) + y_zero)",
    infer=lambda ins, attrs: _infer("qmul", ins, attrs), ref=_mul_ref, vjp=_mul_vjp, layout=EACH, inplace=(0, 1),
    kernels={"i8": "qmul_i8"}, params=lambda call: _tail(call, "a_zero", "b_zero", "m"),
    cases=_cases(a_zero=-5, b_zero=-128, m=1_500_000_000, shift=39, y_zero=-9, lo=-128, hi=127),
)  # fmt: skip
