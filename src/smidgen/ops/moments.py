"""Statistics of a stream, one sample after the other: standardising with them, entering samples, reporting drift.

`moments` is f32[5, C], a row of each for every channel, the last axis of x:
    center   mean of the reference, or the first row ever seen while there is none
    mean     running mean, as a distance from center: an offset of a million costs no digits
    var      running variance, biased
    spread   variance of the reference
    recent   mean of the last rows, each `rate` of it, as a distance from center
`seen` is f32[3]: rows that mean and var are of (below zero: so many more are not entered), rows until they become the
reference (0: none will), and 1 once there is a reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Tensor, size
from .norm import channels, floats, macs
from .registry import NOT_DIFFERENTIABLE, Builder, Call, N, Param, Spec, case, define
from .traits import Layout

CENTER, MEAN, VAR, SPREAD, RECENT = range(5)
ROWS: Final = 5
SEEN: Final = 3
EPS: Final = 1e-8
UNKNOWN: Final = 1e30  # the deviation of less than two rows: nothing is far away


def start(c: int, skip: int = 0, rows: int = 0) -> tuple[Array, Array]:
    """`moments` and `seen` of a stream that has not begun: `skip` rows are not entered, `rows` make the reference."""
    moments = np.zeros((ROWS, c))
    moments[[VAR, SPREAD]] = 1
    return moments, np.array([-float(skip), float(rows), 0.0])


def _check(op: str, moments: Tensor, seen: Tensor, c: int) -> None:
    if moments.shape != (ROWS, c) or seen.shape != (SEEN,):
        raise BadShape(f"{op} needs moments [{ROWS},{c}] and seen [{SEEN}]", why=f"got {moments} and {seen}")


def _matrix(call: Call, x: int) -> list[Param]:
    """Rows and C."""
    shape = call.ins[x].shape
    return [size(shape[:-1]), shape[-1]]


# Standardising.


def _standardise_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("standardise", ins)
    _check("standardise", ins[1], ins[2], channels("standardise", ins[0]))
    return [(ins[0].shape, DType.F32)]


def _standardise_ref(x: Array, moments: Array, seen: Array, limit: float, reference: bool, eps: float) -> tuple[Array]:
    if not seen[2]:
        return (np.zeros_like(x),)
    mean, var = (0.0, moments[SPREAD]) if reference else (moments[MEAN], moments[VAR])
    return (np.clip((x - moments[CENTER] - mean) / np.sqrt(var + eps), -limit, limit),)


def _standardise_vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    x, moments, seen = node.ins
    dx = b.add("standardise_dx", str(dys[0]), node.outs[0], moments, seen, **node.attrs) if b.need(x) else None
    return [dx, None, None]  # a sample moves the statistics, but the gradient takes them as given


def _standardise_dx_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("standardise_dx", ins)
    _check("standardise_dx", ins[2], ins[3], channels("standardise_dx", ins[0]))
    if ins[0].shape != ins[1].shape:
        raise BadShape("standardise_dx: dy and y must have the same shape", why=f"got {ins[0]} and {ins[1]}")
    return [(ins[0].shape, DType.F32)]


def _standardise_dx_ref(
    dy: Array, y: Array, moments: Array, seen: Array, limit: float, reference: bool, eps: float
) -> tuple[Array]:
    if not seen[2]:
        return (np.zeros_like(dy),)
    var = moments[SPREAD if reference else VAR]
    return (np.where(np.abs(y) < limit, dy / np.sqrt(var + eps), 0.0).astype(dy.dtype),)


def _standardise_params(call: Call) -> Sequence[Param]:
    return [*_matrix(call, 0), int(call["reference"]), float(call["limit"]), float(call["eps"])]


def _moments(c: int) -> Callable[[np.random.Generator, int], Array]:
    def made(rng: np.random.Generator, n: int) -> Array:
        found = rng.standard_normal((ROWS, c))
        found[[VAR, SPREAD]] = rng.uniform(0.3, 2.0, (2, c))
        return found

    return made


def _seen(*values: float) -> Callable[[np.random.Generator, int], Array]:
    return lambda rng, n: np.array(values, np.float64)


_READY, _WAITS = _seen(40, 0, 1), _seen(3, 29, 0)
_FACTS: dict[str, Any] = {"limit": 5.0, "reference": False, "eps": EPS}

define(
    "standardise",
    doc="y = (x - center - mean) / sqrt(var + eps), or with reference (x - center) / sqrt(spread + eps), "
    "held within ±limit; 0 while there is no reference",
    layout=Layout("channels"), statistics="takes", tracker="track_moments",
    infer=_standardise_infer, ref=_standardise_ref, vjp=_standardise_vjp,
    kernels={"f32": "standardise_f32"}, params=_standardise_params, macs=macs(1), inplace=(0,),
    cases=[case((N, 7), _moments(7), _READY, **_FACTS), case((N, 3, 2, 70), _moments(70), _READY, **_FACTS),
           case((5,), _moments(5), _READY, **_FACTS | {"reference": True, "limit": 10.0}),
           case((N, 9), _moments(9), _READY, smooth=False, **_FACTS | {"limit": 0.5}),
           case((N, 4), _moments(4), _WAITS, **_FACTS)],
)  # fmt: skip

define(
    "standardise_dx", doc="dx = dy / sqrt(var + eps) where |y| < limit, else 0: the statistics are taken as given",
    infer=_standardise_dx_infer, ref=_standardise_dx_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "standardise_dx_f32"}, params=_standardise_params, macs=macs(1), inplace=(0, 1),
    cases=[case((N, 7), (N, 7), _moments(7), _READY, **_FACTS | {"limit": 0.5}),
           case((N, 2, 33), (N, 2, 33), _moments(33), _READY, **_FACTS | {"reference": True}),
           case((4, 5), (4, 5), _moments(5), _WAITS, **_FACTS)],
)  # fmt: skip


# Entering samples.


def _track_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("track_moments", ins)
    _check("track_moments", ins[0], ins[1], channels("track_moments", ins[2]))
    return [(ins[0].shape, DType.F32), (ins[1].shape, DType.F32)]


def _track_ref(moments: Array, seen: Array, x: Array, window: int, rate: float) -> tuple[Array, Array]:
    m, (count, left, ready) = moments.copy(), map(float, seen)
    for row in x.reshape(-1, x.shape[-1]):
        if count < 0:
            count += 1
            continue
        if count == 0:
            m[CENTER], m[MEAN], m[VAR], m[RECENT] = row, 0, 0, 0
        count = min(count + 1, float(window))
        away = row - m[CENTER]
        step = away - m[MEAN]
        m[MEAN] += step / count
        m[VAR] += (step * (away - m[MEAN]) - m[VAR]) / count
        if ready:
            m[RECENT] += rate * (away - m[RECENT])
        if left > 0:
            left -= 1
            if left == 0:
                center = m[CENTER] + m[MEAN]
                m[MEAN] -= center - m[CENTER]
                m[CENTER], m[SPREAD], m[RECENT], ready = center, m[VAR], 0, 1.0
    return m, np.array([count, left, ready], seen.dtype)


define(
    "track_moments", doc="enters the rows of x into moments and seen, one after the other (Welford); "
    "from `window` rows on, older ones fade", statistics="keeps",
    infer=_track_infer, ref=_track_ref, vjp=NOT_DIFFERENTIABLE, shares={0: 0, 1: 1}, batchwise=True,
    kernels={"f32": "track_moments_f32"}, macs=lambda call: size((*call.ins[2].shape, 4)),
    params=lambda call: [*_matrix(call, 2), float(call["window"]), float(call["rate"])],
    cases=[case(_moments(7), _READY, (N, 7), window=1 << 20, rate=1 / 32),
           case(_moments(20), _seen(4, 3, 0), (N, 2, 20), window=5, rate=0.25),
           case(_moments(5), _seen(0, 2, 0), (N, 5), window=64, rate=0.25),
           case(_moments(1), _seen(-2, 0, 0), (N, 1), window=64, rate=0.25)],
)  # fmt: skip


def _restart_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("restart_moments", ins)
    if ins[0].shape != (SEEN,) or ins[1].shape != (1,):
        raise BadShape(f"restart_moments needs seen [{SEEN}] and samples [1]", why=f"got {ins[0]} and {ins[1]}")
    return [(ins[0].shape, DType.F32)]


def _restart_ref(seen: Array, samples: Array, rows: int, usual: int, skip: bool) -> tuple[Array]:
    given = bool(samples[0] > 0)
    count = float(samples[0]) if given else float(usual)
    if skip:
        return (np.array([-count, 0, seen[2]], seen.dtype),)
    rest = 0.0 if given else min(float(seen[0]), np.ceil(count * rows / 8))
    return (np.array([rest, count * rows, seen[2]], seen.dtype),)


define(
    "restart_moments", doc="the next `samples` (0: `usual`) samples of `rows` rows make the reference: of them alone, "
    "or (0) beside what the statistics are of so far, which counts for an eighth; with skip they are not entered",
    infer=_restart_infer, ref=_restart_ref, vjp=NOT_DIFFERENTIABLE, shares={0: 0}, batchwise=True,
    kernels={"f32": "restart_moments_f32"},
    params=lambda call: [int(call["skip"]), float(call["rows"]), float(call["usual"])],
    cases=[case(_READY, lambda rng, n: np.array([9.0]), rows=4, usual=32, skip=False),
           case(_READY, lambda rng, n: np.array([0.0]), rows=3, usual=17, skip=False),
           case(_WAITS, lambda rng, n: np.array([0.0]), rows=1, usual=16, skip=True)],
)  # fmt: skip


# Reporting.


def _report_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    floats("report_moments", ins)
    _check("report_moments", ins[0], ins[1], int(ins[0].shape[-1]))  # type: ignore[arg-type]
    return [((3,), DType.F32)]


def _report_ref(moments: Array, seen: Array, eps: float) -> tuple[Array]:
    scale = np.maximum(moments[SPREAD], moments[VAR]) + eps
    drift = (moments[RECENT] ** 2 / scale).mean() if seen[2] else 0.0
    level = (moments[CENTER] + moments[MEAN]).mean()
    deviation = np.sqrt(moments[VAR]).mean() if seen[0] >= 2 else UNKNOWN
    return (np.array([drift, level, deviation], moments.dtype),)


define(
    "report_moments", doc="means over channels: recent² / (the larger of spread and var), 0 without a reference; "
    "center + mean; sqrt(var), 1e30 of less than two rows",
    infer=_report_infer, ref=_report_ref, vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "report_moments_f32"}, params=lambda call: [call.ins[0].shape[1], float(call["eps"])],
    macs=lambda call: size((*call.ins[0].shape, 1)),
    cases=[case(_moments(7), _READY, eps=EPS), case(_moments(70), _READY, eps=EPS), case(_moments(1), _WAITS, eps=EPS),
           case(_moments(2), _seen(1, 3, 0), eps=EPS)],
)  # fmt: skip
