"""Elementwise operations of one input. Gradients read whichever of input and output is cheaper to keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Node
from .registry import NOT_DIFFERENTIABLE, Bits, Builder, Call, N, Param, case, define, out_size, same_shape

INF = math.inf


def _from_output(dx_op: str) -> Callable[[Builder, Node, Sequence[str | None]], Sequence[str | None]]:
    """The gradient reads dy and the op's own output."""
    return lambda b, node, dys: [b.add(dx_op, str(dys[0]), node.outs[0], **node.attrs)]


def _from_input(dx_op: str) -> Callable[[Builder, Node, Sequence[str | None]], Sequence[str | None]]:
    """The gradient reads dy and the op's input."""
    return lambda b, node, dys: [b.add(dx_op, str(dys[0]), node.ins[0], **node.attrs)]


define(
    "relu", doc="y = max(x, 0)",
    infer=same_shape, ref=lambda x: (np.maximum(x, 0),), vjp=_from_output("relu_dx"),
    kernels={"f32": "relu_f32"}, params=out_size, inplace=(0,),
    cases=[case((3, 4)), case((N, 5, 3)), case((1,))],
)  # fmt: skip

define(
    "relu_dx", doc="dx = dy where y > 0, else 0",
    infer=same_shape, ref=lambda dy, y: (np.where(y > 0, dy, 0),), vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "relu_dx_f32"}, params=out_size, inplace=(0, 1),
    bits=lambda attrs: Bits(input=1, lo=0, hi=INF),
    cases=[case((3, 4), (3, 4)), case((N, 7), (N, 7))],
)  # fmt: skip
