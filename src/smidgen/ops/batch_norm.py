"""Batch normalisation: each channel, the last axis, over all others.

`batch_norm` takes given statistics. `batch_norm_batch` and its gradients take those of their own x, in double: where
few values are alike, a mean rounded to float would cost half of the digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BatchStatistics
from ..ir import Array, DType, Node, Shape, Tensor, size
from .matrix import each_row, row_sum, split_rows
from .norm import channels, floats, like, macs, standardised, standardised_dx, vectors
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Infer, N, Param, Spec, case, define
from .traits import Layout, Rows, Taken


def _batch_infer(op: str, images: int = 1, out: str = "x") -> Infer:
    """The first `images` inputs look alike, [...,C]; the others have shape [C]; the output looks like x or is [C]."""

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        floats(op, ins)
        c = channels(op, ins[0])
        like(op, ins[0], ins[images - 1])
        vectors(op, ins[images:], (c,))
        return [(ins[0].shape if out == "x" else (c,), DType.F32)]

    return infer


def _rows_params(call: Call) -> Sequence[Param]:
    """A, B, P, C, eps."""
    x = call.ins[0].shape
    return [*split_rows(x[:-1]), x[-1], float(call["eps"])]


def _flat_params(call: Call) -> Sequence[Param]:
    """Rows, C and eps if there is one."""
    x = call.ins[0].shape
    return [size(x[:-1]), x[-1], *([float(call["eps"])] if "eps" in call.attrs else [])]


def _all_but_last(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim - 1))


def _batch_norm_ref(x: Array, gamma: Array, beta: Array, mean: Array, var: Array, eps: float) -> tuple[Array]:
    return ((x - mean) * (gamma / np.sqrt(var + eps)) + beta,)


def _batch_norm_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    x, gamma, beta, mean, var = node.ins
    dy, eps = str(dys[0]), node.attrs["eps"]
    dx = b.add("batch_norm_dx", dy, gamma, var, eps=eps) if b.need(x) else None
    dgamma = b.add("batch_norm_dgamma", dy, x, mean, var, eps=eps) if b.need(gamma) or b.need(var) else None
    dbeta = b.add("bias_dw", dy) if b.need(beta) or b.need(mean) else None
    dmean = dvar = None
    if b.need(mean) and dbeta:
        dmean = b.add("scale", b.add("batch_norm_dx", dbeta, gamma, var, eps=eps), by=-1.0)
    if b.need(var) and dgamma:  # -1/2 · gamma · dgamma / (var + eps)
        product = b.add("div", b.add("mul", dgamma, gamma), b.add("shift", var, by=eps))
        dvar = b.add("scale", product, by=-0.5)
    return [dx, dgamma if b.need(gamma) else None, dbeta if b.need(beta) else None, dmean, dvar]


def _batch_norm_batch_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    x, gamma, beta = node.ins
    dy, eps = str(dys[0]), node.attrs["eps"]
    return [
        b.add("batch_norm_batch_dx", dy, x, gamma, eps=eps) if b.need(x) else None,
        b.add("batch_norm_batch_dgamma", dy, x, eps=eps) if b.need(gamma) else None,
        b.add("bias_dw", dy) if b.need(beta) else None,
    ]


def _variances(channels: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.uniform(0.3, 2.0, channels)


def _batch_cases(x: Shape, images: int, vectors: int, *, smooth: bool = True) -> Case:
    """`images` tensors like x, `vectors` of shape [C], the last being variances."""
    c = int(x[-1])  # type: ignore[arg-type]
    return case(*[x] * images, *[(c,)] * (vectors - 1), _variances(c), eps=1e-3, smooth=smooth)


_BATCH_SHAPES: list[Shape] = [(N, 3, 5, 4), (N, 70), (2, 3, 1, 1), (5,), (2, N, 17)]

define(
    "batch_norm", doc="y = (x - mean) · gamma / sqrt(var + eps) + beta, with given statistics",
    layout=Layout("channels"), norm="batch", operands={1: "scale", 2: "shift", 3: "mean", 4: "variance"},
    infer=_batch_infer("batch_norm"), ref=_batch_norm_ref, vjp=_batch_norm_vjp,
    kernels={"f32": "batch_norm_f32"}, params=_flat_params, macs=macs(1), inplace=(0,),
    cases=[_batch_cases(x, 1, 4) for x in _BATCH_SHAPES],
)  # fmt: skip


def _channels_tiled(call: Call, count: int) -> Taken:
    """Each channel for itself, with numbers of its own."""
    return Taken(tuple((k, len(t.shape) - 1) for k, t in enumerate(call.ins)))


define(
    "batch_norm_dx", doc="dx = dy · gamma / sqrt(var + eps): the gradient of batch_norm with given statistics",
    infer=_batch_infer("batch_norm_dx"), ref=lambda dy, gamma, var, eps: (dy * (gamma / np.sqrt(var + eps)),),
    vjp=NOT_DIFFERENTIABLE, rows=each_row, tiled=_channels_tiled,
    kernels={"f32": "batch_norm_dx_f32"}, params=_flat_params, macs=macs(1), inplace=(0,),
    cases=[_batch_cases(x, 1, 2) for x in _BATCH_SHAPES],
)  # fmt: skip


def _dgamma_sums(call: Call, axis: int) -> Rows | None:
    own = (call.ins[0].shape[-1], float(call["eps"]))
    inside = axis < len(call.ins[0].shape) - 1
    return row_sum(call, axis, "batch_norm_dgamma_rows_f32", *own, sources=2) if inside else None


define(
    "batch_norm_dgamma", doc="dgamma = sum over rows of dy · (x - mean) / sqrt(var + eps)",
    infer=_batch_infer("batch_norm_dgamma", images=2, out="c"), vjp=NOT_DIFFERENTIABLE, sink=True,
    row_sums=_dgamma_sums,
    ref=lambda dy, x, mean, var, eps: ((dy * ((x - mean) / np.sqrt(var + eps))).sum(axis=_all_but_last(x)),),
    kernels={"f32": "batch_norm_dgamma_f32"}, params=_rows_params, macs=macs(2),
    cases=[*[_batch_cases(x, 2, 2) for x in _BATCH_SHAPES], _batch_cases((N, 9, 11, 20), 2, 2)],
)  # fmt: skip


def _batch_stats_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("batch_stats", ins)
    c = channels("batch_stats", ins[0], at_least=2)
    return [((c,), DType.F32), ((c,), DType.F32)]


def _too_few() -> BatchStatistics:
    return BatchStatistics(
        "batch statistics need more than one value per channel",
        why="a norm takes the mean and variance of the values at hand; one value has no variance",
        help="train with a larger batch, or with bn='frozen'",
    )


def _batch_stats_ref(x: Array) -> tuple[Array, Array]:
    if x.size // x.shape[-1] < 2:
        raise _too_few()
    return x.mean(axis=_all_but_last(x)), x.var(axis=_all_but_last(x))


define(
    "batch_stats", doc="mean and biased variance of each channel over all samples and positions",
    layout=Layout("channels"), statistics="takes",
    infer=_batch_stats_infer, ref=_batch_stats_ref,
    vjp=lambda b, node, dys: [None],  # torch gives running statistics no gradient
    kernels={"f32": "batch_stats_f32"}, params=_flat_params, macs=macs(2), batchwise=True,
    cases=[case((N, 3, 5, 4)), case((N, 70)), case((2, N, 17)), case((2, 9, 11, 20)), case((N, 1, 1, 1))],
)  # fmt: skip


def _own_infer(op: str, images: int = 1, out: str = "x") -> Infer:
    """As _batch_infer, for ops that take the statistics of their own x."""
    plain = _batch_infer(op, images, out)

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        channels(op, ins[0], at_least=2)
        return plain(ins, attrs)

    return infer


def _batch_norm_batch_ref(x: Array, gamma: Array, beta: Array, eps: float) -> tuple[Array]:
    return _batch_norm_ref(x, gamma, beta, *_batch_stats_ref(x), eps)


def _batch_norm_batch_dx_ref(dy: Array, x: Array, gamma: Array, eps: float) -> tuple[Array]:
    return (gamma * standardised_dx(dy, x, _all_but_last(x), eps),)


def _batch_norm_batch_dgamma_ref(dy: Array, x: Array, eps: float) -> tuple[Array]:
    return ((dy * standardised(x, _all_but_last(x), eps)[0]).sum(axis=_all_but_last(x)),)


def _own_cases(images: int, vectors: int) -> list[Case]:
    shapes: list[Shape] = [(N, 3, 5, 4), (N * 3, 70), (2, 3, 1, 1), (2, N, 17), (N, 9, 11, 20)]
    return [case(*[x] * images, *[(x[-1],)] * vectors, eps=1e-3) for x in shapes]


define(
    "batch_norm_batch", doc="y = (x - mean) · gamma / sqrt(var + eps) + beta, with the statistics of x itself",
    layout=Layout("channels"), norm="batch", operands={1: "scale", 2: "shift"}, statistics="takes",
    infer=_own_infer("batch_norm_batch"), ref=_batch_norm_batch_ref, vjp=_batch_norm_batch_vjp,
    kernels={"f32": "batch_norm_batch_f32"}, params=_flat_params, macs=macs(3), inplace=(0,), batchwise=True,
    cases=_own_cases(1, 2),
)  # fmt: skip

define(
    "batch_norm_batch_dx", doc="gradient of batch_norm_batch for x, through the statistics too; "
    "dx = gamma/s · (dy - mean(dy) - z · mean(dy · z)) with z = (x - mean)/s, s = sqrt(var + eps)",
    infer=_own_infer("batch_norm_batch_dx", images=2), ref=_batch_norm_batch_dx_ref, vjp=NOT_DIFFERENTIABLE,
    tiled=_channels_tiled,
    kernels={"f32": "batch_norm_batch_dx_f32"}, params=_flat_params, macs=macs(6), inplace=(0, 1), batchwise=True,
    cases=_own_cases(2, 1),
)  # fmt: skip

define(
    "batch_norm_batch_dgamma", doc="batch_norm_dgamma with the statistics of x itself",
    infer=_own_infer("batch_norm_batch_dgamma", images=2, out="c"), ref=_batch_norm_batch_dgamma_ref,
    vjp=NOT_DIFFERENTIABLE, sink=True, batchwise=True,
    kernels={"f32": "batch_norm_batch_dgamma_f32"}, params=_flat_params, macs=macs(4), cases=_own_cases(2, 0),
)  # fmt: skip


def _running_stats_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("running_stats", ins)
    c = channels("running_stats", ins[0])
    vectors("running_stats", ins, (c,))
    return [((c,), DType.F32), ((c,), DType.F32)]


def _running_stats_ref(
    running_mean: Array, running_var: Array, mean: Array, var: Array, momentum: float, count: int, use: int = 0
) -> tuple[Array, Array]:
    if count < 2:
        raise _too_few()
    unbiased = var * (count / (count - 1))
    return (1 - momentum) * running_mean + momentum * mean, (1 - momentum) * running_var + momentum * unbiased


define(
    "running_stats", doc="running mean and var move towards those of `count` rows by `momentum`; var made unbiased; "
    "`use` tells apart the places of a layer that is used several times", statistics="keeps",
    infer=_running_stats_infer, ref=_running_stats_ref, vjp=NOT_DIFFERENTIABLE, shares={0: 0, 1: 1}, batchwise=True,
    kernels={"f32": "running_stats_f32"},
    params=lambda call: [call.ins[0].shape[0], call["count"], float(call["momentum"])],
    cases=[case((5,), _variances(5), (5,), _variances(5), momentum=0.1, count=N * 12),
           case((1,), _variances(1), (1,), _variances(1), momentum=1.0, count=2)],
)  # fmt: skip
