"""Scores of channels (after Theis et al. 2018): how the loss changes without a channel of an output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Tensor, size
from .matrix import split_rows
from .norm import channels, floats, like, macs
from .registry import NOT_DIFFERENTIABLE, Call, N, Param, Spec, case, define


def _dots_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("channel_dots", ins)
    like("channel_dots", *ins)
    return [((channels("channel_dots", ins[0]),), DType.F32)]


def _dots_params(call: Call) -> Sequence[Param]:
    """A, B, P, C."""
    shape = call.ins[0].shape
    return [*split_rows(shape[:-1]), shape[-1]]


define(
    "channel_dots", doc="s[c] = Σ over rows of dy · y: how the loss grows with a factor of channel c of y",
    infer=_dots_infer, vjp=NOT_DIFFERENTIABLE, batchwise=True,
    ref=lambda dy, y: ((dy * y).reshape(-1, y.shape[-1]).sum(axis=0),),
    kernels={"f32": "channel_dots_f32"}, params=_dots_params, macs=macs(1),
    cases=[case((N, 3, 5, 4), (N, 3, 5, 4)), case((1, 9, 11, 20), (1, 9, 11, 20)), case((N, 70), (N, 70)),
           case((5,), (5,)), case((2, N, 17), (2, N, 17)), case((1, 1031, 3), (1, 1031, 3))],
)  # fmt: skip


def _squares_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("add_squares", ins)
    acc, x = ins
    end = int(attrs["at"]) + int(size(x.shape))  # type: ignore[arg-type]
    if len(acc.shape) != 1 or attrs["at"] < 0 or end > int(acc.shape[0]):  # type: ignore[arg-type]
        raise BadShape(f"add_squares has no place for {x}", why=f"it would end at {end} of {acc}")
    return [(acc.shape, DType.F32)]


def _squares_ref(acc: Array, x: Array, at: int, by: float) -> Sequence[Array]:
    found = acc.copy()
    found[at : at + x.size] += by * np.square(x.reshape(-1))
    return (found,)


define(
    "add_squares", doc="acc' = acc, and from element `at` on acc + by · x²",
    infer=_squares_infer, ref=_squares_ref, vjp=NOT_DIFFERENTIABLE, shares={0: 0}, batchwise=True,
    kernels={"f32": "add_squares_f32"},
    params=lambda call: [call.ins[0].size, call.ins[1].size, call["at"], float(call["by"])],
    cases=[case((9,), (4,), at=0, by=0.5), case((30,), (3, 5), at=15, by=2.0), case((1,), (), at=0, by=1.0)],
)  # fmt: skip
