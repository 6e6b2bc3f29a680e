"""Weight gradients of layers in integers, from int16 mantissas and int8 inputs: 256 products are added up in 32 bits,
where they cannot overflow, and those sums in 64; the result is one f32 number, rounded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Tensor, size
from . import conv, matrix, work
from .fixed_point import check_types, check_zero
from .gradients16 import ABOUT, check_mantissas, exponent_of, int16
from .quantize import int8
from .registry import NOT_DIFFERENTIABLE, Call, Integers, N, Param, Spec, case, define
from .traits import Taken


def _dw_infer(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, a, x = ins
    check_mantissas(op, dy, a)
    check_types(op, (x,), DType.I8)
    check_zero(op, attrs["zero"])
    floats = Tensor(dy.name, dy.shape), Tensor(x.name, x.shape)
    own = {k: v for k, v in attrs.items() if k != "zero"}
    return conv._conv2d_dw_infer(floats, own) if "kernel" in attrs else matrix._linear_dw_infer(floats, own)


def _conv_dw_ref(dy: Array, a: Array, x: Array, zero: int, **attrs: Any) -> Sequence[Array]:
    (sums,) = conv._conv2d_dw_ref(dy.astype(np.float64), x.astype(np.float64) - zero, **attrs)
    return (np.rint(sums) * 2.0 ** exponent_of(a),)


def _linear_dw_ref(dy: Array, a: Array, x: Array, zero: int) -> Sequence[Array]:
    d, v = dy.astype(np.float64), x.astype(np.float64) - zero
    return (np.rint(d.reshape(-1, dy.shape[-1]).T @ v.reshape(-1, x.shape[-1])) * 2.0 ** exponent_of(a),)


def _conv_dw_params(call: Call) -> Sequence[Param]:
    dy, _, x = call.ins
    return [*conv._params(x.shape, call.outs[0].shape, dy.shape, call.attrs), call["zero"]]


def _linear_dw_params(call: Call) -> Sequence[Param]:
    dy, _, x = call.ins
    return [size(dy.shape[:-1]), 1, 1, x.shape[-1], dy.shape[-1], 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, call["zero"]]


def _conv_taken(call: Call, count: int) -> Mapping[int, Taken]:
    """As those of conv2d_dw, with the exponent between."""
    found = conv._dw_taken(Call((call.ins[0], call.ins[2]), call.outs, call.attrs), count)
    return {axis: Taken(tuple((2 * i, k) for i, k in own.inputs), own.attrs) for axis, own in found.items()}


define(
    "qconv2d_dw16", doc="conv2d_dw of mantissas and x - zero in int8, sums in int64, times 2^e",
    infer=lambda ins, attrs: _dw_infer("qconv2d_dw16", ins, attrs), ref=_conv_dw_ref, vjp=NOT_DIFFERENTIABLE,
    batchwise=True, rounded_sink=DType.I8, kernels={"f32": "qconv2d_dw16_f32"}, taken=_conv_taken,
    params=_conv_dw_params, macs=lambda call: conv._macs(call.ins[0].shape, call.outs[0].shape), work=work.conv_dw,
    cases=[
        case(int16(*conv._out(x, w, attrs)), ABOUT, int8(*x), kernel=w[1:3], zero=(-128, 5, 127)[i % 3], **attrs)
        for i, (x, w, attrs) in enumerate([*conv._SETTINGS, ((2, 20, 21, 5), (6, 1, 1, 5), {})])
    ],
)  # fmt: skip

define(
    "qlinear_dw16", doc="linear_dw of mantissas and x - zero in int8, sums in int64, times 2^e",
    infer=lambda ins, attrs: _dw_infer("qlinear_dw16", ins, attrs), ref=_linear_dw_ref, vjp=NOT_DIFFERENTIABLE,
    batchwise=True, rounded_sink=DType.I8, kernels={"f32": "qlinear_dw16_f32"},
    taken=lambda call, count: {
        axis: Taken(((i, len(call.ins[i].shape) - 1),)) for axis, i in enumerate((0, 2))
    },
    params=_linear_dw_params, macs=lambda call: size((*call.ins[0].shape, call.ins[2].shape[-1])), work=work.conv_dw,
    cases=[
        case(int16(*rows, o), ABOUT, Integers((*rows, k), DType.I8, -128, 127), zero=zero)
        for rows, o, k, zero in (((N,), 4, 10, -3), ((N, 5), 9, 37, 127), ((2, N), 3, 8, -128), ((1,), 1, 1, 0))
    ],
)  # fmt: skip


def _bias_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_mantissas("bias_dw16", *ins)
    if not ins[0].shape or not isinstance(ins[0].shape[-1], int):
        raise BadShape(f"bias_dw16 of {ins[0]}", why="dy needs a last axis of fixed size")
    return [(ins[0].shape[-1:], DType.F32)]


define(
    "bias_dw16", doc="db[C] = Σ over all axes but the last of dy[…,C] in int64, times 2^e",
    infer=_bias_infer, vjp=NOT_DIFFERENTIABLE, batchwise=True, rounded_sink=DType.I32,
    ref=lambda dy, a: (dy.astype(np.int64).reshape(-1, dy.shape[-1]).sum(0) * 2.0 ** exponent_of(a),),
    kernels={"f32": "bias_dw16_f32"}, params=lambda call: [size(call.ins[0].shape[:-1]), call.ins[0].shape[-1]],
    cases=[case(int16(N, 7), ABOUT), case(int16(N, 9, 10, 20), ABOUT), case(int16(2, N, 16), ABOUT),
           case(int16(1), ABOUT), case(int16(130, 37), ABOUT)],
)  # fmt: skip
