"""Layers in integers that read a constant weight and, beside it, a slice of it that learns, both in int8: the whole is
nowhere in RAM. Made after all gradients, by compiler/passes/stored.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..ir import Array, Dim, DType, Tensor, size
from . import conv, gather, matrix
from .qlayers import _biases, _multipliers
from .quantize import int8
from .registry import NOT_DIFFERENTIABLE, Call, Case, Op, Param, Spec, case, define, get
from .stored_weights import _ascending
from .strides import show
from .traits import Rows

ROWS: Final = 4  # outputs that are put together at a time; QROWS in runtime/kernels/qlayers.h


class _Sliced:
    """x, w, learned, index, bias, multipliers; `axis` is that of the slice."""

    def __init__(self, op: Op) -> None:
        self.op, self.name = op, f"{op.name}_put"

    def _own(self, call: Call) -> Call:
        """Of the op with a whole weight."""
        return Call(_whole(call.ins), call.outs, _without_axis(call.attrs))

    def infer(self, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        w, learned, index = ins[1:4]
        check = matrix.demands(self.name, (learned, index), DType.I8, DType.I32)
        gather.check_axis(self.name, w, index, attrs["axis"])
        fits = learned.shape == gather.with_axis(w.shape, attrs["axis"], index.shape[0])
        check(fits, f"the slice must be {show(w.shape)} with one index of axis {attrs['axis']} a place")
        return self.op.infer(_whole(ins), _without_axis(attrs))

    def ref(
        self, x: Array, w: Array, learned: Array, index: Array, b: Array, m: Array, *, axis: int, **attrs: Any
    ) -> Sequence[Array]:
        whole = np.array(w)
        whole[(slice(None),) * axis + (index,)] = learned
        return self.op.ref(x, whole, b, m, **attrs)

    def params(self, call: Call) -> Sequence[Param]:
        w, learned, axis = call.ins[1].shape, call.ins[2].shape, call["axis"]
        return [*self.op.params(self._own(call)), w[axis], learned[axis], size(w[axis + 1 :])]

    def scratch(self, call: Call) -> Dim:
        terms = math.prod(conv._fixed(call.ins[1].shape[1:]))
        return int(self.op.scratch(self._own(call))) + ROWS * terms  # type: ignore[arg-type]

    def macs(self, call: Call) -> Dim:
        return self.op.macs(self._own(call))

    def rows(self, call: Call, axis: int) -> Rows | None:
        return None if self.op.rows is None else self.op.rows(self._own(call), axis)


def _whole(ins: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return (*ins[:2], *ins[4:])


def _without_axis(attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in attrs.items() if k != "axis"}


def _cases(op: Op) -> list[Case]:
    """Of each case of the op, slices of outputs and of inputs: one index, some, or all."""
    found = []
    for i, own in enumerate(op.cases):
        x, w = own.inputs[:2]
        shape = tuple(int(d) for d in w.shape)  # type: ignore[union-attr]
        for axis in sorted({0, len(shape) - 1}):
            count = (shape[axis] + 1) // 2 if (i + axis) % 3 else 1 if i % 2 else shape[axis]
            part = int8(*shape[:axis], count, *shape[axis + 1 :])
            ins = (x, w, part, _ascending(shape[axis], count), _biases(shape[0]), _multipliers(shape[0]))
            found.append(case(*ins, axis=axis, **own.attrs))
    return found


for _name in ("qconv2d", "qlinear"):
    _op = get(_name)
    _sliced = _Sliced(_op)
    define(
        _sliced.name, doc=f"{_name} with w = put(w, learned, index) along `axis`",
        infer=_sliced.infer, ref=_sliced.ref, vjp=NOT_DIFFERENTIABLE, kernels={"i8": f"{_sliced.name}_i8"},
        params=_sliced.params, scratch=_sliced.scratch, rows=None if _op.rows is None else _sliced.rows,
        macs=_sliced.macs, work=_op.work, cases=_cases(_op),
    )  # fmt: skip
