"""Integers that stand for real numbers, real = scale · (q - zero), and the one way in which they change their scale:

    y = clamp(((acc · m + 2^(s-1)) >> s) + zero, lo, hi)

One product in 64 bits and one rounding, half up; m and s are made once, by the compiler. runtime/kernels/fixed_point.h
has the same line in C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Tensor
from .registry import Param

BITS: Final = 31
"""Of a multiplier."""
MOST_SHIFT: Final = 62
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


__all__ = ["BITS", "HIGH", "LOW", "REQUANTIZE", "check_requantize", "check_types", "check_zero", "fixed_point",
           "requantize_params", "requantized", "whole_sum"]  # fmt: skip
