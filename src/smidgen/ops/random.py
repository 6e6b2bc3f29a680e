"""Dropout. Randomness is a counter: each element hashes (seed, step, key, its index in the batch), so the backward pass
and a recomputed forward pass draw the same mask. runtime/kernels/random.c holds the same integer arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadShape
from ..ir import Array, Batch, Dim, DType, Node, Tensor, size
from .registry import Builder, Call, N, Param, Run, Spec, case, define
from .traits import Layout

Words = npt.NDArray[np.uint32]


def _words(value: int) -> Words:
    """An array, because numpy warns when a scalar wraps around."""
    return np.array([value & 0xFFFFFFFF], np.uint32)


def _mix(h: Words) -> Words:
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return h ^ h >> np.uint32(16)


def hashed(counter: Array, key: int, index: Words) -> Words:
    """32 random bits for each index."""
    seed, step, k = _words(int(counter[0])), _words(int(counter[1])), _words(key)
    a = _mix(_mix(_mix(seed ^ np.uint32(0x9E3779B9)) ^ step) ^ k)
    b = _mix(_mix(_mix(seed ^ np.uint32(0x7F4A7C15)) ^ k) ^ step)
    return _mix((index ^ a) * np.uint32(0x9E3779B1) + b)


def _cut(p: float) -> int:
    """Drop where the upper 24 bits of the hash are below this."""
    return round(p * 2**24)


def _scale(p: float) -> float:
    return 0.0 if p == 1 else 1.0 / (1.0 - p)


def _gains(counter: Array, key: int, p: float, first: int, count: int, kind: Any) -> Array:
    """0 or 1/(1-p) for the elements first..first+count of the batch."""
    index = ((first + np.arange(count, dtype=np.uint64)) & 0xFFFFFFFF).astype(np.uint32)
    return np.where(hashed(counter, key, index) >> np.uint32(8) >= _cut(p), _scale(p), 0.0).astype(kind)


def _infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if not 0 <= attrs["p"] <= 1:
        raise BadShape(f"dropout: p is {attrs['p']}", why="it is a probability")
    if ins[1].shape != (2,) or ins[1].dtype is not DType.I32:
        raise BadShape(f"dropout: the counter is {ins[1]}", why="it is i32[2], seed and step")
    return [(ins[0].shape, DType.F32)]


def _vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    return [b.add(node.op, str(dys[0]), node.ins[1], **node.attrs) if b.need(node.ins[0]) else None, None]


def _per_sample(value: Dim) -> int:
    return value.times if isinstance(value, Batch) else value


# In a loop a node sees one sample: what is at hand is the size of a sample. Outside, run.index is 0.


def _dropout(x: Array, counter: Array, p: float, key: int, run: Run) -> Sequence[Array]:
    return (x * _gains(counter, key, p, run.index * x.size, x.size, x.dtype).reshape(x.shape),)


def _feature_dropout(x: Array, counter: Array, p: float, key: int, run: Run) -> Sequence[Array]:
    rows, channels = x.shape[0], x.shape[-1]
    gains = _gains(counter, key, p, run.index * rows * channels, rows * channels, x.dtype)
    return (x * gains.reshape(rows, *[1] * (x.ndim - 2), channels),)


def _dropout_params(call: Call) -> Sequence[Param]:
    count = call.outs[0].size
    return [count, _per_sample(count), _key(call), _cut(call["p"]), _scale(call["p"])]


def _feature_dropout_params(call: Call) -> Sequence[Param]:
    rows, *middle, channels = call.outs[0].shape
    words = [rows, size(middle), channels, _per_sample(rows)]
    return [*words, _key(call), _cut(call["p"]), _scale(call["p"])]


def _key(call: Call) -> int:
    """The key as a signed 32-bit parameter."""
    return int(_words(call["key"]).view(np.int32)[0])


def _feature_dropout_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if len(ins[0].shape) < 2:
        raise BadShape(f"feature_dropout: the input is {ins[0]}", why="its first axis is samples, its last is channels")
    return _infer(ins, attrs)


def _counter(rng: np.random.Generator, n: int) -> Array:
    return rng.integers(-(2**31), 2**31, 2).astype(np.int32)


define(
    "dropout", doc="y = x · mask / (1-p), the mask hashed from counter = (seed, step), key and the element's index",
    layout=Layout("each", operands=1), identity=lambda attrs: attrs["p"] == 0,
    infer=_infer, ref=_dropout, vjp=_vjp, needs_run=True,
    kernels={"f32": "dropout_f32"}, params=_dropout_params, inplace=(0,),
    cases=[
        case((N, 5, 3), _counter, p=0.5, key=7),
        case((N, 130), _counter, p=0.1, key=-1),
        case((4,), _counter, p=1.0, key=0),
        case((N, 3), _counter, p=0.0, key=2**31 - 1),
    ],
)  # fmt: skip

define(
    "feature_dropout", doc="dropout of whole channels (last axis) of each sample (first axis)",
    infer=_feature_dropout_infer, ref=_feature_dropout, vjp=_vjp, needs_run=True,
    kernels={"f32": "feature_dropout_f32"}, params=_feature_dropout_params, inplace=(0,),
    cases=[
        case((N, 3, 2, 7), _counter, p=0.5, key=3),
        case((N, 2, 70), _counter, p=0.3, key=4),
        case((N, 9), _counter, p=0.5, key=5),
    ],
)  # fmt: skip
