"""Losses and their gradients. The result is one number.

Reduction "mean" divides by what is at hand times total/n, so the losses of micro-batches add up to that of the batch.
With class weights or ignored labels torch divides by the weight that counts; what counts in other micro-batches is
not known here, so it is taken in proportion: exact for a whole batch, an estimate for a split one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadData, BadShape
from ..ir import Array, Batch, Dim, DType, Node, Shape, Tensor, size
from .registry import NOT_DIFFERENTIABLE, Builder, Call, N, Param, Run, Running, Spec, case, define
from .traits import Loss

IGNORE = -100
"""torch's default `ignore_index`."""


def _fits(a: Shape, b: Shape) -> bool:
    """Equal as far as known: a batch-sized axis meets a fixed one only in data of a known batch."""
    pairs = list(zip(a, b, strict=False))
    return len(a) == len(b) and all(p == q or isinstance(p, Batch) != isinstance(q, Batch) for p, q in pairs)


def _check(holds: bool, what: str, why: str) -> None:
    if not holds:
        raise BadShape(what, why=why)


def _check_reduction(name: str, attrs: Mapping[str, Any]) -> None:
    reduction = attrs["reduction"]
    _check(reduction in ("mean", "sum"), f"{name}: reduction '{reduction}' gives no single number", "mean or sum does")


def _mean(counted: float, run: Run) -> float:
    """What the sum at hand is divided by."""
    return counted / run.n * run.total


def reduced(total: Any, counted: float, reduction: str, run: Run, like: Array) -> Sequence[Array]:
    if reduction == "mean":
        if counted == 0 and run.n < run.total:  # a micro-batch where every row is ignored adds nothing
            return (np.zeros((), like.dtype),)
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.float64(total) / _mean(counted, run)
    return (np.asarray(total, like.dtype),)


CARRIED_ROWS, CARRIED_TERMS = 4, 13
"""Numbers that a loss of rows, or of terms, carries from one micro-batch to the next (running_loss.py)."""


def _running(name: str, words: int) -> Running:
    return Running(f"{name}_running", lambda shape: (words,))


def _scale(dloss: Array, counted: float, reduction: str, run: Run) -> Any:
    if reduction == "sum":
        return dloss
    with np.errstate(invalid="ignore", divide="ignore"):
        return dloss / np.float64(_mean(counted, run))


def _for_first(dx_op: str) -> Callable[[Builder, Node, Sequence[str | None]], Sequence[str | None]]:
    """Only input 0 learns; labels and weights do not."""

    def vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
        dx = b.add(dx_op, str(dys[0]), *node.ins, **node.attrs) if b.need(node.ins[0]) else None
        return [dx, *[None] * (len(node.ins) - 1)]

    return vjp


# Labels: cross_entropy(logits[…, C], target[…][, weight[C]]), nll_loss(logp[…, C], target[…][, weight[C]]).


def _check_labels(name: str, classes: Dim, ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> None:
    """`ins` are target and perhaps weight."""
    _check_reduction(name, attrs)
    smoothing = attrs.get("label_smoothing", 0.0)
    _check(ins[0].dtype is DType.I32, f"{name}: labels are {ins[0].dtype.value}", "class numbers are i32")
    _check(isinstance(classes, int) and classes > 0, f"{name}: {classes} classes", "the last axis holds the classes")
    _check(0 <= smoothing <= 1, f"{name}: label_smoothing is {smoothing}", "it is a share between 0 and 1")
    for weight in ins[1:]:
        _check(weight.shape == (classes,), f"{name}: weight has shape {weight.shape}", f"there are {classes} classes")


def _labels_infer(name: str) -> Callable[[Sequence[Tensor], Mapping[str, Any]], Sequence[Spec]]:
    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        _check(bool(ins[0].shape), f"{name}: the input is a single number", "the last axis holds the classes")
        _check_labels(name, ins[0].shape[-1], ins[1:], attrs)
        rows = ins[0].shape[:-1]
        _check(_fits(rows, ins[1].shape), f"{name}: labels have shape {ins[1].shape}", f"the input has rows {rows}")
        return [((), DType.F32)]

    return infer


def _labels_params(find: Callable[[Call], Shape]) -> Callable[[Call], Sequence[Param]]:
    """rows, C, ignore_index, mean[, label_smoothing]; `find` gives the shape of logits or log-probabilities."""

    def params(call: Call) -> Sequence[Param]:
        *rows, classes = find(call)
        words: list[Param] = [size(rows), classes, call["ignore_index"], int(call["reduction"] == "mean")]
        return words + ([float(call["label_smoothing"])] if "label_smoothing" in call.attrs else [])

    return params


_of_input = _labels_params(lambda call: call.ins[0].shape)
_of_output = _labels_params(lambda call: call.outs[0].shape)


def counted_rows(target: Array, weight: Array | None, classes: int, ignore_index: int, kind: Any) -> tuple[Array, ...]:
    """Per row: does it count, its label (0 if it does not), the weight of its label (0 if it does not)."""
    target = target.reshape(-1).astype(np.int64)
    counts = target != ignore_index
    label = np.where(counts, target, 0)
    if np.any((label < 0) | (label >= classes)):
        raise BadData("a label is not the number of a class", why=f"there are {classes} classes, counted from 0")
    per_class = np.ones(classes, kind) if weight is None else weight
    return counts, label, np.where(counts, per_class[label], 0).astype(kind)


def _log_softmax(x: Array) -> Array:
    shifted: Array = x - x.max(axis=-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def _cross_entropy(
    x: Array, target: Array, weight: Array | None = None, *,
    label_smoothing: float, ignore_index: int, reduction: str, run: Run,
) -> Sequence[Array]:  # fmt: skip
    classes = x.shape[-1]
    counts, label, taken = counted_rows(target, weight, classes, ignore_index, x.dtype)
    logp = _log_softmax(x.reshape(-1, classes))
    loss = -(1 - label_smoothing) * taken * logp[np.arange(len(label)), label]
    if label_smoothing:
        smooth = -(logp if weight is None else logp * weight).sum(axis=-1)
        loss = loss + label_smoothing / classes * np.where(counts, smooth, 0)
    return reduced(np.where(counts, loss, 0).sum(), float(taken.sum()), reduction, run, x)


def _cross_entropy_dx(
    dloss: Array, x: Array, target: Array, weight: Array | None = None, *,
    label_smoothing: float, ignore_index: int, reduction: str, run: Run,
) -> Sequence[Array]:  # fmt: skip
    classes = x.shape[-1]
    counts, label, taken = counted_rows(target, weight, classes, ignore_index, x.dtype)
    per_class = np.ones(classes, x.dtype) if weight is None else weight
    wanted = np.tile(label_smoothing / classes * per_class, (len(label), 1))
    wanted[np.arange(len(label)), label] += (1 - label_smoothing) * taken
    p = np.exp(_log_softmax(x.reshape(-1, classes)))
    dx = _scale(dloss, float(taken.sum()), reduction, run) * (p * wanted.sum(axis=-1, keepdims=True) - wanted)
    return (np.where(counts[:, None], dx, 0).reshape(x.shape).astype(x.dtype),)


def _nll_loss(
    logp: Array, target: Array, weight: Array | None = None, *, ignore_index: int, reduction: str, run: Run
) -> Sequence[Array]:
    classes = logp.shape[-1]
    counts, label, taken = counted_rows(target, weight, classes, ignore_index, logp.dtype)
    loss = -taken * logp.reshape(-1, classes)[np.arange(len(label)), label]
    return reduced(np.where(counts, loss, 0).sum(), float(taken.sum()), reduction, run, logp)


def _nll_loss_dx(
    dloss: Array, target: Array, weight: Array | None = None, *,
    shape: tuple[int, ...], ignore_index: int, reduction: str, run: Run,
) -> Sequence[Array]:  # fmt: skip
    counts, label, taken = counted_rows(target, weight, shape[-1], ignore_index, dloss.dtype)
    scale = _scale(dloss, float(taken.sum()), reduction, run)
    dx = np.zeros((len(label), shape[-1]), dloss.dtype)
    dx[np.arange(len(label)), label] = np.where(counts, -scale * taken, 0)
    return (dx.reshape(shape),)


def _nll_loss_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    logp, *labels = node.ins
    shape = b[logp].shape
    dx = b.add("nll_loss_dx", str(dys[0]), *labels, shape=shape, **node.attrs) if b.need(logp) else None
    return [dx, *[None] * len(labels)]


def _nll_loss_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    _check_labels("nll_loss_dx", attrs["shape"][-1], ins[1:], attrs)
    return [(tuple(attrs["shape"]), DType.F32)]


def _labels(classes: int, *shape: Any, ignore: int | None = None) -> Callable[[np.random.Generator, int], Array]:
    """A target for a case; "n" in `shape` is the number of samples. With `ignore` every third row is ignored."""

    def make(rng: np.random.Generator, n: int) -> Array:
        target = rng.integers(0, classes, [n if d == "n" else d for d in shape]).astype(np.int32)
        if ignore is not None:
            target.reshape(-1)[::3] = ignore
        return target

    return make


def _weight(classes: int) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: rng.uniform(0.2, 2.0, classes)


_PLAIN: dict[str, Any] = {"ignore_index": IGNORE, "reduction": "mean"}

define(
    "cross_entropy", doc="mean or sum over rows of -log softmax(x)[target], as torch.nn.functional.cross_entropy",
    loss=Loss(
        "classes", "cross_entropy", lambda torch, x, t: torch.nn.functional.cross_entropy(x, t),
        {"label_smoothing": 0.0, "ignore_index": IGNORE},
    ),
    infer=_labels_infer("cross_entropy"), ref=_cross_entropy, vjp=_for_first("cross_entropy_dx"),
    kernels={"f32": "cross_entropy_f32"}, params=_of_input, batchwise=True, needs_run=True,
    running=_running("cross_entropy", CARRIED_ROWS),
    cases=[
        case((N, 5), _labels(5, "n"), label_smoothing=0.0, **_PLAIN),
        case((N, 4, 3, 11), _labels(11, "n", 4, 3), label_smoothing=0.1, **_PLAIN),
        case((N, 7), _labels(7, "n", ignore=2), (7,), label_smoothing=0.0, ignore_index=2, reduction="sum"),
        case((N, 3, 9), _labels(9, "n", 3, ignore=IGNORE), _weight(9), label_smoothing=0.2, **_PLAIN),
        case((2, 1), _labels(1, 2), label_smoothing=0.0, ignore_index=IGNORE, reduction="sum"),
    ],
)  # fmt: skip


def _like_first_input(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    """Gradients look like the input after dloss."""
    return [(ins[1].shape, DType.F32)]


define(
    "cross_entropy_dx", doc="gradient of cross_entropy for the logits: (softmax(x) - wanted) · weight · dloss / count",
    infer=_like_first_input, ref=_cross_entropy_dx, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "cross_entropy_dx_f32"}, params=_of_output, inplace=(1,), batchwise=True, needs_run=True,
    cases=[
        case((), (N, 5), _labels(5, "n"), label_smoothing=0.0, **_PLAIN),
        case((), (N, 4, 3, 11), _labels(11, "n", 4, 3), label_smoothing=0.1, **_PLAIN),
        case((), (N, 7), _labels(7, "n", ignore=2), (7,), label_smoothing=0.0, ignore_index=2, reduction="sum"),
        case((), (N, 3, 9), _labels(9, "n", 3, ignore=IGNORE), _weight(9), label_smoothing=0.2, **_PLAIN),
    ],
)  # fmt: skip

define(
    "nll_loss", doc="mean or sum over rows of -logp[target], as torch.nn.functional.nll_loss",
    loss=Loss("classes"),
    infer=_labels_infer("nll_loss"), ref=_nll_loss, vjp=_nll_loss_vjp,
    kernels={"f32": "nll_loss_f32"}, params=_of_input, batchwise=True, needs_run=True,
    running=_running("nll_loss", CARRIED_ROWS),
    cases=[
        case((N, 5), _labels(5, "n"), **_PLAIN),
        case((N, 2, 9), _labels(9, "n", 2, ignore=IGNORE), _weight(9), **_PLAIN),
        case((N, 3), _labels(3, "n", ignore=1), ignore_index=1, reduction="sum"),
    ],
)  # fmt: skip

define(
    "nll_loss_dx", doc="gradient of nll_loss for logp, which it does not read: -weight · dloss / count at the target",
    infer=_nll_loss_dx_infer, ref=_nll_loss_dx, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "nll_loss_dx_f32"}, params=_of_output, batchwise=True, needs_run=True,
    cases=[
        case((), _labels(5, "n"), shape=(N, 5), **_PLAIN),
        case((), _labels(9, "n", 2, ignore=IGNORE), _weight(9), shape=(N, 2, 9), **_PLAIN),
        case((), _labels(3, "n", ignore=1), shape=(N, 3), ignore_index=1, reduction="sum"),
    ],
)  # fmt: skip


# Element by element: x against t of the same shape.


def _pair_infer(name: str, limit: str = "") -> Callable[[Sequence[Tensor], Mapping[str, Any]], Sequence[Spec]]:
    """`limit` names the attribute that may not be negative."""

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        _check_reduction(name, attrs)
        x, t = ins[0], ins[1]
        _check(t.dtype is DType.F32, f"{name}: the target is {t.dtype.value}", "it is compared with an f32 input")
        _check(_fits(x.shape, t.shape), f"{name}: target {t.shape} against input {x.shape}", "their shapes are equal")
        if limit:
            _check(attrs[limit] >= 0, f"{name}: {limit} is {attrs[limit]}", "it is a distance")
        for weight in ins[2:]:
            tail = x.shape[len(x.shape) - len(weight.shape) :]
            _check(
                len(weight.shape) <= len(x.shape) and (weight.size == 1 or weight.shape == tail),
                f"{name}: pos_weight has shape {weight.shape}", f"the last axes of the input have shape {tail}",
            )  # fmt: skip
        return [((), DType.F32)]

    return infer


PAIRS: dict[str, Callable[..., Array]] = {}
"""Loss → its term for a difference x - t."""


def _define_pair(
    name: str, doc: str, term: Callable[..., Array], slope: Callable[..., Array], loss: Loss, limit: str = "",
    **attrs: Any,
) -> None:  # fmt: skip
    """A loss of d = x - t and its gradient. `term` and `slope` take d and the op's own attribute, if it has one, which
    is called `limit`."""

    def params(call: Call) -> Sequence[Param]:
        own = [float(call[limit])] if limit else []
        return [call.ins[-2].size, int(call["reduction"] == "mean"), *own]

    def ref(x: Array, t: Array, reduction: str, run: Run, **own: float) -> Sequence[Array]:
        return reduced(term(x - t, **own).sum(), x.size, reduction, run, x)

    def ref_dx(dloss: Array, x: Array, t: Array, reduction: str, run: Run, **own: float) -> Sequence[Array]:
        return ((_scale(dloss, x.size, reduction, run) * slope(x - t, **own)).astype(x.dtype),)

    def vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
        x, t = node.ins
        if not (b.need(x) or b.need(t)):
            return [None, None]
        dx = b.add(f"{name}_dx", str(dys[0]), x, t, **node.attrs)
        return [dx if b.need(x) else None, b.add("scale", dx, by=-1.0) if b.need(t) else None]

    PAIRS[name] = term
    define(
        name, doc=doc, loss=loss, infer=_pair_infer(name, limit), ref=ref, vjp=vjp,
        kernels={"f32": f"{name}_f32"}, params=params, batchwise=True, needs_run=True,
        running=_running(name, CARRIED_TERMS),
        cases=[
            case((N, 5), (N, 5), reduction="mean", **attrs),
            case((N, 3, 7, 5), (N, 3, 7, 5), reduction="sum", **attrs),
            case((1,), (1,), reduction="mean", **attrs),
        ],
    )  # fmt: skip
    define(
        f"{name}_dx", doc=f"gradient of {name} for x; that for t is its negative",
        infer=_like_first_input, ref=ref_dx, vjp=NOT_DIFFERENTIABLE,
        kernels={"f32": f"{name}_dx_f32"}, params=params, inplace=(1, 2), batchwise=True, needs_run=True,
        cases=[
            case((), (N, 5), (N, 5), reduction="mean", **attrs),
            case((), (N, 3, 7), (N, 3, 7), reduction="sum", **attrs),
        ],
    )  # fmt: skip


def _huber(d: Array, delta: float) -> Array:
    z = np.abs(d)
    return np.where(z < delta, 0.5 * z * z, delta * (z - 0.5 * delta))


def _smooth_l1(d: Array, beta: float) -> Array:
    z = np.abs(d)
    return np.where(z < beta, 0.5 * z * z / (beta or 1.0), z - 0.5 * beta)


def _smooth_l1_slope(d: Array, beta: float) -> Array:
    return np.where(np.abs(d) < beta, d / (beta or 1.0), np.sign(d))


_define_pair(
    "mse_loss", "mean or sum of (x - t)²", np.square, lambda d: 2 * d,
    Loss("values", "mse", lambda torch, x, t: torch.nn.functional.mse_loss(x, t)),
)  # fmt: skip
_define_pair(
    "l1_loss", "mean or sum of |x - t|", np.abs, np.sign,
    Loss("values", "l1", lambda torch, x, t: torch.nn.functional.l1_loss(x, t)),
)  # fmt: skip
_define_pair(
    "huber_loss", "d²/2 where |d| < delta, else delta·(|d| - delta/2)",
    _huber, lambda d, delta: np.clip(d, -delta, delta),
    Loss("values", "huber", lambda torch, x, t: torch.nn.functional.huber_loss(x, t), {"delta": 1.0}),
    limit="delta", delta=0.8,
)  # fmt: skip
_define_pair(
    "smooth_l1_loss", "d²/(2·beta) where |d| < beta, else |d| - beta/2",
    _smooth_l1, _smooth_l1_slope,
    Loss("values", "smooth_l1", lambda torch, x, t: torch.nn.functional.smooth_l1_loss(x, t), {"beta": 1.0}),
    limit="beta", beta=0.7,
)  # fmt: skip


def bce_terms(x: Array, t: Array, pos_weight: Array | None) -> Array:
    rest = np.log1p(np.exp(-np.abs(x))) + np.maximum(-x, 0)
    terms: Array = (1 - t) * x + (1 if pos_weight is None else 1 + (pos_weight - 1) * t) * rest
    return terms


def _bce(x: Array, t: Array, pos_weight: Array | None = None, *, reduction: str, run: Run) -> Sequence[Array]:
    return reduced(bce_terms(x, t, pos_weight).sum(), x.size, reduction, run, x)


def _bce_dx(
    dloss: Array, x: Array, t: Array, pos_weight: Array | None = None, *, reduction: str, run: Run
) -> Sequence[Array]:
    weight = np.ones((), x.dtype) if pos_weight is None else pos_weight
    e = np.exp(-np.abs(x))
    sigmoid = np.where(x < 0, e, 1) / (1 + e)
    return ((_scale(dloss, x.size, reduction, run) * ((1 + (weight - 1) * t) * sigmoid - weight * t)).astype(x.dtype),)


def _bce_params(first: int) -> Callable[[Call], Sequence[Param]]:
    def params(call: Call) -> Sequence[Param]:
        weights = call.ins[first + 2 :]
        return [call.ins[first].size, int(call["reduction"] == "mean"), weights[0].size if weights else 1]

    return params


def _shares(*shape: Any) -> Callable[[np.random.Generator, int], Array]:
    """Targets between 0 and 1."""
    return lambda rng, n: rng.uniform(0, 1, [n if d == "n" else d for d in shape])


define(
    "bce_with_logits", doc="binary cross-entropy of sigmoid(x) with t, as binary_cross_entropy_with_logits of torch",
    loss=Loss(
        "yes_no", "bce_with_logits",
        lambda torch, x, t: torch.nn.functional.binary_cross_entropy_with_logits(x, t),
    ),
    infer=_pair_infer("bce_with_logits"), ref=_bce, vjp=_for_first("bce_with_logits_dx"),
    kernels={"f32": "bce_with_logits_f32"}, params=_bce_params(0), batchwise=True, needs_run=True,
    running=_running("bce_with_logits", CARRIED_TERMS),
    cases=[
        case((N, 5), _shares("n", 5), reduction="mean"),
        case((N, 4, 6), _shares("n", 4, 6), _weight(6), reduction="sum"),
        case((N, 67), _shares("n", 67), _weight(1), reduction="mean"),
    ],
)  # fmt: skip

define(
    "bce_with_logits_dx", doc="gradient of bce_with_logits for x; labels get none",
    infer=_like_first_input, ref=_bce_dx, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "bce_with_logits_dx_f32"}, params=_bce_params(1), inplace=(1, 2), batchwise=True, needs_run=True,
    cases=[
        case((), (N, 5), _shares("n", 5), reduction="mean"),
        case((), (N, 4, 6), _shares("n", 4, 6), _weight(6), reduction="sum"),
    ],
)  # fmt: skip
