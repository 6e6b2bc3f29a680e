"""Row-major strides with batch-sized axes, and the parameters of strided walks: copies, broadcasts, reductions.

Axes are joined here, from shapes alone, never in C from the sizes at hand: a kernel's order of summation, and so its
bits, must not depend on how many samples there happen to be.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import BadShape
from ..ir import Batch, BatchSquared, Dim, Shape, size
from .registry import N, Param

MAX_RANK = 8  # SMG_MAX_RANK
MAX_GROUPS = 4  # of kept and of reduced axes, where a kernel's parameters have a fixed count


def show(shape: Sequence[Dim]) -> str:
    """A shape as messages print it: [n,3]."""
    return f"[{','.join(str(d) for d in shape)}]"


def times(a: Dim, b: Dim) -> Dim:
    """a·b; a stride of zero stays the int 0 over a batch-sized axis."""
    if a == 0 or b == 0:
        return 0
    if isinstance(a, Batch):
        if isinstance(b, Batch):
            raise BatchSquared
        return a * b
    return b * a if isinstance(b, Batch) else a * b


def strides(shape: Shape) -> list[Dim]:
    """Elements to step for each axis of a dense tensor."""
    step: Dim = 1
    found: list[Dim] = []
    for dim in reversed(shape):
        found.append(step)
        step = size((step, dim))
    return found[::-1]


class TooManyAxes(BadShape):
    """A kernel cannot walk so; compiler/passes/few_axes.py takes it in several walks where it knows how."""


def joined(dims: Sequence[Dim], *steps: Sequence[Dim]) -> tuple[list[Dim], list[list[Dim]]]:
    """The same walk with fewer axes: size-one axes dropped, neighbours joined where every stride allows it."""
    out_dims: list[Dim] = []
    out_steps: list[list[Dim]] = [[] for _ in steps]
    for i, dim in enumerate(dims):
        if dim == 1:
            continue
        here = [s[i] for s in steps]
        if out_dims and all(_joins(prev[-1], step, dim) for prev, step in zip(out_steps, here, strict=True)):
            out_dims[-1] = size((out_dims[-1], dim))
            for prev, step in zip(out_steps, here, strict=True):
                prev[-1] = step
        else:
            out_dims.append(dim)
            for prev, step in zip(out_steps, here, strict=True):
                prev.append(step)
    return out_dims, out_steps


def merged(dims: Sequence[Dim], *steps: Sequence[Dim]) -> tuple[list[Dim], list[list[Dim]]]:
    """`joined`, within what kernels walk along."""
    out_dims, out_steps = joined(dims, *steps)
    if len(out_dims) > MAX_RANK:
        raise TooManyAxes(
            f"{show(dims)} has more than {MAX_RANK} axes that cannot be joined",
            why=f"axes that lie and move together count as one; a kernel walks along {MAX_RANK}",
            help="flatten axes that are not needed one by one, or do it in two steps with fewer axes each",
        )
    return out_dims, out_steps


def _joins(outer_step: Dim, step: Dim, dim: Dim) -> bool:
    """One step of the outer axis is a whole walk along the inner one."""
    return not (isinstance(step, Batch) and isinstance(dim, Batch)) and outer_step == times(step, dim)


def copy_params(
    dims: Sequence[Dim],
    src: Sequence[Dim],
    dst: Sequence[Dim],
    src_at: Dim = 0,
    dst_at: Dim = 0,
    src_size: Dim = 0,
    dst_size: Dim = 0,
) -> Sequence[Param]:
    """For `copy_b4`/`copy_b1`, all in elements; a size is needed only if the walk stops before the operand ends."""
    walk, (src_steps, dst_steps) = merged(dims, src, dst)
    return [len(walk), src_at, dst_at, src_size, dst_size, *walk, *src_steps, *dst_steps]


def broadcast(what: str, *shapes: Shape) -> Shape:
    """The shape numpy would broadcast to; an axis that grows with the batch matches itself or 1."""
    rank = max(len(s) for s in shapes)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            if out[i] == 1:
                out[i] = dim
            elif dim not in (1, out[i]):
                raise BadShape(
                    f"{what} cannot broadcast {' with '.join(show(s) for s in shapes)}",
                    why=f"axis {i - rank} has both {out[i]} and {dim}; sizes must be equal or 1",
                    help="reshape one of them so that its axes stand where those of the other do",
                )
    return tuple(out)


def broadcast_strides(shape: Shape, to: Shape) -> list[Dim]:
    """Strides that walk `shape` as if it had been broadcast to `to`."""
    own = [0 if dim == 1 else step for dim, step in zip(shape, strides(shape), strict=True)]
    return [0] * (len(to) - len(shape)) + own


def broadcast_params(out: Shape, *shapes: Shape) -> list[Param]:
    """rank, dims, then the strides of each input; the output is dense."""
    walk, steps = merged(out, *[broadcast_strides(s, out) for s in shapes])
    return [len(walk), *walk, *[step for own in steps for step in own]]


def lines(shape: Shape, axis: int) -> list[Param]:
    """outer, length, inner: the tensor as lines along one axis."""
    return [size(shape[:axis]), shape[axis], size(shape[axis + 1 :])]


Group = tuple[Dim, Dim]
"""Size and stride of neighbouring axes that share a fate."""


def _groups(axes: Sequence[tuple[Dim, Dim, bool]]) -> tuple[list[Group], list[Group]]:
    """(size, stride, reduced) of each axis → kept and reduced groups.

    Reduced axes with a kept one between them stay apart even if that one has size 1: it may be the batch axis of a
    graph that runs sample by sample, and both must add in the same order.
    """
    found: list[tuple[Dim, Dim, bool]] = []
    for dim, step, reduced in axes:
        if found and found[-1][2] == reduced and _joins(found[-1][1], step, dim):
            found[-1] = (size((found[-1][0], dim)), step, reduced)
        else:
            found.append((dim, step, reduced))
    sides = [[(dim, step) for dim, step, reduced in found if reduced == side and dim != 1] for side in (False, True)]
    return sides[0], sides[1]


def _group_params(*sides: list[Group]) -> list[Param]:
    columns = [[group[column] for group in side] for side in sides for column in (0, 1)]
    return [*[len(side) for side in sides], *[value for column in columns for value in column]]


def reduce_params(shape: Shape, axes: Sequence[int]) -> list[Param]:
    """Counts of kept and reduced groups, then their sizes and strides."""
    steps = strides(shape)
    return _group_params(*_groups([(dim, steps[i], i in axes) for i, dim in enumerate(shape)]))


def batch_reduce_params(shape: Shape, axes: Sequence[int]) -> list[Param]:
    """Samples and the stride between them, then `reduce_params` of one sample, padded to a fixed count."""
    entries: list[tuple[Dim, Dim, bool]] = []
    sample_step: Dim = 0
    for i, (dim, step) in enumerate(zip(shape, strides(shape), strict=True)):
        if isinstance(dim, Batch):
            sample_step = times(step, dim.times)
            entries.append((dim.times, step, True))
        else:
            entries.append((dim, step, i in axes))
    sides = _groups(entries)
    if max(map(len, sides)) > MAX_GROUPS:
        raise BadShape(
            f"summing {show(shape)} over axes {list(axes)} alternates kept and summed axes too often",
            why=f"a kernel takes at most {MAX_GROUPS} of either kind",
            help="permute the summed axes next to each other first",
        )
    return [N, sample_step, *_group_params(*[[(1, 0)] * (MAX_GROUPS - len(side)) + side for side in sides])]
