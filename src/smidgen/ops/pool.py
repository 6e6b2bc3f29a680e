"""Pooling over images [N,H,W,C], with torch's meaning: windows may hang over an edge, ceil_mode is a larger `out_hw`.

`padding` is (ph, pw), the same on both sides. Max-pooling keeps positions in the window, packed into the fewest bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, Dim, DType, Node, Shape, Tensor, ceil_div, size
from .fixed_point import of_mean
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, N, Param, Spec, case, define
from .traits import SAME, Integer, Rows

Pair = tuple[int, int]


def images(
    op: str, x: Tensor, hw: Sequence[int], name: str = "out_hw", kinds: Sequence[DType] = (DType.F32,)
) -> tuple[Dim, int, int, int]:
    """N, H, W, C of an image tensor of one of these types; `hw` are the sizes that the op makes of H and W."""
    if len(x.shape) != 4 or x.dtype not in kinds or any(isinstance(d, Batch) for d in x.shape[1:]):
        types = " or ".join(kind.value for kind in kinds)
        raise BadShape(f"{op} needs {types} images [N,H,W,C] with fixed H, W and C", why=f"got {x}")
    n, h, w, c = x.shape
    if min(int(d) for d in x.shape[1:]) < 1 or len(hw) != 2 or min(hw) < 1:  # type: ignore[arg-type]
        raise BadShape(f"{op}: height, width and channels must be at least 1", why=f"got {x} and {name} {tuple(hw)}")
    return n, int(h), int(w), int(c)  # type: ignore[arg-type]


def resized(
    op: str, x: Tensor, hw: Sequence[int], name: str = "out_hw", kinds: Sequence[DType] = (DType.F32,)
) -> Shape:
    """The shape of x with height and width `hw`."""
    n, _, _, c = images(op, x, hw, name, kinds)
    return (n, *hw, c)


def _spans(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> tuple[Array, Array]:
    """For each window, the first position that lies inside 0..size and the one after the last."""
    start = np.arange(out) * stride - padding
    return np.maximum(0, -(start // dilation)), np.minimum(kernel, -((start - size) // dilation))


def _check_windows(op: str, hw: Sequence[int], out_hw: Sequence[int], attrs: Mapping[str, Any]) -> None:
    kernel, stride, padding = attrs["kernel"], attrs["stride"], attrs["padding"]
    dilation = attrs.get("dilation", (1, 1))
    if min(*kernel, *stride, *dilation) < 1 or min(padding) < 0:
        raise BadShape(
            f"{op}: kernel, stride and dilation must be positive and padding not negative",
            why=f"got kernel {kernel}, stride {stride}, padding {padding}, dilation {dilation}",
        )
    for i, axis in enumerate(("height", "width")):
        first, end = _spans(hw[i], out_hw[i], kernel[i], stride[i], padding[i], dilation[i])
        empty = np.flatnonzero(first >= end)
        if len(empty):
            raise BadShape(
                f"{op}: window {empty[0]} of {out_hw[i]} along the {axis} sees no part of the input",
                why=f"input {axis} {hw[i]}, kernel {kernel[i]}, stride {stride[i]}, padding {padding[i]}, "
                f"dilation {dilation[i]}",
            )


def _windows(
    hw: Sequence[int], out_hw: Sequence[int], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair = (1, 1)
) -> tuple[tuple[Pair, Pair], Iterator[tuple[int, slice, slice]]]:
    """Padding (low, high) of both axes that holds every window; for each position in a window its pixels there."""
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in zip(out_hw, stride, kernel, dilation, strict=True)]
    (top, left), (bottom, right) = padding, (max(0, r - p - x) for r, p, x in zip(reach, padding, hw, strict=True))

    def positions() -> Iterator[tuple[int, slice, slice]]:
        for k in range(kernel[0] * kernel[1]):
            at = (k // kernel[1] * dilation[0], k % kernel[1] * dilation[1])
            rows, cols = (slice(a, a + (o - 1) * s + 1, s) for a, o, s in zip(at, out_hw, stride, strict=True))
            yield k, rows, cols

    return ((top, bottom), (left, right)), positions()


def beats(v: Array, best: Array) -> Array:
    """The first of equal values wins; NaN wins over everything."""
    return (v > best) | np.isnan(v)


# Positions in the window, 1, 2, 4, 8 or 16 bits each, little end first, every sample starting on a byte.


def index_bits(kernel: Pair) -> int:
    return next(bits for bits in (1, 2, 4, 8, 16) if kernel[0] * kernel[1] <= 1 << bits)


def index_bytes(out_hw: Sequence[int], channels: int, kernel: Pair) -> int:
    """Of one sample."""
    return ceil_div(out_hw[0] * out_hw[1] * channels * index_bits(kernel), 8)


def _packed(index: Array, bits: int) -> Array:
    flat = index.reshape(len(index), -1, 1).astype(np.uint16)
    return np.packbits(((flat >> np.arange(bits)) & 1).reshape(len(index), -1), axis=1, bitorder="little")


def unpacked(packed: Array, shape: tuple[int, ...], bits: int) -> Array:
    count = int(np.prod(shape[1:]))
    ones = np.unpackbits(packed, axis=1, count=count * bits, bitorder="little").reshape(len(packed), count, bits)
    return (ones.astype(np.int32) << np.arange(bits)).sum(axis=2).reshape(shape)  # type: ignore[no-any-return]


def _rows(call: Call, axis: int) -> Rows | None:
    if axis not in (1, 2):
        return None
    k, dilation = axis - 1, call.attrs.get("dilation", (1, 1))
    reach = dilation[k] * (call["kernel"][k] - 1) + 1
    return Rows("window", reach, call["stride"][k], call["padding"][k], (1 + k, 4 + k, 10 + k))


# max_pool2d


def _max_infer(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Shape:
    out = resized(op, ins[0], attrs["out_hw"], kinds=(DType.F32, DType.I8))
    _check_windows(op, ins[0].shape[1:3], attrs["out_hw"], attrs)  # type: ignore[arg-type]
    return out


def _max_pool2d_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    n, h, w, c = _max_infer("max_pool2d", ins, attrs)
    kernel = attrs["kernel"]
    if kernel[0] * kernel[1] > 65536:
        raise BadShape(f"max_pool2d: the window {kernel} has more than 65536 positions", help="adaptive_max_pool2d")
    index = (n, index_bytes(attrs["out_hw"], c, kernel))  # type: ignore[arg-type]
    return [((n, h, w, c), ins[0].dtype), (index, DType.U8)]


def _max_pool2d_ref(
    x: Array, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, out_hw: Pair
) -> tuple[Array, Array]:
    if x.dtype.kind != "f":
        y, where = _max_pool2d_ref(x.astype(np.float64), kernel, stride, padding, dilation, out_hw)
        return y.astype(x.dtype), where
    hw, (kw, c) = x.shape[1:3], (kernel[1], x.shape[3])
    pads, positions = _windows(hw, out_hw, kernel, stride, padding, dilation)
    padded = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-np.inf)
    first = [_spans(*axis)[0] for axis in zip(hw, out_hw, kernel, stride, padding, dilation, strict=True)]
    index = np.tile((first[0][:, None] * kw + first[1])[None, :, :, None], (len(x), 1, 1, c))
    best = np.full((len(x), *out_hw, c), -np.inf, x.dtype)
    for k, rows, cols in positions:
        v = padded[:, rows, cols]
        wins = beats(v, best)
        best, index = np.where(wins, v, best), np.where(wins, k, index)
    return best, _packed(index, index_bits(kernel))


def _max_pool2d_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    attrs = {k: v for k, v in node.attrs.items() if k != "out_hw"}
    # Without a kept index the window is searched again.
    index = node.outs[1] if len(node.outs) == 2 else b.add_many("max_pool2d", node.ins[0], **node.attrs)[1]
    return [b.add("max_pool2d_dx", str(dys[0]), index, in_hw=tuple(b[node.ins[0]].shape[1:3]), **attrs)]


def _max_params(call: Call) -> Sequence[Param]:
    a = call.attrs
    x, out_hw = call.ins[0].shape, a["out_hw"]
    return [*x, *out_hw, *a["kernel"], *a["stride"], *a["padding"], *a["dilation"]]


def _window_macs(call: Call) -> Dim:
    """One step for each position of each window."""
    return size((*(call.outs[0] if "out_hw" in call.attrs else call.ins[0]).shape, *call["kernel"]))


_MAX_ATTRS: list[dict[str, Any]] = [
    {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "out_hw": (3, 2)},
    {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1), "out_hw": (4, 3)},
    {"kernel": (3, 2), "stride": (2, 3), "padding": (1, 0), "dilation": (2, 1), "out_hw": (3, 2)},  # hangs over
    {"kernel": (1, 2), "stride": (1, 1), "padding": (0, 1), "dilation": (1, 2), "out_hw": (7, 5)},
    {"kernel": (6, 5), "stride": (1, 1), "padding": (3, 2), "dilation": (1, 1), "out_hw": (8, 5)},
    {"kernel": (3, 1), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 1), "out_hw": (4, 5)},
    {"kernel": (1, 1), "stride": (3, 2), "padding": (0, 0), "dilation": (1, 1), "out_hw": (3, 3)},
]


def _int8_images(rng: np.random.Generator, n: int) -> Array:
    return rng.integers(-128, 128, (n, 7, 5, 19), np.int8)


_LINE: dict[str, Any] = {"kernel": (1, 300), "stride": (1, 7), "padding": (0, 99), "dilation": (1, 1), "out_hw": (1, 9)}

define(
    "max_pool2d", doc="y = largest value of each window; index = its position in the window, packed",
    infer=_max_pool2d_infer, ref=_max_pool2d_ref, vjp=_max_pool2d_vjp, lean="max_pool2d_plain", integer=SAME,
    kernels={"f32": "max_pool2d_f32", "i8": "max_pool2d_i8"}, params=_max_params, macs=_window_macs,
    cases=[*[case((N, 7, 5, 3), **a) for a in _MAX_ATTRS], case((2, 7, 5, 35), **_MAX_ATTRS[1]),
           case((N, 1, 80, 2), **_LINE), *[case(_int8_images, **a) for a in _MAX_ATTRS]],
)  # fmt: skip

define(
    "max_pool2d_plain", doc="y = largest value of each window",
    infer=lambda ins, attrs: [(_max_infer("max_pool2d_plain", ins, attrs), ins[0].dtype)],
    ref=lambda x, **attrs: _max_pool2d_ref(x, **attrs)[:1], vjp=_max_pool2d_vjp,
    kernels={"f32": "max_pool2d_plain_f32", "i8": "max_pool2d_plain_i8"}, integer=SAME,
    params=_max_params, macs=_window_macs, rows=_rows,
    cases=[*[case((N, 7, 5, 3), **a) for a in _MAX_ATTRS], case((2, 7, 5, 35), **_MAX_ATTRS[1]),
           *[case(_int8_images, **a) for a in _MAX_ATTRS]],
)  # fmt: skip


def _max_pool2d_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    out = resized("max_pool2d_dx", ins[0], attrs["in_hw"], "in_hw")
    n, oh, ow, c = ins[0].shape
    _check_windows("max_pool2d_dx", attrs["in_hw"], (oh, ow), attrs)  # type: ignore[arg-type]
    wanted = (n, index_bytes((oh, ow), c, attrs["kernel"]))  # type: ignore[arg-type]
    if ins[1].shape != wanted or ins[1].dtype is not DType.U8:
        raise BadShape(f"max_pool2d_dx: the index must be u8{list(wanted)}", why=f"got {ins[1]}")
    return [(out, DType.F32)]


def _max_pool2d_dx_ref(
    dy: Array, index: Array, in_hw: Pair, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair
) -> tuple[Array]:
    where = unpacked(index, dy.shape, index_bits(kernel))
    pads, positions = _windows(in_hw, dy.shape[1:3], kernel, stride, padding, dilation)
    dx = np.zeros((len(dy), *(x + lo + hi for x, (lo, hi) in zip(in_hw, pads, strict=True)), dy.shape[3]), dy.dtype)
    for k, rows, cols in positions:
        dx[:, rows, cols] += np.where(where == k, dy, 0)
    return (dx[:, padding[0] : padding[0] + in_hw[0], padding[1] : padding[1] + in_hw[1]],)


def _dx_params(*names: str) -> Any:
    """N, H, W, C, OH, OW and the attributes' numbers, for a kernel whose input is dy."""

    def params(call: Call) -> Sequence[Param]:
        n, oh, ow, c = call.ins[0].shape
        return [n, *call["in_hw"], c, oh, ow, *(v for name in names for v in call[name])]

    return params


def _max_dx_case(a: dict[str, Any], h: int, w: int, c: int) -> Case:
    """With a valid index: that of random images."""
    return case(
        lambda rng, n: rng.standard_normal((n, *a["out_hw"], c)),
        lambda rng, n: _max_pool2d_ref(rng.standard_normal((n, h, w, c)), **a)[1],
        in_hw=(h, w), **{k: v for k, v in a.items() if k != "out_hw"},
    )  # fmt: skip


define(
    "max_pool2d_dx", doc="dx = sum of dy over the windows whose index names the pixel",
    infer=_max_pool2d_dx_infer, ref=_max_pool2d_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "max_pool2d_dx_f32"}, params=_dx_params("kernel", "stride", "padding", "dilation"),
    macs=lambda call: call.ins[0].size,
    cases=[*[_max_dx_case(a, 7, 5, 3) for a in _MAX_ATTRS], _max_dx_case(_MAX_ATTRS[1], 7, 5, 35),
           _max_dx_case(_LINE, 1, 80, 2)],
)  # fmt: skip


# avg_pool2d


def _counts(
    hw: Sequence[int],
    out_hw: Sequence[int],
    kernel: Pair,
    stride: Pair,
    padding: Pair,
    count_include_pad: bool,
    divisor: int | None = None,
) -> Array:
    """What each window's sum is divided by, [OH,OW,1]; padding counts, cells beyond the padding never do."""
    if divisor is not None:
        return np.full((*out_hw, 1), divisor)
    along = []
    for x, o, k, s, p in zip(hw, out_hw, kernel, stride, padding, strict=True):
        start = np.arange(o) * s - p
        end = np.minimum(start + k, x + p)
        along.append(end - start if count_include_pad else np.minimum(end, x) - np.maximum(start, 0))
    return along[0][:, None, None] * along[1][:, None]


def _avg_check(op: str, hw: Sequence[int], out_hw: Sequence[int], attrs: Mapping[str, Any]) -> None:
    _check_windows(op, hw, out_hw, attrs)
    if attrs.get("divisor") == 0:
        raise BadShape(f"{op}: the divisor must not be zero", help="divisor=None divides by the window's size")


def _avg_pool2d_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    out = resized("avg_pool2d", ins[0], attrs["out_hw"])
    _avg_check("avg_pool2d", ins[0].shape[1:3], attrs["out_hw"], attrs)  # type: ignore[arg-type]
    return [(out, DType.F32)]


def _avg_pool2d_ref(x: Array, kernel: Pair, stride: Pair, padding: Pair, out_hw: Pair, **counting: Any) -> tuple[Array]:
    pads, positions = _windows(x.shape[1:3], out_hw, kernel, stride, padding)
    padded = np.pad(x, ((0, 0), *pads, (0, 0)))
    total = np.zeros((len(x), *out_hw, x.shape[3]), x.dtype)
    for _, rows, cols in positions:
        total += padded[:, rows, cols]
    counts = _counts(x.shape[1:3], out_hw, kernel, stride, padding, **counting)
    return (total / counts.astype(x.dtype),)


def _avg_pool2d_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    out = resized("avg_pool2d_dx", ins[0], attrs["in_hw"], "in_hw")
    _avg_check("avg_pool2d_dx", attrs["in_hw"], ins[0].shape[1:3], attrs)  # type: ignore[arg-type]
    return [(out, DType.F32)]


def _avg_pool2d_dx_ref(
    dy: Array, in_hw: Pair, kernel: Pair, stride: Pair, padding: Pair, **counting: Any
) -> tuple[Array]:
    counts = _counts(in_hw, dy.shape[1:3], kernel, stride, padding, **counting)
    share = dy / counts.astype(dy.dtype)
    pads, positions = _windows(in_hw, dy.shape[1:3], kernel, stride, padding)
    dx = np.zeros((len(dy), *(x + lo + hi for x, (lo, hi) in zip(in_hw, pads, strict=True)), dy.shape[3]), dy.dtype)
    for _, rows, cols in positions:
        dx[:, rows, cols] += share
    return (dx[:, padding[0] : padding[0] + in_hw[0], padding[1] : padding[1] + in_hw[1]],)


def _avg_pool2d_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    attrs = {k: v for k, v in node.attrs.items() if k != "out_hw"}
    return [b.add("avg_pool2d_dx", str(dys[0]), in_hw=tuple(b[node.ins[0]].shape[1:3]), **attrs)]


def _avg_tail(call: Call) -> list[Param]:
    return [int(call["count_include_pad"]), call.attrs.get("divisor") or 0, *call["padding"]]


_AVG_ATTRS: list[dict[str, Any]] = [
    {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "out_hw": (3, 2), "count_include_pad": True},
    {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "out_hw": (4, 3), "count_include_pad": True},
    {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "out_hw": (4, 3), "count_include_pad": False},
    {"kernel": (3, 2), "stride": (3, 3), "padding": (1, 1), "out_hw": (3, 2), "count_include_pad": True},
    {"kernel": (4, 3), "stride": (3, 2), "padding": (1, 0), "out_hw": (3, 3), "count_include_pad": False},
    {"kernel": (7, 5), "stride": (1, 1), "padding": (0, 0), "out_hw": (1, 1), "count_include_pad": True, "divisor": -9},
]

define(
    "avg_pool2d", doc="y = sum of each window / divisor or its size, with the padding it covers if count_include_pad",
    infer=_avg_pool2d_infer, ref=_avg_pool2d_ref, vjp=_avg_pool2d_vjp,
    kernels={"f32": "avg_pool2d_f32"}, macs=_window_macs, rows=_rows,
    integer=Integer("rescaled", "qavg_pool2d", of_mean),
    params=lambda call: [*call.ins[0].shape, *call["out_hw"], *call["kernel"], *call["stride"], *call["padding"],
                         *_avg_tail(call)],
    cases=[*[case((N, 7, 5, 3), **a) for a in _AVG_ATTRS], case((2, 7, 5, 35), **_AVG_ATTRS[1])],
)  # fmt: skip


def _avg_dx_case(a: dict[str, Any], n: Dim, c: int) -> Case:
    return case((n, *a["out_hw"], c), in_hw=(7, 5), **{k: v for k, v in a.items() if k != "out_hw"})


define(
    "avg_pool2d_dx", doc="dx = sum of dy / divisor over the windows that cover the pixel",
    infer=_avg_pool2d_dx_infer, ref=_avg_pool2d_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "avg_pool2d_dx_f32"}, macs=_window_macs,
    params=lambda call: [*_dx_params("kernel", "stride", "padding")(call), *_avg_tail(call)],
    cases=[*[_avg_dx_case(a, N, 3) for a in _AVG_ATTRS], _avg_dx_case(_AVG_ATTRS[1], 2, 35)],
)  # fmt: skip
