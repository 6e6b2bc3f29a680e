"""Integers that stand for real numbers: what a change of scale means, gradients in the real domain, weights that learn
in whole steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from smidgen import ops
from smidgen.compiler.graph import interp
from smidgen.ir import Array, DType, Quant, Role
from smidgen.ops.build import Builder
from smidgen.ops.fixed_point import HIGH, LOW, MOST_SHIFT, fixed_point, requantized
from smidgen.runtime import library

RNG = np.random.default_rng


# -- one change of scale -----------------------------------------------------------------------------------------------


def test_one_rounding_half_up_of_the_exact_quotient() -> None:
    rng = RNG(0)
    acc = np.concatenate([rng.integers(-(2**31), 2**31, 300), np.arange(-20, 20)])
    for m, shift in ((1, 1), (3, 2), (2**31 - 1, 62), (2**30, 31), (12345, 7), (0, 5)):
        got = requantized(acc, m, shift, 3, LOW, HIGH)
        for a, y in zip(acc.tolist(), got.tolist(), strict=True):
            exact = Fraction(a * m, 2**shift) + Fraction(1, 2)
            assert y == min(max(exact.numerator // exact.denominator + 3, LOW), HIGH)


@pytest.mark.parametrize("ratio", [1e-12, 3e-9, 0.001, 0.49999, 0.5, 0.999999999, 1.0, 1.7, 300.0])
def test_a_multiplier_is_as_near_as_31_bits_allow(ratio: float) -> None:
    m, shift = fixed_point([ratio, ratio / 3, 0.0])
    assert 1 <= shift <= MOST_SHIFT
    assert m[2] == 0
    assert abs(int(m[0]) / 2**shift - ratio) <= 0.5 / 2**shift
    assert m[0] >= 2**30 or shift == MOST_SHIFT
    assert abs(int(m[1]) / 2**shift - ratio / 3) <= 0.5 / 2**shift


def test_a_multiplier_that_rounds_up_to_a_bit_more_keeps_31_bits() -> None:
    m, shift = fixed_point([1 - 2.0**-40])
    assert (int(m[0]), shift) == (2**30, 30)
    m, shift = fixed_point([0.75, -0.3], bits=21, most_shift=30)
    assert abs(m).max() <= 2**21
    assert m[1] < 0


def test_rounding_to_int8_does_not_depend_on_contraction() -> None:
    """Half a step goes up, also where a fused multiply-add would see another number."""
    rng = RNG(1)
    scale = float(np.float32(0.0371))
    x = np.concatenate([(np.arange(-128, 128) + 0.5) * scale, rng.standard_normal(10000) * 2]).astype(np.float32)
    want = ops.get("quantize").ref(x, scale=scale, zero=4)[0]
    params = [x.size, float(np.float32(2**16) / np.float32(scale)), 4]
    for complaint, y in ran("quantize_i8", [np.zeros(x.shape, np.int8), x], params):
        assert complaint is None
        np.testing.assert_array_equal(y, want)
    real = ops.get("dequantize").ref(want, scale=scale, zero=4)[0]
    inside = np.abs(x) < 120 * scale
    assert np.abs(real - x)[inside].max() <= scale * (0.5 + 1e-4)


def ran(kernel: str, operands: list[Array], params: list[Any]) -> Iterator[tuple[str | None, Array]]:
    """Operand 0 afterwards, of the exact kernel and of the one for this machine's vectors."""
    yield library.run_kernel(kernel, operands, params), operands[0]
    operands[0][...] = 0
    found, complaint = library.FastProbe().run(kernel, operands, params, (1, 1, 0))
    if found:
        yield complaint, operands[0]


# -- gradients ---------------------------------------------------------------------------------------------------------


def quantized(b: Builder, name: str, shape: tuple[int, ...], scale: Any, zero: Any, role: Role = Role.VALUE,
              dtype: DType = DType.I8) -> str:  # fmt: skip
    name = b.tensor(name, shape, dtype, role)
    axis = 0 if isinstance(scale, tuple) else None
    quant = Quant(scale, (zero,) * len(scale), axis) if isinstance(scale, tuple) else Quant((scale,), (zero,))
    b.tensors[name] = replace(b[name], quant=quant)
    return name


def real(values: Array, quant: Quant | None) -> Array:
    assert quant is not None
    per = (-1, *[1] * (values.ndim - 1)) if quant.axis is not None else ()
    return (values - np.array(quant.zero_points).reshape(per)) * np.array(quant.scales).reshape(per)


def gradients(b: Builder, node: int, dy: Array, values: Mapping[str, Array]) -> list[Array | None]:
    """By the op's rule, evaluated."""
    made = b.nodes[node]
    up = b.tensor("dy", b[made.outs[0]].shape)
    b.stage = "backward"
    grads = ops.get(made.op).vjp(b, made, [up])  # type: ignore[operator]
    env = interp.run(b.graph(), {**values, up: dy}, n=1)
    return [None if grad is None else env[grad] for grad in grads]


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 6, 5, 3), (4, 3, 3, 3), {"padding": ((1, 1), (1, 1))}),
    ((1, 7, 9, 11), (11, 5, 5, 1), {"groups": 11, "padding": ((2, 2), (2, 2)), "stride": (2, 2)}),
    ((1, 8, 7, 6), (9, 3, 3, 2), {"groups": 3, "padding": ((1, 0), (1, 1)), "dilation": (2, 1)}),
]


def conv_twin(x: Array, w: Array, b: Array, attrs: Mapping[str, Any]) -> Array:
    (y,) = ops.get("conv2d").ref(x, w, b, **attrs)
    return y


@pytest.mark.parametrize(("shape", "weight", "attrs"), CONVOLUTIONS)
def test_a_layer_has_the_gradient_of_its_real_twin_where_it_was_not_cut_off(
    shape: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    rng = RNG(2)
    scales = tuple(rng.uniform(0.01, 0.03, weight[0]).tolist())
    b = Builder()
    x, w = quantized(b, "x", shape, 0.05, -20), quantized(b, "w", weight, scales, 0, Role.PARAM)
    bias = quantized(b, "b", weight[:1], tuple(0.05 * s for s in scales), 0, Role.PARAM, DType.I32)
    y_scale, y_zero = 0.06, -100
    ratios, shift = fixed_point(np.array(scales) * 0.05 / y_scale)
    m = b.stored("m", ratios, Role.CONST)
    ends = {"x_zero": -20, "shift": shift, "y_zero": y_zero, "lo": y_zero, "hi": 90}  # a ReLU with a limit
    y = b.add("qconv2d", x, w, bias, m, **attrs, **ends)
    values = {
        x: rng.integers(-128, 128, shape), w: rng.integers(-127, 128, weight), bias: rng.integers(-900, 900, weight[0])
    }  # fmt: skip
    q = interp.run(b.graph(), values, n=1)[y]
    dy = rng.standard_normal(q.shape)
    dx, dw, db, _ = gradients(b, 0, dy, values)
    # Forward: the twin's result, rounded.
    xr, wr, br = (real(values[name].astype(float), b[name].quant) for name in (x, w, bias))
    twin = conv_twin(xr, wr, br, attrs)
    np.testing.assert_allclose(
        (q.astype(float) - y_zero) * y_scale, np.clip(twin, 0, (90 - y_zero) * y_scale), atol=y_scale * 0.51
    )
    assert (q == y_zero).any(), "some of it must be cut off"
    assert (q == 90).any()
    # Backward: that of the twin, of what lies between the bounds.
    inside = np.where((q > y_zero) & (q < 90), dy, 0)
    (want_dx,) = ops.get("conv2d_dx").ref(inside, wr, in_hw=shape[1:3], **attrs)
    (want_dw,) = ops.get("conv2d_dw").ref(inside, xr, kernel=weight[1:3], **attrs)
    np.testing.assert_allclose(dx, want_dx, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(dw, want_dw, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(db, inside.sum((0, 1, 2)), rtol=1e-9)


def test_a_linear_layer_has_the_gradient_of_its_real_twin() -> None:
    rng = RNG(3)
    scales = tuple(rng.uniform(0.01, 0.03, 5).tolist())
    b = Builder()
    x, w = quantized(b, "x", (4, 3, 7), 0.05, 9), quantized(b, "w", (5, 7), scales, 0, Role.PARAM)
    bias = quantized(b, "b", (5,), tuple(0.05 * s for s in scales), 0, Role.PARAM, DType.I32)
    ratios, shift = fixed_point(np.array(scales) * 0.05 / 2.0)  # wide: nothing is cut off
    m = b.stored("m", ratios, Role.CONST)
    b.add("qlinear", x, w, bias, m, x_zero=9, shift=shift, y_zero=0, lo=LOW, hi=HIGH)
    values = {x: rng.integers(-128, 128, (4, 3, 7)), w: rng.integers(-127, 128, (5, 7)), bias: np.zeros(5)}
    dy = rng.standard_normal((4, 3, 5))
    dx, dw, db, _ = gradients(b, 0, dy, values)
    xr, wr = (real(values[name].astype(float), b[name].quant) for name in (x, w))
    np.testing.assert_allclose(dx, dy @ wr, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(dw, np.einsum("nro,nrk->ok", dy, xr), rtol=1e-6)
    np.testing.assert_allclose(db, dy.sum((0, 1)), rtol=1e-9)


def test_sums_differences_and_products_have_the_gradients_of_real_numbers() -> None:
    rng = RNG(4)
    shapes = {"a": (2, 3, 4, 5), "b": (2, 1, 1, 5)}
    values = {name: rng.integers(-60, 60, shape) for name, shape in shapes.items()}
    dy = rng.standard_normal(shapes["a"])
    summed = dy.sum((1, 2), keepdims=True)
    for sign in (1, -1):
        b = Builder()
        names = [quantized(b, name, shape, 0.05, 7) for name, shape in shapes.items()]
        (a_m, b_m), shift = fixed_point([0.5, sign * 0.25], bits=21, most_shift=30)
        b.add("qadd", *names, a_zero=7, b_zero=7, a_m=int(a_m), b_m=int(b_m), shift=shift, y_zero=0, lo=LOW, hi=HIGH)
        da, db = gradients(b, 0, dy, values)
        np.testing.assert_allclose(da, dy)
        np.testing.assert_allclose(db, sign * summed)
    b = Builder()
    names = [quantized(b, name, shape, 0.05, 7) for name, shape in shapes.items()]
    m, shift = fixed_point([0.002])
    b.add("qmul", *names, a_zero=7, b_zero=7, m=int(m[0]), shift=shift, y_zero=0, lo=LOW, hi=HIGH)
    da, db = gradients(b, 0, dy, values)
    ra, rb = (real(values[name].astype(float), b[name].quant) for name in names)
    np.testing.assert_allclose(da, dy * rb, rtol=1e-6)
    np.testing.assert_allclose(db, (dy * ra).sum((1, 2), keepdims=True), rtol=1e-6)


@pytest.mark.parametrize(("of", "attrs"), [("hardswish", {}), ("sigmoid", {}), ("gelu", {"approximate": True}),
                                           ("leaky_relu", {"slope": 0.1}), ("scale", {"by": 1.0})])  # fmt: skip
def test_a_table_has_the_slopes_of_the_function_it_was_made_of(of: str, attrs: dict[str, Any]) -> None:
    b = Builder()
    x = quantized(b, "x", (256,), 0.03, 11)
    table = b.stored("table", np.zeros(256, np.int8), Role.CONST)
    b.add("qtable", x, table, of=of, **attrs)
    q = np.arange(-128, 128)
    dy = RNG(5).standard_normal(256)
    dx, _ = gradients(b, 0, dy, {x: q})
    plain = Builder()
    plain.add(of, plain.tensor("x", (256,)), **attrs)
    (want,) = gradients(plain, 0, dy, {"x": (q - 11) * 0.03})
    np.testing.assert_allclose(dx, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("op", "twin", "attrs", "own"), [
    ("qmean", "mean", {"axes": (1, 2), "keepdim": False}, {"m": 2**30 // 12}),
    ("qavg_pool2d", "avg_pool2d", {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 1), "out_hw": (1, 2),
                                   "count_include_pad": False}, {"m": 2**30}),
])  # fmt: skip
def test_means_have_the_values_and_gradients_of_real_ones(
    op: str, twin: str, attrs: dict[str, Any], own: dict[str, int]
) -> None:
    rng = RNG(6)
    b = Builder()
    x = quantized(b, "x", (2, 3, 4, 5), 0.05, 7)
    y = b.add(op, x, **attrs, x_zero=7, **own, shift=30, y_zero=7, lo=LOW, hi=HIGH)
    values = {x: rng.integers(-100, 100, (2, 3, 4, 5))}
    q = interp.run(b.graph(), values, n=1)[y]
    xr = real(values[x].astype(float), b[x].quant)
    np.testing.assert_allclose((q - 7) * 0.05, ops.get(twin).ref(xr, **attrs)[0], atol=0.0251)
    dy = rng.standard_normal(q.shape)
    plain = Builder()
    plain.add(twin, plain.tensor("x", (2, 3, 4, 5)), **attrs)
    (want,) = gradients(plain, 0, dy, {"x": xr})
    np.testing.assert_allclose(gradients(b, 0, dy, values)[0], want, rtol=1e-9)


# -- learning in whole steps -------------------------------------------------------------------------------------------


def stepped(op: str, q: Array, g: Array, *, lr: float, step: int = 0, rounding: str = "stochastic", scale: float = 0.01,
            gain: float = 1.0, key: int = 3, **attrs: Any) -> Array:  # fmt: skip
    rows = np.array([[gain], [scale], [0.0]]) * np.ones((3, len(q)))
    counter = np.array([9, step], np.int32)
    base = {"weight_decay": 0.0, "factor": 1.0, **attrs}
    return ops.get(op).ref(q, g, rows, np.float32(lr), counter, draws=key, rounding=rounding, **base)[0]


def test_the_mean_of_stochastic_rounding_is_the_change_itself() -> None:
    q = np.zeros((4, 50_000), np.int8)
    g = np.broadcast_to(np.array([[0.3], [-0.02], [1.7], [0.0]]), q.shape)
    moved = stepped("qsgd", q, g, lr=0.01)
    wanted = -g[:, 0]  # lr / scale = 1
    assert np.abs(moved.mean(1) - wanted).max() < 0.01
    assert not moved[3].any(), "without a gradient nothing moves"
    nearest = stepped("qsgd", q, g, lr=0.01, rounding="nearest")
    assert nearest[:, 0].tolist() == [0, 0, -2, 0]


def test_draws_depend_on_seed_step_and_key_alone() -> None:
    q, g = np.zeros((4, 1000), np.int8), np.full((4, 1000), 0.5)
    first = stepped("qsgd", q, g, lr=0.01)
    assert np.array_equal(first, stepped("qsgd", q, g, lr=0.01))
    assert not np.array_equal(first, stepped("qsgd", q, g, lr=0.01, step=1))
    assert not np.array_equal(first, stepped("qsgd", q, g, lr=0.01, key=4))


def test_a_weight_stays_within_its_bounds_and_nan_moves_nothing() -> None:
    q = np.array([[120, -120, 5, 5]], np.int8)
    g = np.array([[-1e9, 1e9, np.nan, -np.inf]])
    assert stepped("qsgd", q, g, lr=1.0).tolist() == [[127, -127, 5, 127]]
    bias = np.array([2**30, -5], np.int32)
    assert stepped("qsgd", bias, np.array([-1e30, 0.0]), lr=1.0).tolist() == [2**30, -5]


def test_a_dead_channel_stays_as_it_is_also_with_weight_decay() -> None:
    q = np.full((1, 6), 7, np.int8)
    moved = stepped("qsgd", q, np.ones((1, 6)), lr=1.0, scale=0.0, gain=0.0, weight_decay=0.1)
    assert np.array_equal(moved, q)


def test_the_step_is_that_of_the_optimizer_on_real_weights() -> None:
    """With a step of rounding that is small, integers follow floats."""
    rng = RNG(7)
    scale, n = 1e-8, 200
    w, g = rng.uniform(-1, 1, (2, n)), [rng.standard_normal((2, n)) for _ in range(5)]
    for name, attrs, slots in (
        ("sgd", {"weight_decay": 0.1}, 0),
        ("momentum", {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, 1),
        ("adam", {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.05, "decoupled": True}, 2),
        ("adam", {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.05, "decoupled": False}, 2),
    ):
        q = np.floor(w / scale + 0.5).astype(np.int32)
        real_w, real_state = q * scale, [np.zeros_like(w)] * slots
        state = [np.zeros_like(w)] * slots
        rows = np.array([[1.0], [scale], [0.0]]) * np.ones((3, 2))
        for step, grad in enumerate(g):
            counter, lr = np.array([0, step], np.int32), np.array(0.01)
            tail = (lr, counter) if name == "adam" else (lr,)
            real_w, *real_state = ops.get(name).ref(real_w, grad, *real_state, *tail, **attrs)
            q, *state = ops.get(f"q{name}").ref(q, grad, *state, rows, lr, counter, draws=1, rounding="stochastic",
                                                factor=1.0, **attrs)  # fmt: skip
        np.testing.assert_allclose(q * scale, real_w, rtol=2e-6, atol=3e-7)
