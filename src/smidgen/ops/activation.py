"""Activations, and the gradients among them that need only one bit of what they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..errors import BadShape
from ..ir import Array, Dim, DType, Tensor, ceil_div, size
from .elementwise import Draw, Formula, Settings, cases, differentiable, erf, reading, unary
from .registry import NOT_DIFFERENTIABLE, Bits, Call, Integers, N, Param, Spec, case, define, same_shape
from .traits import EACH, Rows, Taken

INF = math.inf


def _wide(rng: np.random.Generator, n: int) -> Array:
    return 3 * rng.standard_normal((n, 7))


def _sigmoid(x: Array) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def _softplus(x: Array) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _gelu(x: Array, approximate: bool) -> Any:
    return x * (_sigmoid(2 * _gelu_u(x)) if approximate else (1 + erf(x / math.sqrt(2))) / 2)


def _gelu_slope(x: Array, approximate: bool) -> Any:
    if approximate:
        s = _sigmoid(2 * _gelu_u(x))
        return s + x * s * (1 - s) * 2 * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
    return (1 + erf(x / math.sqrt(2))) / 2 + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _gelu_u(x: Array) -> Any:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _silu_slope(x: Array) -> Any:
    s = _sigmoid(x)
    return s * (1 + x * (1 - s))


def _mish_slope(x: Array) -> Any:
    t = np.tanh(_softplus(x))
    return t + x * (1 - t * t) * _sigmoid(x)


differentiable("sigmoid", "y = 1 / (1 + exp(-x))", _sigmoid, "y (1 - y)", lambda y: y * (1 - y), reads="y")
differentiable("tanh", "y = tanh(x)", np.tanh, "1 - y²", lambda y: 1 - y * y, reads="y")
differentiable("softsign", "y = x / (1 + |x|)", lambda x: x / (1 + abs(x)), "(1 + |x|)⁻²", lambda x: (1 + abs(x)) ** -2)
differentiable(
    "silu", "y = x · s, s = sigmoid(x)", lambda x: x * _sigmoid(x), "s (1 + x (1 - s))", _silu_slope,
)  # fmt: skip
differentiable(
    "log_sigmoid", "y = log(sigmoid(x))", lambda x: -_softplus(-x), "sigmoid(-x)", lambda x: _sigmoid(-x),
)  # fmt: skip
differentiable(
    "mish", "y = x · t, t = tanh(softplus(x))", lambda x: x * np.tanh(_softplus(x)),
    "t + x (1 - t²) sigmoid(x)", _mish_slope,
)  # fmt: skip
differentiable(
    "hardswish", "y = x · hardsigmoid(x)", lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "0 up to -3, 1 from 3, x/3 + 1/2 between", lambda x: np.where(x <= -3, 0, np.where(x < 3, x / 3 + 0.5, 1)),
    draw=_wide,
)  # fmt: skip
differentiable(
    "gelu", "y = x · Φ(x); approximate: Φ(x) = (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2", _gelu,
    "Φ(x) + x Φ'(x)", _gelu_slope,
    constants=["approximate"], settings=[{"approximate": False}, {"approximate": True}],
)  # fmt: skip


def _elu_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if attrs["alpha"] < 0:  # else the sign of y does not tell the sign of x
        raise BadShape(f"elu needs alpha ≥ 0, not {attrs['alpha']}")
    return same_shape(ins, attrs)


differentiable(
    "elu", "y = x if x > 0 else alpha · (exp(x) - 1), alpha ≥ 0",
    lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "1 if y > 0 else y + alpha", lambda y, alpha: np.where(y > 0, 1, y + alpha), reads="y", infer=_elu_infer,
    constants=["alpha"], settings=[{"alpha": 1.0}, {"alpha": 0.4}],
)  # fmt: skip
differentiable(
    "softplus", "y = log(1 + exp(beta x)) / beta; x itself where beta x > threshold",
    lambda x, beta, threshold: np.where(x * beta > threshold, x, _softplus(x * beta) / beta),
    "sigmoid(beta x); 1 where beta x > threshold",
    lambda x, beta, threshold: np.where(x * beta > threshold, 1, _sigmoid(x * beta)),
    constants=["beta", "threshold"], settings=[{"beta": 1, "threshold": 20}, {"beta": 2.5, "threshold": 1.5}],
)  # fmt: skip


# Gradients that ask only whether a value was within bounds. They can read the value (`range_dx_f32`, whatever the
# op is called) or one bit of it (`range_bits` in the forward pass, `bits_dx` in the backward): the bits of dx agree.


def _within(x: Array, lo: float, hi: float, closed: bool) -> Array:
    return (x >= lo) & (x <= hi) if closed else (x > lo) & (x < hi)


def _weigh(dy: Array, within: Array, inside: float, outside: float) -> Array:
    """A weight of 0 gives 0, even if dy is infinite."""
    parts = [dy * weight if weight else np.zeros_like(dy) for weight in (inside, outside)]
    return np.where(within, *parts)


def _piecewise(
    name: str, doc: str, formula: Formula, bits: Callable[[Mapping[str, Any]], Bits], *,
    reads: Literal["x", "y"] = "x", constants: Sequence[str] = (), settings: Settings = ({},), draw: Draw | None = None,
    bounds: Callable[[Mapping[str, Any]], tuple[float, float]] | None = None,
) -> None:  # fmt: skip
    """Define the op and its gradient op `<name>_dx`, which is what `bits` says."""

    def dx(dy: Array, v: Array, **attrs: Any) -> Sequence[Array]:
        r = bits(attrs)
        return (_weigh(dy, _within(v, r.lo, r.hi, r.closed), r.inside, r.outside),)

    def params(call: Call) -> Sequence[Param]:
        r = bits(call.attrs)
        return [call.outs[0].size, float(r.lo), float(r.hi), int(r.closed), float(r.inside), float(r.outside)]

    unary(
        name, doc, formula, reading(reads, f"{name}_dx"), constants=constants, settings=settings, draw=draw,
        bounds=bounds,
    )  # fmt: skip
    define(
        f"{name}_dx", doc=f"dx = dy · (one weight where lo < {reads} < hi, another elsewhere)",
        infer=same_shape, ref=dx, vjp=NOT_DIFFERENTIABLE,
        kernels={"f32": "range_dx_f32"}, params=params, inplace=(0, 1), bits=bits, cases=cases(2, settings, draw),
        layout=EACH,
    )  # fmt: skip


_piecewise(
    "relu", "y = max(x, 0)", lambda x: np.maximum(x, 0), lambda attrs: Bits(1, 0.0, INF), reads="y",
    bounds=lambda attrs: (0.0, INF),
)  # fmt: skip
_piecewise(
    "leaky_relu", "y = x if x > 0 else slope · x", lambda x, slope: np.where(x > 0, x, slope * x),
    lambda attrs: Bits(1, 0.0, INF, outside=attrs["slope"]),
    constants=["slope"], settings=[{"slope": 0.01}, {"slope": 0.0}, {"slope": -0.5}],
)  # fmt: skip
_piecewise(
    "hardsigmoid", "y = clamp(x + 3, 0, 6) / 6", lambda x: np.clip(x + 3, 0, 6) / 6,
    lambda attrs: Bits(1, -3.0, 3.0, inside=1 / 6), draw=_wide,
)  # fmt: skip
_piecewise(
    "clamp", "y = min(max(x, lo), hi); the gradient passes at the bounds themselves only if closed",
    lambda x, lo, hi, closed: np.minimum(np.maximum(x, lo), hi),
    lambda attrs: Bits(1, attrs["lo"], attrs["hi"], closed=attrs["closed"]), constants=["lo", "hi"],
    settings=[{"lo": 0, "hi": 6, "closed": False}, {"lo": -0.5, "hi": 0.7, "closed": True},
              {"lo": -INF, "hi": 0.25, "closed": True}],
    bounds=lambda attrs: (float(attrs["lo"]), float(attrs["hi"])),
)  # fmt: skip


def _range_bits_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    per_row = _per_row(ins[0].size, attrs["rows"])
    return [((attrs["rows"], ceil_div(per_row, 8)), DType.U8)]


def _per_row(size: Dim, rows: Dim) -> int:
    per_row = size // rows if size != rows else 1  # type: ignore[operator]
    if not isinstance(per_row, int) or rows * per_row != size:
        raise BadShape(f"{size} elements are not {rows} rows of equal size")
    return per_row


def _bits_rows(call: Call, axis: int) -> Rows | None:
    """Where every row of the image has whole bytes of its own."""
    makes_bits = call.outs[0].dtype is DType.U8
    image, bits = (call.ins[0], call.outs[0]) if makes_bits else call.ins
    row = next((i for i, dim in enumerate(image.shape) if dim != 1), 0)
    by_row = bits.shape[0] == size(image.shape[: row + 1]) == image.shape[row] != 1
    return Rows("each", sources=1 if makes_bits else 2) if by_row and axis == (0 if makes_bits else row) else None


define(
    "range_bits", doc="bit i of a row, least significant first, is lo < x < hi (closed: ≤); rows start on whole bytes",
    infer=_range_bits_infer, vjp=NOT_DIFFERENTIABLE,
    ref=lambda x, lo, hi, closed, rows: (
        np.packbits(_within(x, lo, hi, closed).reshape(rows, -1), axis=1, bitorder="little"),
    ),
    kernels={"u8": "range_bits_u8", "i8->u8": "range_bits_i8"}, rows=_bits_rows,
    params=lambda call: [
        call.outs[0].shape[0], _per_row(call.ins[0].size, call.outs[0].shape[0]),
        float(call["lo"]), float(call["hi"]), int(call["closed"]),
    ],
    cases=[
        case((N, 3, 7), lo=0.0, hi=INF, closed=False, rows=N), case((2, N, 5), lo=-1, hi=0.5, closed=True, rows=2 * N),
        case((3, 11), lo=0, hi=1, closed=False, rows=1), case((N,), lo=0, hi=1, closed=False, rows=N),
        case(lambda rng, n: rng.integers(-128, 128, (3, 11), np.int8), lo=-128, hi=90, closed=False, rows=3),
    ],
)  # fmt: skip


def _bits_dx(dy: Array, bits: Array, inside: float, outside: float) -> Sequence[Array]:
    count = dy.size // bits.shape[0]
    within = np.unpackbits(bits, axis=1, count=count, bitorder="little").reshape(dy.shape)
    return (_weigh(dy, within != 0, inside, outside).astype(dy.dtype),)


def _bits_tiled(call: Call, count: int) -> Taken | None:
    """Where the bits of a pixel begin on a whole byte."""
    (dy, bits), channels = call.ins, call.outs[0].shape[-1]
    whole = isinstance(channels, int) and channels % 8 == 0 and bits.size == size((*dy.shape[:-1], channels // 8))
    return Taken(((0, len(dy.shape) - 1),), packed=(1,)) if whole and count % 8 == 0 else None


def _bytes(*shape: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.integers(0, 256, shape, dtype=np.uint8)


define(
    "bits_dx", doc="dx = dy · (inside where the bit is set, else outside); bits as `range_bits` packs them",
    infer=same_shape, ref=_bits_dx, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "bits_dx_f32", "i16,u8->i16": "bits_dx16_i16"}, inplace=(0,), rows=_bits_rows, tiled=_bits_tiled,
    params=lambda call: [
        call.ins[1].shape[0], _per_row(call.ins[0].size, call.ins[1].shape[0]),
        float(call["inside"]), float(call["outside"]),
    ],
    cases=[
        case((2, 3, 7), _bytes(2, 3), inside=1.0, outside=0.0), case((3, 8), _bytes(1, 3), inside=1 / 6, outside=-0.5),
        case((4, 1), _bytes(4, 1), inside=1.0, outside=0.01),
        case(Integers((3, 11), DType.I16, -32767, 32767), _bytes(3, 2), inside=1.0, outside=0.0),
    ],
)  # fmt: skip
