"""Windows of tensors (unfold, fold), and images resampled with wide filters (bicubic, antialiased)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....ir import Batch, DType, size
from .emit import Emit
from .layers import image, unimage
from .writer import Operand, Unsupported, aten, axis_of, static


@aten("im2col")
def im2col(
    t: Emit, x: Operand, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Operand:
    """F.unfold: (N, C, H, W) → (N, C·kh·kw, windows)."""
    windows = t.add("im2col", t.f32(image(t, x, 2)), kernel=tuple(kernel), **_window(dilation, padding, stride))
    return t.reshape(t.permute(windows, (0, 5, 3, 4, 1, 2)), t.out_shape)


@aten("col2im")
def col2im(
    t: Emit, x: Operand, output: Sequence[int], kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int],
    stride: Sequence[int],
) -> Operand:  # fmt: skip
    """F.fold: (N, C·kh·kw, windows) → (N, C, H, W), overlaps added."""
    *lead, rows, _ = t.shape(x)
    counts = [
        (output[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]  # fmt: skip
    channels = static((rows,))[0] // (kernel[0] * kernel[1])
    apart = t.reshape(x, (*(lead or [1]), channels, *kernel, *counts))
    windows = t.f32(t.permute(apart, (0, 4, 5, 2, 3, 1)))
    return unimage(t, t.add("col2im", windows, out_hw=tuple(output), **_window(dilation, padding, stride)))


def _window(dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]) -> dict[str, Any]:
    return {"dilation": tuple(dilation), "padding": tuple((p, p) for p in padding), "stride": tuple(stride)}


@aten("unfold")
def unfold(t: Emit, x: Operand, axis: int, length: int, step: int) -> Operand:
    """Windows along an axis; the window is the last axis of the result."""
    rank, shape = t.rank(x), t.shape(x)
    axis = axis_of(axis, rank)
    count = t.out_shape[axis]
    if isinstance(count, Batch):
        raise Unsupported("windows over the batch", "take windows along other axes")
    inner = size(shape[axis + 1 :])
    if step == length or isinstance(inner, Batch) or t.dtype(x) is not DType.F32:
        taken = t.take(x, axis, [k * step + i for k in range(count) for i in range(length)])
    else:
        lines = t.reshape(x, (size(shape[:axis]), shape[axis], 1, inner))
        taken = t.add("im2col", lines, kernel=(length, 1), stride=(step, 1), padding=((0, 0), (0, 0)), dilation=(1, 1))
    apart = t.reshape(taken, (*shape[:axis], count, length, *shape[axis + 1 :]))
    return t.permute(apart, (*range(axis + 1), *range(axis + 2, rank + 1), axis + 1))


def _resampled(filter: str) -> Any:
    """(x, size, align_corners, scale factors) → x resampled along its height, then along its width."""

    def rule(t: Emit, x: Operand, output: Any, align: bool, factors: Sequence[float] | None = None) -> Operand:
        y = t.f32(x)
        for axis, out, scale in zip((-2, -1), static(t.out_shape[-2:]), factors or (None, None), strict=True):
            kept = t.length(x, axis) == out and (align or not scale or scale == 1)
            how = {"filter": filter, "align_corners": bool(align), "scale": None if scale is None else float(scale)}
            y = y if kept else t.add("resample", y, axis=t.rank(x) + axis, out=out, **how)
        return y

    return rule


aten("upsample_bicubic2d.vec")(_resampled("cubic"))
aten("_upsample_bilinear2d_aa.vec")(_resampled("linear_aa"))
aten("_upsample_bicubic2d_aa.vec")(_resampled("cubic_aa"))
