"""Windows of images as an axis of their own, and back: images [N,H,W,C], windows [N,OH,OW,kh,kw,C].

Each op is the gradient of the other. Padding is ((top, bottom), (left, right)), of zeros, as for conv2d.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Shape, Tensor
from .conv import Pair, Window
from .pool import images
from .registry import Builder, Call, N, Param, Spec, case, define
from .strides import show


def _windows_of(op: str, x: Tensor, attrs: Mapping[str, Any]) -> Shape:
    """The shape of all windows of the image x."""
    kernel, at = attrs["kernel"], Window.of(attrs)
    n, h, w, c = images(op, x, (1, 1))
    if min(*kernel, *at.stride, *at.dilation) < 1 or min(min(side) for side in at.padding) < 0:
        raise BadShape(f"{op}: kernel, stride and dilation must be positive and padding not negative", why=f"got {at}")
    out = at.out_hw((h, w), kernel)
    if min(out) < 1:
        raise BadShape(f"{op}: a window of {tuple(kernel)} is larger than the padded {h}×{w} image", why=f"with {at}")
    return (n, *out, *kernel, c)


def _im2col_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return [(_windows_of("im2col", ins[0], attrs), DType.F32)]


def _col2im_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    y, hw = ins[0], tuple(attrs["out_hw"])
    if len(y.shape) != 6:
        raise BadShape("col2im needs windows [N,OH,OW,kh,kw,C]", why=f"got {y}")
    x = Tensor(y.name, (y.shape[0], *hw, y.shape[5]), y.dtype)
    wanted = _windows_of("col2im", x, {**attrs, "kernel": tuple(y.shape[3:5])})
    if wanted != y.shape:
        raise BadShape(f"col2im: an image {hw} has the windows {show(wanted)}", why=f"got {y} with {Window.of(attrs)}")
    return [(x.shape, DType.F32)]


def _slices(kernel: Sequence[int], out: Sequence[int], at: Window) -> Sequence[tuple[int, int, slice, slice]]:
    """For each place in a window, the pixels of the padded image at that place."""
    found = []
    for i, j in np.ndindex(*kernel):
        start = (i * at.dilation[0], j * at.dilation[1])
        rows, cols = (slice(s, s + (o - 1) * by + 1, by) for s, o, by in zip(start, out, at.stride, strict=True))
        found.append((i, j, rows, cols))
    return found


def _im2col_ref(x: Array, kernel: Pair, **attrs: Any) -> tuple[Array]:
    at = Window.of(attrs)
    out = at.out_hw(x.shape[1:3], kernel)
    padded = np.pad(x, ((0, 0), *at.padding, (0, 0)))
    y = np.empty((len(x), *out, *kernel, x.shape[3]), x.dtype)
    for i, j, rows, cols in _slices(kernel, out, at):
        y[:, :, :, i, j] = padded[:, rows, cols]
    return (y,)


def _col2im_ref(y: Array, out_hw: Pair, **attrs: Any) -> tuple[Array]:
    at = Window.of(attrs)
    (top, bottom), (left, right) = at.padding
    padded = np.zeros((len(y), out_hw[0] + top + bottom, out_hw[1] + left + right, y.shape[5]), y.dtype)
    for i, j, rows, cols in _slices(y.shape[3:5], y.shape[1:3], at):
        padded[:, rows, cols] += y[:, :, :, i, j]
    return (np.ascontiguousarray(padded[:, top : top + out_hw[0], left : left + out_hw[1]]),)


def _im2col_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    attrs = {k: v for k, v in node.attrs.items() if k != "kernel"}
    return [b.add("col2im", str(dys[0]), out_hw=tuple(b[node.ins[0]].shape[1:3]), **attrs)]


def _col2im_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    attrs = {k: v for k, v in node.attrs.items() if k != "out_hw"}
    return [b.add("im2col", str(dys[0]), kernel=tuple(b[node.ins[0]].shape[3:5]), **attrs)]


def _params(x: Shape, y: Shape, attrs: Mapping[str, Any]) -> Sequence[Param]:
    """N H W C OH OW KH KW SH SW PT PL DH DW; where padding ends follows from OH and OW."""
    at = Window.of(attrs)
    return [*x, *y[1:5], *at.stride, at.padding[0][0], at.padding[1][0], *at.dilation]


# Image, kernel, attributes. Both ops are tried on all of them.
_SETTINGS: tuple[tuple[Shape, Pair, dict[str, Any]], ...] = (
    ((N, 5, 6, 3), (2, 3), {"stride": (2, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 2)}),
    ((N, 4, 4, 2), (2, 2), {"stride": (2, 2)}),
    ((1, 7, 5, 1), (3, 3), {"padding": ((1, 1), (1, 1))}),
    ((N, 3, 2, 4), (2, 2), {"padding": ((3, 4), (2, 0)), "stride": (3, 1)}),  # windows wholly in the padding
    ((N, 6, 1, 17), (3, 1), {"padding": ((2, 1), (0, 0)), "dilation": (2, 1)}),
    ((2, 9, 8, 2), (4, 2), {"stride": (5, 3)}),  # pixels that no window has
    ((N, 1, 1, 5), (1, 1), {}),
)


def _shape_of(x: Shape, kernel: Pair, attrs: Mapping[str, Any]) -> Shape:
    return _windows_of("col2im", Tensor("x", x), {**attrs, "kernel": kernel})


def _im2col_params(call: Call) -> Sequence[Param]:
    return _params(call.ins[0].shape, call.outs[0].shape, call.attrs)


def _col2im_params(call: Call) -> Sequence[Param]:
    return _params(call.outs[0].shape, call.ins[0].shape, call.attrs)


define(
    "im2col", doc="y[n,oh,ow,kh,kw,c] = x[n, oh·sh−top+kh·dh, ow·sw−left+kw·dw, c], 0 in the padding",
    linear_in=((0,),), infer=_im2col_infer, ref=_im2col_ref, vjp=_im2col_vjp, kernels={"f32": "im2col_f32"},
    params=_im2col_params,
    cases=[case(x, kernel=kernel, **attrs) for x, kernel, attrs in _SETTINGS],
)  # fmt: skip

define(
    "col2im", doc="y[N,H,W,C] = sum of the windows x[N,OH,OW,kh,kw,C] at their places in an image of size out_hw",
    linear_in=((0,),), infer=_col2im_infer, ref=_col2im_ref, vjp=_col2im_vjp, kernels={"f32": "col2im_f32"},
    params=_col2im_params, macs=lambda call: call.ins[0].size,
    cases=[case(_shape_of(x, kernel, attrs), out_hw=x[1:3], **attrs) for x, kernel, attrs in _SETTINGS],
)  # fmt: skip
