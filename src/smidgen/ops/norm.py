"""Normalisation: batch (over all but the last axis), layer (over trailing axes), group (per sample and channel group).

Channels are the last axis. `batch_norm` takes given statistics. `batch_norm_batch` computes the same, but its mean
and var are those of its own x (from `batch_stats`), and its gradient includes the path through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape, BatchStatistics
from ..ir import Array, Batch, Dim, DType, Node, Shape, Tensor, size
from .matrix import split_rows
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Infer, N, Param, Spec, case, define

# Shape rules.


def _floats(op: str, ins: Sequence[Tensor]) -> None:
    if other := [t for t in ins if t.dtype is not DType.F32]:
        raise BadShape(f"{op} works on f32", why=f"got {other[0]}")


def _channels(op: str, x: Tensor, at_least: int = 1) -> int:
    if len(x.shape) < at_least or isinstance(x.shape[-1], Batch) or x.shape[-1] < 1:
        raise BadShape(f"{op} needs a last axis of channels of fixed size", why=f"got {x}")
    return x.shape[-1]


def _like(op: str, x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape:
        raise BadShape(f"{op}: both tensors must have the same shape", why=f"got {x} and {y}")


def _vectors(op: str, ins: Sequence[Tensor], shape: Shape) -> None:
    """Each of `ins` has one value per normalised channel or position."""
    if other := [t for t in ins if t.shape != shape]:
        raise BadShape(f"{op} needs vectors of shape {list(shape)} beside x", why=f"got {other[0]}")


def _batch_infer(op: str, images: int = 1, out: str = "x") -> Infer:
    """The first `images` inputs look alike, [...,C]; the others have shape [C]; the output looks like x or is [C]."""

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        _floats(op, ins)
        c = _channels(op, ins[0])
        _like(op, ins[0], ins[images - 1])
        _vectors(op, ins[images:], (c,))
        return [(ins[0].shape if out == "x" else (c,), DType.F32)]

    return infer


def _rows_params(call: Call) -> Sequence[Param]:
    """A, B, P, C and eps if there is one."""
    x = call.ins[0].shape
    eps = [float(call["eps"])] if "eps" in call.attrs else []
    return [*split_rows(x[:-1]), x[-1], *eps]


def _flat_params(call: Call) -> Sequence[Param]:
    """Rows, C, eps."""
    x = call.ins[0].shape
    return [size(x[:-1]), x[-1], float(call["eps"])]


def _macs(times: int) -> Callable[[Call], Dim]:
    return lambda call: size((*call.ins[0].shape, times))


# Batch normalisation.


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
    x, gamma, beta, mean, var = node.ins
    dy, eps = str(dys[0]), node.attrs["eps"]
    return [
        b.add("batch_norm_batch_dx", dy, x, gamma, mean, var, eps=eps) if b.need(x) else None,
        b.add("batch_norm_dgamma", dy, x, mean, var, eps=eps) if b.need(gamma) else None,
        b.add("bias_dw", dy) if b.need(beta) else None,
        None,  # what flows through the statistics is in batch_norm_batch_dx
        None,
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
    infer=_batch_infer("batch_norm"), ref=_batch_norm_ref, vjp=_batch_norm_vjp,
    kernels={"f32": "batch_norm_f32"}, params=_flat_params, macs=_macs(1), inplace=(0,),
    cases=[_batch_cases(x, 1, 4) for x in _BATCH_SHAPES],
)  # fmt: skip

define(
    "batch_norm_batch", doc="y = (x - mean) · gamma / sqrt(var + eps) + beta, with the statistics of x itself",
    infer=_batch_infer("batch_norm_batch"), ref=_batch_norm_ref, vjp=_batch_norm_batch_vjp,
    kernels={"f32": "batch_norm_f32"}, params=_flat_params, macs=_macs(1), inplace=(0,),
    cases=[_batch_cases(x, 1, 4, smooth=False) for x in _BATCH_SHAPES],  # x moves alone, not with its statistics
)  # fmt: skip

define(
    "batch_norm_dx", doc="dx = dy · gamma / sqrt(var + eps): the gradient of batch_norm with given statistics",
    infer=_batch_infer("batch_norm_dx"), ref=lambda dy, gamma, var, eps: (dy * (gamma / np.sqrt(var + eps)),),
    vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "batch_norm_dx_f32"}, params=_flat_params, macs=_macs(1), inplace=(0,),
    cases=[_batch_cases(x, 1, 2) for x in _BATCH_SHAPES],
)  # fmt: skip

define(
    "batch_norm_dgamma", doc="dgamma = sum over rows of dy · (x - mean) / sqrt(var + eps)",
    infer=_batch_infer("batch_norm_dgamma", images=2, out="c"), vjp=NOT_DIFFERENTIABLE, sink=True,
    ref=lambda dy, x, mean, var, eps: ((dy * ((x - mean) / np.sqrt(var + eps))).sum(axis=_all_but_last(x)),),
    kernels={"f32": "batch_norm_dgamma_f32"}, params=_rows_params, macs=_macs(2),
    cases=[*[_batch_cases(x, 2, 2) for x in _BATCH_SHAPES], _batch_cases((N, 9, 11, 20), 2, 2)],
)  # fmt: skip


def _batch_stats_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _floats("batch_stats", ins)
    c = _channels("batch_stats", ins[0], at_least=2)
    return [((c,), DType.F32), ((c,), DType.F32)]


def _too_few() -> BatchStatistics:
    return BatchStatistics(
        "batch statistics need more than one value per channel", help="train with a larger batch, or with bn='frozen'"
    )


def _batch_stats_ref(x: Array) -> tuple[Array, Array]:
    if x.size // x.shape[-1] < 2:
        raise _too_few()
    return x.mean(axis=_all_but_last(x)), x.var(axis=_all_but_last(x))


define(
    "batch_stats", doc="mean and biased variance of each channel over all samples and positions",
    infer=_batch_stats_infer, ref=_batch_stats_ref,
    vjp=lambda b, node, dys: [None],  # batch_norm_batch_dx is the gradient of both together
    kernels={"f32": "batch_stats_f32"}, params=_rows_params, macs=_macs(2), batchwise=True,
    cases=[case((N, 3, 5, 4)), case((N, 70)), case((2, N, 17)), case((2, 9, 11, 20)), case((N, 1, 1, 1))],
)  # fmt: skip


def _batch_norm_batch_dx_ref(dy: Array, x: Array, gamma: Array, mean: Array, var: Array, eps: float) -> tuple[Array]:
    axes, inverse = _all_but_last(x), 1 / np.sqrt(var + eps)
    normed = (x - mean) * inverse
    return (gamma * inverse * (dy - dy.mean(axis=axes) - normed * (dy * normed).mean(axis=axes)),)


define(
    "batch_norm_batch_dx", doc="gradient of batch_norm_batch for x, through the statistics too; "
    "dx = gamma/s · (dy - mean(dy) - z · mean(dy · z)) with z = (x - mean)/s, s = sqrt(var + eps)",
    infer=_batch_infer("batch_norm_batch_dx", images=2), ref=_batch_norm_batch_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "batch_norm_batch_dx_f32"}, params=_rows_params, macs=_macs(4), inplace=(0, 1), batchwise=True,
    cases=[*[_batch_cases(x, 2, 3) for x in _BATCH_SHAPES], _batch_cases((N, 9, 11, 20), 2, 3)],
)  # fmt: skip


def _running_stats_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _floats("running_stats", ins)
    c = _channels("running_stats", ins[0])
    _vectors("running_stats", ins, (c,))
    return [((c,), DType.F32), ((c,), DType.F32)]


def _running_stats_ref(
    running_mean: Array, running_var: Array, mean: Array, var: Array, momentum: float, count: int
) -> tuple[Array, Array]:
    if count < 2:
        raise _too_few()
    unbiased = var * (count / (count - 1))
    return (1 - momentum) * running_mean + momentum * mean, (1 - momentum) * running_var + momentum * unbiased


define(
    "running_stats", doc="running mean and var move towards those of `count` rows by `momentum`; var made unbiased",
    infer=_running_stats_infer, ref=_running_stats_ref, vjp=NOT_DIFFERENTIABLE, shares={0: 0, 1: 1}, batchwise=True,
    kernels={"f32": "running_stats_f32"},
    params=lambda call: [call.ins[0].shape[0], call["count"], float(call["momentum"])],
    cases=[case((5,), _variances(5), (5,), _variances(5), momentum=0.1, count=N * 12),
           case((1,), _variances(1), (1,), _variances(1), momentum=1.0, count=2)],
)  # fmt: skip


# Layer normalisation over the last `axes` axes.


def _trailing(op: str, x: Tensor, axes: int) -> Shape:
    tail = x.shape[len(x.shape) - axes :]
    if not 1 <= axes <= len(x.shape) or any(isinstance(d, Batch) or d < 1 for d in tail):
        raise BadShape(f"{op} needs {axes} trailing axes of fixed size", why=f"got {x}")
    return tail


def _layer_infer(op: str, images: int = 1, out: str = "x") -> Infer:
    """As for batch normalisation, the vectors having the shape of the trailing axes."""

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        _floats(op, ins)
        tail = _trailing(op, ins[0], attrs["axes"])
        _like(op, ins[0], ins[images - 1])
        _vectors(op, ins[images:], tail)
        return [(ins[0].shape if out == "x" else tail, DType.F32)]

    return infer


def _standardised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    """(x - mean)/s and 1/s over `axes`."""
    inverse = 1 / np.sqrt(x.var(axis=axes, keepdims=True) + eps)
    return (x - x.mean(axis=axes, keepdims=True)) * inverse, inverse


def _standardised_dx(g: Array, x: Array, axes: tuple[int, ...], eps: float) -> Array:
    normed, inverse = _standardised(x, axes, eps)
    means = g.mean(axis=axes, keepdims=True), (g * normed).mean(axis=axes, keepdims=True)
    return inverse * (g - means[0] - normed * means[1])  # type: ignore[no-any-return]


def _last(axes: int) -> tuple[int, ...]:
    return tuple(range(-axes, 0))


def _layer_norm_dgamma_ref(dy: Array, x: Array, axes: int, eps: float) -> tuple[Array]:
    return ((dy * _standardised(x, _last(axes), eps)[0]).sum(axis=tuple(range(x.ndim - axes))),)


def _layer_norm_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    x, gamma, beta = node.ins
    dy, axes = str(dys[0]), node.attrs["axes"]
    dbeta = None
    if b.need(beta):
        tail = b[beta].shape
        flat = dy if axes == 1 else b.add("reshape", dy, shape=(*b[dy].shape[:-axes], size(tail)))
        dbeta = b.add("bias_dw", flat)
        dbeta = dbeta if axes == 1 else b.add("reshape", dbeta, shape=tail)
    return [
        b.add("layer_norm_dx", dy, x, gamma, **node.attrs) if b.need(x) else None,
        b.add("layer_norm_dgamma", dy, x, **node.attrs) if b.need(gamma) else None,
        dbeta,
    ]


def _layer_params(call: Call) -> Sequence[Param]:
    """Rows, K, eps."""
    x, axes = call.ins[0].shape, call["axes"]
    return [size(x[:-axes]), size(x[-axes:]), float(call["eps"])]


def _layer_cases(images: int, vectors: int) -> list[Case]:
    shapes: list[tuple[Shape, int]] = [
        ((N, 5, 7), 1), ((N, 3, 2, 5), 3), ((3, N, 40), 1), ((2, 1), 1), ((6, 5), 2), ((N, 1100), 1),
    ]  # fmt: skip
    return [case(*[x] * images, *[x[-k:]] * vectors, axes=k, eps=1e-3) for x, k in shapes]


define(
    "layer_norm", doc="y = (x - mean) / sqrt(var + eps) · gamma + beta, statistics over the last `axes` axes",
    infer=_layer_infer("layer_norm"), vjp=_layer_norm_vjp,
    ref=lambda x, gamma, beta, axes, eps: (_standardised(x, _last(axes), eps)[0] * gamma + beta,),
    kernels={"f32": "layer_norm_f32"}, params=_layer_params, macs=_macs(4), inplace=(0,), cases=_layer_cases(1, 2),
)  # fmt: skip

define(
    "layer_norm_dx", doc="dx = (g - mean(g) - z · mean(g · z)) / s with g = dy · gamma, z = (x - mean)/s",
    infer=_layer_infer("layer_norm_dx", images=2), vjp=NOT_DIFFERENTIABLE,
    ref=lambda dy, x, gamma, axes, eps: (_standardised_dx(dy * gamma, x, _last(axes), eps),),
    kernels={"f32": "layer_norm_dx_f32"}, params=_layer_params, macs=_macs(8), inplace=(0, 1), cases=_layer_cases(2, 1),
)  # fmt: skip

define(
    "layer_norm_dgamma", doc="dgamma = sum over rows of dy · (x - mean) / sqrt(var + eps)",
    infer=_layer_infer("layer_norm_dgamma", images=2, out="tail"), ref=_layer_norm_dgamma_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "layer_norm_dgamma_f32"}, sink=True, macs=_macs(4), cases=_layer_cases(2, 0),
    params=lambda call: [*split_rows(call.ins[0].shape[: -call["axes"]]), *_layer_params(call)[1:]],
    scratch=lambda call: size((*call.ins[0].shape[: -call["axes"]], 8)),  # mean and 1/s of every row
)  # fmt: skip


# Group normalisation.


def _group_infer(op: str, images: int = 1, out: str = "x") -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        _floats(op, ins)
        x, groups = ins[0], attrs["groups"]
        c = _channels(op, x, at_least=2)
        if any(isinstance(d, Batch) or d < 1 for d in x.shape[1:]):
            raise BadShape(f"{op} needs samples along axis 0 and all other axes of fixed size", why=f"got {x}")
        if groups < 1 or c % groups:
            raise BadShape(f"{op}: {c} channels cannot be split into {groups} groups", why=f"got {x}")
        _like(op, x, ins[images - 1])
        _vectors(op, ins[images:], (c,))
        return [(x.shape if out == "x" else (c,), DType.F32)]

    return infer


def _split(x: Array, groups: int) -> Array:
    """[N, P, groups, C/groups]; statistics are over axes 1 and 3."""
    return x.reshape(len(x), -1, groups, x.shape[-1] // groups)


def _group_norm_ref(x: Array, gamma: Array, beta: Array, groups: int, eps: float) -> tuple[Array]:
    return (_standardised(_split(x, groups), (1, 3), eps)[0].reshape(x.shape) * gamma + beta,)


def _group_norm_dx_ref(dy: Array, x: Array, gamma: Array, groups: int, eps: float) -> tuple[Array]:
    return (_standardised_dx(_split(dy * gamma, groups), _split(x, groups), (1, 3), eps).reshape(x.shape),)


def _group_norm_dgamma_ref(dy: Array, x: Array, groups: int, eps: float) -> tuple[Array]:
    normed = _standardised(_split(x, groups), (1, 3), eps)[0].reshape(x.shape)
    return ((dy * normed).sum(axis=_all_but_last(x)),)


def _group_norm_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    x, gamma, beta = node.ins
    dy = str(dys[0])
    return [
        b.add("group_norm_dx", dy, x, gamma, **node.attrs) if b.need(x) else None,
        b.add("group_norm_dgamma", dy, x, **node.attrs) if b.need(gamma) else None,
        b.add("bias_dw", dy) if b.need(beta) else None,
    ]


def _group_params(call: Call) -> Sequence[Param]:
    """N, P, C, groups, eps."""
    x = call.ins[0].shape
    return [x[0], size(x[1:-1]), x[-1], call["groups"], float(call["eps"])]


def _group_scratch(vectors: int) -> Callable[[Call], Dim]:
    return lambda call: size((call.ins[0].shape[-1], 4 * vectors))


def _group_cases(images: int, vectors: int) -> list[Case]:
    shapes: list[tuple[Shape, int]] = [
        ((N, 3, 5, 6), 3), ((N, 4, 3), 1), ((2, 2, 2, 5), 5), ((N, 40), 2), ((N, 9, 11, 36), 2),
    ]  # fmt: skip
    return [case(*[x] * images, *[x[-1:]] * vectors, groups=g, eps=1e-3) for x, g in shapes]


define(
    "group_norm", doc="y = (x - mean) / sqrt(var + eps) · gamma + beta, statistics per sample and group of channels",
    infer=_group_infer("group_norm"), ref=_group_norm_ref, vjp=_group_norm_vjp, inplace=(0,),
    kernels={"f32": "group_norm_f32"}, params=_group_params, scratch=_group_scratch(2), macs=_macs(4),
    cases=_group_cases(1, 2),
)  # fmt: skip

define(
    "group_norm_dx", doc="dx = (g - mean(g) - z · mean(g · z)) / s with g = dy · gamma, z = (x - mean)/s",
    infer=_group_infer("group_norm_dx", images=2), ref=_group_norm_dx_ref, vjp=NOT_DIFFERENTIABLE, inplace=(0, 1),
    kernels={"f32": "group_norm_dx_f32"}, params=_group_params, scratch=_group_scratch(4), macs=_macs(8),
    cases=_group_cases(2, 1),
)  # fmt: skip

define(
    "group_norm_dgamma", doc="dgamma = sum over samples and positions of dy · (x - mean) / sqrt(var + eps)",
    infer=_group_infer("group_norm_dgamma", images=2, out="c"), ref=_group_norm_dgamma_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "group_norm_dgamma_f32"}, params=_group_params, scratch=_group_scratch(3), macs=_macs(4), sink=True,
    cases=_group_cases(2, 0),
)  # fmt: skip
