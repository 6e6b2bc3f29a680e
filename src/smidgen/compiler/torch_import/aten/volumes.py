"""Convolution, pooling and upsampling of volumes (N, C, D, H, W), by ops for images.

Frames (height and width) are images of their own; depth is the height of an image as wide as a frame has pixels. What
is separable runs over frames, then over depth. A convolution takes the frames under its kernel as further channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....ir import Dim, size
from .emit import Emit
from .layers import channels_second, first_of
from .writer import Operand, Unsupported, aten, static

Pair = tuple[int, int]


def triple(value: Any) -> tuple[int, int, int]:
    values = [value] if isinstance(value, int) else list(value)
    depth, height, width = values * (3 // len(values))
    return depth, height, width


def volume(t: Emit, x: Operand) -> Operand:
    """(N, C, D, H, W), or without N → (N, D, H, W, C)."""
    batched = t.reshape(x, (1,) * (5 - t.rank(x)) + t.shape(x))
    return t.f32(t.permute(batched, (0, 2, 3, 4, 1)))


def unvolume(t: Emit, y: Operand) -> Operand:
    return t.reshape(channels_second(t, y), t.out_shape)


def frames(t: Emit, x: Operand) -> Operand:
    """(N, D, H, W, C) → (N·D, H, W, C)."""
    n, d, *rest = t.shape(x)
    return t.reshape(x, (size((n, d)), *rest))


def depths(t: Emit, x: Operand) -> Operand:
    """(N, D, H, W, C) → (N, D, H·W, C): depth as the height of an image."""
    n, d, h, w, c = t.shape(x)
    return t.reshape(x, (n, d, size((h, w)), c))


# Convolution.


@aten("conv3d", "conv3d.padding")
def conv3d(
    t: Emit, x: Operand, w: Operand, bias: Operand | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Operand:  # fmt: skip
    stride, dilation = triple(stride), triple(dilation)
    kernel = static(t.shape(w)[2:])
    sides = _sides(padding, kernel, dilation)
    outs, inner = static(t.shape(w)[:2])
    x = volume(t, x)
    n, d, *hw, c = t.shape(x)
    taps = t.permute(w, (0, 3, 4, 2, 1))  # outputs, kh, kw, kd, inputs of a group
    plain = {"groups": groups}
    more = [] if bias is None else [bias]
    if kernel[1:] == stride[1:] == (1, 1) and sides[1:] == [(0, 0), (0, 0)]:
        deep = t.reshape(t.permute(taps, (0, 3, 1, 2, 4)), (outs, kernel[0], 1, inner))
        y = t.add("conv2d", depths(t, x), deep, *more, **_along_depth(stride, sides, dilation), **plain)
        return unvolume(t, t.reshape(y, (n, t.shape(y)[1], *hw, outs)))
    count: Dim = d
    if kernel[0] > 1 or stride[0] > 1 or any(sides[0]):
        flat = t.reshape(x, (n, d, 1, size((*hw, c))))
        x = t.add("im2col", flat, kernel=(kernel[0], 1), **_along_depth(stride, sides, dilation))
        count = t.shape(x)[1]
    apart = t.permute(t.reshape(x, (n, count, kernel[0], *hw, groups, inner)), (0, 1, 3, 4, 5, 2, 6))
    images = t.reshape(apart, (size((n, count)), *hw, groups * kernel[0] * inner))
    flat_taps = t.reshape(taps, (outs, *kernel[1:], kernel[0] * inner))
    over = {"stride": stride[1:], "padding": tuple(sides[1:]), "dilation": dilation[1:]}
    y = t.add("conv2d", images, flat_taps, *more, **over, **plain)
    return unvolume(t, t.reshape(y, (n, count, *t.shape(y)[1:])))


def _sides(padding: Any, kernel: Sequence[int], dilation: Sequence[int]) -> list[Pair]:
    """Padding before and after, of each axis."""
    if padding == "valid":
        return [(0, 0)] * 3
    if padding == "same":
        totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return [(total // 2, total - total // 2) for total in totals]
    return [(p, p) for p in triple(padding)]


def _along_depth(stride: Sequence[int], sides: Sequence[Pair], dilation: Sequence[int]) -> dict[str, Any]:
    """Options for depth as the height of an image."""
    return {"stride": (stride[0], 1), "padding": (sides[0], (0, 0)), "dilation": (dilation[0], 1)}


@aten("conv_transpose3d")
def conv_transpose3d(
    t: Emit, x: Operand, w: Operand, bias: Operand | None = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Operand:  # fmt: skip
    """Every frame is transposed for all frames that it reaches, which are then added up."""
    stride, dilation, sides = triple(stride), triple(dilation), [(p, p) for p in triple(padding)]
    if any(e >= s for e, s in zip(triple(output_padding), stride, strict=True) if e):
        raise Unsupported("an output_padding not below the stride", "pad the result with F.pad")
    kernel, (ins, outs) = static(t.shape(w)[2:]), static(t.shape(w)[:2])
    depth, *hw = static(t.out_shape[-3:])
    x = volume(t, x)
    n, d = t.shape(x)[:2]
    taps = t.reshape(t.permute(w, (0, 3, 4, 2, 1)), (ins, *kernel[1:], kernel[0] * outs))
    over = {"stride": stride[1:], "padding": tuple(sides[1:]), "dilation": dilation[1:], "groups": groups}
    y = t.add("conv_transpose2d", frames(t, x), taps, out_hw=tuple(hw), **over)
    apart = t.permute(t.reshape(y, (n, d, *hw, groups, kernel[0], outs)), (0, 1, 5, 2, 3, 4, 6))
    reached = t.reshape(apart, (n, d, 1, kernel[0], 1, size((*hw, groups * outs))))
    total = t.add("col2im", reached, out_hw=(depth, 1), **_along_depth(stride, sides, dilation))
    whole = t.reshape(total, (n, depth, *hw, groups * outs))
    return unvolume(t, whole if bias is None else t.plus(whole, bias))


# What is separable.

Stage = Callable[[Operand, Pair, int], Operand]
"""(image, its height and width in the end, 0 over frames and 1 over depth) → the image in the end."""


def _over_both(t: Emit, x: Operand, stage: Stage) -> Operand:
    """Over frames, then over depth."""
    x = volume(t, x)
    n, d, _, _, c = t.shape(x)
    depth, *hw = static(t.out_shape[-3:])
    flat = t.reshape(stage(frames(t, x), (hw[0], hw[1]), 0), (n, d, *hw, c))
    deep = stage(depths(t, flat), (depth, hw[0] * hw[1]), 1)
    return unvolume(t, t.reshape(deep, (n, depth, *hw, c)))


def _parts(value: Any, missing: int) -> tuple[Pair, Pair]:
    """An option of the stage over frames and of that over depth."""
    depth, height, width = triple(value)
    return (height, width), (depth, missing)


@aten("max_pool3d", "max_pool3d_with_indices")
def max_pool3d(
    t: Emit, x: Operand, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    kernels, strides, sides, spread = (
        _parts(v, missing) for v, missing in ((kernel, 1), (stride or kernel, 1), (padding, 0), (dilation, 1))
    )

    def stage(image: Operand, out: Pair, k: int) -> Operand:
        return t.add_many("max_pool2d", image, kernel=kernels[k], stride=strides[k], padding=sides[k],
                          dilation=spread[k], out_hw=out)[0]  # fmt: skip

    return first_of(t, _over_both(t, x, stage), "max-pooling")


@aten("avg_pool3d")
def avg_pool3d(
    t: Emit, x: Operand, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    count_include_pad: bool = True, divisor: int | None = None,
) -> Operand:  # fmt: skip
    kernels, strides, sides = (_parts(v, m) for v, m in ((kernel, 1), (stride or kernel, 1), (padding, 0)))
    divisors = (divisor, divisor and 1)

    def stage(image: Operand, out: Pair, k: int) -> Operand:
        return t.add("avg_pool2d", image, kernel=kernels[k], stride=strides[k], padding=sides[k], out_hw=out,
                     count_include_pad=bool(count_include_pad), divisor=divisors[k])  # fmt: skip

    return _over_both(t, x, stage)


@aten("adaptive_avg_pool3d", "_adaptive_avg_pool3d")
def adaptive_avg_pool3d(t: Emit, x: Operand, output: Any) -> Operand:
    return _over_both(t, x, lambda image, out, k: t.add("adaptive_avg_pool2d", image, out_hw=out))


@aten("adaptive_max_pool3d")
def adaptive_max_pool3d(t: Emit, x: Operand, output: Any) -> Any:
    y = _over_both(t, x, lambda image, out, k: t.add_many("adaptive_max_pool2d", image, out_hw=out)[0])
    return first_of(t, y, "adaptive max-pooling")


def _scales(factors: Sequence[float] | None) -> tuple[Any, Any]:
    if not factors:
        return None, None
    depth, height, width = (float(f) for f in factors)
    return (height, width), (depth, 1.0)


@aten("upsample_nearest3d.vec")
def upsample_nearest3d(t: Emit, x: Operand, output: Any, factors: Any = None) -> Operand:
    scale = _scales(factors)
    return _over_both(t, x, lambda image, out, k: t.add("upsample_nearest2d", image, out_hw=out, scale=scale[k]))


@aten("upsample_trilinear3d.vec")
def upsample_trilinear3d(t: Emit, x: Operand, output: Any, align: bool, factors: Any = None) -> Operand:
    scale = _scales(factors)

    def stage(image: Operand, out: Pair, k: int) -> Operand:
        return t.add("upsample_bilinear2d", image, out_hw=out, align_corners=bool(align), scale=scale[k])

    return _over_both(t, x, stage)
