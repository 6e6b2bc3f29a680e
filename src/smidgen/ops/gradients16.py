"""Gradients in int16: mantissas q with one exponent for the whole tensor, real = q · 2^exponent (decision 0024).

Beside the mantissas goes i32[2]: the exponent, and how many bits the largest sum had of which they were made. Where a
result is small or can be looked at twice its exponent is measured; the input gradient of a layer takes the one that
the sums of earlier steps ask for (gain), with a bit of headroom, and is cut off beyond it. All of it is integers, here
as in C (runtime/kernels/gradients16.h): equal bits everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, Dim, DType, Tensor
from .fixed_point import check_types
from .registry import NOT_DIFFERENTIABLE, Call, Integers, N, Spec, case, define, out_size

MANTISSA: Final = 15
"""Bits of a mantissa beside its sign."""
LIMIT: Final = (1 << MANTISSA) - 1
LEAST: Final = -100
MOST: Final = 60
"""Exponents: what is smaller than 2^-100 is 0, and the squares of what is larger would be no numbers."""
HEADROOM: Final = 1
"""Bits that are left free where the exponent is that of earlier steps."""
LEAST_ROOM: Final = 8
"""Bits of a mantissa in the sum of an input gradient, below which it stays in f32."""
GAIN_STEPS: Final = 16
"""A gain counts sixteenths of a bit: so many steps with small sums lower it by one."""
FRACTION: Final = 14
"""Bits behind the point of the mantissas of a sum of two."""
ABOUT: Final = Integers((2,), DType.I32, -20, 20)
"""A case's exponent."""


def int16(*shape: Dim) -> Integers:
    """A case's input: any mantissas."""
    return Integers(shape, DType.I16, -LIMIT, LIMIT)


def exponent_of(about: Array) -> int:
    return min(max(int(about[0]), LEAST), MOST)


def bits_of(v: Array) -> int:
    """The fewest bits, beside the sign, that hold every number."""
    return int(np.where(v < 0, ~v, v).max(initial=0)).bit_length()


def fitted(base: int, bits: int, headroom: int = 0) -> tuple[int, int]:
    """How far numbers of so many bits, in steps of 2^base, go to the right, and the exponent of what remains."""
    shift = bits - MANTISSA + headroom
    shift = min(max(shift, LEAST - base), MOST - base)
    shift = min(max(shift, -MANTISSA), 31)
    return shift, min(max(base + shift, LEAST), MOST)


def hinted(gain: Array, bits: int) -> int:
    """The bits that are expected; those of these very numbers where nothing is known yet."""
    known = int(gain)
    return min((known + GAIN_STEPS - 1) // GAIN_STEPS, 31) if known > 0 else bits


def narrowed(v: Array, shift: int) -> Array:
    """Shifted with one rounding, half up, and cut off."""
    moved = ((v >> (shift - 1)) + 1) >> 1 if shift > 0 else v << -shift
    q: Array = np.clip(moved, -LIMIT, LIMIT).astype(np.int16)
    return q


def about(exponent: int, bits: int = 0) -> Array:
    return np.array([exponent, bits], np.int32)


def check_mantissas(op: str, q: Tensor, a: Tensor) -> None:
    if q.dtype is not DType.I16 or a.dtype is not DType.I32 or a.shape != (2,):
        raise BadShape(f"{op} of {q} with {a}", why="a gradient is i16 mantissas and beside them i32[2]")


def made(shape: Sequence[Dim]) -> Sequence[Spec]:
    return [(tuple(shape), DType.I16), ((2,), DType.I32)]


# Input gradients: which scales they take, and how many bits of mantissas their sums have room for.


def room_bits(terms: int) -> int:
    """Of a mantissa, in a sum of so many products with 8 bits."""
    return min(MANTISSA, 24 - terms.bit_length())


def terms_of(w: Sequence[int], groups: int) -> int:
    """Products in a sum of an input gradient."""
    return w[0] // groups * math.prod(w[1:3]) if len(w) == 4 else w[0]


def by_channel(w: Sequence[int], groups: int) -> bool:
    """Is the scale that of the sum? Each channel has one output then."""
    return len(w) == 4 and w[3] == 1 and w[0] == groups > 1 and room_bits(terms_of(w, groups)) == MANTISSA


def scale_of(scales: Array, w: Sequence[int], groups: int) -> tuple[Array, int]:
    """Multipliers of outputs and an exponent: scale = m · 2^(exponent - 31) of channels, m · 2^(exponent - 15) else."""
    _, exponent = math.frexp(float(np.max(scales, initial=0.0)))
    bits, kind = (31, np.int32) if by_channel(w, groups) else (MANTISSA, np.int16)
    steps = np.floor(np.ldexp(np.asarray(scales, np.float64), bits - exponent) + 0.5)
    return np.clip(steps, 0, (1 << bits) - 1).astype(kind), exponent


def layer_scales(call: Call, scales: Array) -> tuple[Array, Mapping[str, Any]] | None:
    """Of a layer's input gradient in f32: multipliers in the place of scales, and their exponent."""
    w, groups = [int(d) for d in call.ins[1].shape], int(call.attrs.get("groups", 1))  # type: ignore[arg-type]
    if room_bits(terms_of(w, groups)) < LEAST_ROOM:
        return None
    m, exponent = scale_of(scales, w, groups)
    return m, {"exponent": exponent}


def channel_scales(call: Call, scales: Array) -> tuple[Array, Mapping[str, Any]] | None:
    """The same of one that must take them by channel."""
    w, groups = [int(d) for d in call.ins[1].shape], int(call.attrs.get("groups", 1))  # type: ignore[arg-type]
    return layer_scales(call, scales) if by_channel(w, groups) else None


def table_slopes(call: Call, slopes: Array) -> tuple[Array, Mapping[str, Any]]:
    """Slopes of a function of one int8 number, and their exponent."""
    _, exponent = math.frexp(float(np.abs(slopes).max(initial=0.0)))
    steps = np.floor(np.ldexp(np.asarray(slopes, np.float64), MANTISSA - exponent) + 0.5)
    return np.clip(steps, -LIMIT, LIMIT).astype(np.int16), {"exponent": exponent - MANTISSA}


# From f32 and back.


def _quantize_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_types("quantize16", ins, DType.F32)
    return made(ins[0].shape)


def _quantize_ref(x: Array) -> Sequence[Array]:
    """The exponent is that of the largest finite number's bits."""
    given = np.asarray(x, np.float32)
    fields = (np.abs(given).view(np.uint32) >> np.uint32(23)).astype(np.int64)
    most = int(np.where(fields < 255, fields, 0).max(initial=0))
    exponent = min(max(most - 126 - MANTISSA, LEAST), MOST)
    with np.errstate(over="ignore", invalid="ignore"):
        v = given * np.float32(2.0 ** (8 - exponent))
        v = np.where(np.isnan(v), np.float32(0), np.clip(v, np.float32(-(2.0**24)), np.float32(2.0**24)))
    return narrowed(v.astype(np.int64), 8), about(exponent)


def _floats(rng: np.random.Generator, n: int) -> Array:
    """Of all sizes, and what is no number."""
    odd = np.array([np.inf, -np.inf, np.nan, 0.0, 1e-38, -3e30])
    return np.concatenate([odd, rng.standard_normal(90) * 2.0 ** rng.integers(-120, 20, 90)])


define(
    "quantize16", doc="q = x / 2^e rounded half up, in 15 bits and a sign; e that of the largest number",
    infer=_quantize_infer, ref=_quantize_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True,
    kernels={"f32->i16,i32": "quantize16_i16"}, params=out_size,
    cases=[case((N, 5, 3)), case(_floats), case((1,)), case(lambda rng, n: np.zeros((3, 2)))],
)  # fmt: skip


def _dequantize_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_mantissas("dequantize16", *ins)
    return [(ins[0].shape, DType.F32)]


define(
    "dequantize16", doc="x = q · 2^e",
    infer=_dequantize_infer, ref=lambda q, a: (q.astype(np.float64) * 2.0 ** exponent_of(a),), vjp=NOT_DIFFERENTIABLE,
    kernels={"i16,i32->f32": "dequantize16_f32"}, params=out_size,
    cases=[case(int16(N, 5, 3), ABOUT), case(int16(1), lambda rng, n: about(-2000, 9))],
)  # fmt: skip


# The sum of two.


def _add_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    a, a_about, b, b_about = ins
    check_mantissas("add16", a, a_about)
    check_mantissas("add16", b, b_about)
    if a.shape != b.shape:
        raise BadShape(f"add16 of {a} and {b}", why="gradients that are added have one shape")
    return made(a.shape)


def _add_ref(a: Array, a_about: Array, b: Array, b_about: Array) -> Sequence[Array]:
    ea, eb = exponent_of(a_about), exponent_of(b_about)
    high = max(ea, eb)
    total = sum((q.astype(np.int64) << FRACTION) >> min(high - e, 31) for q, e in ((a, ea), (b, eb)))
    bits = bits_of(np.asarray(total))
    shift, exponent = fitted(high - FRACTION, bits)
    return narrowed(np.asarray(total), shift), about(exponent, bits)


define(
    "add16", doc="a + b, the smaller one aligned to the larger; the exponent is measured",
    infer=_add_infer, ref=_add_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True, inplace=(0, 2),
    kernels={"i16,i32,i16,i32->i16,i32": "add16_i16"}, params=out_size,
    cases=[case(int16(N, 5, 7), ABOUT, int16(N, 5, 7), ABOUT),
           case(int16(9), lambda rng, n: about(-90), int16(9), lambda rng, n: about(50)),
           case(int16(3), lambda rng, n: about(60), int16(3), lambda rng, n: about(60))],
)  # fmt: skip


# A function of one int8 number: its slopes as 16 bits.


def _table_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, a, x, slopes = ins
    check_mantissas("qtable_dx16", dy, a)
    if x.dtype is not DType.I8 or x.shape != dy.shape or slopes.dtype is not DType.I16 or slopes.shape != (256,):
        raise BadShape(f"qtable_dx16 of {dy}, {x} and {slopes}", why="x is i8 like dy, with i16[256]")
    return made(dy.shape)


def _table_ref(dy: Array, a: Array, x: Array, slopes: Array, exponent: int) -> Sequence[Array]:
    v = dy.astype(np.int64) * slopes[x.astype(np.int32) + 128]
    bits = bits_of(v)
    shift, out = fitted(exponent_of(a) + exponent, bits)
    return narrowed(v, shift), about(out, bits)


define(
    "qtable_dx16", doc="dx = dy · slopes[q + 128] · 2^exponent; the exponent of dx is measured",
    infer=_table_infer, ref=_table_ref, vjp=NOT_DIFFERENTIABLE, inplace=(0,), batchwise=True,
    kernels={"i16,i32,i8,i16->i16,i32": "qtable_dx16_i16"}, params=lambda call: [call.outs[0].size, call["exponent"]],
    cases=[case(int16(N, 5, 7), ABOUT, Integers((N, 5, 7), DType.I8, -128, 127), int16(256), exponent=-14)],
)  # fmt: skip


# The gain: what the exponent of a result was beside that of its input, in steps before.


def _gain_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_types("gain16", ins, DType.I32, DType.I32)
    if ins[0].shape != () or ins[1].shape != (2,):
        raise BadShape(f"gain16 of {ins[0]} and {ins[1]}", why="a gain is one number, and enters the bits of a sum")
    return [((), DType.I32)]


def _gain_ref(gain: Array, a: Array) -> Sequence[Array]:
    known, bits = int(gain), int(a[1])
    return (np.array(max(GAIN_STEPS * bits, known - 1) if 0 < bits <= 31 else known, np.int32),)


def _number(*numbers: int) -> Any:
    value = np.array(numbers if len(numbers) > 1 else numbers[0], np.int32)
    return lambda rng, n: value


define(
    "gain16", doc="gain' = the larger of 16 · bits and gain - 1; as it is where every sum was 0",
    infer=_gain_infer, ref=_gain_ref, vjp=NOT_DIFFERENTIABLE, shares={0: 0}, batchwise=True,
    kernels={"i32": "gain16_i32"},
    cases=[case(_number(gain), _number(-3, bits)) for gain, bits in ((0, 20), (400, 3), (77, 0), (5, 40))],
)  # fmt: skip

__all__ = ["ABOUT", "HEADROOM", "MANTISSA", "about", "bits_of", "by_channel", "channel_scales", "check_mantissas",
           "exponent_of", "fitted", "hinted", "int16", "layer_scales", "made", "narrowed", "room_bits", "scale_of",
           "table_slopes", "terms_of"]  # fmt: skip
