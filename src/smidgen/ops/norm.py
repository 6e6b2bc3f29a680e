"""Normalisation of single samples: layer (over trailing axes) and group (over groups of channels, the last axis)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, Batch, Dim, DType, Node, Shape, Tensor, size
from .matrix import split_rows
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Infer, N, Param, Spec, case, define
from .traits import Layout

# Shape rules.


def floats(op: str, ins: Sequence[Tensor]) -> None:
    if other := [t for t in ins if t.dtype is not DType.F32]:
        raise BadShape(f"{op} works on f32", why=f"got {other[0]}")


def channels(op: str, x: Tensor, at_least: int = 1) -> int:
    if len(x.shape) < at_least or isinstance(x.shape[-1], Batch) or x.shape[-1] < 1:
        raise BadShape(f"{op} needs a last axis of channels of fixed size", why=f"got {x}")
    return x.shape[-1]


def like(op: str, x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape:
        raise BadShape(f"{op}: both tensors must have the same shape", why=f"got {x} and {y}")


def vectors(op: str, ins: Sequence[Tensor], shape: Shape) -> None:
    """Each of `ins` has one value per normalised channel or position."""
    if other := [t for t in ins if t.shape != shape]:
        raise BadShape(f"{op} needs vectors of shape {list(shape)} beside x", why=f"got {other[0]}")


def macs(times: int) -> Callable[[Call], Dim]:
    return lambda call: size((*call.ins[0].shape, times))


# Layer normalisation over the last `axes` axes.


def _trailing(op: str, x: Tensor, axes: int) -> Shape:
    tail = x.shape[len(x.shape) - axes :]
    if not 1 <= axes <= len(x.shape) or any(isinstance(d, Batch) or d < 1 for d in tail):
        raise BadShape(f"{op} needs {axes} trailing axes of fixed size", why=f"got {x}")
    return tail


def _layer_infer(op: str, images: int = 1, out: str = "x") -> Infer:
    """As for batch normalisation, the vectors having the shape of the trailing axes."""

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        floats(op, ins)
        tail = _trailing(op, ins[0], attrs["axes"])
        like(op, ins[0], ins[images - 1])
        vectors(op, ins[images:], tail)
        return [(ins[0].shape if out == "x" else tail, DType.F32)]

    return infer


def standardised(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array]:
    """(x - mean)/s and 1/s over `axes`."""
    inverse = 1 / np.sqrt(x.var(axis=axes, keepdims=True) + eps)
    return (x - x.mean(axis=axes, keepdims=True)) * inverse, inverse


def standardised_dx(g: Array, x: Array, axes: tuple[int, ...], eps: float) -> Array:
    normed, inverse = standardised(x, axes, eps)
    means = g.mean(axis=axes, keepdims=True), (g * normed).mean(axis=axes, keepdims=True)
    return inverse * (g - means[0] - normed * means[1])  # type: ignore[no-any-return]


def _last(axes: int) -> tuple[int, ...]:
    return tuple(range(-axes, 0))


def _layer_norm_dgamma_ref(dy: Array, x: Array, axes: int, eps: float) -> tuple[Array]:
    return ((dy * standardised(x, _last(axes), eps)[0]).sum(axis=tuple(range(x.ndim - axes))),)


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
    layout=Layout("trailing"), norm="layer", operands={1: "scale", 2: "shift"},
    infer=_layer_infer("layer_norm"), vjp=_layer_norm_vjp,
    ref=lambda x, gamma, beta, axes, eps: (standardised(x, _last(axes), eps)[0] * gamma + beta,),
    kernels={"f32": "layer_norm_f32"}, params=_layer_params, macs=macs(4), inplace=(0,), cases=_layer_cases(1, 2),
)  # fmt: skip

define(
    "layer_norm_dx", doc="dx = (g - mean(g) - z · mean(g · z)) / s with g = dy · gamma, z = (x - mean)/s",
    infer=_layer_infer("layer_norm_dx", images=2), vjp=NOT_DIFFERENTIABLE,
    ref=lambda dy, x, gamma, axes, eps: (standardised_dx(dy * gamma, x, _last(axes), eps),),
    kernels={"f32": "layer_norm_dx_f32"}, params=_layer_params, macs=macs(8), inplace=(0, 1), cases=_layer_cases(2, 1),
)  # fmt: skip

define(
    "layer_norm_dgamma", doc="dgamma = sum over rows of dy · (x - mean) / sqrt(var + eps)",
    infer=_layer_infer("layer_norm_dgamma", images=2, out="tail"), ref=_layer_norm_dgamma_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "layer_norm_dgamma_f32"}, sink=True, macs=macs(4), cases=_layer_cases(2, 0),
    params=lambda call: [*split_rows(call.ins[0].shape[: -call["axes"]]), *_layer_params(call)[1:]],
    scratch=lambda call: size((*call.ins[0].shape[: -call["axes"]], 8)),  # mean and 1/s of every row
)  # fmt: skip


# Group normalisation.


def _group_infer(op: str, images: int = 1, out: str = "x") -> Infer:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        floats(op, ins)
        x, groups = ins[0], attrs["groups"]
        c = channels(op, x, at_least=2)
        if any(isinstance(d, Batch) or d < 1 for d in x.shape[1:]):
            raise BadShape(f"{op} needs samples along axis 0 and all other axes of fixed size", why=f"got {x}")
        if groups < 1 or c % groups:
            raise BadShape(f"{op}: {c} channels cannot be split into {groups} groups", why=f"got {x}")
        like(op, x, ins[images - 1])
        vectors(op, ins[images:], (c,))
        return [(x.shape if out == "x" else (c,), DType.F32)]

    return infer


def _split(x: Array, groups: int) -> Array:
    """[N, P, groups, C/groups]; statistics are over axes 1 and 3."""
    return x.reshape(len(x), -1, groups, x.shape[-1] // groups)


def _group_norm_ref(x: Array, gamma: Array, beta: Array, groups: int, eps: float) -> tuple[Array]:
    return (standardised(_split(x, groups), (1, 3), eps)[0].reshape(x.shape) * gamma + beta,)


def _group_norm_dx_ref(dy: Array, x: Array, gamma: Array, groups: int, eps: float) -> tuple[Array]:
    return (standardised_dx(_split(dy * gamma, groups), _split(x, groups), (1, 3), eps).reshape(x.shape),)


def _group_norm_dgamma_ref(dy: Array, x: Array, groups: int, eps: float) -> tuple[Array]:
    normed = standardised(_split(x, groups), (1, 3), eps)[0].reshape(x.shape)
    return ((dy * normed).sum(axis=tuple(range(x.ndim - 1))),)


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
    norm="group", operands={1: "scale", 2: "shift"},
    infer=_group_infer("group_norm"), ref=_group_norm_ref, vjp=_group_norm_vjp, inplace=(0,),
    kernels={"f32": "group_norm_f32"}, params=_group_params, scratch=_group_scratch(2), macs=macs(4),
    cases=_group_cases(1, 2),
)  # fmt: skip

define(
    "group_norm_dx", doc="dx = (g - mean(g) - z · mean(g · z)) / s with g = dy · gamma, z = (x - mean)/s",
    infer=_group_infer("group_norm_dx", images=2), ref=_group_norm_dx_ref, vjp=NOT_DIFFERENTIABLE, inplace=(0, 1),
    kernels={"f32": "group_norm_dx_f32"}, params=_group_params, scratch=_group_scratch(4), macs=macs(8),
    cases=_group_cases(2, 1),
)  # fmt: skip

define(
    "group_norm_dgamma", doc="dgamma = sum over samples and positions of dy · (x - mean) / sqrt(var + eps)",
    infer=_group_infer("group_norm_dgamma", images=2, out="c"), ref=_group_norm_dgamma_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "group_norm_dgamma_f32"}, params=_group_params, scratch=_group_scratch(3), macs=macs(4), sink=True,
    cases=_group_cases(2, 0),
)  # fmt: skip
