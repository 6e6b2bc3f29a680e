"""From f32 to int8 and back, functions of one int8 number as tables of 256, and gradients that read int8.

Gradients are f32 and those of the real numbers: rounding has the slope 1 (straight through), and nothing comes back
from where a result was cut off at its bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, Dim, DType, Node, Quant, Tensor
from .fixed_point import HIGH, LOW, check_types, check_zero
from .gradients16 import table_slopes
from .registry import (
    NOT_DIFFERENTIABLE,
    Bits,
    Builder,
    Call,
    Integers,
    N,
    Param,
    Spec,
    case,
    define,
    get,
    same_shape,
)
from .traits import EACH, SAME16, Int16, Layout

FRACTION: Final = 16  # bits behind the point of what is rounded
LIMIT: Final = 2.0**25  # steps, with that fraction, beyond which only the sign matters
ENTRIES: Final = 256

Dys = Sequence[str | None]


def int8(*shape: Dim) -> Integers:
    """A case's input: any numbers of 8 bits."""
    return Integers(shape, DType.I8, LOW, HIGH)


def _check_scale(op: str, x: Tensor, attrs: Mapping[str, Any]) -> None:
    scale = np.float32(attrs["scale"])
    with np.errstate(over="ignore", divide="ignore"):
        steps = np.float32(2.0**FRACTION) / scale
    if not (scale > 0 and np.isfinite(scale) and np.isfinite(steps)):
        raise BadShape(f"{op} of {x} with the scale {attrs['scale']}", why="it is no number above zero, or too small")
    check_zero(op, attrs["zero"])


def _quantize_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_types("quantize", ins, DType.F32)
    _check_scale("quantize", ins[0], attrs)
    return [(ins[0].shape, DType.I8)]


def _steps(scale: float) -> np.float32:
    """Of the scale, in the smallest fraction of one, for each 1 of a number."""
    return np.float32(2.0**FRACTION) / np.float32(scale)


def _quantize_ref(x: Array, scale: float, zero: int) -> Sequence[Array]:
    with np.errstate(over="ignore", invalid="ignore"):
        v = np.asarray(x, np.float32) * _steps(scale)
        v = np.where(v > -LIMIT, v, np.float32(-LIMIT))  # NaN too
    fixed = np.minimum(v, np.float32(LIMIT)).astype(np.int32)  # cut off toward zero
    q: Array = np.clip((fixed + (1 << (FRACTION - 1)) >> FRACTION) + zero, LOW, HIGH)
    return (q.astype(np.int8),)


def _quantize_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    return [masked(b, node, str(dys[0]), LOW, HIGH) if b.need(node.ins[0]) else None]


def masked(b: Builder, node: Node, dy: str, lo: int, hi: int) -> str:
    """The gradient of the result before it was cut off at its bounds."""
    return b.add("qclamp_dx", dy, node.outs[0], lo=lo, hi=hi)


def _floats(rng: np.random.Generator, n: int) -> Array:
    """Halves between two steps, the bounds, and what is no number."""
    near = np.array([0.5, -0.5, 1.5, -1.5, 127.5, 126.4999, -128.5, -129.0, 1e9, -1e9, np.inf, -np.inf, np.nan, 0.0])
    return np.concatenate([near * 0.25, 20 * rng.standard_normal(100)])


define(
    "quantize", doc="q = clamp(((v + 2^15) >> 16) + zero), v = x·2^16/scale in f32, cut off toward zero; NaN is -128",
    infer=_quantize_infer, ref=_quantize_ref, vjp=_quantize_vjp, layout=EACH,
    kernels={"f32->i8": "quantize_i8"},
    params=lambda call: [call.outs[0].size, float(_steps(call["scale"])), call["zero"]],
    cases=[
        case((N, 5, 3), scale=0.02, zero=-3), case(_floats, scale=0.25, zero=0), case(_floats, scale=0.25, zero=-128),
        case((1,), scale=1e-30, zero=127),
    ],
)  # fmt: skip


def _dequantize_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    check_types("dequantize", ins, DType.I8)
    _check_scale("dequantize", ins[0], attrs)
    return [(ins[0].shape, DType.F32)]


define(
    "dequantize", doc="y = scale · (q - zero)", layout=EACH,
    infer=_dequantize_infer,
    ref=lambda q, scale, zero: ((q.astype(np.float64) - zero) * float(np.float32(scale)),),
    vjp=lambda b, node, dys: [dys[0] if b.need(node.ins[0]) else None],
    kernels={"i8->f32": "dequantize_f32"},
    params=lambda call: [call.outs[0].size, float(call["scale"]), call["zero"]],
    cases=[case(int8(N, 5, 7), scale=0.02, zero=-3), case(int8(1), scale=3.5, zero=127)],
)  # fmt: skip


def of_step(quant: Quant) -> dict[str, Any]:
    """Attributes of both, for a value that has one scale."""
    return {"scale": quant.scales[0], "zero": quant.zero_points[0]}


# Functions of one number.


def _check_table(op: str, x: Tensor, table: Tensor, kind: DType) -> None:
    if x.dtype is not DType.I8 or table.dtype is not kind or table.shape != (ENTRIES,):
        raise BadShape(f"{op} of {x} with {table}", why=f"it takes i8, and a table of {ENTRIES} {kind.value}")


def _table_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _check_table("qtable", ins[0], ins[1], DType.I8)
    return [(ins[0].shape, DType.I8)]


def _table_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    """The slopes of the function that the table was made of, at all numbers that there are."""
    x = node.ins[0]
    quant = b[x].quant
    if not b.need(x) or quant is None or "of" not in node.attrs:
        return [None, None]
    numbers = (np.arange(LOW, HIGH + 1) - quant.zero_points[0]) * quant.scales[0]
    slopes = slopes_of(node.attrs["of"], {k: v for k, v in node.attrs.items() if k != "of"}, numbers)
    return [b.add("qtable_dx", str(dys[0]), x, b.constant(f"{x}:slopes", slopes)), None]


def of_table(name: str, attrs: Mapping[str, Any], x: Array) -> Array | None:
    """An op of one input, element by element, at these numbers; None where it is not finite."""
    with np.errstate(all="ignore"):
        y = np.asarray(get(name).ref(np.asarray(x, np.float64), **attrs)[0])
    return y if y.shape == x.shape and bool(np.isfinite(y).all()) else None


def slopes_of(name: str, attrs: Mapping[str, Any], x: Array) -> Array:
    """The derivative of an op of one input, element by element, by the op's own gradient rule."""
    from .build import Builder as Graph

    op, g = get(name), Graph()
    values = {g.tensor("x", x.shape): np.asarray(x, np.float64)}
    values[g.tensor("dy", x.shape)] = np.ones(x.shape)
    y = g.add(name, "x", **attrs)
    dx, *_ = op.vjp(g, g.nodes[0], ["dy"])  # type: ignore[operator]
    for node in g.nodes:
        results = get(node.op).ref(*[values[i] for i in node.ins], **node.attrs)
        values |= dict(zip(node.outs, results, strict=True))
    assert y in values
    return np.zeros(x.shape) if dx is None else np.broadcast_to(values[dx], x.shape)


define(
    "qtable", doc="y = table[q + 128]: a function of one number, `of` says which; 256 entries",
    layout=Layout("each", operands=1), inplace=(0,),
    infer=_table_infer, ref=lambda x, table, **attrs: (table[x.astype(np.int32) - LOW],), vjp=_table_vjp,
    kernels={"i8": "qtable_i8"}, params=lambda call: [call.outs[0].size],
    cases=[case(int8(N, 5, 7), int8(256), of="hardswish"), case(int8(1), int8(256), of="leaky_relu", slope=0.1)],
)  # fmt: skip


def _table_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    dy, x, slopes = ins
    _check_table("qtable_dx", x, slopes, DType.F32)
    _check_dy("qtable_dx", dy, x)
    return [(dy.shape, DType.F32)]


def _check_dy(op: str, dy: Tensor, v: Tensor, *others: DType) -> None:
    if dy.dtype not in (DType.F32, *others) or dy.shape != v.shape or v.dtype is not DType.I8:
        raise BadShape(f"{op} of {dy} and {v}", why="dy is f32 and has the shape of what was computed in i8")


define(
    "qtable_dx", doc="dx = dy · slopes[q + 128]",
    infer=_table_dx_infer, ref=lambda dy, x, slopes: (dy * slopes[x.astype(np.int32) - LOW],), vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "qtable_dx_f32"}, params=lambda call: [call.outs[0].size], inplace=(0,),
    int16=Int16("qtable_dx16", starts=True, constant=table_slopes),
    layout=Layout("each", operands=2),
    cases=[case((N, 5, 7), int8(N, 5, 7), (ENTRIES,)), case((1,), int8(1), (ENTRIES,))],
)  # fmt: skip


def _clamp_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _check_dy("qclamp_dx", ins[0], ins[1], DType.I16)
    return same_shape(ins, attrs)


def _clamp_bits(attrs: Mapping[str, Any]) -> Bits:
    return Bits(1, float(attrs["lo"]), float(attrs["hi"]))


def _clamp_dx_params(call: Call) -> Sequence[Param]:
    """As those of range_dx."""
    return [call.outs[0].size, float(call["lo"]), float(call["hi"]), 0, 1.0, 0.0]


define(
    "qclamp_dx", doc="dx = dy where lo < y < hi, else 0; y in i8",
    infer=_clamp_dx_infer, ref=lambda dy, y, lo, hi: (np.where((y > lo) & (y < hi), dy, dy.dtype.type(0)),),
    vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "range_dx_i8", "i16,i8->i16": "range_dx16_i8"}, params=_clamp_dx_params, inplace=(0,),
    bits=_clamp_bits, int16=SAME16, layout=EACH,
    cases=[case((N, 5, 7), int8(N, 5, 7), lo=-128, hi=127), case((9,), int8(9), lo=0, hi=60),
           case(Integers((N, 5), DType.I16, -32767, 32767), int8(N, 5), lo=-9, hi=60)],
)  # fmt: skip
