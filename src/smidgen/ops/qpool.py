"""Means in integers: the sum of (x - x_zero), times the multiplier by the count, in the scale of the result.

Gradients are those of the same means in f32. Max-pooling in int8 is `max_pool2d` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Tensor
from . import pool
from .fixed_point import REQUANTIZE, check_requantize, check_types, check_zero, requantize_params, requantized
from .quantize import int8, masked
from .reduce import reduced_shape
from .registry import Builder, Call, N, Param, Spec, case, define
from .strides import reduce_params, show
from .traits import Layout

MOST_CELLS: Final = 1 << 22
OWN: Final = ("x_zero", "m", *REQUANTIZE)
"""Attributes that the same mean in f32 does not have."""

Dys = Sequence[str | None]


def _check(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any], cells: int) -> None:
    check_types(op, ins, DType.I8)
    check_zero(op, attrs["x_zero"])
    check_requantize(op, ins, attrs)
    if cells > MOST_CELLS or not 0 <= attrs["m"] < 1 << 31:
        raise BadShape(f"{op} of {ins[0]} with the multiplier {attrs['m']}", why=f"means of up to {MOST_CELLS} numbers")


def _ends(attrs: Mapping[str, Any]) -> dict[str, int]:
    return {name: attrs[name] for name in REQUANTIZE}


def _own(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of the same mean in f32."""
    return {k: v for k, v in attrs.items() if k not in OWN}


def _vjp(dx_op: str, back: Any) -> Any:
    def vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
        if not b.need(node.ins[0]):
            return [None]
        dy = masked(b, node, str(dys[0]), node.attrs["lo"], node.attrs["hi"])
        return [b.add(dx_op, dy, **back(b, node))]

    return vjp


# Windows


def _pool_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    kernel = attrs["kernel"]
    _check("qavg_pool2d", ins, attrs, kernel[0] * kernel[1])
    out = pool.resized("qavg_pool2d", ins[0], attrs["out_hw"], kinds=(DType.I8,))
    pool._avg_check("qavg_pool2d", ins[0].shape[1:3], attrs["out_hw"], attrs)  # type: ignore[arg-type]
    if (attrs.get("divisor") or 0) < 0:
        raise BadShape(f"qavg_pool2d with the divisor {attrs['divisor']}", why="it is above zero")
    return [(out, DType.I8)]


def _pool_ref(x: Array, x_zero: int, m: int, shift: int, y_zero: int, lo: int, hi: int, **own: Any) -> Sequence[Array]:
    kernel, stride, padding, out_hw = (own.pop(name) for name in ("kernel", "stride", "padding", "out_hw"))
    pads, positions = pool._windows(x.shape[1:3], out_hw, kernel, stride, padding)
    padded = np.pad(x.astype(np.int64) - x_zero, ((0, 0), *pads, (0, 0)))
    total = sum(padded[:, rows, cols] for _, rows, cols in positions)
    counts = np.maximum(pool._counts(x.shape[1:3], out_hw, kernel, stride, padding, **own), 1)
    return (requantized(np.asarray(total), (m + counts // 2) // counts, shift, y_zero, lo, hi),)


def _pool_params(call: Call) -> Sequence[Param]:
    own = [*call.ins[0].shape, *call["out_hw"], *call["kernel"], *call["stride"], *call["padding"]]
    return [*own, *pool._avg_tail(call), call["x_zero"], call["m"], *requantize_params(call.attrs)]


def _pool_back(b: Builder, node: Node) -> Mapping[str, Any]:
    own = {k: v for k, v in _own(node.attrs).items() if k != "out_hw"}
    return {"in_hw": tuple(b[node.ins[0]].shape[1:3]), **own}


_ENDS: Final[dict[str, Any]] = {"x_zero": -7, "m": 1_400_000_000, "shift": 30, "y_zero": -20, "lo": -128, "hi": 127}

define(
    "qavg_pool2d", doc="y = clamp(((Σ(x - x_zero)·⌊(m + ⌊c/2⌋)/c⌋ + 2^(s-1)) >> s) + y_zero), c cells a window",
    infer=_pool_infer, ref=_pool_ref, vjp=_vjp("avg_pool2d_dx", _pool_back), rows=pool._rows,
    kernels={"i8": "qavg_pool2d_i8"}, params=_pool_params, macs=pool._window_macs,
    cases=[case(int8(N, 7, 5, 19), **{**a, "divisor": 9} if "divisor" in a else a, **_ENDS) for a in pool._AVG_ATTRS],
)  # fmt: skip


# Axes


def _mean_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, axes = ins[0], attrs["axes"]
    fixed = all(0 <= axis < len(x.shape) and isinstance(x.shape[axis], int) for axis in axes)
    if len(set(axes)) != len(axes) or not fixed or any(x.shape[axis] == 0 for axis in axes):
        raise BadShape(f"qmean over axes {list(axes)} of {show(x.shape)}", why="they are axes of fixed size")
    _check("qmean", ins, attrs, int(np.prod([x.shape[axis] for axis in axes])))
    return [(reduced_shape(x.shape, axes, attrs["keepdim"]), DType.I8)]


def _mean_ref(x: Array, axes: tuple[int, ...], keepdim: bool, x_zero: int, m: int, **ends: int) -> Sequence[Array]:
    return (requantized((x.astype(np.int64) - x_zero).sum(axis=tuple(axes), keepdims=keepdim), m, **ends),)


def _mean_back(b: Builder, node: Node) -> Mapping[str, Any]:
    return {"shape": b[node.ins[0]].shape, **_own(node.attrs)}


define(
    "qmean", doc="y = clamp(((Σ(x - x_zero)·m + 2^(s-1)) >> s) + y_zero) over axes; m holds the count",
    layout=Layout("over"), infer=_mean_infer, ref=_mean_ref, vjp=_vjp("mean_dx", _mean_back),
    kernels={"i8": "qmean_i8"},
    params=lambda call: [call["x_zero"], call["m"], *requantize_params(call.attrs),
                         *reduce_params(call.ins[0].shape, call["axes"])],
    cases=[
        case(int8(*shape), axes=axes, keepdim=keepdim, **{**_ENDS, "m": 1_400_000_000 // 16})
        for shape, axes, keepdim in (
            ((N, 4, 5, 3), (1, 2), False), ((N, 7, 7, 19), (1, 2), True), ((N, 6), (1,), True),
            ((3, 3, 103), (2,), False), ((3, N, 5), (0, 2), False), ((N, 3, 2, 5, 4), (1, 3), False), ((5,), (), False),
            ((1, 4), (0,), False),
        )
    ],
)  # fmt: skip
