"""Row-major strides with batch-sized axes, and the parameters of the one strided-copy kernel."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Batch, Dim, Shape
from .registry import Param


def strides(shape: Shape) -> list[Dim]:
    """Elements to step for each axis of a dense tensor."""
    step: Dim = 1
    found: list[Dim] = []
    for dim in reversed(shape):
        found.append(step)
        # A batch-sized axis is counted once: axes of size one never step.
        step = dim * step if isinstance(dim, Batch) else step * dim
    return found[::-1]


def merged(dims: Sequence[Dim], *steps: Sequence[Dim]) -> tuple[list[Dim], list[list[Dim]]]:
    """The same walk with fewer axes: size-one axes dropped, neighbours joined where every stride allows it."""
    out_dims: list[Dim] = []
    out_steps: list[list[Dim]] = [[] for _ in steps]
    for i, dim in enumerate(dims):
        if dim == 1:
            continue
        here = [s[i] for s in steps]
        if out_dims and all(prev[-1] == _times(step, dim) for prev, step in zip(out_steps, here, strict=True)):
            out_dims[-1] = _times(out_dims[-1], dim)
            for prev, step in zip(out_steps, here, strict=True):
                prev[-1] = step
        else:
            out_dims.append(dim)
            for prev, step in zip(out_steps, here, strict=True):
                prev.append(step)
    return out_dims, out_steps


def _times(a: Dim, b: Dim) -> Dim | None:  # type: ignore[return]
    if isinstance(a, Batch) and isinstance(b, Batch):
        return None
    return a * b  # type: ignore[operator]


def copy_params(
    dims: Sequence[Dim], src: Sequence[Dim], dst: Sequence[Dim], src_at: Dim = 0, dst_at: Dim = 0
) -> Sequence[Param]:
    """For `copy_b4`/`copy_b1`: rank, src_at, dst_at, dims, src strides, dst strides; all in elements."""
    walk, (src_steps, dst_steps) = merged(dims, src, dst)
    return [len(walk), src_at, dst_at, *walk, *src_steps, *dst_steps]
