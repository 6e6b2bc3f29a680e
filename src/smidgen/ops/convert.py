"""The numbers that bytes stand for: images as a camera gives them, in a quarter of the memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Tensor, size
from .registry import Builder, Call, Param, Spec, case, define
from .traits import BY_ROWS, Layout, Rows

MOST_CHANNELS: Final = 32  # with a scale of their own


def _bytes(*shape: int) -> Any:
    return lambda rng, n: rng.integers(0, 256, shape).astype(np.uint8)


def _each(values: tuple[float, ...], x: Array, axis: int) -> Array:
    """One for all elements, or for each index of an axis."""
    shape = [1] * x.ndim
    shape[axis] = len(values)
    return np.array(values, x.dtype).reshape(shape)


def _from_bytes_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, axis, given = ins[0], attrs["axis"], [attrs["scale"], attrs["offset"]]
    count = {len(values) for values in given}
    fits = x.dtype is DType.U8 and 0 <= axis < len(x.shape) and count in ({1}, {x.shape[axis]})
    if not fits or max(count) > MOST_CHANNELS or not all(math.isfinite(v) for values in given for v in values):
        raise BadShape(
            f"from_bytes with scale {attrs['scale']} and offset {attrs['offset']} along axis {axis}",
            why=f"got {x}; bytes have one of both for all, or for each index of an axis with at most {MOST_CHANNELS}",
        )
    return [(x.shape, DType.F32)]


def _from_bytes_ref(x: Array, scale: tuple[float, ...], offset: tuple[float, ...], axis: int) -> Sequence[Array]:
    q = x.astype(np.float64)
    return (q * _each(scale, q, axis) + _each(offset, q, axis),)


def _from_bytes_params(call: Call) -> Sequence[Param]:
    x, axis, scale = call.ins[0].shape, call["axis"], call["scale"]
    around = [1, 1, call.ins[0].size] if len(scale) == 1 else [size(x[:axis]), x[axis], size(x[axis + 1 :])]
    return [*around, len(scale), *map(float, scale), *map(float, call["offset"])]


def _from_bytes_rows(call: Call, axis: int) -> Rows | None:
    return BY_ROWS if axis < len(call.ins[0].shape) - 1 and (len(call["scale"]) == 1 or call["axis"] > axis) else None


def _from_bytes_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    return [None]


_THREE: dict[str, Any] = {"scale": (0.5, 0.25, 0.0078125), "offset": (0.0, -1.0, 3.5)}

define(
    "from_bytes", doc="y = q · scale + offset in f32, of bytes q; one of both for all, or for each index of `axis`",
    layout=Layout("along", once=True), infer=_from_bytes_infer, ref=_from_bytes_ref, vjp=_from_bytes_vjp,
    kernels={"u8->f32": "from_bytes_f32"}, converts=True, params=_from_bytes_params, rows=_from_bytes_rows,
    macs=lambda call: call.outs[0].size,
    cases=[
        case(_bytes(2, 3, 5), scale=(1 / 256,), offset=(-0.5,), axis=1, smooth=False),
        case(_bytes(2, 3, 5), axis=1, smooth=False, **_THREE), case(_bytes(4, 5, 3), axis=2, smooth=False, **_THREE),
        case(_bytes(7), scale=(2.0,), offset=(0.0,), axis=0, smooth=False),
    ],
)  # fmt: skip
