"""Convolution and linear layers in integers: x, w int8, bias int32 in steps of x's scale times w's, one multiplier an
output. Gradients are those of the real numbers, in f32: dx reads the int8 weight with its scales, dw the int8 input.

Sums are exact: at most 2^15 products an output and a bias up to 2^30 stay below 2^31.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Tensor, size
from . import conv, matrix, work
from .conv import Window
from .fixed_point import (
    check_requantize,
    check_types,
    check_zero,
    requantize_params,
    requantized,
    whole_sum,
)
from .quantize import int8, masked
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Integers, N, Param, Spec, case, define
from .traits import Channels, Int16, Layout, Stored, Taken

MOST_TERMS: Final = 1 << 15
"""Products in the sum of an output."""
MOST_BIAS: Final = 1 << 30
TYPES: Final = (DType.I8, DType.I8, DType.I32, DType.I32)
OWN: Final = ("x_zero", "shift", "y_zero", "lo", "hi")
"""Attributes of these layers that those in f32 do not have."""


def _window(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k not in OWN}


def _check(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> None:
    check_types(op, ins, *TYPES)
    _, w, b, m = ins
    if not all(t.shape == w.shape[:1] for t in (b, m)):
        raise BadShape(f"{op} of {w}, {b} and {m}", why="bias and multipliers have one value an output")
    terms = int(np.prod([int(d) for d in w.shape[1:]]))  # type: ignore[arg-type]
    if terms > MOST_TERMS:
        raise BadShape(f"{op} of {w}", why=f"a sum of {terms} products may not fit 32 bits, {MOST_TERMS} do")
    check_zero(op, attrs["x_zero"])
    check_requantize(op, ins, attrs)


def _requantized(acc: Array, b: Array, m: Array, attrs: Mapping[str, Any]) -> Array:
    whole = whole_sum(acc) + b.astype(np.int64)
    return requantized(whole, m, attrs["shift"], attrs["y_zero"], attrs["lo"], attrs["hi"])


def _real(x: Array, zero: int) -> Array:
    return x.astype(np.float64) - zero


# Convolution


def _conv_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _check("qconv2d", ins, attrs)
    x, w = ins[:2]
    out = conv._checked("qconv2d", ins, Window.of(attrs), x.shape, w.shape, types=TYPES)
    return [((x.shape[0], *out, w.shape[0]), DType.I8)]


def _conv_ref(x: Array, w: Array, b: Array, m: Array, **attrs: Any) -> Sequence[Array]:
    (acc,) = conv._conv2d_ref(_real(x, attrs["x_zero"]), _real(w, 0), **_window(attrs))
    return (_requantized(acc, b, m, attrs),)


def _layer_vjp(b: Builder, node: Node, dy: str, dx_op: str, dw_op: str, back: Mapping[str, Any],
               own: Mapping[str, Any]) -> Sequence[str | None]:  # fmt: skip
    """`back` are attributes of dx, `own` those of dw."""
    x, w, bias, _ = node.ins
    quant = b[x].quant
    if quant is None or b[w].quant is None or not any(map(b.need, (x, w, bias))):
        return [None] * len(node.ins)
    dy = masked(b, node, dy, node.attrs["lo"], node.attrs["hi"])
    dx = dw = None
    if b.need(w):
        sums = b.add(dw_op, dy, x, zero=node.attrs["x_zero"], **own)
        dw = b.add("scale", sums, by=quant.scales[0])
    db = b.add("bias_dw", dy) if b.need(bias) else None
    if b.need(x):  # last: it may take the place of dy
        dx = b.add(dx_op, dy, w, scales_of(b, w), **back)
    return [dx, dw, db, None]


def scales_of(b: Builder, w: str) -> str:
    """What one step of each output of an int8 weight stands for, as a constant."""
    quant = b[w].quant
    assert quant is not None
    return b.constant(f"{w}:scales", np.asarray(quant.scales, np.float64))


def _conv_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    x, w = node.ins[:2]
    window = _window(node.attrs)
    back, own = {"in_hw": b[x].shape[1:3], **window}, {"kernel": b[w].shape[1:3], **window}
    at = Window.of(window)
    alone = at.groups == b[x].shape[3] == b[w].shape[0] and tuple(at.stride) == (1, 1)
    over = alone and b[x].shape == b[node.outs[0]].shape and not b.need(w)
    return _layer_vjp(b, node, str(dys[0]), "depthwise_dx_w8" if over else "conv2d_dx_w8", "qconv2d_dw", back, own)


def _conv_params(call: Call) -> Sequence[Param]:
    x, w = call.ins[:2]
    own = conv._params(x.shape, w.shape, call.outs[0].shape, call.attrs)
    return [*own, call["x_zero"], *requantize_params(call.attrs)]


def _columns_room(terms: int) -> int:
    """Four pixels of int16, their numbers in fours."""
    return 4 * 2 * (-(-terms // 4) * 4)


def _depthwise_room(high: int, wide: int) -> int:
    """The taps of sixteen channels, or of four the lines that sixteen neighbouring outputs read, and taps in pairs:
    which of the two depends on the core, and a plan fits all of them. Lines that are much more are not used."""
    pairs = (wide + 1) // 2
    lanes, lines = high * 32 * wide, high * 4 * (2 * (16 + 2 * pairs) + 4 * pairs)
    return lines if lanes < lines <= lanes + 512 else lanes


def _conv_scratch(call: Call) -> int:
    w, groups = [int(d) for d in call.ins[1].shape], Window.of(call.attrs).groups  # type: ignore[arg-type]
    return _depthwise_room(*w[1:3]) if groups == call.ins[0].shape[3] else _columns_room(int(np.prod(w[1:])))


def _biases(count: int) -> Any:
    return Integers((count,), DType.I32, -5000, 5000)


def _multipliers(count: int) -> Any:
    """Of all sizes, as far as they have 31 bits."""
    return lambda rng, n: (rng.integers(1 << 30, (1 << 31) - 1, count) >> rng.integers(0, 8, count)).astype(np.int32)


_ENDS: Final[tuple[dict[str, Any], ...]] = (
    {"x_zero": -3, "shift": 40, "y_zero": 5, "lo": -128, "hi": 127},
    {"x_zero": -128, "shift": 42, "y_zero": -128, "lo": -128, "hi": 90},
    {"x_zero": 127, "shift": 41, "y_zero": 0, "lo": 0, "hi": 127},
)


def _conv_cases() -> list[Case]:
    found = []
    for i, (x, w, attrs) in enumerate(conv._SETTINGS):
        outputs = int(w[0])  # type: ignore[arg-type]
        ins = (int8(*x), int8(*w), _biases(outputs), _multipliers(outputs))
        found.append(case(*ins, **attrs, **_ENDS[i % len(_ENDS)]))
    return found


define(
    "qconv2d", doc="conv2d of (x - x_zero) and w in integers, + b[o]; clamp(((acc·m[o] + 2^(s-1)) >> s) + y_zero)",
    operands={1: "weight", 2: "bias"}, channels=conv._channels, rows=conv._rows,
    infer=_conv_infer, ref=_conv_ref, vjp=_conv_vjp,
    kernels={"i8": "qconv2d_i8"}, params=_conv_params, scratch=_conv_scratch,
    macs=lambda call: conv._macs(call.outs[0].shape, call.ins[1].shape), work=work.conv,
    stored=Stored(1, slice="qconv2d_put"), cases=_conv_cases(),
)  # fmt: skip


# Linear


def _linear_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _check("qlinear", ins, attrs)
    x, w = ins[:2]
    if len(w.shape) != 2 or not x.shape or x.shape[-1] != w.shape[1]:
        raise BadShape(f"qlinear of {x} and {w}", why="the last axis of x must be the weight's inputs")
    return [((*x.shape[:-1], w.shape[0]), DType.I8)]


def _linear_ref(x: Array, w: Array, b: Array, m: Array, **attrs: Any) -> Sequence[Array]:
    rows = _real(x, attrs["x_zero"]).reshape(-1, x.shape[-1]) @ _real(w, 0).T
    return (_requantized(rows.reshape(*x.shape[:-1], w.shape[0]), b, m, attrs),)


def _linear_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    return _layer_vjp(b, node, str(dys[0]), "linear_dx_w8", "qlinear_dw", {}, {})


def _linear_params(call: Call) -> Sequence[Param]:
    return [*matrix._linear_params(call), call["x_zero"], *requantize_params(call.attrs)]


def _linear_cases() -> list[Case]:
    sizes: list[tuple[tuple[Any, ...], int]] = [((N, 10), 4), ((N, 5, 37), 9), ((1, 1), 5), ((N, 300), 13), ((7,), 1)]
    return [
        case(int8(*x), int8(o, x[-1]), _biases(o), _multipliers(o), **_ENDS[i % len(_ENDS)])
        for i, (x, o) in enumerate(sizes)
    ]


define(
    "qlinear", doc="linear of (x - x_zero) and w in integers, + b[o]; clamp(((acc·m[o] + 2^(s-1)) >> s) + y_zero)",
    layout=Layout("rows"), operands={1: "weight", 2: "bias"}, channels=lambda call: Channels(0, 1),
    infer=_linear_infer, ref=_linear_ref, vjp=_linear_vjp,
    kernels={"i8": "qlinear_i8"}, params=_linear_params,
    scratch=lambda call: _columns_room(int(call.ins[0].shape[-1])),  # type: ignore[arg-type]
    macs=lambda call: size((*call.ins[0].shape[:-1], *call.ins[1].shape)), work=work.linear,
    stored=Stored(1, slice="qlinear_put"), cases=_linear_cases(),
)  # fmt: skip


# Weight gradients: sums over f32 gradients and the int8 input less its zero point; times the input's scale they are the
# gradient of the real numbers.


def _check_sums(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """With x as if it were f32."""
    check_types(op, ins, DType.F32, DType.I8)
    check_zero(op, attrs["zero"])
    dy, x = ins
    return dy, Tensor(x.name, x.shape)


def _without_zero(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k != "zero"}


def _conv_dw_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return conv._conv2d_dw_infer(_check_sums("qconv2d_dw", ins, attrs), _without_zero(attrs))


def _conv_dw_ref(dy: Array, x: Array, zero: int, **attrs: Any) -> Sequence[Array]:
    return conv._conv2d_dw_ref(dy, _real(x, zero).astype(dy.dtype), **attrs)


define(
    "qconv2d_dw", doc="conv2d_dw of dy in f32 and x - zero in int8",
    infer=_conv_dw_infer, ref=_conv_dw_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True, rounded_sink=DType.I8,
    kernels={"f32": "qconv2d_dw_f32"}, taken=conv._dw_taken, int16=Int16("qconv2d_dw16", starts=True),
    params=lambda call: [*conv._params(call.ins[1].shape, call.outs[0].shape, call.ins[0].shape, call.attrs),
                         call["zero"]],
    macs=lambda call: conv._macs(call.ins[0].shape, call.outs[0].shape), work=work.conv_dw,
    cases=[
        case(conv._out(x, w, attrs), int8(*x), kernel=w[1:3], zero=(-128, 5, 127)[i % 3], **attrs)
        for i, (x, w, attrs) in enumerate(conv._SETTINGS)
    ],
)  # fmt: skip


def _linear_dw_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return matrix._linear_dw_infer(_check_sums("qlinear_dw", ins, attrs), {})


define(
    "qlinear_dw", doc="linear_dw of dy in f32 and x - zero in int8",
    taken=lambda call, count: {i: Taken(((i, len(call.ins[i].shape) - 1),)) for i in range(2)},
    infer=_linear_dw_infer, vjp=NOT_DIFFERENTIABLE, batchwise=True, rounded_sink=DType.I8,
    ref=lambda dy, x, zero: (
        dy.reshape(-1, dy.shape[-1]).T @ _real(x, zero).astype(dy.dtype).reshape(-1, x.shape[-1]),
    ),
    kernels={"f32": "qlinear_dw_f32"}, params=lambda call: [*matrix._linear_dw_params(call), call["zero"]],
    int16=Int16("qlinear_dw16", starts=True),
    macs=lambda call: size((*call.ins[0].shape, call.ins[1].shape[-1])), work=work.linear_dw,
    cases=[
        case((N, 4), int8(N, 10), zero=-7), case((N, 70, 9), int8(N, 70, 11), zero=-128), case((5,), int8(3), zero=0),
        case((150, 6), int8(150, 19), zero=127),
    ],
)  # fmt: skip
