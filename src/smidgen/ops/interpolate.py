"""One axis resampled to another length with torch's filters: cubic, and linear or cubic with antialiasing.

An image is resampled along its height and then along its width. `scale` is torch's scale factor where the user gave
one: it, and not the sizes, sets the ratio.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, DType, Node, Shape, Tensor, size
from .registry import NOT_DIFFERENTIABLE, Builder, Call, N, Param, Spec, case, define
from .traits import Layout

FILTERS = ("cubic", "linear_aa", "cubic_aa")
"""In the order of their numbers in C."""


def _ratio(length: int, out: int, scale: float | None, align_corners: bool) -> float:
    """Elements of x for each of y."""
    if align_corners:
        return (length - 1) / (out - 1) if out > 1 else 0.0
    return 1.0 / scale if scale else length / out


def _near(x: Array, a: float) -> Array:
    return ((a + 2) * x - (a + 3)) * x * x + 1


def _far(x: Array, a: float) -> Array:
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a


def _filter(x: Array, linear: bool) -> Array:
    """The weight at a distance, as torch's antialiasing has it."""
    x = np.abs(x)
    if linear:
        return np.maximum(1 - x, 0)  # type: ignore[no-any-return]
    return np.where(x < 1, _near(x, -0.5), np.where(x < 2, _far(x, -0.5), 0.0))


def weights(length: int, out: int, filter: str, align_corners: bool, scale: float | None) -> Array:
    """W[out, length] of y = W x."""
    ratio = _ratio(length, out, scale, align_corners)
    found, o = np.zeros((out, length)), np.arange(out)
    if filter == "cubic":
        at = ratio * o if align_corners else ratio * (o + 0.5) - 0.5
        low = np.minimum(np.floor(at), length - 1)
        t = np.clip(at - low, 0, 1)
        taps = (_far(t + 1, -0.75), _near(t, -0.75), _near(1 - t, -0.75), _far(2 - t, -0.75))
        for k, tap in enumerate(taps):
            np.add.at(found, (o, np.clip(low - 1 + k, 0, length - 1).astype(int)), tap)
        return found
    wide, linear = max(ratio, 1.0), filter == "linear_aa"
    support = (1 if linear else 2) * wide
    centre = ratio * (o + 0.5)
    start, stop = np.floor(np.maximum(centre - support + 0.5, 0)), np.minimum(np.floor(centre + support + 0.5), length)
    i = np.arange(length)
    inside = (i >= start[:, None]) & (i < stop[:, None])
    found = np.where(inside, _filter((i - centre[:, None] + 0.5) / wide, linear), 0.0)
    total = found.sum(1, keepdims=True)
    return found / np.where(total == 0, 1.0, total)


def _check(op: str, x: Tensor, attrs: Mapping[str, Any], length: str) -> None:
    axis = attrs["axis"]
    fits = 0 <= axis < len(x.shape) and not isinstance(x.shape[axis], Batch) and x.dtype is DType.F32
    if not fits or attrs[length] < 1 or attrs["filter"] not in FILTERS:
        raise BadShape(
            f"{op} of axis {axis} to {attrs[length]} elements with the filter '{attrs['filter']}'",
            why=f"got {x}; the axis must be of fixed size, the filter one of {', '.join(FILTERS)}",
        )


def _along(x: Shape, axis: int, length: int) -> Shape:
    return (*x[:axis], length, *x[axis + 1 :])


def _infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _check("resample", ins[0], attrs, "out")
    return [(_along(ins[0].shape, attrs["axis"], attrs["out"]), DType.F32)]


def _dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _check("resample_dx", ins[0], attrs, "length")
    return [(_along(ins[0].shape, attrs["axis"], attrs["length"]), DType.F32)]


def _product(x: Array, w: Array, axis: int) -> Array:
    return np.ascontiguousarray(np.moveaxis(np.moveaxis(x, axis, -1) @ w.astype(x.dtype).T, -1, axis))


def _ref(x: Array, axis: int, out: int, **how: Any) -> tuple[Array]:
    return (_product(x, weights(x.shape[axis], out, **how), axis),)


def _dx_ref(dy: Array, axis: int, length: int, **how: Any) -> tuple[Array]:
    return (_product(dy, weights(length, dy.shape[axis], **how).T, axis),)


def _vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    attrs = {k: v for k, v in node.attrs.items() if k != "out"}
    return [b.add("resample_dx", str(dys[0]), length=b[node.ins[0]].shape[attrs["axis"]], **attrs)]


def _params(call: Call) -> Sequence[Param]:
    """Outer elements, length, inner elements, length of the result, filter, align_corners, the ratio as a double."""
    shape, axis = call.ins[0].shape, call["axis"]
    here = int(shape[axis])
    lengths = (here, int(call["out"])) if "out" in call.attrs else (int(call["length"]), here)
    ratio = _ratio(*lengths, call["scale"], call["align_corners"])
    words = struct.unpack("<2i", struct.pack("<d", ratio))
    outer, inner = size(shape[:axis]), size(shape[axis + 1 :])
    return [outer, lengths[0], inner, lengths[1], FILTERS.index(call["filter"]), int(call["align_corners"]), *words]


_SHAPES: list[tuple[Shape, int, int]] = [
    ((N, 5, 3), 1, 8), ((N, 7, 4), 1, 3), ((2, N, 6), 2, 6), ((N, 3, 1), 1, 1), ((4, 1), 1, 5), ((2, 9, N), 1, 4),
    ((1, 40, 2), 1, 7),
]  # fmt: skip
_WAYS: list[dict[str, Any]] = [
    *[{"filter": f, "align_corners": c, "scale": None} for f in FILTERS for c in (False, True)],
    *[{"filter": f, "align_corners": False, "scale": 1.7} for f in FILTERS],
]
_CASES = [(*shape, how) for i, shape in enumerate(_SHAPES) for how in _WAYS[i % 2 :: 2] + _WAYS[:1]]

define(
    "resample", doc="y = x with `out` elements along one axis, each a weighted sum of those near its place in x",
    layout=Layout("along"), linear_in=((0,),),
    infer=_infer, ref=_ref, vjp=_vjp, kernels={"f32": "resample_f32"}, params=_params,
    macs=lambda call: size((*call.outs[0].shape, 4)),
    cases=[case(x, axis=axis, out=out, **how) for x, axis, out, how in _CASES],
)  # fmt: skip

define(
    "resample_dx", doc="gradient of resample for x with `length` elements along the axis: the same weights",
    infer=_dx_infer, ref=_dx_ref, vjp=NOT_DIFFERENTIABLE, kernels={"f32": "resample_dx_f32"}, params=_params,
    macs=lambda call: size((*call.ins[0].shape, 4)),
    cases=[case(_along(x, axis, out), axis=axis, length=x[axis], **how) for x, axis, out, how in _CASES],
)  # fmt: skip
