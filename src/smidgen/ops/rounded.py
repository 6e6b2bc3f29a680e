"""Weights in int8, and biases in int32, that learn: the optimizers of optim.py in the units of the user's model, of
which only the change of a weight is rounded (quantization-aware scaling, Lin et al. 2022).

    g = gain · (factor · sum)   w = scale · q + offset   change = what the optimizer takes from w for g
    q' = clamp(q - floor(change / scale + r), -limit, limit)        r random in [0, 1), or 1/2

map is f32[3, outputs]: gain, scale and offset of each output. r is a hash of (seed, step, draws, index), so that it is
the same however a step is split; on the mean it rounds to the change itself. All of it is f32 here as in C
(runtime/kernels/rounded.h): equal gradients give equal weights, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from ..errors import BadShape
from ..ir import Array, Dim, DType, Shape, Tensor, size
from .optim import (
    FIRST,
    FUSED,
    SINKS,
    Fused,
    Sink,
    _example_tensor,
    _shares,
    fused_op,
    gradient_call,
    state_shape,
    updated,
)
from .random import hashed
from .registry import NOT_DIFFERENTIABLE, Call, Case, Op, Param, Spec, all_ops, case, define

LIMITS: Final = {DType.I8: 127, DType.I32: 1 << 30}
ROUNDING: Final = ("stochastic", "nearest")
SETTINGS: Final = ("map", "lr", "counter")
F32 = np.float32

Change = Callable[..., tuple[Array, ...]]
"""change(d, w, *state, lr, counter, **attrs) → what w loses, and the new state; d is the gradient with weight decay."""


def _sgd(d: Array, w: Array, lr: Array, counter: Array, **_: Any) -> tuple[Array, ...]:
    return (lr * d,)


def _momentum(
    d: Array, w: Array, m: Array, lr: Array, counter: Array, *, momentum: float, nesterov: bool, **_: Any
) -> tuple[Array, ...]:  # fmt: skip
    m = F32(momentum) * m + d
    return lr * (d + F32(momentum) * m if nesterov else m), m


def _power(x: float, k: int) -> float:
    """By squaring, as in C."""
    found = 1.0
    while k:
        found = found * x if k & 1 else found
        k, x = k >> 1, x * x
    return found


def _adam(
    d: Array, w: Array, m: Array, v: Array, lr: Array, counter: Array, *,
    beta1: float, beta2: float, epsilon: float, weight_decay: float, decoupled: bool, **_: Any,
) -> tuple[Array, ...]:  # fmt: skip
    step = max(0, int(counter[1])) + 1
    take1, take2 = F32(1 - beta1), F32(1 - beta2)
    m = m + take1 * (d - m) if take1 < 0.5 else d - F32(beta1) * (d - m)
    v = F32(beta2) * v + take2 * (d * d)
    rate, root2 = F32(float(lr) / (1 - _power(beta1, step))), F32(np.sqrt(1 - _power(beta2, step)))
    fade = lr * F32(weight_decay) if decoupled else F32(0)
    return rate * (m / (np.sqrt(v) / root2 + F32(epsilon))) + fade * w, m, v


CHANGES: Final[Mapping[str, Change]] = {"sgd": _sgd, "momentum": _momentum, "adam": _adam}


@dataclass(frozen=True)
class Rounded:
    """An optimizer for weights in integers."""

    sink: Sink
    change: Change

    @property
    def name(self) -> str:
        return f"q{self.sink.name}"

    @property
    def extra(self) -> int:
        return len(self.sink.state) + len(SETTINGS)

    @property
    def examples(self) -> tuple[Mapping[str, Any], ...]:
        own = (
            {"draws": 77, "rounding": "stochastic", "factor": 1.0},
            {"draws": -5, "rounding": "nearest", "factor": 0.3},
        )
        return tuple({**attrs, **more} for attrs, more in zip(self.sink.examples, own, strict=True))

    @property
    def attrs(self) -> frozenset[str]:
        return frozenset(self.examples[0])

    def step(
        self, g: Array, q: Array, *rest: Array, draws: int, rounding: str, factor: float, first: int = 0, **attrs: Any
    ) -> tuple[Array, ...]:  # fmt: skip
        """Of outputs from `first` on: random numbers are those of the whole."""
        *state, table, lr, counter = rest
        with np.errstate(all="ignore"):
            per = (len(q), *[1] * (q.ndim - 1))
            gain, scale, offset = (row.astype(F32).reshape(per) for row in table)
            w = q.astype(F32) * scale + offset
            decay = F32(0 if attrs.get("decoupled") else attrs["weight_decay"])
            d = gain * (F32(factor) * g.astype(F32)) + decay * w
            by, *state = self.change(d, w, *[s.astype(F32) for s in state], F32(lr), counter, **attrs)
            steps = _floored(np.where(scale != 0, by / scale, F32(0)), counter, draws, rounding, first * g[0].size)
        limit = LIMITS[DType.of_numpy(q.dtype)]
        return np.clip(q.astype(np.int64) - steps, -limit, limit).astype(q.dtype), *[s.astype(g.dtype) for s in state]

    def params(self, gradient: Shape, attrs: Mapping[str, Any]) -> Sequence[Param]:
        outputs, each = int(gradient[0]), int(size(gradient[1:]))  # type: ignore[arg-type]
        key = int(np.array(attrs["draws"] & 0xFFFFFFFF, np.uint32).view(np.int32))
        own = [outputs, key, attrs.get(FIRST, 0) * each, ROUNDING.index(attrs["rounding"]), float(attrs["factor"])]
        return [*own, *self.sink.params(attrs)]


def _floored(x: Array, counter: Array, key: int, rounding: str, first: int) -> Array:
    """floor(x + r), 0 for NaN; x begins with number `first`."""
    if rounding == "nearest":
        r: Any = F32(0.5)
    else:
        index = np.arange(first, first + x.size, dtype=np.uint64).astype(np.uint32)
        r = (hashed(counter, key, index) >> np.uint32(8)).astype(F32).reshape(x.shape) * F32(2.0**-24)
    total = x + r
    limited = np.clip(np.where(np.isnan(total), F32(0), total), F32(-(2.0**30)), F32(2.0**30))
    return np.asarray(np.floor(limited), np.int64)


ALL: Final = tuple(Rounded(sink, CHANGES[sink.name]) for sink in SINKS if sink.name in CHANGES)


def _check(
    name: str, rounded: Rounded, kind: DType, gradient: Shape, extra: Sequence[Tensor], attrs: Mapping[str, Any]
) -> Shape:  # fmt: skip
    """The shape of the state."""
    state = state_shape(name, extra[0].shape, gradient, attrs)
    roles = (*rounded.sink.state, *SETTINGS)
    outputs = gradient[0] if gradient else 0
    for role, tensor in zip(roles, extra, strict=True):
        wanted: Shape = {"lr": (), "counter": (2,), "map": (3, outputs)}.get(role, state)
        types = {"counter": DType.I32, rounded.sink.state[0]: kind}
        if tensor.shape != wanted or tensor.dtype is not types.get(role, DType.F32):
            raise BadShape(f"{name}: {role} is {tensor}", why=f"it is {types.get(role, DType.F32).value}{wanted} here")
    return state


def _check_attrs(name: str, attrs: Mapping[str, Any]) -> None:
    if attrs["rounding"] not in ROUNDING:
        raise BadShape(f"{name} rounds {attrs['rounding']!r}", help=" or ".join(ROUNDING))


def _example(role: str, kind: DType, shape: Shape) -> Any:
    """Numbers of a case; the last output is dead."""
    whole = tuple(int(d) for d in shape)  # type: ignore[arg-type]
    if role == "w":
        return lambda rng, n: rng.integers(-120, 121, whole).astype(kind.numpy)
    if role == "map":
        rows = (3, whole[0])
        return lambda rng, n: rng.uniform(0.05, 0.1, rows) * np.where(np.arange(rows[1]) + 1 < max(rows[1], 2), 1, 0)
    if role == "lr":
        return lambda rng, n: np.array(0.07)
    if role == "counter":
        return lambda rng, n: np.array([5, 3], np.int32)
    return (lambda rng, n: rng.uniform(0.1, 1.0, whole)) if role == "v" else shape


# Ops of their own: q, g, the rest of the state, then settings.


def _define_alone(rounded: Rounded) -> None:
    first, *rest = rounded.sink.state

    def split(inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
        return inputs[1], [inputs[0], *inputs[2:]]

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        g, extra = split(ins)
        if extra[0].dtype not in LIMITS:
            raise BadShape(f"{rounded.name}: {first} is {extra[0]}", why="it is i8 or i32 here")
        _check(rounded.name, rounded, extra[0].dtype, g.shape, extra, {})
        _check_attrs(rounded.name, attrs)
        return [(g.shape, extra[0].dtype), *[(g.shape, DType.F32)] * len(rest)]

    def ref(*arrays: Array, **attrs: Any) -> Sequence[Array]:
        g, extra = split(arrays)
        return rounded.step(g, *extra, **attrs)

    def example(shape: Shape, kind: DType, attrs: Mapping[str, Any]) -> Case:
        roles = [first, "g", *rest, *SETTINGS]
        return case(*[_example(role, kind, shape) for role in roles], **attrs)

    define(
        rounded.name, doc=f"{rounded.sink.doc}, of w = scale·q + offset; the change is rounded to whole q",
        infer=infer, ref=ref, vjp=NOT_DIFFERENTIABLE,
        kernels={kind.value: f"step_{rounded.name}_{kind.value}" for kind in LIMITS},
        params=lambda call: [call.outs[0].size, *rounded.params(call.outs[0].shape, call.attrs)],
        shares={0: 0} | {k: k + 1 for k in range(1, len(rounded.sink.state))}, batchwise=True,
        cases=[example(shape, kind, attrs) for shape in ((3, 5), (1,), (67,)) for kind in LIMITS
               for attrs in rounded.examples],
    )  # fmt: skip


# Fused ops: the gradient op's own inputs, then q, the rest of the state, and settings.


def _define_fused(op: Op, rounded: Rounded, kind: DType) -> None:
    name, consumed = fused_op(op.name, rounded.name), rounded.attrs
    FUSED[name] = Fused(op, len(rounded.sink.state), SETTINGS, ("map",))

    def own_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in attrs.items() if k not in consumed and k != FIRST}

    def own_call(call: Call) -> Call:
        return gradient_call(op, call, rounded.extra, own_attrs(call.attrs))

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        [(gradient, _)] = op.infer(ins[: -rounded.extra], own_attrs(attrs))
        state = _check(name, rounded, kind, gradient, ins[-rounded.extra :], attrs)
        _check_attrs(name, attrs)
        return [(state, kind), *[(state, DType.F32)] * (len(rounded.sink.state) - 1)]

    def ref(*arrays: Array, **attrs: Any) -> Sequence[Array]:
        (g,) = op.ref(*arrays[: -rounded.extra], **own_attrs(attrs))
        step = partial(rounded.step, g, **{k: v for k, v in attrs.items() if k in consumed or k == FIRST})
        extra = arrays[-rounded.extra :]
        return updated(extra, step, len(rounded.sink.state), len(g), attrs[FIRST]) if FIRST in attrs else step(*extra)

    def scratch(call: Call) -> Dim:
        return op.scratch(own_call(call))

    def params(call: Call) -> Sequence[Param]:
        own = own_call(call)
        return [*op.params(own), *rounded.params(own.outs[0].shape, call.attrs)]

    define(
        name, doc=f"{rounded.name} with sum = {op.name}(…) tile by tile, never whole",
        infer=infer, ref=ref, vjp=NOT_DIFFERENTIABLE, kernels={kind.value: f"{name}_{kind.value}"},
        params=params, scratch=scratch, macs=lambda call: op.macs(own_call(call)), work=op.work,
        shares=_shares(op, rounded.sink), batchwise=True, needs_run=op.needs_run, in_part=True,
        cases=_fused_cases(op, rounded, kind),
    )  # fmt: skip


def _fused_cases(op: Op, rounded: Rounded, kind: DType) -> list[Case]:
    """A sum in f32 and one in float64 differ in their last bits, which no number of these cases is so near to feel."""
    found = []
    for own, attrs in zip(op.cases[:4], rounded.examples[::-1] * 2, strict=False):
        [(gradient, _)] = op.infer([_example_tensor(spec) for spec in own.inputs], own.attrs)
        extra = [_example(role, kind, gradient) for role in (*rounded.sink.state, *SETTINGS)]
        found.append(Case((*own.inputs, *extra), {**own.attrs, **attrs}, tolerance=own.tolerance))
    return found


for _rounded in ALL:
    _define_alone(_rounded)
for _op in [op for op in all_ops().values() if op.rounded_sink]:
    for _rounded in ALL:
        assert _op.rounded_sink is not None
        _define_fused(_op, _rounded, _op.rounded_sink)
