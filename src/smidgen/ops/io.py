"""Crossing the border: `feed` and `fetch` copy between the caller's buffers and the arena; `loop` repeats a body,
`stream` runs one row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Batch, Dim, DType, Tensor
from .registry import NOT_DIFFERENTIABLE, Call, N, Param, Run, Spec, case, define
from .strides import copy_params, strides, times
from .traits import Layout, Rows


def _feed_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    shape = tuple(ins[0].shape[p] for p in attrs["perm"])
    if attrs.get("sample"):
        shape = tuple(d.times if isinstance(d, Batch) else d for d in shape)
    return [(shape, ins[0].dtype)]


def _feed_ref(x: Array, perm: tuple[int, ...], run: Run, sample: bool = False, stands: Any = None) -> Sequence[Array]:
    if sample:
        per_sample = x.shape[0] // run.n
        x = x[run.index * per_sample : (run.index + 1) * per_sample]
    return (np.array(np.transpose(x, perm), order="C"),)


def _feed_params(call: Call) -> Sequence[Param]:
    outside = strides(call.ins[0].shape)
    shape = call.outs[0].shape
    return _crossing(call.ins[0].dtype, shape, [outside[p] for p in call["perm"]], strides(shape))


def _crossing(dtype: DType, dims: Sequence[Dim], src: Sequence[Dim], dst: Sequence[Dim]) -> Sequence[Param]:
    """Numbers of 16 bits cross as pairs of bytes: those of the caller may lie anywhere."""
    if dtype is not DType.I16:
        return copy_params(dims, src, dst)
    src, dst = ([*(times(step, 2) for step in steps), 1] for steps in (src, dst))
    return copy_params((*dims, 2), src, dst)


def _outside_rows(inside: Tensor, outside: Tensor, perm: Sequence[int], axis: int, entering: bool) -> Rows:
    """The rows of what is inside are wherever its axis is outside."""
    far = strides(outside.shape)
    if entering:  # axes of what is inside, in their order
        dims, out, near = inside.shape, [far[p] for p in perm], strides(inside.shape)
    else:  # axes of what is outside, in their order
        dims, out, near = tuple(inside.shape[p] for p in perm), far, [strides(inside.shape)[p] for p in perm]
    row = axis if entering else list(perm).index(axis)
    step = int(out[row])  # type: ignore[arg-type]
    dims = tuple(N if i == row else d for i, d in enumerate(dims) if i)  # without the samples
    src, dst = (out[1:], near[1:]) if entering else (near[1:], out[1:])
    return Rows("each", params=copy_params(dims, src, dst), outside_bytes=step * inside.dtype.bytes)


def _feed_rows(call: Call, axis: int) -> Rows | None:
    fits = call.attrs.get("sample") and axis and call["perm"][0] == 0 and call.ins[0].dtype is not DType.I16
    return _outside_rows(call.outs[0], call.ins[0], call["perm"], axis, True) if fits else None


def _fetch_rows(call: Call, axis: int) -> Rows | None:
    fits = call.attrs.get("sample") and axis and call["perm"][0] == 0 and call.ins[0].dtype is not DType.I16
    return _outside_rows(call.ins[0], call.outs[0], call["perm"], axis, False) if fits else None


define(
    "feed", doc="brings a buffer of the caller, or one sample of it, into the arena; y = transpose(x, perm)",
    infer=_feed_infer, ref=_feed_ref, vjp=lambda b, node, dys: [None], needs_run=True,
    border="in", layout=Layout("enter"), rows=_feed_rows,
    kernels={"f32": "copy_b4", "i32": "copy_b4", "u8": "copy_b1", "i8": "copy_b1", "i16": "copy_b1"},
    params=_feed_params,
    cases=[case((N, 3, 4, 5), perm=(0, 2, 3, 1)), case((N, 7), perm=(0, 1)), case((4, 3), perm=(1, 0))],
)  # fmt: skip


def _fetch_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    shape = tuple(ins[0].shape[p] for p in attrs["perm"])
    if attrs.get("sample"):
        shape = (Batch(int(shape[0])), *shape[1:])
    return [(shape, ins[0].dtype)]


def _fetch_params(call: Call) -> Sequence[Param]:
    inside = strides(call.ins[0].shape)
    dims = [call.ins[0].shape[p] for p in call["perm"]]
    return _crossing(call.ins[0].dtype, dims, [inside[p] for p in call["perm"]], strides(tuple(dims)))


define(
    "fetch", doc="hands a value, or one sample of it, to a buffer of the caller; y = transpose(x, perm)",
    infer=_fetch_infer, ref=lambda x, perm, sample=False: (np.array(np.transpose(x, perm), order="C"),),
    vjp=NOT_DIFFERENTIABLE, border="out", layout=Layout("leave"), rows=_fetch_rows,
    kernels={"f32": "copy_b4", "i32": "copy_b4", "u8": "copy_b1", "i8": "copy_b1", "i16": "copy_b1"},
    params=_fetch_params,
    cases=[case((N, 4, 5, 3), perm=(0, 3, 1, 2)), case((), perm=())],
)  # fmt: skip


def _loop_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Outputs collect the yields of all samples along axis 0; of an entry for one sample they are those."""
    if attrs.get("once"):
        return [(tuple(shape), dtype) for shape, dtype in attrs["specs"]]
    return [((Batch(int(shape[0])), *shape[1:]), dtype) for shape, dtype in attrs["specs"]]


define(
    "loop", doc="runs the next `body` nodes once per sample; outputs gather the tensors named in `yields`",
    infer=_loop_infer, ref=lambda **_: (), vjp=NOT_DIFFERENTIABLE, loops=True,
)  # fmt: skip

define(
    "by_rows", doc="the next `body` nodes run row by row, as `rows` says, in a program for one sample at a time",
    infer=lambda ins, attrs: [], ref=lambda **_: (), vjp=NOT_DIFFERENTIABLE, streams=True,
)  # fmt: skip
