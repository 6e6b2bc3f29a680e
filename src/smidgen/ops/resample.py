"""Images [N,H,W,C] to a given height and width: adaptive pooling and upsampling, with torch's meaning.

Every op works on height and width separately, so `ref` gathers along one axis after the other and its gradient
multiplies by one small matrix per axis.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Dim, DType, Node, Quant, Tensor, size
from .fixed_point import of_mean
from .pool import Pair, beats, resized
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Infer, N, Param, Spec, Vjp, case, define
from .traits import Integer, Rows

Scale = tuple[float | None, float | None] | None


def _infer(op: str) -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        return [(resized(op, ins[0], attrs["out_hw"]), DType.F32)]

    return infer


def _dx_infer(op: str) -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        return [(resized(op, ins[0], attrs["in_hw"], "in_hw"), DType.F32)]

    return infer


def _vjp(dx_op: str) -> Vjp:
    """The gradient reads dy and the sizes only."""

    def vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
        attrs = {k: v for k, v in node.attrs.items() if k != "out_hw"}
        return [b.add(dx_op, str(dys[0]), in_hw=tuple(b[node.ins[0]].shape[1:3]), **attrs)]

    return vjp


def _sizes(call: Call) -> list[Dim]:
    """N, H, W, C, OH, OW; the sizes of a gradient's input are OH, OW."""
    n, h, w, c = call.ins[0].shape
    return [n, h, w, c, *call["out_hw"]] if "out_hw" in call.attrs else [n, *call["in_hw"], c, h, w]


def _spread(dy: Array, rows: Array, cols: Array) -> Array:
    """dx[n,h,w,c] = sum over o,p of rows[o,h] · cols[p,w] · dy[n,o,p,c]."""
    tall = np.einsum("oh,nopc->nhpc", rows.astype(dy.dtype), dy, optimize=True)
    return np.einsum("pw,nhpc->nhwc", cols.astype(dy.dtype), tall, optimize=True)  # type: ignore[no-any-return]


# Adaptive pooling: window o covers floor(o·size/out) up to ceil((o+1)·size/out).


def _bounds(size: int, out: int) -> tuple[Array, Array]:
    o = np.arange(out)
    return o * size // out, -(-(o + 1) * size // out)


def _window_sum(x: Array, out: int, axis: int) -> Array:
    # reduceat sums between neighbouring indices: every second sum is a window. One row more lets an end be the size.
    ends = np.stack(_bounds(x.shape[axis], out), axis=1).ravel()
    padded = np.pad(x, [(0, int(a == axis)) for a in range(x.ndim)])
    return np.take(np.add.reduceat(padded, ends, axis=axis), np.arange(0, 2 * out, 2), axis=axis)


def _areas(hw: Sequence[int], out_hw: Sequence[int]) -> Array:
    tall, wide = (np.subtract(*_bounds(x, o)[::-1]) for x, o in zip(hw, out_hw, strict=True))
    return tall[:, None, None] * wide[:, None]  # type: ignore[no-any-return]


def _adaptive_avg_ref(x: Array, out_hw: Pair) -> tuple[Array]:
    total = _window_sum(_window_sum(x, out_hw[0], 1), out_hw[1], 2)
    return (total / _areas(x.shape[1:3], out_hw).astype(x.dtype),)


def _adaptive_avg_dx_ref(dy: Array, in_hw: Pair) -> tuple[Array]:
    covers = []
    for x, o in zip(in_hw, dy.shape[1:3], strict=True):
        start, end = _bounds(x, o)
        covers.append((np.arange(x) >= start[:, None]) & (np.arange(x) < end[:, None]))
    return (_spread(dy / _areas(in_hw, dy.shape[1:3]).astype(dy.dtype), *covers),)


_ADAPTIVE: list[tuple[Pair, Pair]] = [((7, 5), (3, 2)), ((7, 5), (1, 1)), ((4, 6), (2, 3)), ((3, 2), (5, 4))]


def _as_equal_windows(call: Call, ins: Sequence[Quant], out: Quant) -> Mapping[str, Any] | None:
    """Windows that are all of a size are those of a plain pooling."""
    hw, out_hw = call.ins[0].shape[1:3], call["out_hw"]
    kernel = tuple(int(x) // int(o) for x, o in zip(hw, out_hw, strict=True))  # type: ignore[arg-type]
    if kernel != tuple(-(-int(x) // int(o)) for x, o in zip(hw, out_hw, strict=True)):  # type: ignore[arg-type]
        return None
    return {**of_mean(call, ins, out), "kernel": kernel, "stride": kernel, "padding": (0, 0), "count_include_pad": True}


define(
    "adaptive_avg_pool2d", doc="y = mean of each of out_hw windows, which differ in size by at most one",
    infer=_infer("adaptive_avg_pool2d"), ref=_adaptive_avg_ref, vjp=_vjp("adaptive_avg_pool2d_dx"),
    kernels={"f32": "adaptive_avg_pool2d_f32"}, params=_sizes, macs=lambda call: call.ins[0].size,
    integer=Integer("rescaled", "qavg_pool2d", _as_equal_windows),
    cases=[*[case((N, *hw, 3), out_hw=o) for hw, o in _ADAPTIVE], case((2, 1, 200, 19), out_hw=(1, 2))],
)  # fmt: skip

define(
    "adaptive_avg_pool2d_dx", doc="dx = sum of dy / window size over the windows that cover the pixel",
    infer=_dx_infer("adaptive_avg_pool2d_dx"), ref=_adaptive_avg_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "adaptive_avg_pool2d_dx_f32"}, params=_sizes, macs=lambda call: call.outs[0].size,
    cases=[*[case((N, *o, 3), in_hw=hw) for hw, o in _ADAPTIVE], case((2, 1, 2, 19), in_hw=(1, 200))],
)  # fmt: skip


def _adaptive_max_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    out = resized("adaptive_max_pool2d", ins[0], attrs["out_hw"])
    return [(out, DType.F32), (out, DType.I32)]


def _adaptive_max_ref(x: Array, out_hw: Pair) -> tuple[Array, Array]:
    h, w = x.shape[1:3]
    (top, bottom), (left, right) = _bounds(h, out_hw[0]), _bounds(w, out_hw[1])
    index = np.broadcast_to((top[:, None] * w + left)[:, :, None], (len(x), *out_hw, x.shape[3]))
    best = np.full(index.shape, -np.inf, x.dtype)
    for i in range((bottom - top).max()):
        for j in range((right - left).max()):
            rows, cols = np.minimum(top + i, h - 1), np.minimum(left + j, w - 1)
            inside = (top + i < bottom)[:, None, None] & (left + j < right)[:, None]
            v = x[:, rows[:, None], cols]
            wins = inside & beats(v, best)
            best = np.where(wins, v, best)
            index = np.where(wins, (rows[:, None] * w + cols)[:, :, None], index)
    return best, index.astype(np.int32)


def _adaptive_max_dx_ref(dy: Array, index: Array, in_hw: Pair) -> tuple[Array]:
    n, c = len(dy), dy.shape[3]
    dx = np.zeros((n, in_hw[0] * in_hw[1], c), dy.dtype)
    np.add.at(dx, (np.arange(n)[:, None, None, None], index, np.arange(c)), dy)
    return (dx.reshape(n, *in_hw, c),)


def _adaptive_max_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    return [b.add("adaptive_max_pool2d_dx", str(dys[0]), node.outs[1], in_hw=tuple(b[node.ins[0]].shape[1:3]))]


def _adaptive_max_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    out = resized("adaptive_max_pool2d_dx", ins[0], attrs["in_hw"], "in_hw")
    if ins[1].shape != ins[0].shape or ins[1].dtype is not DType.I32:
        raise BadShape("adaptive_max_pool2d_dx: the index must be i32 and like dy", why=f"got {ins[0]} and {ins[1]}")
    return [(out, DType.F32)]


def _adaptive_max_dx_case(hw: Pair, out_hw: Pair, c: int) -> Case:
    return case(
        lambda rng, n: rng.standard_normal((n, *out_hw, c)),
        lambda rng, n: _adaptive_max_ref(rng.standard_normal((n, *hw, c)), out_hw)[1],
        in_hw=hw,
    )


define(
    "adaptive_max_pool2d", doc="y = largest value of each of out_hw windows; index = its h·W + w",
    infer=_adaptive_max_infer, ref=_adaptive_max_ref, vjp=_adaptive_max_vjp,
    kernels={"f32": "adaptive_max_pool2d_f32"}, params=_sizes, macs=lambda call: call.ins[0].size,
    cases=[*[case((N, *hw, 3), out_hw=o) for hw, o in _ADAPTIVE], case((2, 7, 5, 19), out_hw=(4, 1))],
)  # fmt: skip

define(
    "adaptive_max_pool2d_dx", doc="dx = sum of dy over the windows whose index names the pixel",
    infer=_adaptive_max_dx_infer, ref=_adaptive_max_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "adaptive_max_pool2d_dx_f32"}, params=_sizes, macs=lambda call: call.ins[0].size,
    cases=[_adaptive_max_dx_case(hw, o, 3) for hw, o in _ADAPTIVE],
)  # fmt: skip


# Upsampling. `scale` holds torch's scale factors where the user gave them: they, and not the sizes, set the ratio.


def _axes(hw: Sequence[Any], out_hw: Sequence[Any], scale: Scale) -> list[tuple[int, int, float | None]]:
    """Size, size of the result and scale factor, of height and of width."""
    return list(zip(hw, out_hw, scale or (None, None), strict=True))


def _places(sizes: Sequence[Dim]) -> list[Dim]:
    """As PlacedImages has them, for all of the image: lengths, first places."""
    _, h, w, _, oh, ow = sizes
    return [h, oh, 0, 0, w, ow, 0, 0]


WORDS = {1: (1, 4, 8), 2: (2, 5, 12)}
"""Axis → parameters that tell the size of the image, of the result, and (two of them) where both begin."""
Found = tuple[Array, Array]


def _placed(call: Call, axis: int, found: Callable[[int, int, float | None], Found]) -> Rows | None:
    """`found` tells the first and the last pixel along an axis that each pixel of the result needs."""
    if axis not in WORDS:
        return None
    size, out, scale = _axes(call.ins[0].shape[1:3], call["out_hw"], call.attrs.get("scale"))[axis - 1]
    by, step = simple_ratio(size, out)
    first, last = found(size, out, scale)
    o = np.arange(out) * by
    low, high = int(((first + 1) * step - 1 - o).min()), int((last * step - o).max())
    return Rows("placed", high - low + 1, step, -low, WORDS[axis], by)


@functools.cache
def simple_ratio(size: int, out: int) -> tuple[int, int]:
    """The simplest p/q for size/out that is less than one pixel off over the whole axis: layers meet at such ratios."""
    for by in range(1, size + 1):
        for step in sorted({out * by // size, -(-out * by // size)}):
            if step and abs(out * by - size * step) < step:
                return by, step
    return size, out


def _nearest_ratio(size: int, out: int, scale: float | None) -> np.float32:
    """Input pixels per output pixel, in the precision in which torch picks the pixel."""
    return np.float32(1.0 / scale) if scale else np.float32(size) / np.float32(out)


def _nearest_at(size: int, out: int, scale: float | None) -> Array:
    o = np.arange(out)
    if out == size:
        return o
    if out == 2 * size:
        return o // 2
    at = o.astype(np.float32) * _nearest_ratio(size, out, scale)
    return np.minimum(at.astype(np.int64), size - 1)


def nearest_ref(x: Array, out_hw: Pair, scale: Scale = None) -> tuple[Array]:
    rows, cols = (_nearest_at(*axis) for axis in _axes(x.shape[1:3], out_hw, scale))
    return (x[:, rows[:, None], cols],)


def _nearest_dx_ref(dy: Array, in_hw: Pair, scale: Scale = None) -> tuple[Array]:
    axes = _axes(in_hw, dy.shape[1:3], scale)
    return (_spread(dy, *(_nearest_at(*axis)[:, None] == np.arange(axis[0]) for axis in axes)),)


def _nearest_params(call: Call) -> Sequence[Param]:
    sizes = _sizes(call)
    axes = _axes(sizes[1:3], sizes[4:], call.attrs.get("scale"))
    return [*sizes, *_places(sizes), *(float(_nearest_ratio(*axis)) for axis in axes)]


def _nearest_rows(call: Call, axis: int) -> Rows | None:
    return _placed(call, axis, lambda size, out, scale: (_nearest_at(size, out, scale),) * 2)


_SIZES: list[tuple[Pair, Pair]] = [
    ((3, 4), (6, 8)), ((3, 4), (5, 9)), ((5, 3), (5, 7)), ((7, 5), (3, 2)), ((1, 3), (1, 8)),
]  # fmt: skip
_SCALED: dict[str, Any] = {"scale": (1.7, 2.3)}

define(
    "upsample_nearest2d", doc="y = the nearest pixel of x",
    infer=_infer("upsample_nearest2d"), ref=nearest_ref, vjp=_vjp("upsample_nearest2d_dx"),
    kernels={"f32": "upsample_nearest2d_f32"}, params=_nearest_params, rows=_nearest_rows,
    cases=[*[case((N, *hw, 3), out_hw=o) for hw, o in _SIZES], case((2, 3, 4, 19), out_hw=(5, 9), **_SCALED)],
)  # fmt: skip

define(
    "upsample_nearest2d_dx", doc="dx = sum of dy over the pixels made from this one",
    infer=_dx_infer("upsample_nearest2d_dx"), ref=_nearest_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "upsample_nearest2d_dx_f32"}, params=_nearest_params, macs=lambda call: call.ins[0].size,
    cases=[*[case((N, *o, 3), in_hw=hw) for hw, o in _SIZES], case((2, 5, 9, 19), in_hw=(3, 4), **_SCALED)],
)  # fmt: skip


def _bilinear_ratio(size: int, out: int, scale: float | None, align_corners: bool) -> float:
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale else size / out


def _taps(size: int, out: int, scale: float | None, align_corners: bool) -> tuple[Array, Array, Array]:
    """For each output pixel its two input pixels and the weight of the second."""
    o = np.arange(out)
    if out == size:
        return o, o, np.zeros(out)
    ratio = _bilinear_ratio(size, out, scale, align_corners)
    at = ratio * o if align_corners else np.maximum(ratio * (o + 0.5) - 0.5, 0)
    low = np.minimum(at.astype(np.int64), size - 1)
    return low, np.minimum(low + 1, size - 1), np.minimum(at - low, 1)


def _bilinear_ref(x: Array, out_hw: Pair, align_corners: bool, scale: Scale = None) -> tuple[Array]:
    axes = _axes(x.shape[1:3], out_hw, scale)
    (top, bottom, down), (left, right, across) = (_taps(*axis, align_corners) for axis in axes)
    down, across = down.astype(x.dtype)[:, None, None], across.astype(x.dtype)[:, None]
    tall = x[:, top] * (1 - down) + x[:, bottom] * down
    return (tall[:, :, left] * (1 - across) + tall[:, :, right] * across,)


def _bilinear_dx_ref(dy: Array, in_hw: Pair, align_corners: bool, scale: Scale = None) -> tuple[Array]:
    weights = []
    for axis in _axes(in_hw, dy.shape[1:3], scale):
        here, (low, high, part) = np.arange(axis[0]), _taps(*axis, align_corners)
        weights.append((low[:, None] == here) * (1 - part)[:, None] + (high[:, None] == here) * part[:, None])
    return (_spread(dy, *weights),)


def _bilinear_params(call: Call) -> Sequence[Param]:
    """Ratios are doubles, low word first."""
    sizes, align = _sizes(call), bool(call["align_corners"])
    words: list[int] = []
    for axis in _axes(sizes[1:3], sizes[4:], call.attrs.get("scale")):
        words += struct.unpack("<2i", struct.pack("<d", _bilinear_ratio(*axis, align)))
    return [*sizes, *_places(sizes), int(align), *words]


def _bilinear_rows(call: Call, axis: int) -> Rows | None:
    align = bool(call["align_corners"])
    return _placed(call, axis, lambda size, out, scale: _taps(size, out, scale, align)[:2])


def _bilinear_cases(make: Callable[[Any, Pair, Pair, int, dict[str, Any]], Case]) -> list[Case]:
    found = [make(N, hw, o, 3, {"align_corners": align}) for hw, o in _SIZES for align in (False, True)]
    found.append(make(N, (3, 4), (1, 1), 1, {"align_corners": True}))
    return [*found, make(2, (3, 4), (5, 9), 19, {"align_corners": False, **_SCALED})]


define(
    "upsample_bilinear2d", doc="y = the four nearest pixels of x, weighted by distance",
    infer=_infer("upsample_bilinear2d"), ref=_bilinear_ref, vjp=_vjp("upsample_bilinear2d_dx"),
    kernels={"f32": "upsample_bilinear2d_f32"}, params=_bilinear_params, rows=_bilinear_rows,
    macs=lambda call: size((*call.outs[0].shape, 4)),
    cases=_bilinear_cases(lambda n, hw, o, c, attrs: case((n, *hw, c), out_hw=o, **attrs)),
)  # fmt: skip

define(
    "upsample_bilinear2d_dx", doc="dx = sum of dy over the pixels made from this one, with the same weights",
    infer=_dx_infer("upsample_bilinear2d_dx"), ref=_bilinear_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "upsample_bilinear2d_dx_f32"}, params=_bilinear_params,
    macs=lambda call: size((*call.ins[0].shape, 4)),
    cases=_bilinear_cases(lambda n, hw, o, c, attrs: case((n, *o, c), in_hw=hw, **attrs)),
)  # fmt: skip
