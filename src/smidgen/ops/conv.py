"""Two-dimensional convolution and its gradients: images [N,H,W,C], weights [O,kh,kw,C/groups].

Padding is ((top, bottom), (left, right)); a negative value crops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ir import Array, Batch, Dim, DType, Node, Shape, Tensor, size
from . import work
from .matrix import DX_TILES, demands
from .registry import NOT_DIFFERENTIABLE, Builder, Call, N, Param, Spec, case, define
from .strides import show
from .traits import Channels, Integer, Rows, Stored, Taken

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
NO_PADDING: Padding = ((0, 0), (0, 0))
LAYOUT = "images are [N,H,W,C], weights [O,kh,kw,C/groups], and only N may grow with the batch"


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an image."""

    stride: Pair = (1, 1)
    padding: Padding = NO_PADDING
    dilation: Pair = (1, 1)
    groups: int = 1

    def __str__(self) -> str:
        return f"stride {self.stride}, padding {self.padding}, dilation {self.dilation}, groups {self.groups}"

    @staticmethod
    def of(attrs: Mapping[str, Any]) -> Window:
        names = ("stride", "padding", "dilation", "groups")
        return Window(**{k: attrs[k] for k in names if k in attrs})

    def out_hw(self, in_hw: Sequence[int], kernel: Sequence[int]) -> Pair:
        """Size of the output; zero or less if the kernel does not fit."""

        def along(i: int) -> int:
            room = in_hw[i] + sum(self.padding[i]) - self.dilation[i] * (kernel[i] - 1) - 1
            return room // self.stride[i] + 1

        return along(0), along(1)


def _fixed(shape: Shape) -> tuple[int, ...]:
    return tuple(d for d in shape if not isinstance(d, Batch))


def _checked(
    op: str, ins: Sequence[Tensor], at: Window, x: Shape, w: Shape, y: Shape | None = None, types: Sequence[DType] = ()
) -> Pair:
    """OH, OW of the convolution of x with w, after checking all that must hold between them and y."""
    check = demands(op, ins, *types)
    check(len(x) == len(w) == 4 and len(_fixed(x[1:])) == 3 and len(_fixed(w)) == 4, LAYOUT)
    (h, wide, c), (o, kh, kw, cg) = _fixed(x[1:]), _fixed(w)
    check(min(*at.stride, *at.dilation, at.groups, kh, kw) >= 1, "stride, dilation, groups and kernel must be positive")
    grouped = c == cg * at.groups and o % at.groups == 0
    check(grouped, f"{c} input and {o} output channels do not make {at.groups} groups with {cg} inputs each")
    out = at.out_hw((h, wide), (kh, kw))
    check(min(out) >= 1, f"the {kh}×{kw} kernel is larger than the padded {h}×{wide} image ({at})")
    check(y is None or y == (x[0], *out, o), f"that convolution yields {show((x[0], *out, o))} ({at})")
    return out


def _check_bias(op: str, ins: Sequence[Tensor], channels: Dim) -> None:
    fits = all(b.shape == (channels,) for b in ins[2:])
    demands(op, ins)(fits, f"the bias must have {channels} values, one per output channel")


def _params(x: Shape, w: Shape, y: Shape, attrs: Mapping[str, Any]) -> Sequence[Param]:
    """N H W C O OH OW KH KW SH SW PT PL DH DW G; where padding ends follows from OH and OW."""
    at = Window.of(attrs)
    return [
        *x, y[3], y[1], y[2], w[1], w[2], *at.stride, at.padding[0][0], at.padding[1][0], *at.dilation, at.groups,
    ]  # fmt: skip


WORDS = {1: (1, 5, 11), 2: (2, 6, 12)}
"""Axis → parameters that tell the size of the image, of the output, and padding before it."""


def _rows(call: Call, axis: int) -> Rows | None:
    at, w = Window.of(call.attrs), call.ins[1].shape
    if axis not in WORDS:
        return None
    k, stride, dilation, pad = axis - 1, at.stride[axis - 1], at.dilation[axis - 1], at.padding[axis - 1][0]
    return Rows("window", dilation * (_fixed(w)[1 + k] - 1) + 1, stride, pad, WORDS[axis])


def _transpose_rows(call: Call, axis: int) -> Rows | None:
    """The image is the result. Rows that no row of x reaches, which have the bias alone, get the nearest."""
    found = _rows(call, axis)
    if found is None:
        return None
    rows, made = (int(t.shape[axis]) for t in (call.ins[0], call.outs[0]))  # type: ignore[arg-type]
    reach = max(found.reach, found.step, made + found.pad - found.step * (rows - 1))
    x, y, above = found.words
    return Rows("spread", reach, found.step, found.pad, (y, x, above))


def _dw_sums(call: Call, axis: int) -> Rows | None:
    """Row r of dy meets the window of x; parameters as of conv2d, then rows of dy and of x in all, padding above all of
    them and above those at hand, and the first row of dy."""
    at, (dy, x), w = Window.of(call.attrs), (call.ins[0].shape, call.ins[1].shape), call.outs[0].shape
    found = _rows(Call((call.ins[1], call.outs[0]), call.ins[:1], call.attrs), axis)
    if found is None or axis != 1:
        return None
    params = [*_params(x, w, dy, call.attrs), dy[1], x[1], at.padding[0][0], at.padding[0][0], 0]
    return replace(found, kind="adds", words=(*found.words[:2], len(params) - 2), params=params, sources=2,
                   kernel="conv2d_dw_rows_f32", carry_bytes=call.outs[0].bytes(1))  # fmt: skip


# The numpy meaning: windows as a strided view, then one product of matrices per group; depthwise tap by tap.


def _padded(x: Array, padding: Padding) -> Array:
    (top, bottom), (left, right) = padding
    if max(top, bottom, left, right) > 0:
        x = np.pad(x, ((0, 0), (max(top, 0), max(bottom, 0)), (max(left, 0), max(right, 0)), (0, 0)))
    return x[:, max(-top, 0) :, max(-left, 0) :]


def _taps(x: Array, kernel: Pair, out: Pair, at: Window) -> Array:
    """View [N, OH, OW, kh, kw, C] of the padded image x."""
    (sh, sw), (dh, dw) = at.stride, at.dilation
    n, h, w, c = x.strides
    return np.lib.stride_tricks.as_strided(
        x, (x.shape[0], *out, *kernel, x.shape[3]), (n, h * sh, w * sw, h * dh, w * dw, c), writeable=False
    )


def _columns(x: Array, kernel: Pair, out: Pair, at: Window) -> Array:
    """[groups, pixels, kh·kw·C/groups]"""
    taps = _taps(_padded(x, at.padding), kernel, out, at)
    per_group = x.shape[3] // at.groups
    split = taps.reshape(*taps.shape[:5], at.groups, per_group)
    return np.moveaxis(split, 5, 0).reshape(at.groups, -1, kernel[0] * kernel[1] * per_group)


def _by_group(y: Array, groups: int) -> Array:
    """[groups, pixels, O/groups]"""
    return np.moveaxis(y.reshape(-1, groups, y.shape[-1] // groups), 1, 0)


def _is_depthwise(w: Sequence[int], groups: int) -> bool:
    return w[3] == 1 and groups > 1


def _conv2d_ref(x: Array, w: Array, b: Array | None = None, **attrs: Any) -> Sequence[Array]:
    at = Window.of(attrs)
    o, kernel = w.shape[0], (w.shape[1], w.shape[2])
    out = at.out_hw(x.shape[1:3], kernel)
    shape = (x.shape[0], *out, o)
    if _is_depthwise(w.shape, at.groups):
        taps = _taps(_padded(x, at.padding), kernel, out, at)
        y = np.zeros(shape, x.dtype)
        for i, j in np.ndindex(*kernel):
            y += np.repeat(taps[:, :, :, i, j], o // at.groups, axis=3) * w[:, i, j, 0]
    else:
        columns = _columns(x, kernel, out, at)
        y = np.moveaxis(columns @ w.reshape(at.groups, o // at.groups, -1).swapaxes(1, 2), 0, 1).reshape(shape)
    return (y if b is None else y + b,)


def _conv2d_dx_ref(dy: Array, w: Array, in_hw: Pair, **attrs: Any) -> Sequence[Array]:
    at = Window.of(attrs)
    (top, bottom), (left, right), (sh, sw) = *at.padding, at.stride
    (n, oh, ow, o), (kh, kw, cg) = dy.shape, w.shape[1:]
    c = cg * at.groups
    depthwise = _is_depthwise(w.shape, at.groups)
    if not depthwise:
        columns = _by_group(dy, at.groups) @ w.reshape(at.groups, o // at.groups, -1)
        taps = np.moveaxis(columns.reshape(at.groups, n, oh, ow, kh, kw, cg), 0, 5).reshape(n, oh, ow, kh, kw, c)
    # The gradient of the padded image; negative padding was cropped away, so it starts further in.
    dx = np.zeros((n, in_hw[0] + max(top, 0) + max(bottom, 0), in_hw[1] + max(left, 0) + max(right, 0), c), dy.dtype)
    for i, j in np.ndindex(kh, kw):
        h, v = i * at.dilation[0] + max(-top, 0), j * at.dilation[1] + max(-left, 0)
        tap = (dy * w[:, i, j, 0]).reshape(n, oh, ow, c, -1).sum(-1) if depthwise else taps[:, :, :, i, j]
        dx[:, h : h + (oh - 1) * sh + 1 : sh, v : v + (ow - 1) * sw + 1 : sw] += tap
    return (dx[:, max(top, 0) :, max(left, 0) :][:, : in_hw[0], : in_hw[1]],)


def _conv2d_dw_ref(dy: Array, x: Array, kernel: Pair, **attrs: Any) -> Sequence[Array]:
    at = Window.of(attrs)
    o, c = dy.shape[3], x.shape[3]
    shape = (o, *kernel, c // at.groups)
    if not _is_depthwise(shape, at.groups):
        columns = _columns(x, kernel, dy.shape[1:3], at)
        return ((_by_group(dy, at.groups).swapaxes(1, 2) @ columns).reshape(shape),)
    taps = _taps(_padded(x, at.padding), kernel, dy.shape[1:3], at)
    dw = np.empty(shape, dy.dtype)
    for i, j in np.ndindex(*kernel):
        tap = np.repeat(taps[:, :, :, i, j], o // c, axis=3)
        dw[:, i, j, 0] = np.einsum("nhwo,nhwo->o", dy, tap)
    return (dw,)


# Records


def _conv2d_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    x, w = ins[:2]
    out = _checked("conv2d", ins, Window.of(attrs), x.shape, w.shape)
    _check_bias("conv2d", ins, w.shape[0])
    return [((x.shape[0], *out, w.shape[0]), DType.F32)]


def _conv2d_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    dy, (x, w, *bias) = str(dys[0]), node.ins
    return [
        b.add("conv2d_dx", dy, w, in_hw=b[x].shape[1:3], **node.attrs) if b.need(x) else None,
        b.add("conv2d_dw", dy, x, kernel=b[w].shape[1:3], **node.attrs) if b.need(w) else None,
        *[b.add("bias_dw", dy) if b.need(name) else None for name in bias],
    ]


def _macs(y: Shape, w: Shape) -> Dim:
    return size((*y, *w[1:]))


_SAME: Padding = ((1, 1), (1, 1))

# Image, weight, attributes. Each op below is tried on all of them.
_SETTINGS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((N, 6, 5, 3), (4, 3, 3, 3), {"padding": _SAME}),
    ((N, 5, 7, 16), (9, 3, 3, 16), {"padding": _SAME, "stride": (2, 2)}),
    ((1, 4, 4, 35), (20, 1, 1, 35), {}),  # 1×1
    ((N, 7, 6, 5), (3, 1, 1, 5), {"stride": (2, 3)}),  # 1×1 that skips pixels
    ((N, 9, 8, 2), (6, 3, 2, 2), {"dilation": (2, 3), "padding": ((2, 1), (0, 3))}),  # asymmetric
    ((1, 8, 7, 6), (9, 3, 3, 2), {"groups": 3, "padding": _SAME, "stride": (3, 2)}),  # bottom row unused
    ((N, 6, 6, 8), (8, 3, 3, 1), {"groups": 8, "padding": _SAME}),  # depthwise
    ((N, 7, 9, 11), (11, 5, 5, 1), {"groups": 11, "padding": ((2, 2), (2, 2)), "stride": (2, 2)}),
    ((2, 5, 4, 9), (18, 3, 3, 1), {"groups": 9, "padding": ((1, 0), (0, 1))}),  # two filters a channel
    ((1, 6, 13, 3), (6, 2, 9, 1), {"groups": 3, "dilation": (3, 1), "padding": ((0, 0), (4, 4)), "stride": (1, 2)}),
    ((N, 2, 3, 4), (5, 5, 4, 4), {"padding": ((2, 2), (2, 1))}),  # kernel larger than the image
    ((N, 3, 2, 4), (4, 2, 2, 4), {"padding": ((4, 5), (3, 6))}),  # windows wholly in the padding
    ((N, 2, 2, 10), (10, 3, 3, 1), {"groups": 10, "padding": ((4, 4), (5, 3))}),
    ((N, 6, 7, 1), (8, 3, 3, 1), {"padding": ((0, 0), (0, 0)), "stride": (2, 2)}),  # one input channel
    ((1, 3, 70, 8), (4, 1, 3, 8), {"padding": ((0, 0), (1, 1))}),
    ((1, 2, 90, 8), (8, 2, 3, 1), {"groups": 8, "padding": ((0, 1), (0, 2))}),
    ((1, 3, 3, 70), (66, 2, 2, 70), {"padding": ((1, 0), (1, 0))}),
    ((1, 5, 6, 3), (2, 2, 2, 3), {"padding": ((-1, 0), (1, -2))}),  # negative padding crops
)


def _channels(call: Call) -> Channels:
    """Of w[O,kh,kw,C/groups]."""
    w, groups = call.ins[1].shape, Window.of(call.attrs).groups
    return Channels(0, 3 if groups == 1 else 0 if w[3] == 1 and w[0] == groups else None)


def _transpose_channels(call: Call) -> Channels:
    """Of w[inputs,kh,kw,outputs/groups]."""
    w, groups = call.ins[1].shape, Window.of(call.attrs).groups
    return Channels(3 if groups == 1 else 0 if w[3] == 1 and w[0] == groups else None, 0)


def _out(x: Shape, w: Shape, attrs: Mapping[str, Any]) -> Shape:
    return (x[0], *Window.of(attrs).out_hw(_fixed(x[1:3]), _fixed(w[1:3])), w[0])


define(
    "conv2d", doc="y[n,oh,ow,o] = Σ x[n, oh·sh−top+kh·dh, ow·sw−left+kw·dw, c] w[o,kh,kw,c] (+ b[o])",
    operands={1: "weight", 2: "bias"}, zero_bias=True,
    stored=Stored(1, int8="conv2d_w8", slice="conv2d_put"), rows=_rows, integer=Integer("layer", "qconv2d"),
    channels=_channels,
    scaled_weight=lambda w, a, attrs: w * a[:, None, None, None],
    infer=_conv2d_infer, ref=_conv2d_ref, vjp=_conv2d_vjp,
    kernels={"f32": "conv2d_f32"},
    params=lambda call: _params(call.ins[0].shape, call.ins[1].shape, call.outs[0].shape, call.attrs),
    macs=lambda call: _macs(call.outs[0].shape, call.ins[1].shape), work=work.conv,
    cases=[
        case(x, w, *([(w[0],)] if i % 2 else []), **attrs) for i, (x, w, attrs) in enumerate(_SETTINGS)
    ],
)  # fmt: skip


def _conv2d_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return [(_image_shape("conv2d_dx", ins, attrs, attrs["in_hw"]), DType.F32)]


def _image_shape(op: str, ins: Sequence[Tensor], attrs: Mapping[str, Any], hw: Pair) -> Shape:
    """Shape of the image whose convolution with ins[1] has the shape of ins[0]; a third input is a bias for it."""
    (y, w), at = ins[:2], Window.of(attrs)
    demands(op, ins)(len(y.shape) == len(w.shape) == 4, LAYOUT)
    x = (y.shape[0], *hw, w.shape[3] * at.groups)
    _checked(op, ins, at, x, w.shape, y.shape)
    _check_bias(op, ins, x[3])
    return x


def _dx_tiled(call: Call, count: int) -> Taken | None:
    """Channels of dx are inputs of w; of a depthwise convolution they are those of dy, too."""
    groups, (dy, w) = Window.of(call.attrs).groups, call.ins
    if groups == 1:
        return Taken(((1, 3),))
    return Taken(((0, 3), (1, 0)), {"groups": count}) if dy.shape[3] == w.shape[0] == groups else None


def _dx_adds(call: Call) -> Taken | None:
    """Where pixels of dx are those of dy, and there is one tap, it is a product of matrices."""
    at, (dy, w) = Window.of(call.attrs), call.ins
    is_pixel = dy.shape[:3] == call.outs[0].shape[:3] and tuple(w.shape[1:3]) == (1, 1) and at.groups == 1
    is_plain = is_pixel and tuple(at.stride) == (1, 1) and tuple(map(tuple, at.padding)) == ((0, 0), (0, 0))
    return Taken(((0, 3), (1, 0))) if is_plain else None


define(
    "conv2d_dx", doc="gradient of conv2d for its image of size in_hw: dx[N,H,W,C] from dy[N,OH,OW,O] and w",
    infer=_conv2d_dx_infer, ref=_conv2d_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "conv2d_dx_f32"}, stored=Stored(1, int8="conv2d_dx_w8", slice="conv2d_dx_put"),
    rows=_transpose_rows, tiled=_dx_tiled, adds_tiles=_dx_adds, tiles=DX_TILES,
    params=lambda call: _params(call.outs[0].shape, call.ins[1].shape, call.ins[0].shape, call.attrs),
    macs=lambda call: _macs(call.ins[0].shape, call.ins[1].shape), work=work.conv_dx,
    cases=[case(_out(x, w, attrs), w, in_hw=x[1:3], **attrs) for x, w, attrs in _SETTINGS],
)  # fmt: skip


def _conv2d_dw_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    (dy, x), at = ins, Window.of(attrs)
    check = demands("conv2d_dw", ins)
    check(len(dy.shape) == len(x.shape) == 4 and len(_fixed(x.shape[1:])) == 3, LAYOUT)
    check(at.groups >= 1, "groups must be positive")
    w = (dy.shape[3], *attrs["kernel"], _fixed(x.shape)[-1] // at.groups)
    _checked("conv2d_dw", ins, at, x.shape, w, dy.shape)
    return [(w, DType.F32)]


def _dw_taken(call: Call, count: int) -> Mapping[int, Taken]:
    """Channels of dy are outputs, those of x are inputs; of a depthwise convolution both are the same."""
    groups, (dy, x) = Window.of(call.attrs).groups, call.ins
    if groups == 1:
        return {0: Taken(((0, 3),)), 3: Taken(((1, 3),))}
    return {0: Taken(((0, 3), (1, 3)), {"groups": count})} if dy.shape[3] == x.shape[3] == groups else {}


define(
    "conv2d_dw", doc="gradient of conv2d for its weight of size kernel: dw[O,kh,kw,C/groups] from dy[N,OH,OW,O] and x",
    infer=_conv2d_dw_infer, ref=_conv2d_dw_ref, vjp=NOT_DIFFERENTIABLE, batchwise=True, sink=True,
    kernels={"f32": "conv2d_dw_f32"}, taken=_dw_taken, row_sums=_dw_sums,
    params=lambda call: _params(call.ins[1].shape, call.outs[0].shape, call.ins[0].shape, call.attrs),
    macs=lambda call: _macs(call.ins[0].shape, call.outs[0].shape), work=work.conv_dw,
    cases=[case(_out(x, w, attrs), x, kernel=w[1:3], **attrs) for x, w, attrs in _SETTINGS],
)  # fmt: skip


def _transpose_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return [(_image_shape("conv_transpose2d", ins, attrs, attrs["out_hw"]), DType.F32)]


def _transpose_ref(x: Array, w: Array, b: Array | None = None, *, out_hw: Pair, **attrs: Any) -> Sequence[Array]:
    (y,) = _conv2d_dx_ref(x, w, out_hw, **attrs)
    return (y if b is None else y + b,)


def _transpose_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    dy, (x, w, *bias) = str(dys[0]), node.ins
    window = {k: v for k, v in node.attrs.items() if k != "out_hw"}
    return [
        b.add("conv2d", dy, w, **window) if b.need(x) else None,
        b.add("conv2d_dw", x, dy, kernel=b[w].shape[1:3], **window) if b.need(w) else None,
        *[b.add("bias_dw", dy) if b.need(name) else None for name in bias],
    ]


def _transpose_scaled(w: Array, a: Array, attrs: Mapping[str, Any]) -> Array:
    """The results of group g are the last axis of the weight's rows of group g."""
    groups = Window.of(attrs).groups
    rows: Array = np.repeat(a.reshape(groups, -1), len(w) // groups, axis=0)
    return w * rows[:, None, None, :]


define(
    "conv_transpose2d", doc="y[N,H,W,C] = conv2d_dx(x[N,h,w,O], w[O,kh,kw,C/groups]) (+ b[C]), of size out_hw",
    operands={1: "weight", 2: "bias"}, zero_bias=True, scaled_weight=_transpose_scaled,
    stored=Stored(1, int8="conv_transpose2d_w8", slice="conv_transpose2d_put"), rows=_transpose_rows,
    channels=_transpose_channels,
    infer=_transpose_infer, ref=_transpose_ref, vjp=_transpose_vjp,
    kernels={"f32": "conv_transpose2d_f32"},
    params=lambda call: _params(call.outs[0].shape, call.ins[1].shape, call.ins[0].shape, call.attrs),
    macs=lambda call: _macs(call.ins[0].shape, call.ins[1].shape), work=work.conv_dx,
    cases=[
        case(_out(x, w, attrs), w, *([(x[3],)] if i % 2 else []), out_hw=x[1:3], **attrs)
        for i, (x, w, attrs) in enumerate(_SETTINGS)
    ],
)  # fmt: skip
