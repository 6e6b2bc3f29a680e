"""Losses that go on over micro-batches: after the last one, the loss has the bits of the undivided batch.

What they carry (runtime/kernels/loss.c): the digits of the sum in three numbers and whether they are scaled; where
terms are summed in blocks of 64 also the eight lanes of the open block, and how many terms are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Tensor
from .loss import CARRIED_ROWS, CARRIED_TERMS, PAIRS, bce_terms, counted_rows, reduced
from .registry import NOT_DIFFERENTIABLE, Call, Case, Run, Spec, define, get

BLOCK = 64


def _sum_of(acc: Array) -> Any:
    return acc[:3].sum() * (2.0**64 if acc[3] else 1.0)


def _rows(base: Callable[..., Sequence[Array]]) -> Callable[..., Sequence[Array]]:
    """`base` with what earlier micro-batches gave before its own inputs."""

    def ref(acc: Array, x: Array, target: Array, weight: Array | None = None, **attrs: Any) -> Sequence[Array]:
        (own,) = base(x, target, weight, **{**attrs, "reduction": "sum"})
        total = _sum_of(acc) + own
        counted = float(counted_rows(target, weight, x.shape[-1], attrs["ignore_index"], x.dtype)[2].sum())
        carried = np.array([total, 0, 0, 0], acc.dtype)
        return (*reduced(total, counted, attrs["reduction"], attrs["run"], x), carried)

    return ref


def _terms(acc: Array, terms: Array, reduction: str, run: Run) -> Sequence[Array]:
    total, lanes, filled = _sum_of(acc), acc[4:12].copy(), int(acc[12])
    for term in terms.reshape(-1):
        lanes[filled % 8] += term
        filled += 1
        if filled == BLOCK:
            total, lanes, filled = total + lanes.sum(), np.zeros_like(lanes), 0
    carried = np.concatenate([[total, 0, 0, 0], lanes, [filled]]).astype(acc.dtype)
    return (*reduced(total + lanes.sum(), terms.size, reduction, run, terms), carried)


def _define(name: str, words: int, ref: Callable[..., Sequence[Array]]) -> None:
    """The loss `name` of this micro-batch and of those before."""
    base = get(name)

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        carried = (ins[0].shape, ins[0].dtype)
        if carried != ((words,), DType.F32):
            raise BadShape(f"{name}_running goes on with {ins[0]}", why=f"it carries {words} numbers")
        return [*base.infer(ins[1:], attrs), carried]

    def made(rng: np.random.Generator, n: int) -> Array:
        """A sum, and a block that fills up within the case."""
        return np.array([3.25, 0, 0, 0, *rng.uniform(0, 1, 8), 5][:words])

    define(
        f"{name}_running", doc=f"{name} of this micro-batch and those before; acc' carries the sum on",
        infer=infer, ref=ref, vjp=NOT_DIFFERENTIABLE, kernels={"f32": f"{name}_running_f32"},
        params=lambda call: base.params(Call(call.ins[1:], call.outs[:1], call.attrs)),
        shares={1: 0}, batchwise=True, needs_run=True,
        cases=[Case((made, *c.inputs), c.attrs, c.smooth, c.tolerance) for c in base.cases],
    )  # fmt: skip


def _pair(term: Callable[..., Array]) -> Callable[..., Sequence[Array]]:
    def ref(acc: Array, x: Array, t: Array, reduction: str, run: Run, **own: float) -> Sequence[Array]:
        return _terms(acc, term(x - t, **own), reduction, run)

    return ref


def _bce(
    acc: Array, x: Array, t: Array, pos_weight: Array | None = None, *, reduction: str, run: Run
) -> Sequence[Array]:
    return _terms(acc, bce_terms(x, t, pos_weight), reduction, run)


for _name in ("cross_entropy", "nll_loss"):
    _define(_name, CARRIED_ROWS, _rows(get(_name).ref))
for _name, _term in PAIRS.items():
    _define(_name, CARRIED_TERMS, _pair(_term))
_define("bce_with_logits", CARRIED_TERMS, _bce)
