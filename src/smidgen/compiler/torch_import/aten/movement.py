"""Torch ops that move or create elements, translated to reshape, permute, expand, slice, concat, pad and fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ....ir import Batch, Dim, DType
from .emit import Emit
from .writer import Complex, Operand, Unsupported, aten, axis_of

LAST = 9223372036854775807

RESHAPES = (
    "view", "reshape", "_unsafe_view", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze",
    "atleast_1d", "atleast_2d", "atleast_3d", "view_copy",
)  # fmt: skip
COPIES = ("clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh", "lift", "positive", "resolve_conj")
PERMUTES = (
    "permute", "transpose", "swapaxes", "swapdims", "t", "numpy_T", "mT", "adjoint", "mH", "movedim", "moveaxis",
)  # fmt: skip
SLICES = ("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "tensor_split", "unbind", "unsafe_chunk")


@aten(*RESHAPES)
def reshape(t: Emit, x: Operand, *_: Any) -> Operand:
    return t.reshape(x, t.out_shape)


@aten(*COPIES)
def same(t: Emit, x: Operand, *_: Any) -> Operand:
    return x


@aten("detach", "detach_copy")
def detach(t: Emit, x: Operand) -> Operand:
    return t.detach(x)


@aten("to", "_to_copy", "type_as", "to_copy")
def cast(t: Emit, x: Operand, *_: Any) -> Operand | Complex:
    kind = t.node_dtypes[0]
    if kind in (torch.float16, torch.bfloat16):
        raise Unsupported(f"it computes in {str(kind).removeprefix('torch.')}", "keep the model in float32")
    if kind.is_complex:
        return Complex(t.f32(x), t.fill(t.shape(x), 0.0))
    return t.cast(x, kind)


def perm_of(name: str, rank: int, args: Sequence[Any]) -> tuple[int, ...]:
    """The permutation that a torch op of PERMUTES means."""
    axes = list(range(rank))
    if name == "permute":
        return tuple(axis_of(a, rank) for a in args[0])
    if name in ("transpose", "swapaxes", "swapdims"):
        i, j = axis_of(args[0], rank), axis_of(args[1], rank)
        axes[i], axes[j] = axes[j], axes[i]
    elif name in ("t", "numpy_T"):
        axes.reverse()
    elif name in ("mT", "mH", "adjoint"):
        axes[-2:] = [rank - 1, rank - 2]
    else:
        from_, to = ([a] if isinstance(a, int) else list(a) for a in args[:2])
        placed = {axis_of(d, rank): axis_of(s, rank) for s, d in zip(from_, to, strict=True)}
        rest = iter([a for a in axes if a not in placed.values()])
        axes = [placed[i] if i in placed else next(rest) for i in axes]
    return tuple(axes)


def _permute(name: str) -> Any:
    return lambda t, x, *args: t.permute(x, perm_of(name, t.rank(x), args))


for _name in PERMUTES:
    aten(_name)(_permute(_name))


@aten("expand", "expand_as", "broadcast_to")
def expand(t: Emit, x: Operand, *_: Any) -> Operand:
    return t.expand(x, t.out_shape)


@aten("broadcast_tensors")
def broadcast_tensors(t: Emit, xs: Sequence[Operand]) -> list[Operand]:
    return [t.expand(x, s) for x, s in zip(xs, t.node_shapes, strict=True)]


@aten("repeat")
def repeat(t: Emit, x: Operand, times: Sequence[Dim]) -> Operand:
    pairs = list(zip(times, (1,) * (len(times) - t.rank(x)) + t.shape(x), strict=True))
    # An axis of size 1, or one that is not repeated, needs no second axis beside it.
    apart = t.reshape(x, [d for r, dim in pairs for d in ((dim,) if 1 in (r, dim) else (1, dim))])
    wide = t.expand(apart, [d for r, dim in pairs for d in ((r if dim == 1 else dim,) if 1 in (r, dim) else (r, dim))])
    return t.reshape(wide, t.out_shape)


@aten("repeat_interleave.self_int")
def repeat_interleave(t: Emit, x: Operand, times: int, axis: int | None = None, *_: Any) -> Operand:
    if axis is None:
        raise Unsupported("repeat_interleave without a dim", "give it a dim")
    shape, at = t.shape(x), axis_of(axis, t.rank(x)) + 1
    wide = t.expand(t.reshape(x, (*shape[:at], 1, *shape[at:])), (*shape[:at], times, *shape[at:]))
    return t.reshape(wide, t.out_shape)


@aten("cat", "concat", "concatenate")
def cat(t: Emit, xs: Sequence[Operand], axis: int = 0) -> Operand:
    kept = [x for x in xs if t.shape(x) != (0,)]  # torch lets empty tensors join anything
    return t.concat(kept, axis_of(axis, t.rank(kept[0])))


@aten("stack")
def stack(t: Emit, xs: Sequence[Operand], axis: int = 0) -> Operand:
    at = axis_of(axis, t.rank(xs[0]) + 1)
    return t.concat([t.reshape(x, (*t.shape(x)[:at], 1, *t.shape(x)[at:])) for x in xs], at)


@aten("hstack", "vstack", "dstack", "column_stack")
def join(t: Emit, xs: Sequence[Operand]) -> Operand:
    raise Unsupported("it hides which axis is joined", "torch.cat(…, dim) or torch.stack(…, dim)")


def ends(size: Dim, start: Dim | None, stop: Dim | None) -> tuple[Dim, Dim]:
    """Python's slice bounds, normalised; a bound beyond the end means the end."""
    start, stop = start or 0, LAST if stop is None else stop
    if isinstance(size, Batch):
        return start, size if stop == LAST else stop
    if isinstance(start, Batch) or isinstance(stop, Batch):
        return start, stop
    return slice(start, stop).indices(size)[:2]


def places(t: Emit, name: str, x: Operand, args: Sequence[Any], pick: int = 0) -> tuple[int, Dim, Dim, int]:
    """(axis, start, stop, step) that a torch op of SLICES reads; `pick` is the piece of those that return several."""
    rank, args = t.rank(x), list(args)
    if name == "slice":
        axis = axis_of(args[0] or 0, rank)
        start, stop = ends(t.shape(x)[axis], args[1], args[2])
        return axis, start, stop, args[3]
    axis = axis_of(args[0] if name in ("select", "narrow", "unbind") else args[1], rank)
    size = t.shape(x)[axis]
    if name in ("select", "unbind"):
        index = args[1] if name == "select" else pick
        if isinstance(size, Batch):
            raise Unsupported("one sample is picked out of the batch", "treat all samples alike")
        return axis, index % size, index % size + 1, 1
    if name == "narrow":
        return axis, args[1], args[1] + args[2], 1
    sizes = [shape[axis] for shape in t.node_shapes]
    return axis, sum(sizes[:pick]), sum(sizes[: pick + 1]), 1


@aten("slice", "narrow")
def slice_(t: Emit, x: Operand, *args: Any) -> Operand:
    name = "slice" if len(args) == 4 else "narrow"
    return t.slice(x, *places(t, name, x, args))


@aten("select")
def select(t: Emit, x: Operand, *args: Any) -> Operand:
    return t.reshape(t.slice(x, *places(t, "select", x, args)), t.out_shape)


@aten("split", "split_with_sizes", "chunk", "unsafe_chunk", "unsafe_split", "tensor_split")
def split(t: Emit, x: Operand, *args: Any) -> list[Operand]:
    return [t.slice(x, *places(t, "split", x, args, k)) for k in range(len(t.node_shapes))]


@aten("unbind")
def unbind(t: Emit, x: Operand, *args: Any) -> list[Operand]:
    return [t.reshape(t.slice(x, *places(t, "unbind", x, args, k)), s) for k, s in enumerate(t.node_shapes)]


@aten("slice_scatter")
def slice_scatter(t: Emit, x: Operand, piece: Operand, *args: Any) -> Operand:
    return t.put(x, piece, *places(t, "slice", x, args))


@aten("select_scatter")
def select_scatter(t: Emit, x: Operand, piece: Operand, *args: Any) -> Operand:
    at = places(t, "select", x, args)
    shape = list(t.shape(x))
    shape[at[0]] = 1
    return t.put(x, t.reshape(piece, shape), *at)


@aten("copy")
def copy(t: Emit, x: Operand, source: Operand, *_: Any) -> Operand:
    return t.expand(t.cast(source, t.node_dtypes[0]), t.shape(x))


@aten("flip")
def flip(t: Emit, x: Operand, axes: Sequence[int]) -> Operand:
    for axis in (axis_of(a, t.rank(x)) for a in axes):
        x = t.take(x, axis, _indices(t, x, axis)[::-1])
    return x


@aten("roll")
def roll(t: Emit, x: Operand, shifts: Sequence[int], axes: Sequence[int] = ()) -> Operand:
    if not axes:
        raise Unsupported("roll without dims", "give it dims")
    for shift, axis in zip(shifts, (axis_of(a, t.rank(x)) for a in axes), strict=True):
        at = _indices(t, x, axis)
        cut = -shift % len(at)
        x = t.take(x, axis, [*at[cut:], *at[:cut]])
    return x


def _indices(t: Emit, x: Operand, axis: int) -> list[int]:
    size = t.shape(x)[axis]
    if isinstance(size, Batch):
        raise Unsupported("it reorders the samples of a batch", "shuffle the data, not the batch")
    return list(range(size))


@aten("constant_pad_nd")
def constant_pad_nd(t: Emit, x: Operand, pads: Sequence[int], value: float = 0) -> Operand:
    return pad(t, x, pads, "constant", value)


for _name in ("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"):
    _mode = "reflect" if _name.startswith("reflection") else "replicate"
    aten(_name)(lambda t, x, pads, mode=_mode: pad(t, x, pads, mode))


@aten("pad")
def pad(t: Emit, x: Operand, pads: Sequence[int], mode: str = "constant", value: float | None = None) -> Operand:
    rank = t.rank(x)
    sides = [(0, 0)] * rank
    for k in range(len(pads) // 2):
        sides[rank - 1 - k] = (pads[2 * k], pads[2 * k + 1])
    for axis, (low, high) in enumerate(sides):
        size = t.shape(x)[axis]
        if (low, high) == (0, 0):
            continue
        if isinstance(size, Batch):
            raise Unsupported("it pads the batch", "pad other axes")
        if mode != "constant":
            x = t.take(x, axis, [_outside(i, size, mode) for i in range(-low, size + high)])
        else:
            x = t.slice(x, axis, max(0, -low), size - max(0, -high))
    grow = tuple((max(0, low), max(0, high)) for low, high in sides)
    if mode != "constant" or not any(low or high for low, high in grow):
        return x
    kind = t.dtype(x)
    padded = t.add("pad", t.f32(x), pads=grow, value=float(value or 0))
    return padded if kind is DType.F32 else t.add("cast", padded, dtype=kind.value)


def _outside(i: int, size: int, mode: str) -> int:
    """Which element stands at place i of the padded axis."""
    if mode == "circular":
        return i % size
    if mode == "replicate":
        return min(max(i, 0), size - 1)
    i = abs(i)
    return i if i < size else 2 * (size - 1) - i


@aten("pixel_shuffle")
def pixel_shuffle(t: Emit, x: Operand, r: int) -> Operand:
    *lead, c, h, w = t.shape(x)
    k = len(lead)
    apart = t.reshape(x, (*lead, c // (r * r), r, r, h, w))
    return t.reshape(t.permute(apart, (*range(k), k, k + 3, k + 1, k + 4, k + 2)), t.out_shape)


@aten("pixel_unshuffle")
def pixel_unshuffle(t: Emit, x: Operand, r: int) -> Operand:
    *lead, c, h, w = t.shape(x)
    k = len(lead)
    apart = t.reshape(x, (*lead, c, h // r, r, w // r, r))
    return t.reshape(t.permute(apart, (*range(k), k, k + 2, k + 4, k + 1, k + 3)), t.out_shape)


@aten("channel_shuffle", "native_channel_shuffle")
def channel_shuffle(t: Emit, x: Operand, groups: int) -> Operand:
    n, c, *rest = t.shape(x)
    apart = t.reshape(x, (n, groups, c // groups, *rest))
    return t.reshape(t.permute(apart, (0, 2, 1, *range(3, 3 + len(rest)))), t.out_shape)
