"""Backward nodes as text: what is added, what is kept, what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen.compiler.graph import interp
from smidgen.compiler.graph.text import parse, to_text
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.passes.save_bits import save_bits
from smidgen.errors import NotDifferentiable
from tests.support import small


def backward(before: str, loss: str, *wanted: str) -> str:
    graph, _ = autodiff(parse(before), loss, wanted)
    return "\n".join(line for line in to_text(graph).splitlines() if "@backward" in line)


def test_gradients_add_at_fan_out() -> None:
    before = """
        input x: f32[n,3]
        param w: f32[3,3]
        x.fed: f32[n,3] = feed(x) perm=(0, 1)
        h: f32[n,3] = linear(x.fed, w)
        a: f32[n,3] = tanh(h)
        y: f32[n,3] = add(h, a)
        l: f32[] = batch_mean(y) axes=(0, 1) keepdim=False
    """
    graph, grads = autodiff(parse(before), "l", ["w"])
    made = next(node for node in graph.nodes if grads["w"] in node.outs)
    total = next(node for node in graph.nodes if made.ins[0] in node.outs)
    assert total.op == "add", "the gradient of h comes from the sum and through tanh"
    w = np.random.default_rng(0).standard_normal((3, 3))
    x = np.random.default_rng(1).standard_normal((2, 3))
    env = interp.run(graph, {"w": w, "x": x}, n=2)
    h = x @ w.T
    want = ((1 + 1 - np.tanh(h) ** 2) / 6).T @ x
    np.testing.assert_allclose(env[grads["w"]], want, rtol=1e-12)


def test_a_weight_used_twice_gets_the_sum_of_both_gradients() -> None:
    before = """
        input x: f32[n,3]
        param w: f32[3,3]
        x.fed: f32[n,3] = feed(x) perm=(0, 1)
        h: f32[n,3] = linear(x.fed, w)
        y: f32[n,3] = linear(h, w)
        l: f32[] = batch_mean(y) axes=(0, 1) keepdim=False
    """
    graph, grads = autodiff(parse(before), "l", ["w"])
    rng = np.random.default_rng(0)
    w, x, d = rng.standard_normal((3, 3)), rng.standard_normal((2, 3)), rng.standard_normal((3, 3))
    env = interp.run(graph, {"w": w, "x": x}, n=2)
    step = 1e-6
    value = [float(interp.run(graph, {"w": w + s * step * d, "x": x}, n=2)["l"]) for s in (1, -1)]
    assert float((env[grads["w"]] * d).sum()) == pytest.approx((value[0] - value[1]) / (2 * step), rel=1e-6)


def test_nothing_is_computed_for_what_does_not_learn() -> None:
    train, _, loss = small.forward()
    graph, grads = autodiff(train, loss, ["w3", "b3"])
    backward_ops = [node.op for node in graph.nodes if node.stage == "backward"]
    assert sorted(backward_ops) == ["bias_dw", "cross_entropy_dx", "fill", "linear_dw"]
    assert set(grads) == {"w3", "b3"}


def test_biases_keep_no_activation() -> None:
    """Convolution inputs are not read by the backward pass, thresholds are one bit an element."""
    train, _, loss = small.forward()
    graph, _ = autodiff(train, loss, ["b1", "b2", "b3"])
    graph = save_bits(graph)
    forward = {o for node in graph.nodes if node.stage == "forward" for o in node.outs}
    kept = {i for node in graph.nodes if node.stage == "backward" for i in node.ins} & forward
    kinds = {graph[name].dtype.value for name in kept if graph[name].shape[1:] not in ((5,), ())}
    assert kinds == {"u8"}


def test_a_relu_whose_output_is_kept_anyway_needs_no_bits() -> None:
    train, _, loss = small.forward()
    graph, _ = autodiff(train, loss, ["w2"])
    graph = save_bits(graph)
    bits = [node for node in graph.nodes if node.op == "range_bits"]
    assert len(bits) == 1  # the relu before pooling; the one before the convolution with w2 has no gradient to give


def test_integers_stop_the_gradient_as_in_torch() -> None:
    before = """
        input x: f32[n,3]
        param w: f32[3,3]
        x.fed: f32[n,3] = feed(x) perm=(0, 1)
        h: f32[n,3] = linear(x.fed, w)
        i: i32[n] = argmax(h) axis=1 keepdim=False
        y: f32[n] = cast(i) dtype='f32'
        l: f32[] = batch_mean(y) axes=(0,) keepdim=False
    """
    assert autodiff(parse(before), "l", ["w"])[1] == {}


def test_an_op_without_gradient_names_itself() -> None:
    before = """
        input x: f32[n,3]
        param w: f32[3,3]
        x.fed: f32[n,3] = feed(x) perm=(0, 1)
        h: f32[n,3] = linear(x.fed, w)
        g: f32[n,3] = relu_dx(x.fed, h)  # head
        l: f32[] = batch_mean(g) axes=(0, 1) keepdim=False
    """
    with pytest.raises(NotDifferentiable) as error:
        autodiff(parse(before), "l", ["w"])
    assert str(error.value).startswith("error[E303]: 'relu_dx' has no gradient, but the loss reaches 'h' through it")
    assert error.value.at == "head"
