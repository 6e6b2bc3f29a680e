"""Optimizers: ten steps as torch.optim takes them, fused updates with the bits of unfused ones, options refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from smidgen import ops
from smidgen.compiler.optimizers import SGD, Adam, AdamW, Optimizer
from smidgen.errors import BadOption
from smidgen.ir import Array, DType, Tensor, at
from smidgen.ops.optim import SINKS
from smidgen.runtime import library

SAMPLES = 3
STEPS = 10

PAIRS: list[tuple[Optimizer, Any]] = [
    (SGD(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    (SGD(0.1, weight_decay=0.05), lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.05)),
    (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)),
    (
        SGD(0.1, momentum=0.8, weight_decay=0.05, nesterov=True),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, weight_decay=0.05, nesterov=True),
    ),
    (Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    (
        Adam(0.01, betas=(0.3, 0.9), eps=1e-4, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, 0.01, betas=(0.3, 0.9), eps=1e-4, weight_decay=0.1),
    ),
    (AdamW(), lambda p: torch.optim.AdamW(p)),
    (AdamW(0.02, weight_decay=0.3), lambda p: torch.optim.AdamW(p, 0.02, weight_decay=0.3)),
]
NAMES = ["sgd", "decay", "momentum", "nesterov", "adam", "adam-decay", "adamw", "adamw-decay"]


def gradients(kind: Any) -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((7, 13)).astype(np.float32).astype(kind) for _ in range(STEPS)]


def start(optimizer: Optimizer, kind: Any) -> list[Array]:
    w = np.random.default_rng(2).standard_normal((7, 13)).astype(np.float32).astype(kind)
    return [w, *[np.zeros_like(w) for _ in optimizer.slots]]


def torch_weights(make: Any) -> list[Array]:
    w = torch.nn.Parameter(torch.tensor(start(SGD(0.1), np.float64)[0]))
    other, seen = make([w]), []
    for g in gradients(np.float64):
        w.grad = torch.tensor(g)
        other.step()
        seen.append(w.detach().numpy().copy())
    return seen


def settings(optimizer: Optimizer, step: int, kind: Any) -> list[Array]:
    counter = [np.array([0, step], np.int32)] if optimizer.needs_counter else []
    return [np.array(optimizer.lr, kind), *counter]


@pytest.mark.parametrize(("optimizer", "make"), PAIRS, ids=NAMES)
def test_ten_steps_equal_torch(optimizer: Optimizer, make: Any) -> None:
    state = start(optimizer, np.float64)
    for step, (g, want) in enumerate(zip(gradients(np.float64), torch_weights(make), strict=True)):
        w, *slots = state
        ins = [w, g, *slots, *settings(optimizer, step, np.float64)]
        state = list(ops.get(optimizer.op).ref(*ins, **optimizer.attrs))
        np.testing.assert_allclose(state[0], want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("optimizer", "make"), PAIRS, ids=NAMES)
def test_ten_steps_in_c_equal_torch_to_single_precision(optimizer: Optimizer, make: Any) -> None:
    state = start(optimizer, np.float32)
    op = ops.get(optimizer.op)
    t = Tensor("w", (7, 13))
    params = at(tuple(op.params(ops.Call((t,), (t,), optimizer.attrs))), 1)
    for step, (g, want) in enumerate(zip(gradients(np.float32), torch_weights(make), strict=True)):
        operands = [*state, g, *settings(optimizer, step, np.float32)]
        assert library.run_kernel(f"{optimizer.op}_f32", operands, params) is None
        np.testing.assert_allclose(state[0], want, rtol=2e-6, atol=2e-6)


def test_late_steps_of_adam_have_their_bias_corrections_in_double() -> None:
    optimizer = Adam(0.01)
    t = Tensor("w", (1,))
    params = at(tuple(ops.get("adam").params(ops.Call((t,), (t,), optimizer.attrs))), 1)
    for step in (0, 1, 2, 1000, 123_456, 2**31 - 1):
        ins = [np.ones(1), np.full(1, 0.5), np.full(1, 0.1), np.full(1, 0.2), *settings(optimizer, step, np.float64)]
        want = ops.get("adam").ref(*ins, **optimizer.attrs)
        w, g, m, v, lr = (a.astype(np.float32) for a in ins[:5])
        assert library.run_kernel("adam_f32", [w, m, v, g, lr, ins[5]], params) is None
        np.testing.assert_allclose([w, m, v], want, rtol=3e-7)


FUSED = [(op, sink) for op in ops.all_ops().values() if op.sink for sink in SINKS]


@pytest.mark.parametrize(("op", "sink"), FUSED, ids=[f"{op.name}_{sink.name}" for op, sink in FUSED])
def test_a_fused_update_has_the_bits_of_gradient_then_update(op: ops.Op, sink: Any) -> None:
    case = ops.get(f"{op.name}_{sink.name}").cases[0]
    rng, run = np.random.default_rng(9), (SAMPLES, SAMPLES, 0)
    arrays = [np.asarray(s(rng, SAMPLES) if callable(s) else rng.standard_normal(at(s, SAMPLES))) for s in case.inputs]
    tensors = [
        Tensor(f"t{i}", a.shape if callable(s) else s, DType.F32 if a.dtype.kind == "f" else DType.I32)
        for i, (s, a) in enumerate(zip(case.inputs, arrays, strict=True))
    ]
    arrays = [np.ascontiguousarray(a, t.dtype.numpy) for a, t in zip(arrays, tensors, strict=True)]
    first = len(arrays) - sink.extra
    weight, kept = tensors[first], arrays[first + len(sink.state) :]

    def call(name: str, ins: list[Tensor], outs: int, attrs: Any) -> tuple[list[Any], list[Array]]:
        rules = ops.Call(tuple(ins), (weight,) * outs, attrs)
        scratch = int(at(ops.get(name).scratch(rules), SAMPLES))
        room = [np.zeros(scratch, np.uint8)] if scratch else []
        return list(at(tuple(ops.get(name).params(rules)), SAMPLES)), room

    def state() -> list[Array]:
        return [a.copy() for a in arrays[first : first + len(sink.state)]]

    fused, alone = state(), state()
    params, room = call(f"{op.name}_{sink.name}", tensors, len(sink.state), case.attrs)
    assert (
        library.run_kernel(f"{op.name}_{sink.name}_f32", [*fused, *arrays[:first], *kept, *room], params, run) is None
    )
    own = {k: v for k, v in case.attrs.items() if k not in sink.attrs}
    gradient = np.full_like(alone[0], 7)
    params, room = call(op.name, tensors[:first], 1, own)
    assert library.run_kernel(f"{op.name}_f32", [gradient, *arrays[:first], *room], params, run) is None
    if sink.name == "acc":  # an accumulator is continued, not added to: start from nothing to compare
        for a in fused:
            a[...] = 0
        params, room = call(f"{op.name}_acc", tensors, 1, case.attrs)
        assert library.run_kernel(f"{op.name}_acc_f32", [*fused, *arrays[:first], *room], params, run) is None
        np.testing.assert_array_equal(fused[0], gradient)
        return
    update = {k: v for k, v in case.attrs.items() if k in sink.attrs}
    params, _ = call(sink.alone, [weight], len(sink.state), update)
    assert library.run_kernel(f"{sink.alone}_f32", [*alone, gradient, *kept], params, run) is None
    for a, b in zip(fused, alone, strict=True):
        np.testing.assert_array_equal(a.view(np.int32), b.view(np.int32))


def test_clipping_equals_torch() -> None:
    rng = np.random.default_rng(3)
    grads = [rng.standard_normal(s) for s in ((4, 5), (7,), (3, 3))]
    for max_norm in (0.5, 100.0):
        sums = [ops.get("sum_squares").ref(g)[0] for g in grads]
        (factor,) = ops.get("clip_factor").ref(*sums, max_norm=max_norm)
        params = [torch.nn.Parameter(torch.zeros(g.shape, dtype=torch.float64)) for g in grads]
        for p, g in zip(params, grads, strict=True):
            p.grad = torch.tensor(g)
        torch.nn.utils.clip_grad_norm_(params, max_norm)
        for p, g in zip(params, grads, strict=True):
            assert p.grad is not None
            np.testing.assert_allclose(g * factor, p.grad.numpy(), rtol=1e-12)


def test_attributes_are_those_of_the_op() -> None:
    for optimizer, _ in PAIRS:
        sink = next(s for s in SINKS if s.alone == optimizer.op)
        assert set(optimizer.attrs) == sink.attrs
        assert len(optimizer.slots) == len(sink.state) - 1
        assert optimizer.needs_counter == ("counter" in sink.settings)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SGD(-0.1), "lr=-0.1"),
        (lambda: SGD(float("nan")), "lr=nan"),
        (lambda: SGD("fast"), "lr='fast'"),  # type: ignore[arg-type]
        (lambda: SGD(True), "lr=True"),
        (lambda: SGD(1e39), "lr=1e+39"),  # infinite in single precision
        (lambda: SGD(10**400), "lr=1000"),
        (lambda: SGD(0.1, weight_decay=1e39), "weight_decay=1e+39"),
        (lambda: SGD(0.1, momentum=1 - 1e-12), "momentum=0.999999999999"),
        (lambda: SGD(0.1, clip_norm=1e-50), "clip_norm=1e-50"),  # 0 there
        (lambda: SGD(0.1, clip_norm=1e39), "clip_norm=1e+39"),
        (lambda: Adam(betas=(0.9, 1 - 1e-12)), "betas=(0.9, 0.999999999999)"),
        (lambda: Adam(eps=1e39), "eps=1e+39"),
        (lambda: SGD(0.1, momentum=1.0), "momentum=1.0"),
        (lambda: SGD(0.1, nesterov=True), "help: momentum=0.9, nesterov=True"),
        (lambda: SGD(0.1, clip_norm=0), "clip_norm=0 "),
        (lambda: SGD(0.1, weight_decay=-1), "weight_decay=-1"),
        (lambda: Adam(betas=(0.9, 1.0)), "betas=(0.9, 1.0)"),
        (lambda: Adam(betas=0.9), "betas=0.9"),  # type: ignore[arg-type]
        (lambda: Adam(eps=0), "eps=0 "),
        (lambda: AdamW(eps=1e-60), "at   AdamW"),
    ],
)
def test_options_that_mean_nothing_are_refused_with_help(make: Any, says: str) -> None:
    with pytest.raises(BadOption) as caught:
        make()
    assert says in str(caught.value)
    assert "help: " in str(caught.value)
