"""Torch ops that work element by element: arithmetic, activations, comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ....ir import Batch, DType
from .emit import Emit
from .writer import Operand, Unsupported, Value, aten, axis_of, is_tensor

SAME_NAME = (
    "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "square", "sin", "cos", "erf", "sign",
    "relu", "hardswish", "hardsigmoid", "silu", "sigmoid", "tanh", "mish", "log_sigmoid",
)  # fmt: skip
SELU_ALPHA, SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _unary(op: str) -> Any:
    return lambda t, x: t.add(op, t.f32(x))


for _name in SAME_NAME:
    aten(_name)(_unary(_name))


# Arithmetic.


@aten("add")
def add(t: Emit, a: Any, b: Any, alpha: Any = 1) -> Any:
    return t.plus(a, t.times(b, alpha))


@aten("sub", "subtract")
def sub(t: Emit, a: Any, b: Any, alpha: Any = 1) -> Any:
    return t.minus(a, t.times(b, alpha))


@aten("rsub")
def rsub(t: Emit, a: Any, b: Any, alpha: Any = 1) -> Any:
    return t.minus(b, t.times(a, alpha))


@aten("mul", "multiply")
def mul(t: Emit, a: Any, b: Any) -> Any:
    return t.times(a, b)


@aten("div", "true_divide", "divide")
def div(t: Emit, a: Any, b: Any, rounding: str | None = None) -> Any:
    if rounding is not None:
        raise Unsupported(f"division with rounding_mode='{rounding}'", "plain division, or compute sizes in Python")
    return t.over(a, b)


@aten("addcmul")
def addcmul(t: Emit, x: Operand, a: Operand, b: Operand, value: float = 1) -> Any:
    return t.plus(x, t.times(t.times(a, b), value))


@aten("addcdiv")
def addcdiv(t: Emit, x: Operand, a: Operand, b: Operand, value: float = 1) -> Any:
    return t.plus(x, t.times(t.over(a, b), value))


@aten("lerp")
def lerp(t: Emit, a: Operand, b: Operand, weight: Any) -> Any:
    return t.plus(a, t.times(t.minus(b, a), weight))


@aten("pow", "float_power")
def power(t: Emit, x: Any, exponent: Any) -> Any:
    k, base = t.number(exponent), t.number(x)
    if k is not None:
        plain = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(k)
        if k == 1:
            return x
        return t.add(plain, t.f32(x)) if plain else t.add("pow_scalar", t.f32(x), exponent=float(k))
    if base is not None:
        if base <= 0:
            raise Unsupported("a power of a number ≤ 0", "exp(x · log(base)) needs a positive base")
        return t.add("exp", t.times(exponent, math.log(base)))
    return t.binary("pow", x, exponent)


@aten("log2")
def log2(t: Emit, x: Operand) -> Any:
    return t.times(t.add("log", t.f32(x)), 1 / math.log(2))


@aten("log10")
def log10(t: Emit, x: Operand) -> Any:
    return t.times(t.add("log", t.f32(x)), 1 / math.log(10))


@aten("log1p")
def log1p(t: Emit, x: Operand) -> Any:
    return t.add("log", t.plus(x, 1))


@aten("exp2")
def exp2(t: Emit, x: Operand) -> Any:
    return t.add("exp", t.times(x, math.log(2)))


@aten("expm1")
def expm1(t: Emit, x: Operand) -> Any:
    return t.plus(t.add("exp", t.f32(x)), -1)


@aten("erfc")
def erfc(t: Emit, x: Operand) -> Any:
    return t.minus(1, t.add("erf", t.f32(x)))


@aten("tan")
def tan(t: Emit, x: Operand) -> Any:
    return t.over(t.add("sin", t.f32(x)), t.add("cos", t.f32(x)))


@aten("sinh")
def sinh(t: Emit, x: Operand) -> Any:
    up, down = t.add("exp", t.f32(x)), t.add("exp", t.add("neg", t.f32(x)))
    return t.times(t.minus(up, down), 0.5)


@aten("cosh")
def cosh(t: Emit, x: Operand) -> Any:
    up, down = t.add("exp", t.f32(x)), t.add("exp", t.add("neg", t.f32(x)))
    return t.times(t.plus(up, down), 0.5)


@aten("maximum", "max.other", "fmax")
def maximum(t: Emit, a: Operand, b: Operand) -> Operand:
    return t.binary("maximum", a, b)


@aten("minimum", "min.other", "fmin")
def minimum(t: Emit, a: Operand, b: Operand) -> Operand:
    return t.binary("minimum", a, b)


@aten("clamp", "clip")
def clamp(t: Emit, x: Operand, low: Any = None, high: Any = None) -> Operand:
    bounds = [None if v is None else t.number(v) for v in (low, high)]
    if isinstance(low, Value) or isinstance(high, Value) or (is_tensor(low) and bounds[0] is None):
        x = x if low is None else t.binary("maximum", x, low)
        return x if high is None else t.binary("minimum", x, high)
    lo, hi = (-math.inf if bounds[0] is None else bounds[0]), (math.inf if bounds[1] is None else bounds[1])
    return t.add("clamp", t.f32(x), lo=float(lo), hi=float(hi), closed=True)


@aten("clamp_min")
def clamp_min(t: Emit, x: Operand, low: Any) -> Operand:
    return clamp(t, x, low)


@aten("clamp_max")
def clamp_max(t: Emit, x: Operand, high: Any) -> Operand:
    return clamp(t, x, None, high)


# Activations.


@aten("hardtanh")
def hardtanh(t: Emit, x: Operand, low: float = -1, high: float = 1) -> Operand:
    return t.add("clamp", t.f32(x), lo=float(low), hi=float(high), closed=False)


@aten("relu6")
def relu6(t: Emit, x: Operand) -> Operand:
    return hardtanh(t, x, 0, 6)


@aten("leaky_relu")
def leaky_relu(t: Emit, x: Operand, slope: float = 0.01) -> Operand:
    return t.add("leaky_relu", t.f32(x), slope=float(slope))


@aten("rrelu")
def rrelu(t: Emit, x: Operand, low: float = 0.125, high: float = 1 / 3, training: bool = False, *_: Any) -> Operand:
    if training:
        raise Unsupported("random slopes", "leaky_relu")
    return leaky_relu(t, x, (low + high) / 2)


@aten("prelu")
def prelu(t: Emit, x: Operand, slope: Operand) -> Operand:
    if t.shape(slope) != (1,) and t.rank(x) > 1:
        slope = t.reshape(slope, (t.shape(slope)[0], *[1] * (t.rank(x) - 2)))
    return t.add("where", t.add("gt", x, t.constant(0.0)), x, t.times(slope, x))


@aten("gelu")
def gelu(t: Emit, x: Operand, approximate: str = "none") -> Operand:
    return t.add("gelu", t.f32(x), approximate=approximate == "tanh")


@aten("elu")
def elu(t: Emit, x: Operand, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if input_scale != 1:
        raise Unsupported("elu with an input scale", "F.elu or F.celu")
    return t.times(t.add("elu", t.f32(x), alpha=float(alpha)), scale)


@aten("selu")
def selu(t: Emit, x: Operand) -> Any:
    return elu(t, x, SELU_ALPHA, SELU_SCALE)


@aten("celu")
def celu(t: Emit, x: Operand, alpha: float = 1) -> Any:
    return t.times(elu(t, t.times(x, 1 / alpha)), alpha)


@aten("softplus")
def softplus(t: Emit, x: Operand, beta: float = 1, threshold: float = 20) -> Operand:
    return t.add("softplus", t.f32(x), beta=float(beta), threshold=float(threshold))


@aten("threshold")
def threshold(t: Emit, x: Operand, border: float, value: float) -> Operand:
    return t.add("where", t.add("gt", x, t.constant(float(border))), x, t.constant(float(value)))


@aten("hardshrink")
def hardshrink(t: Emit, x: Operand, border: float = 0.5) -> Operand:
    return t.add("where", t.add("gt", t.add("abs", x), t.constant(float(border))), x, t.constant(0.0))


@aten("softshrink")
def softshrink(t: Emit, x: Operand, border: float = 0.5) -> Any:
    return t.minus(x, clamp(t, x, -border, border))


@aten("glu")
def glu(t: Emit, x: Operand, axis: int = -1) -> Any:
    axis = axis_of(axis, t.rank(x))
    half = t.length(x, axis) // 2
    gate = t.slice(x, axis, half, half + half)
    return t.times(t.slice(x, axis, 0, half), t.add("sigmoid", gate))


# Comparing and choosing.


def _compare(op: str) -> Any:
    def rule(t: Emit, a: Any, b: Any) -> Operand:
        if isinstance(a, Batch) or isinstance(b, Batch):
            t.number(Batch())
        both = [x if is_tensor(x) else t.number(x) for x in (a, b)]
        floats = any(t.dtype(x) is not DType.I32 if is_tensor(x) else isinstance(x, float) for x in both)
        kind = torch.float64 if floats else torch.int32
        made = [(t.f32(x) if floats else x) if is_tensor(x) else t.constant(x, kind) for x in both]
        return t.add(op, *made)

    return rule


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    aten(_name)(_compare(_name))


@aten("isnan")
def isnan(t: Emit, x: Operand) -> Operand:
    return t.add("ne", x, x)


@aten("logical_and", "bitwise_and", "__and__")
def logical_and(t: Emit, a: Operand, b: Operand) -> Operand:
    return t.add("logical_and", *_truths(t, a, b))


@aten("logical_or", "bitwise_or", "__or__")
def logical_or(t: Emit, a: Operand, b: Operand) -> Operand:
    return t.add("logical_or", *_truths(t, a, b))


@aten("logical_xor", "bitwise_xor", "__xor__")
def logical_xor(t: Emit, a: Operand, b: Operand) -> Operand:
    return t.add("ne", *[t.f32(x) for x in _truths(t, a, b)])


@aten("logical_not", "bitwise_not")
def logical_not(t: Emit, x: Operand) -> Operand:
    return t.add("logical_not", *_truths(t, x))


def _truths(t: Emit, *xs: Operand) -> Sequence[Operand]:
    if t.node_dtypes[0] is not torch.bool:
        raise Unsupported("bits of integers", "only booleans can be combined")
    return [t.truth(x) for x in xs]


@aten("where")
def where(t: Emit, mask: Operand, a: Any, b: Any) -> Operand:
    made = [t.f32(x) if is_tensor(x) else t.constant(float(t.number(x) or 0)) for x in (a, b)]
    chosen = t.add("where", t.truth(mask), *made)
    return t.expand(chosen, t.out_shape)


@aten("masked_fill")
def masked_fill(t: Emit, x: Operand, mask: Operand, value: Any) -> Operand:
    return where(t, mask, value, x)
