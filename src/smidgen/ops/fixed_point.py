"""Integers that stand for real numbers, real = scale · (q - zero), and the one way in which they change their scale:

    y = clamp(((acc · m + 2^(s-1)) >> s) + zero, lo, hi)

One product in 64 bits and one rounding, half up; m and s are made once, by the compiler. runtime/kernels/fixed_point.h
has the same line in C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Quant, Tensor
from .registry import Param

BITS: Final = 31
"""Of a multiplier."""
MOST_SHIFT: Final = 62
FACTOR_BITS: Final = 21
FACTOR_SHIFT: Final = 30
"""The multipliers of a sum of two have so many bits, and its shift is at most this: 32 bits are enough for all."""
LOW, HIGH = -128, 127
REQUANTIZE: Final = ("shift", "y_zero", "lo", "hi")
"""Attributes of every op that changes scales: s, the zero point of the result, and its bounds."""


def fixed_point(ratios: Any, bits: int = BITS, most_shift: int = MOST_SHIFT) -> tuple[Array, int]:
    """m and s with m / 2^s as near to all ratios as `bits` bits of the largest allow; its m has all of them."""
    ratios = np.asarray(ratios, np.float64)
    _, exponent = math.frexp(float(np.abs(ratios).max(initial=0.0)))
    shift = min(max(bits - exponent, 1), most_shift)
    m = np.floor(np.ldexp(ratios, shift) + 0.5)
    if np.abs(m).max(initial=0.0) >= 2.0**bits and shift > 1:  # rounded up to one bit more
        shift -= 1
        m = np.floor(np.ldexp(ratios, shift) + 0.5)
    limit = 2.0**bits - 1
    return np.clip(m, -limit, limit).astype(np.int32), shift


def requantized(acc: Array, m: Any, shift: int, y_zero: int, lo: int, hi: int) -> Array:
    """`acc` in the scale of the result. Exact for sums below 2^32."""
    product = np.asarray(acc, np.int64) * np.asarray(m, np.int64)
    y: Array = np.clip(((product + (1 << (shift - 1))) >> shift) + y_zero, lo, hi)
    return y.astype(np.int8)


# How ops in f32 are written in integers: attributes, of what operands and result stand for.


def _one(quant: Quant) -> tuple[float, int]:
    return quant.scales[0], quant.zero_points[0]


def of_sum(sign: int) -> Callable[[Any, Sequence[Quant], Quant], Mapping[str, Any]]:
    def attrs(call: Any, ins: Sequence[Quant], out: Quant) -> Mapping[str, Any]:
        (a, a_zero), (b, b_zero) = map(_one, ins)
        (a_m, b_m), shift = fixed_point([a / out.scales[0], sign * b / out.scales[0]], FACTOR_BITS, FACTOR_SHIFT)
        return {"a_zero": a_zero, "b_zero": b_zero, "a_m": int(a_m), "b_m": int(b_m), "shift": shift}

    return attrs


def of_product(call: Any, ins: Sequence[Quant], out: Quant) -> Mapping[str, Any]:
    (a, a_zero), (b, b_zero) = map(_one, ins)
    m, shift = fixed_point([a * b / out.scales[0]])
    return {"a_zero": a_zero, "b_zero": b_zero, "m": int(m[0]), "shift": shift}


def of_mean(call: Any, ins: Sequence[Quant], out: Quant) -> Mapping[str, Any]:
    """Over axes, whose lengths are in the multiplier; of windows each divides by its own count."""
    [(scale, zero)] = map(_one, ins)
    count = math.prod(int(call.ins[0].shape[axis]) for axis in call.attrs.get("axes", ()))
    m, shift = fixed_point([scale / (out.scales[0] * count)])
    return {**call.attrs, "x_zero": zero, "m": int(m[0]), "shift": shift}


def quant_of_range(low: float, high: float) -> Quant:
    """Scale and zero point for numbers of this range and 0, which is exact. The scale has 16 bits: how a machine adds
    up does not change it."""
    low, high = min(low, 0.0), max(high, 0.0)
    mantissa, exponent = math.frexp((high - low) / (HIGH - LOW) or 1.0)
    scale = math.ldexp(math.ceil(mantissa * (1 << 16) - 0.125), exponent - 16)
    zero = math.floor(LOW - low / scale + 0.5)
    return Quant((scale,), (min(max(zero, LOW), HIGH),))


def rounded(numbers: Any, quant: Quant) -> Array:
    """The integers that stand for `numbers`, in one scale."""
    scale, zero = _one(quant)
    q: Array = np.clip(np.floor(np.asarray(numbers, np.float64) / scale + 0.5) + zero, LOW, HIGH)
    return q.astype(np.int8)


# Checks


def check_requantize(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> None:
    shift, zero, lo, hi = (attrs[name] for name in REQUANTIZE)
    if not 1 <= shift <= MOST_SHIFT or not LOW <= zero <= HIGH or not LOW <= lo <= hi <= HIGH:
        raise BadShape(f"{op}({', '.join(map(str, ins))})", why=f"shift {shift}, zero {zero}, bounds {lo} to {hi}")


def check_zero(op: str, *zeros: int) -> None:
    if not all(LOW <= zero <= HIGH for zero in zeros):
        raise BadShape(f"{op} with the zero points {zeros}", why=f"those of i8 are {LOW} to {HIGH}")


def requantize_params(attrs: Mapping[str, Any]) -> Sequence[Param]:
    return [attrs[name] for name in REQUANTIZE]


def whole_sum(x: Array) -> Array:
    """A sum of products of small integers that was computed in float64, where all of it is exact below 2^53 in any
    order, as integers."""
    return np.rint(x).astype(np.int64)


def check_types(op: str, ins: Sequence[Tensor], *types: DType) -> None:
    given = [t.dtype for t in ins]
    if given != list(types):
        text = " and ".join(str(t) for t in ins)
        raise BadShape(f"{op} of {text}", why=f"it takes {', '.join(t.value for t in types)}")


__all__ = ["BITS", "FACTOR_BITS", "FACTOR_SHIFT", "HIGH", "LOW", "REQUANTIZE", "check_requantize", "check_types",
           "check_zero", "fixed_point", "of_mean", "of_product", "of_sum", "quant_of_range", "requantize_params",
           "requantized", "rounded", "whole_sum"]  # fmt: skip
