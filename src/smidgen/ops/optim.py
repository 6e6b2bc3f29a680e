"""Optimizer steps, and their fusion with every weight gradient that can be consumed tile by tile.

An optimizer is described once, as a `Sink`; from it come the op of its own (`adam`) and, for each op with `sink=True`,
the fused one (`conv2d_dw_adam`). Both run the same C (runtime/kernels/sink.h), so they give the same bits.
Formulas are torch.optim's. lr is f32[], counter is i32[2] = (seed, steps done).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..errors import BadShape, Internal
from ..ir import Array, Dim, DType, Node, Shape, Tensor, at
from .registry import NOT_DIFFERENTIABLE, Call, Case, Op, Param, Spec, all_ops, case, declared, define

MAX_SCALARS = 23
"""Inputs of one clip_factor: a kernel has at most 24 operands."""


@dataclass(frozen=True)
class Sink:
    """What happens to a gradient g. Its inputs are `state` (updated in place) and `settings` (read)."""

    name: str  # the ending of fused ops
    alone: str  # the op of its own
    doc: str
    state: tuple[str, ...]
    settings: tuple[str, ...]
    step: Callable[..., tuple[Array, ...]]  # step(g, *state, *settings, **attrs) → new state
    params: Callable[[Mapping[str, Any]], Sequence[Param]]
    examples: tuple[Mapping[str, Any], ...]

    @property
    def extra(self) -> int:
        return len(self.state) + len(self.settings)

    @property
    def attrs(self) -> frozenset[str]:
        return frozenset(self.examples[0])


def _sgd(g: Array, w: Array, lr: Array, *, weight_decay: float) -> tuple[Array, ...]:
    return (w - lr * (g + weight_decay * w),)


def _momentum(
    g: Array, w: Array, m: Array, lr: Array, *, momentum: float, weight_decay: float, nesterov: bool
) -> tuple[Array, ...]:
    g = g + weight_decay * w
    m = momentum * m + g
    return w - lr * (g + momentum * m if nesterov else m), m


def _adam(
    g: Array, w: Array, m: Array, v: Array, lr: Array, counter: Array, *,
    beta1: float, beta2: float, epsilon: float, weight_decay: float, decoupled: bool,
) -> tuple[Array, ...]:  # fmt: skip
    step = max(0, int(counter[1])) + 1  # this one; `count_step` runs after the updates
    w, g = (w * (1 - lr * weight_decay), g) if decoupled else (w, g + weight_decay * w)
    m = m + (1 - beta1) * (g - m)
    v = beta2 * v + (1 - beta2) * g * g
    root = np.sqrt(v) / (1 - beta2**step) ** 0.5
    return w - lr / (1 - beta1**step) * (m / (root + epsilon)), m, v


def _words(value: float) -> tuple[int, int]:
    """A double as two int32 parameters, low word first."""
    low, high = struct.unpack("<2i", struct.pack("<d", value))
    return low, high


def _adam_params(attrs: Mapping[str, Any]) -> Sequence[Param]:
    floats = (float(attrs["epsilon"]), float(attrs["weight_decay"]))
    return [*_words(attrs["beta1"]), *_words(attrs["beta2"]), *floats, int(attrs["decoupled"])]


# The name `epsilon` keeps clear of `eps`, which normalisations use for themselves in fused ops.
SINKS = (
    Sink(
        "acc", "accumulate", "acc' = acc + g", ("acc",), (),
        step=lambda g, acc: (acc + g,), params=lambda attrs: (), examples=({},),
    ),
    Sink(
        "sgd", "sgd", "w' = w - lr·(g + weight_decay·w)", ("w",), ("lr",),
        step=_sgd, params=lambda attrs: [float(attrs["weight_decay"])],
        examples=({"weight_decay": 0.0}, {"weight_decay": 0.1}),
    ),
    Sink(
        "momentum", "momentum",
        "m' = momentum·m + g + weight_decay·w; w' = w - lr·m', nesterov: w - lr·(g + weight_decay·w + momentum·m')",
        ("w", "m"), ("lr",), step=_momentum,
        params=lambda attrs: [float(attrs["momentum"]), float(attrs["weight_decay"]), int(attrs["nesterov"])],
        examples=(
            {"momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
            {"momentum": 0.8, "weight_decay": 0.1, "nesterov": True},
        ),
    ),
    Sink(
        "adam", "adam", "Adam, with decoupled=True AdamW",
        ("w", "m", "v"), ("lr", "counter"), step=_adam, params=_adam_params,
        examples=(
            {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "decoupled": False},
            {"beta1": 0.8, "beta2": 0.99, "epsilon": 1e-6, "weight_decay": 0.1, "decoupled": True},
        ),
    ),
)  # fmt: skip


FIRST = "first"
"""The attribute of an update whose gradient is that of some outputs: the first of them, of all that the state has."""


def state_shape(name: str, state: Shape, gradient: Shape, attrs: Mapping[str, Any]) -> Shape:
    """Of what is updated: that of the gradient, unless it is the gradient of some outputs."""
    if FIRST not in attrs:
        return gradient
    first, whole = attrs[FIRST], state[0] if state else 0
    fits = bool(gradient) and isinstance(whole, int) and 0 <= first <= whole - int(gradient[0])  # type: ignore[arg-type]
    if not fits:
        raise BadShape(f"{name}: a gradient of {gradient} from output {first} on", why=f"the state is {state}")
    return (whole, *gradient[1:])


def updated(arrays: Sequence[Array], step: Callable[..., tuple[Array, ...]], states: int, count: int, first: int
) -> tuple[Array, ...]:  # fmt: skip
    """State and settings, after a step of the outputs from `first` on alone."""
    rows = slice(first, first + count)
    made = step(*[a[rows] for a in arrays[:states]], *arrays[states:])
    found = [np.array(a, new.dtype) for a, new in zip(arrays, made, strict=False)]
    for whole, new in zip(found, made, strict=True):
        whole[rows] = new
    return tuple(found)


def _check_operands(
    name: str, sink: Sink, gradient: Shape, extra: Sequence[Tensor], attrs: Mapping[str, Any]
) -> Shape:  # fmt: skip
    """The shape of the state."""
    state = state_shape(name, extra[0].shape, gradient, attrs)
    for role, tensor in zip((*sink.state, *sink.settings), extra, strict=True):
        wanted: Shape = {"lr": (), "counter": (2,)}.get(role, state)
        kind = DType.I32 if role == "counter" else DType.F32
        if tensor.shape != wanted or tensor.dtype is not kind:
            raise BadShape(f"{name}: {role} is {tensor}", why=f"it is {kind.value} of shape {wanted} here")
    return state


def _example(role: str, shape: Shape) -> Any:
    """A case's input: settings as they occur, a positive second moment, anything for the rest."""
    if role == "lr":
        return lambda rng, n: np.array(0.1)
    if role == "counter":
        return lambda rng, n: np.array([5, 3], np.int32)
    if role == "v":
        return lambda rng, n: rng.uniform(0.1, 1.0, at(shape, n))
    return shape


# Ops of their own: w, g, then the rest.


def _define_alone(sink: Sink) -> None:
    first, *rest = sink.state

    def split(inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Gradient, and the sink's own inputs in its order."""
        return inputs[1], [inputs[0], *inputs[2:]]

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        g, extra = split(ins)
        _check_operands(sink.alone, sink, g.shape, extra, {})
        return [(g.shape, DType.F32)] * len(sink.state)

    def ref(*arrays: Array, **attrs: Any) -> Sequence[Array]:
        g, extra = split(arrays)
        return sink.step(g, *extra, **attrs)

    def example(shape: Shape, attrs: Mapping[str, Any]) -> Case:
        roles = [first, "g", *rest, *sink.settings]
        return case(*[_example(role, shape) for role in roles], **attrs)

    define(
        sink.alone, doc=sink.doc,
        infer=infer, ref=ref, vjp=NOT_DIFFERENTIABLE, kernels={"f32": f"{sink.alone}_f32"},
        params=lambda call: [call.outs[0].size, *sink.params(call.attrs)],
        shares={0: 0} | {k: k + 1 for k in range(1, len(sink.state))}, batchwise=True,
        cases=[example((3, 5), sink.examples[0]), example((1,), sink.examples[-1]), example((67,), sink.examples[-1])],
    )  # fmt: skip


# Fused ops: the gradient op's own inputs, then the sink's.


def fused_op(gradient: str, consumer: str) -> str:
    """The op that is a weight gradient and its consumer in one."""
    return f"{gradient}_{consumer}"


_FUSED: dict[str, tuple[Op, Sink]] = {}


@dataclass(frozen=True)
class Fused:
    """What a fused op is made of: its own inputs are those of the gradient op, `states` tensors that it updates, and
    settings, of which `each` have a number for each output, in their last axis."""

    gradient: Op
    states: int
    settings: tuple[str, ...]
    each: tuple[str, ...] = ()


FUSED: dict[str, Fused] = {}


def unfused(node: Node, gradient: str) -> tuple[Node, Node] | None:
    """The gradient, under this name, and its consumer; None if the node is not both in one."""
    if node.op not in _FUSED or FIRST in node.attrs:
        return None
    op, sink = _FUSED[node.op]
    own, (first, *rest) = node.ins[: -sink.extra], node.ins[-sink.extra :]
    attrs = {k: v for k, v in node.attrs.items() if k not in sink.attrs}
    consumed = {k: v for k, v in node.attrs.items() if k in sink.attrs}
    return (node.with_(op=op.name, ins=own, outs=(gradient,), attrs=attrs, stage="backward"),
            node.with_(op=sink.alone, ins=(first, gradient, *rest), attrs=consumed))  # fmt: skip


def _define_fused(op: Op, sink: Sink) -> None:
    name, consumed = fused_op(op.name, sink.name), sink.attrs
    _FUSED[name] = op, sink
    FUSED[name] = Fused(op, len(sink.state), sink.settings)

    def own_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in attrs.items() if k not in consumed and k != FIRST}

    def own_call(call: Call) -> Call:
        return gradient_call(op, call, sink.extra, own_attrs(call.attrs))

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        [(gradient, _)] = op.infer(ins[: -sink.extra], own_attrs(attrs))
        state = _check_operands(name, sink, gradient, ins[-sink.extra :], attrs)
        return [(state, DType.F32)] * len(sink.state)

    def ref(*arrays: Array, **attrs: Any) -> Sequence[Array]:
        (g,) = op.ref(*arrays[: -sink.extra], **own_attrs(attrs))
        step = partial(sink.step, g, **{k: v for k, v in attrs.items() if k in sink.attrs})
        extra = arrays[-sink.extra :]
        return updated(extra, step, len(sink.state), len(g), attrs[FIRST]) if FIRST in attrs else step(*extra)

    def scratch(call: Call) -> Dim:
        return op.scratch(own_call(call))

    def params(call: Call) -> Sequence[Param]:
        return [*op.params(own_call(call)), *sink.params(call.attrs)]

    define(
        name, doc=f"{sink.doc}, g = {op.name}(…) tile by tile, never whole",
        infer=infer, ref=ref, vjp=NOT_DIFFERENTIABLE, kernels={"f32": f"{name}_f32"},
        params=params, scratch=scratch, macs=lambda call: op.macs(own_call(call)), work=op.work,
        shares=_shares(op, sink), batchwise=True, needs_run=op.needs_run, cases=_fused_cases(op, sink), in_part=True,
    )  # fmt: skip


def gradient_call(op: Op, call: Call, extra: int, attrs: Mapping[str, Any]) -> Call:
    """The gradient op as if it stood alone."""
    own = call.ins[:-extra]
    shape = op.infer(own, attrs)[0][0] if FIRST in call.attrs else call.outs[0].shape
    return Call(own, (Tensor("g", shape),), attrs)


def _shares(op: Op, sink: Sink) -> dict[int, int]:
    """Outputs are the sink's state, which follows the gradient op's own inputs."""
    counts = {len(example.inputs) for example in op.cases}
    if len(counts) != 1:
        raise Internal(f"sink op '{op.name}' needs cases, all with the same number of inputs")
    return {k: counts.copy().pop() + k for k in range(len(sink.state))}


def _fused_cases(op: Op, sink: Sink) -> list[Case]:
    found = []
    for own, attrs in zip(op.cases[:2], sink.examples[::-1], strict=False):
        clash = sink.attrs & set(own.attrs)
        if clash:
            raise Internal(f"op '{op.name}' and sink '{sink.name}' both have the attribute {', '.join(sorted(clash))}")
        [(gradient, _)] = op.infer([_example_tensor(spec) for spec in own.inputs], own.attrs)
        extra = [_example(role, gradient) for role in (*sink.state, *sink.settings)]
        found.append(Case((*own.inputs, *extra), {**own.attrs, **attrs}, tolerance=own.tolerance))
    return found


def _example_tensor(spec: Any) -> Tensor:
    """The tensor that a case's input describes."""
    if not callable(spec):
        return Tensor("x", tuple(spec))
    value = np.asarray(spec(np.random.default_rng(0), 1))
    return Tensor("x", declared(spec, value), DType.of_numpy(value.dtype))


for _sink in SINKS:
    _define_alone(_sink)
for _op in [op for op in all_ops().values() if op.sink or op.rounded_sink]:
    for _sink in SINKS if _op.sink else SINKS[:1]:  # sums over micro-batches are floats, whatever learns
        _define_fused(_op, _sink)


# Around the update: counting, accumulators, clipping by the norm of all gradients.


def _same(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return [(ins[0].shape, ins[0].dtype)]


def _scalar(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    return [((), DType.F32)]


def _clip_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    if not 0 < len(ins) <= MAX_SCALARS:
        raise Internal(f"clip_factor of {len(ins)} sums: add some first, it takes 1 to {MAX_SCALARS}")
    return _scalar(ins, attrs)


def _clip_factor(*sums: Array, max_norm: float) -> Sequence[Array]:
    total = np.sum(np.stack([np.asarray(s) for s in sums]), axis=0)
    return (np.asarray(np.minimum(1.0, max_norm / (np.sqrt(total) + 1e-6)), total.dtype),)


def _positive(rng: np.random.Generator, n: int) -> Array:
    return np.asarray(rng.uniform(0.5, 4.0))


define(
    "count_step", doc="(seed, step) → (seed, step + 1); runs after the updates of a step",
    infer=_same, ref=lambda counter: (np.array([counter[0], min(int(counter[1]) + 1, 2**31 - 1)], np.int32),),
    vjp=NOT_DIFFERENTIABLE, kernels={"i32": "count_step_i32"}, shares={0: 0}, batchwise=True,
    cases=[case(lambda rng, n: np.array([9, 0], np.int32)), case(lambda rng, n: np.array([-1, 2**31 - 1], np.int32))],
)  # fmt: skip

define(
    "zero", doc="acc' = 0", infer=_same, ref=lambda acc: (np.zeros_like(acc),),
    vjp=NOT_DIFFERENTIABLE, kernels={"f32": "zero_f32"}, params=lambda call: [call.outs[0].size],
    shares={0: 0}, batchwise=True, cases=[case((3, 5)), case(())],
)  # fmt: skip

define(
    "running_sum", doc="acc' = acc + x; y = acc', of what a micro-batch gives",
    infer=lambda ins, attrs: [(ins[1].shape, DType.F32)] * 2, ref=lambda acc, x: (acc + x, acc + x),
    vjp=NOT_DIFFERENTIABLE, kernels={"f32": "running_sum_f32"}, params=lambda call: [call.outs[0].size],
    shares={1: 0}, batchwise=True, cases=[case((), ()), case((3, 5), (3, 5))],
)  # fmt: skip

define(
    "sum_squares", doc="y = Σ g²", infer=_scalar, ref=lambda g: (np.asarray(np.square(g).sum()),),
    vjp=NOT_DIFFERENTIABLE, kernels={"f32": "sum_squares_f32"}, params=lambda call: [call.ins[0].size],
    batchwise=True, cases=[case((3, 5)), case((1,)), case((17, 13))],
)  # fmt: skip

define(
    "clip_factor", doc="y = min(1, max_norm / (√Σ inputs + 1e-6)), as torch.nn.utils.clip_grad_norm_",
    infer=_clip_infer, ref=_clip_factor, vjp=NOT_DIFFERENTIABLE, kernels={"f32": "clip_factor_f32"},
    params=lambda call: [float(call["max_norm"])], batchwise=True,
    cases=[
        case(_positive, max_norm=0.5), case(_positive, _positive, _positive, max_norm=1.0),
        case(_positive, max_norm=100.0),
    ],
)  # fmt: skip
