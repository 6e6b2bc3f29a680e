"""Convolution, pooling, normalisation, attention, dropout, upsampling.

Torch keeps channels second, our ops keep them last: every rule permutes in and out, and a later pass cancels pairs.
One-dimensional versions run as images of height 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ....ir import DType, Role, size
from .emit import Emit
from .matrix import product
from .writer import TABLE, Operand, Unsupported, Value, aten, static


def image(t: Emit, x: Operand, spatial: int) -> Operand:
    """(N, C, H, W), or (N, C, L), or either without N → (N, H, W, C)."""
    shape = t.shape(x)
    lead = (1,) * (2 + spatial - len(shape)) + shape[: len(shape) - spatial]
    return channels_last(t, t.reshape(x, (*lead, *(1,) * (2 - spatial), *shape[len(shape) - spatial :])))


def unimage(t: Emit, y: Operand) -> Operand:
    """(N, H, W, C) → the shape of torch's result."""
    return t.reshape(channels_second(t, y), t.out_shape)


def channels_last(t: Emit, x: Operand) -> Operand:
    return t.permute(x, (0, *range(2, t.rank(x)), 1))


def channels_second(t: Emit, x: Operand) -> Operand:
    rank = t.rank(x)
    return t.permute(x, (0, rank - 1, *range(1, rank - 1)))


def pair(value: Any, spatial: int, missing: int) -> tuple[int, int]:
    """(height, width) of an option given as a number, one or two numbers; `missing` for the height of 1-d ops."""
    values = [value] if isinstance(value, int) else list(value)
    values = values * (spatial // len(values))
    return (missing, values[0]) if spatial == 1 else (values[0], values[1])


def out_hw(t: Emit, spatial: int) -> tuple[int, int]:
    height, width = static((1, *t.out_shape)[-2:]) if spatial == 2 else (1, *static(t.out_shape[-1:]))
    return height, width


# Convolution.


@aten("conv1d", "conv1d.padding", "conv2d", "conv2d.padding")
def conv(
    t: Emit, x: Operand, w: Operand, bias: Operand | None = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Operand:  # fmt: skip
    spatial = t.rank(w) - 2
    stride, dilation = pair(stride, spatial, 1), pair(dilation, spatial, 1)
    kernel = image(t, w, spatial)
    sides: list[tuple[int, int]] = []
    for axis, around in enumerate((0, 0) if padding == "valid" or padding == "same" else pair(padding, spatial, 0)):
        total = dilation[axis] * (t.length(kernel, 1 + axis) - 1)
        sides.append((total // 2, total - total // 2) if padding == "same" else (around, around))
    ins = [t.f32(image(t, x, spatial)), kernel, *([] if bias is None else [bias])]
    y = t.add("conv2d", *ins, stride=stride, padding=tuple(sides), dilation=dilation, groups=groups)
    return unimage(t, y)


@aten("convolution", "_convolution")
def convolution(
    t: Emit, x: Operand, w: Operand, bias: Operand | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *_: Any,
) -> Operand:  # fmt: skip
    if t.rank(w) == 5:
        rule = TABLE["conv_transpose3d" if transposed else "conv3d"]
        how = (output_padding, groups, dilation) if transposed else (dilation, groups)
        return rule(t, x, w, bias, stride, padding, *how)
    if transposed:
        return conv_transpose(t, x, w, bias, stride, padding, output_padding, groups, dilation)
    return conv(t, x, w, bias, stride, padding, dilation, groups)


@aten("conv_transpose1d", "conv_transpose2d")
def conv_transpose(
    t: Emit, x: Operand, w: Operand, bias: Operand | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Operand:  # fmt: skip
    spatial = t.rank(w) - 2
    stride, dilation = pair(stride, spatial, 1), pair(dilation, spatial, 1)
    around, extra = pair(padding, spatial, 0), pair(output_padding, spatial, 0)
    if any(e >= s for e, s in zip(extra, stride, strict=True) if e):
        raise Unsupported("an output_padding not below the stride", "pad the result with F.pad")
    # (Cin, Cout/groups, kh, kw) → (Cin, kh, kw, Cout/groups): the weight of the convolution this is the gradient of.
    ins = [t.f32(image(t, x, spatial)), image(t, w, spatial), *([] if bias is None else [bias])]
    y = t.add(
        "conv_transpose2d", *ins, out_hw=out_hw(t, spatial), stride=stride,
        padding=tuple((p, p) for p in around), dilation=dilation, groups=groups,
    )  # fmt: skip
    return unimage(t, y)


# Pooling and upsampling.


@aten("max_pool1d", "max_pool2d", "max_pool1d_with_indices", "max_pool2d_with_indices")
def max_pool(
    t: Emit, x: Operand, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    spatial = _spatial(t, kernel, x)
    y = t.add_many(
        "max_pool2d", t.f32(image(t, x, spatial)), kernel=pair(kernel, spatial, 1),
        stride=pair(stride or kernel, spatial, 1), padding=pair(padding, spatial, 0),
        dilation=pair(dilation, spatial, 1), out_hw=out_hw(t, spatial),
    )[0]  # fmt: skip
    return first_of(t, unimage(t, y), "max-pooling")


def _spatial(t: Emit, option: Any, x: Operand) -> int:
    return len(option) if isinstance(option, (list, tuple)) else t.rank(x) - 2


def first_of(t: Emit, y: Operand, what: str) -> Any:
    """Of torch's (values, indices) only the values exist here."""
    return y if len(t.node_shapes) == 1 else (y, Missing(f"the indices of {what}"))


class Missing:
    """A result that smidgen does not compute; reading it is an error."""

    def __init__(self, what: str) -> None:
        self.what = what


@aten("avg_pool1d", "avg_pool2d")
def avg_pool(
    t: Emit, x: Operand, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    count_include_pad: bool = True, divisor: int | None = None,
) -> Operand:  # fmt: skip
    spatial = _spatial(t, kernel, x)
    y = t.add(
        "avg_pool2d", t.f32(image(t, x, spatial)), kernel=pair(kernel, spatial, 1),
        stride=pair(stride or kernel, spatial, 1), padding=pair(padding, spatial, 0), out_hw=out_hw(t, spatial),
        count_include_pad=bool(count_include_pad), divisor=divisor,
    )  # fmt: skip
    return unimage(t, y)


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "_adaptive_avg_pool2d")
def adaptive_avg_pool(t: Emit, x: Operand, output: Any) -> Operand:
    spatial = len(output)
    return unimage(t, t.add("adaptive_avg_pool2d", t.f32(image(t, x, spatial)), out_hw=out_hw(t, spatial)))


@aten("adaptive_max_pool1d", "adaptive_max_pool2d")
def adaptive_max_pool(t: Emit, x: Operand, output: Any) -> Any:
    spatial = len(output)
    y = t.add_many("adaptive_max_pool2d", t.f32(image(t, x, spatial)), out_hw=out_hw(t, spatial))[0]
    return first_of(t, unimage(t, y), "adaptive max-pooling")


def _scale(factors: Sequence[float] | None) -> tuple[float, float] | None:
    if not factors:
        return None
    return (1.0, float(factors[0])) if len(factors) == 1 else (float(factors[0]), float(factors[1]))


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec")
def upsample_nearest(t: Emit, x: Operand, output: Any, factors: Any = None) -> Operand:
    spatial = t.rank(x) - 2
    ins = t.f32(image(t, x, spatial))
    return unimage(t, t.add("upsample_nearest2d", ins, out_hw=out_hw(t, spatial), scale=_scale(factors)))


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec")
def upsample_bilinear(t: Emit, x: Operand, output: Any, align: bool, factors: Any = None) -> Operand:
    spatial = t.rank(x) - 2
    y = t.add(
        "upsample_bilinear2d", t.f32(image(t, x, spatial)), out_hw=out_hw(t, spatial), align_corners=bool(align),
        scale=_scale(factors),
    )  # fmt: skip
    return unimage(t, y)


# Normalisation.


def _affine(t: Emit, w: Operand | None, bias: Operand | None, shape: Sequence[int]) -> tuple[Operand, Operand]:
    ones, zeros = torch.ones(*shape, dtype=torch.float64), torch.zeros(*shape, dtype=torch.float64)
    return (ones if w is None else w), (zeros if bias is None else bias)


@aten("batch_norm")
def batch_norm(
    t: Emit, x: Operand, w: Operand | None, bias: Operand | None, mean: Operand | None, var: Operand | None,
    training: bool, momentum: float, eps: float, *_: Any,
) -> Operand:  # fmt: skip
    """Over samples, whose statistics are used follows `bn`, not the module's mode. Over axes without samples (of a
    weight, say) `bn` has no meaning: torch's own argument decides."""
    samples = t.batch_axis(x) not in (None, 1)
    rows = t.f32(channels_last(t, x))
    tracked = mean is not None and var is not None
    own = not tracked or (t.bn == "batch" and t.training) or (training and not samples)
    if not own:
        gamma, beta = _affine(t, w, bias, static(t.shape(rows)[-1:]))
        stats = [t.value(s, Role.STAT) for s in (mean, var) if s is not None]
        return channels_second(t, t.add("batch_norm", rows, gamma, beta, *stats, eps=eps))
    if tracked and t.training:
        now, count = t.add_many("batch_stats", rows), size(t.shape(rows)[:-1])
        stats, use = [t.value(s, Role.STAT) for s in (mean, var) if s is not None], t.times_overwritten(mean)
        moved = t.add_many("running_stats", *stats, *now, momentum=float(momentum), count=count, use=use)
        t.overwritten(mean, moved[0])
        t.overwritten(var, moved[1])
    if not samples:
        return _standardised_channels(t, x, w, bias, eps)
    gamma, beta = _affine(t, w, bias, static(t.shape(rows)[-1:]))
    return channels_second(t, t.add("batch_norm_batch", rows, gamma, beta, eps=eps))


def _standardised_channels(t: Emit, x: Operand, w: Operand | None, bias: Operand | None, eps: float) -> Operand:
    """Each channel, axis 1, by its own mean and variance over all other axes, none of which holds samples."""
    first, channels, *rest = t.shape(x)
    swapped = x if first == 1 else t.permute(x, (1, 0, *range(2, t.rank(x))))
    rows = t.f32(t.reshape(swapped, (channels, size((first, *rest)))))
    y: Operand = t.add("layer_norm", rows, *_affine(t, None, None, [t.length(rows, 1)]), axes=1, eps=eps)
    for op, vector in ((t.times, w), (t.plus, bias)):
        y = y if vector is None else op(y, t.reshape(vector, (channels, 1)))
    if first == 1:
        return t.reshape(y, t.shape(x))
    return t.permute(t.reshape(y, t.shape(swapped)), (1, 0, *range(2, t.rank(x))))


@aten("instance_norm")
def instance_norm(
    t: Emit, x: Operand, w: Operand | None, bias: Operand | None, mean: Operand | None, var: Operand | None,
    own: bool, momentum: float, eps: float, *_: Any,
) -> Operand:  # fmt: skip
    rows = t.f32(channels_last(t, x))
    channels = static(t.shape(rows)[-1:])
    gamma, beta = _affine(t, w, bias, channels)
    if own and mean is not None:
        raise Unsupported("running statistics of single images", "InstanceNorm with track_running_stats=False")
    if not own and mean is not None and var is not None:
        stats = [t.value(s, Role.STAT) for s in (mean, var)]
        return channels_second(t, t.add("batch_norm", rows, gamma, beta, *stats, eps=eps))
    return channels_second(t, t.add("group_norm", rows, gamma, beta, groups=channels[0], eps=eps))


@aten("layer_norm", "native_layer_norm")
def layer_norm(
    t: Emit, x: Operand, shape: Sequence[int], w: Operand | None = None, bias: Operand | None = None,
    eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    gamma, beta = _affine(t, w, bias, static(shape))
    y = t.add("layer_norm", t.f32(x), gamma, beta, axes=len(shape), eps=eps)
    return y if len(t.node_shapes) == 1 else (y, Missing("the mean of layer_norm"), Missing("the rstd of layer_norm"))


@aten("group_norm")
def group_norm(
    t: Emit, x: Operand, groups: int, w: Operand | None = None, bias: Operand | None = None, eps: float = 1e-5, *_: Any
) -> Operand:
    rows = t.f32(channels_last(t, x))
    gamma, beta = _affine(t, w, bias, static(t.shape(rows)[-1:]))
    return channels_second(t, t.add("group_norm", rows, gamma, beta, groups=groups, eps=eps))


@aten("rms_norm")
def rms_norm(t: Emit, x: Operand, shape: Sequence[int], w: Operand | None = None, eps: float | None = None) -> Any:
    axes = list(range(t.rank(x) - len(shape), t.rank(x)))
    small = torch.finfo(t.node_dtypes[0]).eps if eps is None else eps
    power = t.plus(t.reduce("mean", t.add("square", t.f32(x)), axes, True), small)
    y = t.times(x, t.add("rsqrt", power))
    return y if w is None else t.times(y, w)


# Attention and dropout.


@aten("scaled_dot_product_attention")
def attention(
    t: Emit, q: Operand, k: Operand, v: Operand, mask: Operand | None = None, p: float = 0.0, causal: bool = False,
    scale: float | None = None, gqa: bool = False,
) -> Any:  # fmt: skip
    """softmax(q·kᵀ·scale + mask)·v; rows whose every key is masked give 0, as in torch."""
    if gqa:
        raise Unsupported("grouped-query attention", "keys and values repeated over the heads, enable_gqa=False")
    lead = t.shape(q)[:-2]
    k, v = (t.expand(x, (*lead, *t.shape(x)[-2:])) for x in (k, v))
    scores = product(t, t.times(q, 1 / math.sqrt(t.length(q, -1)) if scale is None else scale), k, tb=True)
    if causal:
        mask = torch.ones(static((t.shape(q)[-2], t.shape(k)[-2])), dtype=torch.bool).tril()
    allowed = None
    if mask is not None and t.dtype(mask) is DType.U8:
        allowed = mask
        scores = t.add("where", allowed, scores, t.constant(-1e30))
    elif mask is not None:
        scores = t.plus(scores, mask)
    weights = t.add("softmax", scores, axis=t.rank(scores) - 1)
    if allowed is not None and not (isinstance(allowed, torch.Tensor) and bool(allowed.any(-1).all())):
        weights = t.add("where", allowed, weights, t.constant(0.0))
    return product(t, t.dropout(weights, p) if p else weights, v)


@aten("dropout", "native_dropout")
def dropout(t: Emit, x: Operand, p: float, train: bool | None = True) -> Any:
    y = _dropped(t, x, p, bool(train), "dropout")
    return y if len(t.node_shapes) == 1 else (y, Missing("the mask of dropout"))


@aten("feature_dropout")
def feature_dropout(t: Emit, x: Operand, p: float, train: bool) -> Operand:
    if t.rank(x) < 3:
        raise Unsupported("dropout of channels needs an axis after the channels", "F.dropout")
    return channels_second(t, _dropped(t, channels_last(t, x), p, train, "feature_dropout"))


def _dropped(t: Emit, x: Operand, p: float, train: bool, op: str) -> Operand:
    if not train or not p:
        return x
    return t.times(x, 0.0) if p == 1 else Value(t.dropout(x, p, op))


@aten("alpha_dropout", "feature_alpha_dropout")
def alpha_dropout(t: Emit, x: Operand, p: float, train: bool) -> Operand:
    if train and p:
        raise Unsupported("dropout that keeps mean and variance", "F.dropout")
    return x
