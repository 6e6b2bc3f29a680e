"""Torch's loss functions. Reductions are numbers in aten: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .... import ops
from ....errors import BadShape
from ....ir import DType, batch_axis, size
from .emit import Emit
from .indexing import hits
from .writer import Operand, Unsupported, aten

REDUCTIONS = {1: "mean", 2: "sum"}


def reduced(t: Emit, x: Operand, reduction: int) -> Operand:
    return x if reduction == 0 else t.reduce(REDUCTIONS[reduction], x)


def rows_of(t: Emit, scores: Operand) -> Operand:
    """Class axis last, everything else in one axis: (N, C, d…) → (N·d…, C)."""
    rank = t.rank(scores)
    at = min(1, rank - 1)
    last = t.permute(scores, (*[a for a in range(rank) if a != at], at))
    return t.reshape(last, (size(t.shape(last)[:-1]), t.shape(last)[-1]))


def _labels(t: Emit, target: Operand) -> Operand:
    return t.reshape(t.i32(target), (size(t.shape(target)),))


def _checked_samples(t: Emit, x: Operand) -> None:
    if batch_axis(t.shape(x)) is None:
        raise Unsupported("a loss without the batch axis", "keep the batch axis up to the loss")


@aten("cross_entropy_loss")
def cross_entropy(
    t: Emit, scores: Operand, target: Operand, weight: Operand | None = None, reduction: int = 1, ignore: int = -100,
    smoothing: float = 0.0,
) -> Any:  # fmt: skip
    _checked_samples(t, scores)
    if t.dtype(target) is DType.F32:
        return _soft_cross_entropy(t, scores, target, weight, reduction, smoothing)
    if reduction == 0:
        logp = t.add("log_softmax", t.f32(scores), axis=1)
        return _each_nll(t, logp, target, weight, ignore, smoothing)
    ins = [t.f32(rows_of(t, scores)), _labels(t, target), *([] if weight is None else [weight])]
    return t.add(
        "cross_entropy", *ins, label_smoothing=float(smoothing), ignore_index=int(ignore),
        reduction=REDUCTIONS[reduction],
    )  # fmt: skip


def _soft_cross_entropy(
    t: Emit, scores: Operand, target: Operand, weight: Operand | None, reduction: int, smoothing: float
) -> Any:
    """Targets that are probabilities."""
    classes = t.length(scores, 1)
    target = t.plus(t.times(target, 1 - smoothing), smoothing / classes)
    logp = t.add("log_softmax", t.f32(scores), axis=1)
    if weight is not None:
        logp = t.times(logp, t.reshape(weight, (classes, *[1] * (t.rank(scores) - 2))))
    each = t.times(t.reduce("sum", t.times(logp, target), [1]), -1)
    return reduced(t, each, reduction)


def _each_nll(
    t: Emit, logp: Operand, target: Operand, weight: Operand | None, ignore: int, smoothing: float = 0.0
) -> Any:
    """One loss a sample: the log-probability of its class, through a mask."""
    classes = t.length(logp, 1)
    shape = (classes, *[1] * (t.rank(logp) - 2))
    mask: Operand = hits(t, target, 1, classes)
    if 0 <= ignore < classes:
        mask = t.add("logical_and", mask, (torch.arange(classes) != ignore).reshape(shape))
    weighted = logp if weight is None else t.times(logp, t.reshape(weight, shape))
    each = t.times(t.reduce("sum", t.add("where", mask, weighted, t.constant(0.0)), [1]), smoothing - 1)
    if not smoothing:
        return each
    even = t.times(t.reduce("sum", weighted, [1]), -smoothing / classes)
    kept = t.add("ne", t.i32(target), t.constant(ignore, torch.int32))
    return t.plus(each, t.add("where", kept, even, t.constant(0.0)))


@aten("nll_loss_nd", "nll_loss", "nll_loss2d")
def nll(
    t: Emit, logp: Operand, target: Operand, weight: Operand | None = None, reduction: int = 1, ignore: int = -100
) -> Any:
    _checked_samples(t, logp)
    if reduction == 0:
        return _each_nll(t, logp, target, weight, ignore)
    ins = [t.f32(rows_of(t, logp)), _labels(t, target), *([] if weight is None else [weight])]
    return t.add("nll_loss", *ins, ignore_index=int(ignore), reduction=REDUCTIONS[reduction])


def _pair(t: Emit, x: Operand, target: Operand) -> tuple[Operand, Operand]:
    if t.shape(x) != t.shape(target):
        raise BadShape(
            "output and target of the loss differ in shape", why=f"{t.shape(x)} against {t.shape(target)}",
            help="give both the same shape",
        )  # fmt: skip
    return t.f32(x), t.f32(target)


def named(t: Emit, op: str, x: Operand, target: Operand) -> Operand:
    """The loss that loss="…" asks for: its op with the attributes of its record, as a mean."""
    loss = ops.get(op).loss
    assert loss is not None
    ins = (t.f32(rows_of(t, x)), _labels(t, target)) if loss.target == "classes" else _pair(t, x, target)
    return t.add(op, *ins, **loss.attrs, reduction="mean")


@aten("mse_loss")
def mse(t: Emit, x: Operand, target: Operand, reduction: int = 1) -> Any:
    if reduction == 0 or batch_axis(t.shape(x)) is None:
        return reduced(t, t.add("square", t.minus(x, target)), reduction)
    return t.add("mse_loss", *_pair(t, x, target), reduction=REDUCTIONS[reduction])


@aten("l1_loss")
def l1(t: Emit, x: Operand, target: Operand, reduction: int = 1) -> Any:
    if reduction == 0 or batch_axis(t.shape(x)) is None:
        return reduced(t, t.add("abs", t.minus(x, target)), reduction)
    return t.add("l1_loss", *_pair(t, x, target), reduction=REDUCTIONS[reduction])


@aten("huber_loss")
def huber(t: Emit, x: Operand, target: Operand, reduction: int = 1, delta: float = 1.0) -> Any:
    if reduction == 0 or batch_axis(t.shape(x)) is None:
        return reduced(t, _each_huber(t, x, target, delta), reduction)
    return t.add("huber_loss", *_pair(t, x, target), reduction=REDUCTIONS[reduction], delta=float(delta))


@aten("smooth_l1_loss")
def smooth_l1(t: Emit, x: Operand, target: Operand, reduction: int = 1, beta: float = 1.0) -> Any:
    if beta == 0:
        return l1(t, x, target, reduction)
    if reduction == 0 or batch_axis(t.shape(x)) is None:
        return reduced(t, t.times(_each_huber(t, x, target, beta), 1 / beta), reduction)
    return t.add("smooth_l1_loss", *_pair(t, x, target), reduction=REDUCTIONS[reduction], beta=float(beta))


def _each_huber(t: Emit, x: Operand, target: Operand, delta: float) -> Any:
    """½d² near zero, δ(|d| − ½δ) beyond: with c = min(|d|, δ) it is c(|d| − ½c)."""
    far = t.add("abs", t.minus(x, target))
    near = t.add("clamp", far, lo=0.0, hi=float(delta), closed=True)
    return t.times(near, t.minus(far, t.times(near, 0.5)))


@aten("binary_cross_entropy_with_logits")
def bce_with_logits(
    t: Emit, x: Operand, target: Operand, weight: Operand | None = None, positive: Operand | None = None,
    reduction: int = 1,
) -> Any:  # fmt: skip
    if reduction and weight is None and batch_axis(t.shape(x)) is not None and _last_axis_only(t, positive):
        extra: Sequence[Operand] = () if positive is None else (t.expand(positive, t.shape(x)[-1:]),)
        return t.add("bce_with_logits", *_pair(t, x, target), *extra, reduction=REDUCTIONS[reduction])
    certain = t.add("log_sigmoid", t.f32(x))
    if positive is not None:
        certain = t.times(certain, t.plus(t.times(t.plus(positive, -1), target), 1))
    each = t.minus(t.times(t.minus(1, target), x), certain)
    return reduced(t, each if weight is None else t.times(each, weight), reduction)


def _last_axis_only(t: Emit, positive: Operand | None) -> bool:
    return positive is None or t.rank(positive) <= 1


@aten("binary_cross_entropy")
def bce(t: Emit, x: Operand, target: Operand, weight: Operand | None = None, reduction: int = 1) -> Any:
    """As torch: logarithms are cut off at −100."""

    def log(v: Any) -> Operand:
        return t.add("clamp", t.add("log", t.f32(v)), lo=-100.0, hi=float("inf"), closed=True)

    each = t.times(t.plus(t.times(target, log(x)), t.times(t.minus(1, target), log(t.minus(1, x)))), -1)
    return reduced(t, each if weight is None else t.times(each, weight), reduction)


@aten("kl_div")
def kl_div(t: Emit, logp: Operand, target: Operand, reduction: int = 1, log_target: bool = False) -> Any:
    if log_target:
        each = t.times(t.add("exp", t.f32(target)), t.minus(target, logp))
    else:
        some = t.add("gt", t.f32(target), t.constant(0.0))
        log = t.add("log", t.add("where", some, t.f32(target), t.constant(1.0)))
        each = t.times(target, t.minus(log, logp))
    return reduced(t, each, reduction)
