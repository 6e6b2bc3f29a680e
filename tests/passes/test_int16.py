"""Gradients in int16: what becomes mantissas and what stays in f32, no sum overflows, nothing of a residual is lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smidgen
from smidgen import api, ops
from smidgen.compiler.assemble import encode
from smidgen.ir import DType, Graph, batch_axis
from smidgen.ops.gradients16 import GAIN_STEPS, LIMIT, bits_of, fitted, hinted, narrowed, room_bits
from smidgen.runtime import library
from smidgen.train.job import Job

RNG = np.random.default_rng
INT16 = smidgen.Int8(gradients="int16")


class Net(nn.Module):
    """A residual block with a depthwise layer, a gate, pooling that has no form in int16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.widen = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 24, 1)
        self.depth, self.narrow = nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.Conv2d(24, 8, 1)
        self.down, self.last = nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.Conv2d(12, 12, 1)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.narrow(F.relu6(self.depth(F.hardswish(self.widen(x)))))
        x = F.relu(self.last(F.max_pool2d(F.relu(self.down(x)), 2)))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


def data(count: int = 16) -> tuple[Any, Any]:
    rng = RNG(1)
    return rng.standard_normal((count, 3, 12, 12)).astype(np.float32), rng.integers(0, 5, count)


def train(method: Any = "full", batch: int = 4, **options: Any) -> Any:
    x, _ = data()
    return api.build(Net(), torch.zeros(batch, 3, 12, 12), precision=INT16, data=x, method=method,
                     optimizer=smidgen.SGD(0.05, momentum=0), **options)  # fmt: skip


def backward(graph: Graph) -> list[Any]:
    return [node for node in graph.nodes if node.stage in ("backward", "update")]


def test_gradients_of_maps_in_int8_are_int16() -> None:
    graph = train().graphs["train"]
    used = {node.op for node in backward(graph)}
    assert {"qconv2d_dx16", "qconv2d_dw16_qsgd", "bias_dw16_qsgd", "add16", "qtable_dx16"} <= used
    assert "qdepthwise_dx16" in {node.op for node in backward(train("bias").graphs["train"])}, "in place of its dy"
    maps = [(node.op, graph[out]) for node in backward(graph) for out in node.outs
            if len(graph[out].shape) == 4 and batch_axis(graph[out].shape) is not None]  # fmt: skip
    assert sum(t.dtype is DType.I16 for _, t in maps) > 10
    floats = {op for op, t in maps if t.dtype is DType.F32}
    assert floats <= {"max_pool2d_dx", "dequantize16"}, "pooling alone has no such form here"


def test_the_plan_says_what_reads_gradients_in_f32() -> None:
    told = [d.why for d in train().decisions]
    assert "gradients of values in int8 are int16, with an exponent each" in told
    assert any("max_pool2d_dx" in why and "no form in int16" in why for why in told)


def test_without_the_option_no_gradient_is_int16() -> None:
    x, _ = data()
    graph = api.build(Net(), torch.zeros(4, 3, 12, 12), precision="int8", data=x).graphs["train"]
    assert not any(t.dtype is DType.I16 for t in graph.tensors.values())


def test_each_layer_has_a_gain_of_four_bytes_in_state() -> None:
    entries = train()
    graph = entries.graphs["train"]
    gains = [name for name in graph.data if name.startswith(":gain:")]
    layers = [node for node in graph.nodes if node.op in ("qconv2d_dx16", "qdepthwise_dx16")]
    assert len(gains) == len(layers) == sum(node.op == "gain16" for node in graph.nodes)
    job = Job(encode(entries))
    x, y = data(4)
    assert all(int(job.engine.state.view(name)) == 0 for name in gains)
    job.train_step(x, y)
    assert all(0 < int(job.engine.state.view(name)) <= 31 * GAIN_STEPS for name in gains)


@pytest.mark.parametrize("accumulate", [False, True])
def test_slices_momentum_and_micro_batches_learn_as_with_gradients_in_f32(accumulate: bool) -> None:
    x, y = data()
    method = [smidgen.Update("widen.weight", 1, (0, 2, 5)), smidgen.Update("down.weight", 0, (1, 2)), "head.weight",
              "narrow.bias"]  # fmt: skip
    given: dict[str, Any] = {"memory": smidgen.Memory(accumulate=True)} if accumulate else {}
    drops = []
    for precision in (INT16, "int8"):
        job = smidgen.compile(Net(), torch.zeros(4, 3, 12, 12), precision=precision, data=x, method=method,
                              optimizer=smidgen.SGD(0.05, momentum=0.9), **given)  # fmt: skip
        count = 16 if accumulate else 4
        losses = [float(job.train_step(x[:count], y[:count])) for _ in range(20)]
        drops.append(losses[0] - np.mean(losses[-3:]))
    assert drops[0] == pytest.approx(drops[1], rel=0.2)
    assert min(drops) > 0.01


def test_the_identity_path_is_part_of_the_gradient() -> None:
    """A gradient 2^10 times smaller than the one that it is added to still counts."""
    rng = RNG(2)
    a = rng.integers(-3, 4, 500).astype(np.int16)
    b = rng.integers(-LIMIT, LIMIT, 500).astype(np.int16)
    q, about = ops.get("add16").ref(a, np.array([0, 0]), b, np.array([-10, 0]))
    real = q.astype(np.float64) * 2.0 ** int(about[0])
    want = a + b * 2.0**-10
    assert np.abs(real - want).max() <= 2.0 ** int(about[0])
    assert np.abs(real - b * 2.0**-10).max() > 1


# -- sums that fit -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [1, 9, 255, 256, 511, 512, 576, 4000, 32767, 65535])
def test_no_sum_of_an_input_gradient_can_overflow(terms: int) -> None:
    assert terms * 2**7 * 2 ** room_bits(terms) < 2**31
    assert room_bits(terms) == 15 or 2 * terms * 2**7 * 2 ** (room_bits(terms) + 1) >= 2**31


@pytest.mark.parametrize("weight", [-128, 127])
def test_the_largest_numbers_give_the_sum_that_they_have(weight: int) -> None:
    """511 outputs at full scale: the bits in the result are those of the exact sum."""
    outputs = 511
    dy = np.full((1, outputs), LIMIT, np.int16)
    w, m = np.full((outputs, 3), weight, np.int8), np.full(outputs, LIMIT, np.int16)
    gain, about = np.zeros((), np.int32), np.array([0, 0], np.int32)
    want = ops.get("qlinear_dx16").ref(dy, about, w, m, gain, exponent=0)
    exact = outputs * weight * ((LIMIT * LIMIT + 2**14) >> 15)
    assert int(want[1][1]) == bits_of(np.array([exact]))
    real = want[0].astype(np.float64) * 2.0 ** int(want[1][0])
    np.testing.assert_allclose(real, exact, rtol=1e-3)
    params = [1, 1, 1, 3, outputs, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0]
    got = [np.zeros((1, 3), np.int16), np.zeros(2, np.int32)]
    scratch = np.zeros(8 * outputs, np.uint8)
    assert library.run_kernel("qconv2d_dx16_i16", [*got, dy, about, w, m, gain, scratch], params) is None
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_weight_gradient_of_many_positions_is_exact() -> None:
    rows = 3000
    dy, x = np.full((rows, 1), -LIMIT, np.int16), np.full((rows, 17), -128, np.int8)
    params = [rows, 1, 1, 17, 1, 1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 127]
    got = np.zeros((1, 17), np.float32)
    assert library.run_kernel("qlinear_dw16_f32", [got, dy, np.zeros(2, np.int32), x], params) is None
    np.testing.assert_array_equal(got, np.float32(rows * LIMIT * 255))


# -- exponents ---------------------------------------------------------------------------------------------------------


def test_a_gain_follows_large_sums_at_once_and_small_ones_slowly() -> None:
    step, gain = ops.get("gain16").ref, np.zeros((), np.int32)
    for bits, want in ((20, 320), (20, 320), (12, 319), (0, 319), (25, 400)):
        (gain,) = step(gain, np.array([0, bits], np.int32))
        assert int(gain) == want
    for _ in range(16):
        (gain,) = step(gain, np.array([0, 3], np.int32))
    assert int(gain) == 400 - 16
    assert hinted(gain, 3) == 24


def test_what_is_larger_than_expected_has_a_bit_before_it_is_cut_off() -> None:
    shift, exponent = fitted(0, 20, 1)
    assert (shift, exponent) == (6, 6)
    assert int(narrowed(np.array([2**21 - 64]), shift)[0]) == LIMIT
    assert int(narrowed(np.array([2**23]), shift)[0]) == LIMIT
    assert int(narrowed(np.array([-(2**23)]), shift)[0]) == -LIMIT


@pytest.mark.parametrize(("base", "bits"), [(-300, 3), (-100, 0), (59, 30), (260, 31), (-120, 31)])
def test_exponents_stay_where_powers_of_two_are_numbers(base: int, bits: int) -> None:
    shift, exponent = fitted(base, bits, 1)
    assert -15 <= shift <= 31
    assert -100 <= exponent <= 60


def test_mantissas_of_a_loss_that_is_not_finite_are_numbers() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    q, about = ops.get("quantize16").ref(x)
    assert q.tolist() == [0, LIMIT, -LIMIT, 1 << 14]
    assert about[0] == -14


def test_an_unknown_kind_of_gradients_is_refused_by_name() -> None:
    net, unknown = Net(), smidgen.Int8(gradients="int9")
    with pytest.raises(smidgen.errors.BadOption, match="gradients='int9'"):
        smidgen.compile(net, torch.zeros(1, 3, 12, 12), precision=unknown, data=data()[0])
