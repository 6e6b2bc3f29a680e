"""Every op × every case: shape rule, C kernel = ref, declared extents = real sizes, gradient = finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen import ops
from smidgen.compiler.graph import interp
from smidgen.ir import Array, DType, at
from smidgen.runtime import library
from tests.support.op_cases import SAMPLES, built, dtype_of, inputs_of

CASES = [
    pytest.param(op, case, id=f"{op.name}-{i}") for op in ops.all_ops().values() for i, case in enumerate(op.cases)
]


def reference(op: ops.Op, case: ops.Case, arrays: list[Array]) -> list[Array]:
    attrs = at(dict(case.attrs), SAMPLES)
    if op.needs_run:
        attrs["run"] = ops.Run(SAMPLES, SAMPLES, 0)
    return [np.asarray(y) for y in op.ref(*arrays, **attrs)]


@pytest.mark.parametrize(("op", "case"), CASES)
def test_shape_rule_agrees_with_the_numpy_meaning(op: ops.Op, case: ops.Case) -> None:
    arrays = inputs_of(op, case)
    b, _, outs = built(op, case, arrays)
    for name, value in zip(outs, reference(op, case, arrays), strict=True):
        assert at(b[name].shape, SAMPLES) == value.shape
        assert b[name].dtype is dtype_of(value)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_c_kernel_equals_ref_and_declares_its_extents(op: ops.Op, case: ops.Case) -> None:
    if op.is_view:
        assert op.shares, "an op without a kernel must be a view"
        return
    arrays = inputs_of(op, case)
    b, ins, outs = built(op, case, arrays)
    call = ops.Call(tuple(b[i] for i in ins), tuple(b[o] for o in outs), dict(case.attrs))
    kernel = op.kernel(call)
    params = at(tuple(op.params(call)), SAMPLES)
    wanted = reference(op, case, arrays)
    stored = [np.ascontiguousarray(a, dtype=dtype_of(a).numpy) for a in arrays]
    results = [np.full(w.shape, 77, dtype_of(w).numpy) for w in wanted]
    for out, source in op.shares.items():
        results[out] = stored[source]  # an update writes where it reads
    scratch_bytes = int(at(op.scratch(call), SAMPLES))
    scratch = [np.zeros(max(scratch_bytes, 1), np.uint8)] if scratch_bytes else []
    kept = [i for i in range(len(stored)) if i not in op.shares.values()]
    operands = [*results, *[stored[i] for i in kept], *scratch]
    run = (SAMPLES, SAMPLES, 0)
    needs = library.kernel_needs(kernel, params, len(operands), run)
    assert needs == [a.nbytes for a in [*results, *[stored[i] for i in kept]]] + ([scratch_bytes] if scratch else [])
    assert library.run_kernel(kernel, operands, params, run) is None
    for got, want in zip(results, wanted, strict=True):
        if got.dtype.kind == "f":
            scale = max(1e-30, float(np.abs(want).max(initial=0.0)))
            np.testing.assert_allclose(got, want, rtol=case.tolerance * 10, atol=case.tolerance * scale)
        else:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("op", "case"), [c for c in CASES if c.values[0].vjp is not ops.NOT_DIFFERENTIABLE])
def test_gradient_equals_finite_differences(op: ops.Op, case: ops.Case) -> None:
    """Of integers that stand for real numbers, which have no small differences, see test_quantized_ops.py."""
    if not case.smooth:
        pytest.skip("the case sits on a kink on purpose")
    arrays = inputs_of(op, case)
    b, ins, outs = built(op, case, arrays)
    if any(b[name].dtype is DType.I8 for name in (*ins, *outs)):
        pytest.skip("rounded")
    rng = np.random.default_rng(7)
    refs = reference(op, case, arrays)
    cotangents = [rng.standard_normal(r.shape) if r.dtype.kind == "f" else None for r in refs]
    dys = []
    for name, u in zip(outs, cotangents, strict=True):
        dys.append(b.tensor(f"d{name}", b[name].shape) if u is not None else None)
    b.stage = "backward"
    grads = op.vjp(b, b.nodes[0], dys)  # type: ignore[operator]
    feeds = dict(zip(ins, arrays, strict=True))
    feeds |= {d: u for d, u in zip(dys, cotangents, strict=True) if d is not None and u is not None}
    env = interp.run(b.graph(), feeds, n=SAMPLES)

    def value(xs: list[Array]) -> float:
        ys = reference(op, case, xs)
        return sum(float((y * u).sum()) for y, u in zip(ys, cotangents, strict=True) if u is not None)

    for i, grad in enumerate(grads):
        if arrays[i].dtype.kind != "f":
            assert grad is None
            continue
        if grad is None:
            continue
        assert b[grad].shape == b[ins[i]].shape
        direction = rng.standard_normal(arrays[i].shape)
        step = 1e-6
        up, down = list(arrays), list(arrays)
        up[i], down[i] = arrays[i] + step * direction, arrays[i] - step * direction
        numeric = (value(up) - value(down)) / (2 * step)
        analytic = float((env[grad] * direction).sum())
        assert analytic == pytest.approx(numeric, rel=1e-5, abs=1e-6)


def test_every_op_is_complete() -> None:
    for op in ops.all_ops().values():
        assert op.doc, op.name
        assert op.loops or op.streams or op.cases, f"{op.name} has no cases"
        assert op.kernels or op.shares or op.loops or op.streams, f"{op.name} has neither kernel nor view"
