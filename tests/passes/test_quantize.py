"""The rewrite to int8: which ops it makes, that C computes what the interpreter says to the bit, and that parameters
stand for what they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from smidgen import ops
from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.passes.calibrate import Calibration
from smidgen.compiler.passes.quantize import Quantized, quantized
from smidgen.errors import BadCalibration, CannotQuantize
from smidgen.ir import Array, Batch, DType, Graph, Quant, Role
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.arrays import from_integers, quant_map
from smidgen.runtime.machine import Machine
from tests.support.encoded import encoded

N = Batch()


@dataclass
class Net:
    """A graph under construction. What `learns` names is a parameter, all else is constant."""

    learns: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        self.b, self.rng = Builder(), np.random.default_rng(self.seed)

    def stored(self, name: str, value: Array) -> str:
        return self.b.stored(name, value, Role.PARAM if name in self.learns else Role.CONST)

    def conv(self, x: str, name: str, o: int, k: int = 3, groups: int = 1, stride: int = 1, bias: bool = True) -> str:
        c = int(self.b[x].shape[3])
        self.b.src = name
        w = self.stored(f"{name}.w", self.rng.standard_normal((o, k, k, c // groups)) / np.sqrt(k * k * c / groups))
        b = [self.stored(f"{name}.b", self.rng.standard_normal(o) * 0.1)] if bias else []
        pad = ((k // 2, k // 2),) * 2
        return self.b.add("conv2d", x, w, *b, stride=(stride, stride), padding=pad, dilation=(1, 1), groups=groups)

    def norm(self, x: str, name: str, gamma: Array | None = None) -> str:
        c, rng = int(self.b[x].shape[-1]), self.rng
        gamma = rng.uniform(0.5, 2, c) * rng.choice([-1, 1], c) if gamma is None else gamma
        values = {"gamma": gamma, "beta": rng.standard_normal(c), "mean": 0.3 * rng.standard_normal(c),
                  "var": rng.uniform(0.3, 2, c)}  # fmt: skip
        return self.b.add("batch_norm", x, *[self.stored(f"{name}.{k}", v) for k, v in values.items()], eps=1e-5)

    def linear(self, x: str, name: str, o: int) -> str:
        self.b.src = name
        w = self.stored(f"{name}.w", self.rng.standard_normal((o, int(self.b[x].shape[-1]))) * 0.3)
        return self.b.add("linear", x, w, self.stored(f"{name}.b", self.rng.standard_normal(o) * 0.1))


def residual(learns: Sequence[str] = ()) -> Graph:
    """Norms, ReLU6, a depthwise layer, a skip with ReLU, a mean, a classifier."""
    n = Net(learns)
    x = feed(n.b, "x", (N, 3, 9, 7), perm=(0, 2, 3, 1))
    x = n.b.add("clamp", n.norm(n.conv(x, "stem", 5, stride=2, bias=False), "norm"), lo=0.0, hi=6.0, closed=False)
    y = n.b.add("relu", n.conv(x, "dw", 5, k=5, groups=5))
    y = n.b.add("relu", n.b.add("add", n.norm(n.conv(y, "pw", 5, k=1), "after"), x))
    y = n.b.add("mean", y, axes=(1, 2), keepdim=False)
    fetch(n.b, n.linear(y, "head", 4), "output")
    return n.b.graph()


def samples(graph: Graph, count: int = 24, seed: int = 5) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((count, *graph[name].shape[1:])).astype(np.float32) for name in graph.inputs]


def done(graph: Graph, head: str = "f32", **others: Graph) -> Quantized:
    found = quantized({"infer": graph, **others}, Calibration(samples(graph), "minmax"), head)
    for made in found.graphs.values():
        check(made, "quantize")
    return found


def kinds(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def test_layers_take_their_norms_and_bounds_and_what_follows_them_is_integer() -> None:
    found = done(residual())
    assert kinds(found.graphs["infer"]) == [
        "feed", "quantize", "qconv2d", "qconv2d", "qconv2d", "qadd", "qmean", "dequantize", "linear", "fetch",
    ]  # fmt: skip
    assert list(found.report.layers) == ["stem", "dw", "pw"]
    assert found.report.kept == {"head": "the last layer"}
    assert found.report.samples == 24
    first, _, _, add = (node for node in found.graphs["infer"].nodes if node.op in ("qconv2d", "qadd"))
    assert first.attrs["lo"] == first.attrs["y_zero"] == -128, "ReLU6 is the clamp"
    assert add.attrs["lo"] == add.attrs["y_zero"], "ReLU is the clamp of a sum"


def test_an_int8_head_is_asked_for() -> None:
    found = done(residual(), head="int8")
    assert kinds(found.graphs["infer"])[-4:] == ["qmean", "qlinear", "dequantize", "fetch"]
    assert not found.report.kept


# -- bits --------------------------------------------------------------------------------------------------------------


def varied() -> Graph:
    """Every op that has a form in integers, and some that have none, on odd sizes."""
    n = Net()
    x = feed(n.b, "x", (N, 3, 11, 7), perm=(0, 2, 3, 1))
    x = n.b.add("hardswish", n.conv(x, "a", 6, stride=2))
    y = n.b.add("leaky_relu", n.norm(n.conv(x, "b", 12, groups=3, bias=False), "nb"), slope=0.1)
    z = n.b.add("max_pool2d_plain", x, kernel=(3, 2), stride=(1, 1), padding=(1, 0), dilation=(1, 1), out_hw=(6, 3))
    z = n.b.add("pad", z, pads=((0, 0), (0, 0), (0, 1), (0, 0)), value=-0.5)
    gate = n.b.add("mean", y, axes=(1, 2), keepdim=True)
    gate = n.b.add("sigmoid", n.conv(n.b.add("relu", n.conv(gate, "s1", 3, k=1)), "s2", 12, k=1))
    y = n.b.add("mul", y, gate)
    both = n.b.add("concat", y, z, axis=3)
    both = n.b.add("avg_pool2d", both, kernel=(3, 3), stride=(2, 1), padding=(1, 1), out_hw=(3, 4),
                   count_include_pad=False)  # fmt: skip
    cut = n.b.add("slice", both, axis=3, start=2, stop=17, step=2)
    turned = n.b.add("permute", cut, perm=(0, 3, 1, 2))
    flat = n.b.add("reshape", turned, shape=(N, 96))
    h = n.b.add("sub", n.linear(flat, "c", 10), n.linear(flat, "d", 10))
    h = n.b.add("softmax", h, axis=1)
    h = n.b.add("relu", n.linear(h, "e", 7))
    fetch(n.b, n.linear(h, "head", 3), "output")
    return n.b.graph()


def with_all_integers(graph: Graph) -> Graph:
    """The graph, and all of its int8 values as outputs."""
    b = Builder(graph)
    for node in graph.nodes:
        for out in node.outs:
            if graph[out].dtype is DType.I8 and graph[out].role is Role.VALUE:
                fetch(b, out, f"seen:{out}")
    return b.graph()


@pytest.mark.parametrize("build", [residual, varied])
@pytest.mark.parametrize("n", [1, 3])
def test_every_integer_in_c_is_that_of_the_interpreter(build: Callable[[], Graph], n: int) -> None:
    graph = with_all_integers(done(build()).graphs["infer"])
    x = samples(graph, n, seed=9)
    want = interp.run(graph, dict(zip(graph.inputs, x, strict=True)), n=n)
    program = encoded({"infer": graph}, 3)
    integers = [name for name in graph.outputs if name.startswith("seen:")]
    assert len(integers) >= 6
    for kernels in ("exact", "fast"):
        got = [np.empty(want[name].shape, graph[name].dtype.numpy) for name in graph.outputs]
        Machine(program.to_bytes(), kernels=kernels).run("infer", x, got, n)
        for name, value in zip(graph.outputs, got, strict=True):
            if name in integers:
                np.testing.assert_array_equal(value, want[name], err_msg=f"{name}, {kernels} kernels")
            else:
                np.testing.assert_allclose(value, want[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("build", [residual, varied])
def test_it_computes_nearly_what_f32_does(build: Callable[[], Graph]) -> None:
    graph = build()
    x = dict(zip(graph.inputs, samples(graph), strict=True))  # those of the calibration: nothing is cut off
    want, got = (interp.run(g, x, n=24)["output"] for g in (graph, done(graph).graphs["infer"]))
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_all_kinds_of_integer_ops_are_made() -> None:
    found = done(varied())
    made = set(kinds(found.graphs["infer"]))
    assert made >= {"qconv2d", "qlinear", "qadd", "qmul", "qmean", "qavg_pool2d", "qtable", "max_pool2d_plain",
                    "concat", "pad", "slice", "permute", "reshape", "softmax"}  # fmt: skip
    assert found.report.floats == {"softmax": None}
    graph = found.graphs["infer"]
    for node in graph.nodes:
        if node.op in ("max_pool2d_plain", "concat", "slice", "permute", "reshape"):
            quants = {graph[name].quant for name in (*node.ins, node.outs[0])}
            assert len(quants) == 1, f"{node.op} moves numbers, whose scale stays"


# -- parameters --------------------------------------------------------------------------------------------------------


def users(graph: Graph, name: str) -> tuple[Array, Array]:
    """The numbers of a parameter in the user's units, and the step of each output."""
    quant, q = graph[name].quant, np.asarray(graph.data[name])
    assert quant is not None
    rows = quant_map(quant)[1:]
    return from_integers(q, rows), np.abs(rows[0]).reshape(-1, *[1] * (q.ndim - 1))


@pytest.mark.parametrize("learns", [
    ["stem.w"], ["stem.w", "norm.beta"], ["norm.beta"], ["dw.w", "dw.b"], ["pw.w", "pw.b"], ["pw.b"],
    ["pw.w", "after.gamma", "after.beta", "pw.b"],
], ids=" ".join)  # fmt: skip
def test_parameters_stand_for_what_they_were(learns: list[str]) -> None:
    """Also behind a norm, whose factor may be negative; of what a bias is made of, the last one learns."""
    plain = residual(learns)
    found = done(plain)
    graph = found.graphs["infer"]
    fixed = {"after.gamma", "pw.b"} if "after.gamma" in learns else set()
    assert found.fixed == fixed
    left = {t.name for t in graph.of_role(Role.PARAM)}
    assert left == set(learns) - fixed
    for name in left:
        value, step = users(graph, name)
        assert graph[name].dtype is (DType.I8 if name.endswith(".w") else DType.I32)
        assert np.abs(value - plain.data[name]).max() <= (0.51 * step).max()
        assert (np.abs(value - plain.data[name]) <= 0.51 * step + 1e-7).all()
    x = dict(zip(plain.inputs, samples(plain, 50, seed=11), strict=True))
    want, got = (interp.run(g, x, n=50)["output"] for g in (plain, graph))
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_a_channel_with_the_factor_0_is_dead_and_the_others_are_not() -> None:
    def net(learns: Sequence[str]) -> Graph:
        n = Net(learns)
        x = feed(n.b, "x", (N, 3, 6, 6), perm=(0, 2, 3, 1))
        y = n.norm(n.conv(x, "a", 4), "na", np.array([1.5, 0.0, -0.7, 1e-20]))
        fetch(n.b, n.conv(n.b.add("relu", y), "head", 2), "output")
        return n.b.graph()

    plain = net(["a.w"])
    found = done(plain)
    assert found.report.layers["a"] == 2
    quant = found.graphs["infer"]["a.w"].quant
    assert quant is not None
    rows = quant_map(quant)
    assert rows[:2, 1].tolist() == [0, 0], "neither gradient nor step"
    value, _ = users(found.graphs["infer"], "a.w")
    assert np.abs(value - plain.data["a.w"])[[0, 2]].max() < 0.02
    x = dict(zip(plain.inputs, samples(plain, 20), strict=True))
    want, got = (interp.run(g, x, n=20)["output"] for g in (plain, found.graphs["infer"]))
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


def test_an_added_vector_is_the_bias() -> None:
    def net(learns: Sequence[str]) -> Graph:
        n = Net(learns)
        x = feed(n.b, "x", (N, 5, 6))
        y = n.b.add("add", n.linear(x, "a", 4), n.stored("more", n.rng.standard_normal((1, 1, 4))))
        fetch(n.b, n.linear(n.b.add("relu", y), "head", 2), "output")
        return n.b.graph()

    plain = net(["more"])
    graph = done(plain).graphs["infer"]
    assert kinds(graph) == ["feed", "quantize", "qlinear", "dequantize", "linear", "fetch"]
    value, step = users(graph, "more")
    assert graph.layouts["more"] == (("reshape", (4,)),)
    assert (np.abs(value - plain.data["more"].reshape(4)) <= 0.51 * step + 1e-7).all()


# -- what cannot be ----------------------------------------------------------------------------------------------------


def test_a_weight_that_learns_at_two_places_stays_in_f32() -> None:
    def net(learns: Sequence[str]) -> Graph:
        n = Net(learns)
        x = feed(n.b, "x", (N, 4, 4, 3))
        w, b = n.stored("w", n.rng.standard_normal((3, 3, 3, 3)) * 0.2), n.stored("b", np.zeros(3))
        at: Mapping[str, Any] = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
        for _ in range(2):
            x = n.b.add("relu", n.b.add("conv2d", x, w, b, **at))
        fetch(n.b, n.conv(n.b.add("relu", n.conv(x, "own", 4)), "head", 2), "output")
        return n.b.graph()

    assert kinds(done(net([])).graphs["infer"]).count("qconv2d") == 3
    found = done(net(["w"]))
    assert kinds(found.graphs["infer"]).count("qconv2d") == 1
    assert "its weight learns and is used more than once" in found.report.kept.values()


def test_sums_that_do_not_fit_stay_in_f32() -> None:
    n = Net()
    x = feed(n.b, "x", (N, 40_000))
    fetch(n.b, n.linear(n.b.add("relu", n.linear(n.linear(x, "wide", 3), "narrow", 3)), "head", 2), "output")
    found = done(n.b.graph())
    assert found.report.kept["wide"] == "its sums do not fit 32 bits"
    assert list(found.report.layers) == ["narrow"]


def test_a_network_without_layers_for_int8_is_refused() -> None:
    n = Net()
    fetch(n.b, n.linear(feed(n.b, "x", (N, 4)), "head", 3), "output")
    with pytest.raises(CannotQuantize, match="'head' stays in f32: the last layer"):
        done(n.b.graph())


# -- graphs agree ------------------------------------------------------------------------------------------------------


def test_training_and_inference_share_every_number_also_around_dropout() -> None:
    def net(dropped: bool) -> Graph:
        n = Net(["a.w", "b.w", "b.b"])
        x = feed(n.b, "x", (N, 6, 5, 3))
        counter = n.b.stored(":counter", np.zeros(2, np.int32), Role.SETTING) if dropped else ""
        y = n.b.add("relu", n.conv(x, "a", 4))
        y = n.b.add("dropout", y, counter, p=0.5, key=3) if dropped else y
        y = n.b.add("relu", n.conv(y, "b", 5))
        y = n.b.add("dropout", y, counter, p=0.5, key=4) if dropped else y
        fetch(n.b, n.conv(y, "head", 2), "output")
        return n.b.graph()

    found = done(net(False), train=net(True))
    train, infer = found.graphs["train"], found.graphs["infer"]
    assert kinds(train).count("qconv2d") == 2
    for name in ("a.w", "b.w", "b.b"):
        assert train[name] == infer[name]
        assert np.array_equal(train.data[name], infer.data[name])
    quants = [[g[node.ins[0]].quant for node in g.nodes if node.op == "qconv2d"] for g in (train, infer)]
    assert quants[0] == quants[1], "a layer reads the same scale, since its bias counts in it"


# -- calibration -------------------------------------------------------------------------------------------------------


def test_ranges_are_those_of_all_samples_and_hold_zero() -> None:
    graph = residual()
    calibration = Calibration(samples(graph, 21), "minmax")
    numbers, ranges = calibration.identity.of(graph), calibration.ranges(graph)
    env = interp.run(graph, {"x": samples(graph, 21)[0]}, n=21)
    for name, number in numbers.items():
        if name in env and graph[name].role is Role.VALUE:
            assert ranges[number] == pytest.approx((env[name].min(), env[name].max()))


def test_an_outlier_does_not_make_all_steps_coarse_if_one_says_so() -> None:
    graph = residual()
    [x] = samples(graph, 240)
    x[0, 0, 0, 0] = 400.0
    number = Calibration([x], "minmax").identity.of(graph)["x.fed"]
    tops = {mode: Calibration([x], mode).ranges(graph)[number][1] for mode in ("minmax", "percentile", "mse")}
    assert tops["minmax"] == 400
    assert 2 < tops["percentile"] < 5
    assert tops["mse"] <= 400


def bad(change: Callable[[Array], Any]) -> str:
    graph = residual()
    with pytest.raises(BadCalibration) as caught:
        quantized({"infer": graph}, Calibration(change(samples(graph)[0]), "minmax"), "f32")
    return str(caught.value)


def test_samples_that_tell_no_range_are_refused_with_a_reason() -> None:
    def with_nan(x: Array) -> Array:
        x[3, 0, 0, 0] = np.nan
        return x

    assert "has no samples to calibrate with" in bad(lambda x: None)
    assert "holds NaN or infinity" in bad(with_nan)
    assert "is 2 everywhere" in bad(lambda x: np.full_like(x, 2))
    assert "has shape (24, 3, 9, 6)" in bad(lambda x: x[..., :6])
    assert "the network takes numbers" in bad(lambda x: x.astype(str))
    assert "different numbers of samples to calibrate with, or none" in bad(lambda x: x[:0])
    assert "3 arrays to calibrate with" in bad(lambda x: (x, x, x))


def test_few_samples_are_taken_with_a_warning() -> None:
    graph = residual()
    with pytest.warns(UserWarning, match="int8 is calibrated on 3 samples"):
        quantized({"infer": graph}, Calibration(samples(graph, 3), "minmax"), "f32")


def test_labels_behind_the_samples_are_left_out() -> None:
    graph = residual()
    [x] = samples(graph)
    given = x, (x, np.zeros(24))
    plain, labelled = (quantized({"infer": graph}, Calibration(data, "minmax"), "f32") for data in given)
    assert plain.graphs["infer"].tensors == labelled.graphs["infer"].tensors


def test_quant_says_what_was_folded_into_a_parameter() -> None:
    assert Quant((0.5,), (0,), None, (2.0,), (1.0,)).wrong((3,), DType.I8) == ""
    assert "is not 1 finite numbers" in Quant((0.5,), (0,), None, (2.0, 1.0)).wrong((3,), DType.I8)
    assert "is not 1 finite numbers" in Quant((0.5,), (0,), None, (), (float("nan"),)).wrong((3,), DType.I8)


def test_an_op_that_is_cut_off_says_so_of_itself() -> None:
    """`bounds` of a record: y is x, cut off at them."""
    x = np.linspace(-9, 9, 101)
    for op in ops.all_ops().values():
        if op.bounds is not None:
            for case in op.cases:
                low, high = op.bounds(case.attrs)
                np.testing.assert_array_equal(op.ref(x, **case.attrs)[0], np.clip(x, low, high))
