"""Input gradients of layers in integers, from int16 mantissas and int8 weights.

No sum overflows 32 bits, whatever the numbers are: it has K = outputs · taps products of a weight and a mantissa, which
was multiplied by the scale of its output and keeps 24 - bits(K) bits, 15 at most, so that K · 2^7 · 2^that is below
2^31. A depthwise layer multiplies its sums by the scale of their channel instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from ..ir import Array, Dim, DType, Shape, Tensor, size
from . import conv, gather, matrix, work
from .conv import Window
from .fixed_point import check_types
from .gradients16 import (
    ABOUT,
    HEADROOM,
    MANTISSA,
    about,
    bits_of,
    by_channel,
    check_mantissas,
    exponent_of,
    fitted,
    hinted,
    int16,
    made,
    narrowed,
    room_bits,
    scale_of,
    terms_of,
)
from .quantize import int8
from .registry import NOT_DIFFERENTIABLE, Call, N, Param, Spec, case, define
from .stored_weights import _BACK, _ROWS_BACK, _ascending
from .strides import show
from .traits import Stored

LANES: Final = 8
"""Channels that a depthwise gradient computes together."""


def _fixed(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(d) for d in tensor.shape)  # type: ignore[arg-type]


# dx


def _dx(
    dy: Array, a: Array, w: Array, m: Array, gain: Array, exponent: int, attrs: Mapping[str, Any]
) -> Sequence[Array]:
    groups, rows = Window.of(attrs).groups, dy.astype(np.int64)
    channels, bits = by_channel(w.shape, groups), room_bits(terms_of(w.shape, groups))
    if not channels:
        down = 2 * MANTISSA - bits
        rows = (rows * m.astype(np.int64) + (1 << (down - 1))) >> down
    (sums,) = _real_dx(rows.astype(np.float64), w.astype(np.float64), attrs)
    v = np.rint(sums).astype(np.int64)
    if channels:
        v = (v * m.astype(np.int64) + (1 << 31)) >> 32
    seen = bits_of(v)
    base = exponent_of(a) + exponent + (1 if channels else MANTISSA - bits)
    shift, own = fitted(base, hinted(gain, seen), HEADROOM)
    return narrowed(v, shift), about(own, seen)


def _real_dx(dy: Array, w: Array, attrs: Mapping[str, Any]) -> Sequence[Array]:
    return conv._conv2d_dx_ref(dy, w, **attrs) if w.ndim == 4 else (dy @ w,)


def _shape(op: str, dy: Tensor, w: Tensor, attrs: Mapping[str, Any]) -> Shape:
    if len(w.shape) == 4:
        floats = Tensor(dy.name, dy.shape), Tensor(w.name, w.shape)
        return conv._image_shape(op, floats, attrs, attrs["in_hw"])
    matrix.demands(op, (dy, w), DType.I16, DType.I8)(
        len(w.shape) == 2 and bool(dy.shape) and dy.shape[-1] == w.shape[0], "the last axis of dy is the outputs"
    )
    return (*dy.shape[:-1], w.shape[1])


def _dx_infer(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, a, w, *slice_, m, gain = ins
    check_mantissas(op, dy, a)
    shape, groups = _shape(op, dy, w, attrs), Window.of(attrs).groups
    kind = DType.I32 if by_channel(_fixed(w), groups) else DType.I16
    check_types(op, (w, m, gain), DType.I8, kind, DType.I32)
    check = matrix.demands(op, ins, *[t.dtype for t in ins])
    check(m.shape == w.shape[:1] and gain.shape == (), "there is a multiplier for each output, and one gain")
    check(-200 <= attrs["exponent"] <= 200, f"scales of 2^{attrs['exponent']} are none")
    check(terms_of(_fixed(w), groups) < 1 << 16, "a sum has at most 65535 products")
    if slice_:
        learned, index = slice_
        check_types(op, slice_, DType.I8, DType.I32)
        gather.check_axis(op, w, index, attrs["axis"])
        fits = learned.shape == gather.with_axis(w.shape, attrs["axis"], index.shape[0])
        check(fits, f"the slice must be {show(w.shape)} with one index of axis {attrs['axis']} a place")
    return made(shape)


def _dx_ref(dy: Array, a: Array, w: Array, m: Array, gain: Array, *, exponent: int, **attrs: Any) -> Sequence[Array]:
    return _dx(dy, a, w, m, gain, exponent, attrs)


def _put_ref(
    dy: Array, a: Array, w: Array, learned: Array, index: Array, m: Array, gain: Array, *,
    exponent: int, axis: int, **attrs: Any,
) -> Sequence[Array]:  # fmt: skip
    whole = np.array(w)
    whole[(slice(None),) * axis + (index,)] = learned
    return _dx(dy, a, whole, m, gain, exponent, attrs)


def _window_params(call: Call) -> Sequence[Param]:
    """A linear layer is a convolution of images of one pixel."""
    dy, _, w, *_ = call.ins
    if len(w.shape) == 4:
        return conv._params(call.outs[0].shape, w.shape, dy.shape, call.attrs)
    rows = size(dy.shape[:-1])
    return [rows, 1, 1, w.shape[1], w.shape[0], 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1]


def _dx_params(call: Call) -> Sequence[Param]:
    return [*_window_params(call), call["exponent"]]


def _put_params(call: Call) -> Sequence[Param]:
    w, learned, axis = call.ins[2].shape, call.ins[3].shape, call["axis"]
    return [*_dx_params(call), w[axis], learned[axis], size(w[axis + 1 :])]


def _dx_scratch(call: Call) -> int:
    """Four pixels of mantissas; of a depthwise layer the taps of some channels."""
    w, groups = _fixed(call.ins[2]), Window.of(call.attrs).groups
    return 2 * LANES * math.prod(w[1:]) if by_channel(w, groups) else 4 * 2 * terms_of(w, groups)


def _dx_macs(call: Call) -> Dim:
    dy, w = call.ins[0].shape, call.ins[2].shape
    return size((*dy, *w[1:]))


def _scales(w: Sequence[int], groups: int) -> Any:
    """Multipliers of all sizes."""
    return lambda rng, n: scale_of(2.0 ** rng.uniform(-9, 0, w[0]), w, groups)[0]


def _gain(known: int) -> Any:
    return lambda rng, n: np.array(known, np.int32)


GAINS: Final = (0, 16 * 24, 16 * 18 - 3, 16 * 31)


def _dx_cases(settings: Sequence[Any], put: bool = False) -> list[Any]:
    found = []
    for i, (dy, w, attrs) in enumerate(settings):
        groups = Window.of(attrs).groups
        ends = (_scales(w, groups), _gain(GAINS[i % len(GAINS)]))
        if not put:
            found.append(case(int16(*dy), ABOUT, int8(*w), *ends, exponent=i - 9, **attrs))
            continue
        for axis in sorted({0, len(w) - 1, *([1 + i % 2] if len(w) == 4 and i % 3 == 0 else [])}):
            count = (w[axis] + 1) // 2 if (i + axis) % 3 else 1 if i % 2 else w[axis]
            part = int8(*w[:axis], count, *w[axis + 1 :])
            middle = (int8(*w), part, _ascending(w[axis], count))
            found.append(case(int16(*dy), ABOUT, *middle, *ends, exponent=i - 9, axis=axis, **attrs))
    return found


_WIDE: Final[list[Any]] = [((2, 3, 3, 600), (600, 1, 1, 20), {"in_hw": (3, 3)})]
"""More products than mantissas of 15 bits have room for."""

for _name, _settings in (("qconv2d", _BACK + _WIDE), ("qlinear", _ROWS_BACK)):
    for _put in (False, True):
        _op = f"{_name}_dx16{'_put' if _put else ''}"
        define(
            _op, doc="input gradient of the layer from mantissas, an int8 weight and multipliers of its outputs; the "
            "exponent is that of the gain" + (", with w = put(w, learned, index) along `axis`" if _put else ""),
            infer=partial(_dx_infer, _op), ref=_put_ref if _put else _dx_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True,
            kernels={"i16": f"qconv2d_dx16{'_put' if _put else ''}_i16"},
            params=_put_params if _put else _dx_params, scratch=_dx_scratch, macs=_dx_macs, work=work.conv_dx,
            stored=None if _put else Stored(2, slice=f"{_op}_put"), cases=_dx_cases(_settings, _put),
        )  # fmt: skip


# A depthwise layer's in the place of the gradient that it is made of.


def _over_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    found, at = _dx_infer("qdepthwise_dx16", ins, attrs), Window.of(attrs)
    alike = found[0][0] == ins[0].shape and tuple(at.stride) == (1, 1)
    matrix.demands("qdepthwise_dx16", ins, *[t.dtype for t in ins])(
        alike and by_channel(_fixed(ins[2]), at.groups), "a channel has its own weight, dx the shape of dy"
    )
    return found


def _over_scratch(call: Call) -> int:
    """Some channels: their taps, and as many rows as a window reaches."""
    at, (_, kh, kw, _), (_, h, w, _) = Window.of(call.attrs), call.ins[2].shape, call.ins[0].shape
    reach = (int(kh) - 1) * at.dilation[0] + 1 + max(0, -at.padding[0][0])  # type: ignore[arg-type]
    return 2 * LANES * (int(kh) * int(kw) + min(reach, int(h)) * int(w))  # type: ignore[arg-type]


_SAME: Final[list[dict[str, Any]]] = [
    {"stride": (1, 1), "padding": ((t, b), (k // 2 * d, k // 2 * d)), "dilation": (d, d)}
    for k, d, t, b in ((3, 1, 1, 1), (5, 1, 2, 2), (3, 2, 2, 2), (3, 1, -1, 3), (3, 1, 3, -1))
]
define(
    "qdepthwise_dx16", doc="qconv2d_dx16 with one weight per channel and tap, stride 1, images of equal size",
    infer=_over_infer, ref=_dx_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True, inplace=(0,),
    kernels={"i16": "qdepthwise_dx16_i16"}, params=_dx_params, scratch=_over_scratch, macs=_dx_macs,
    work=work.conv_dx,
    cases=[
        case(int16(N, h, w, c), ABOUT, int8(c, k, k, 1), _scales((c, k, k, 1), c), _gain(16 * 20 * i), exponent=-i,
             in_hw=(h, w), groups=c, **attrs)
        for i, ((h, w, c), k, attrs) in enumerate(
            zip(((7, 5, 19), (6, 6, 8), (5, 9, 3), (6, 4, 9), (2, 4, 9)), (3, 5, 3, 3, 3), _SAME, strict=True))
    ],
)  # fmt: skip
