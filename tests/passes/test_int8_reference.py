"""One step of learning in int8 beside a reference in torch that shares nothing with it but the scales: the forward pass
in fake-quantised f64, gradients straight through what rounds, the update in the units of the model (QAS)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smidgen
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.ir import Array, DType, Graph, Quant, Role
from smidgen.train.job import Job

N, RATE = 8, 0.5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.norm = nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(6)
        self.depth, self.point = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 6, 1)
        self.head = nn.Linear(6, 4)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([1.5, -0.8, 0.6, 1.1, -1.3, 0.9]))
            self.norm.running_mean.normal_(std=0.3)  # type: ignore[union-attr,operator]
            self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr,operator]

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.stem(x)))
        y = self.point(F.relu(self.depth(x)))
        out: Tensor = self.head((x + y).mean((2, 3)))
        return out


def fake(v: Tensor, quant: Quant, low: float = -np.inf, high: float = np.inf) -> Tensor:
    """Rounded half up and cut off; the gradient goes through where nothing was cut off."""
    scale, zero = quant.scales[0], quant.zero_points[0]
    bounds = [min(max(np.floor(b / scale + 0.5) + zero, -128), 127) if np.isfinite(b) else end
              for b, end in ((low, -128), (high, 127))]  # fmt: skip
    q = (torch.floor(v / scale + 0.5) + zero).clamp(*bounds)
    inside = ((q > bounds[0]) & (q < bounds[1])).double()
    return v * inside + ((q - zero) * scale - v * inside).detach()


def quants(graph: Graph) -> Iterator[Quant]:
    """Of the values in int8, in their order."""
    for node in graph.nodes:
        tensor = graph[node.outs[0]] if node.outs else None
        if tensor is not None and tensor.dtype is DType.I8 and tensor.role is Role.VALUE and tensor.quant:
            yield tensor.quant


def weight(graph: Graph, name: str) -> Tensor:
    """What its integers stand for, as a leaf."""
    tensor = graph[name]
    assert tensor.quant is not None
    shape = (-1, *[1] * (len(tensor.shape) - 1))
    value = np.asarray(graph.data[name]) * np.asarray(tensor.quant.scales).reshape(shape)
    return torch.tensor(value.transpose(0, 3, 1, 2) if value.ndim == 4 else value, requires_grad=True)


def reference(graph: Graph, x: Array, y: Array) -> tuple[float, dict[str, Array]]:
    """The loss, and the gradient of each parameter in the units of its integers' real numbers."""
    own = {name: weight(graph, name) for name in ("stem.weight", "depth.weight", "point.weight")}
    own |= {name: weight(graph, name) for name in ("norm.bias", "depth.bias", "point.bias")}
    head = {name: torch.tensor(graph.data[name], requires_grad=True) for name in ("head.weight", "head.bias")}
    at = quants(graph)
    v = fake(torch.tensor(x.astype(np.float64)), next(at))
    v = fake(F.conv2d(v, own["stem.weight"], own["norm.bias"], 2, 1), next(at), 0, 6)
    z = fake(F.conv2d(v, own["depth.weight"], own["depth.bias"], 1, 1, 1, 6), next(at), 0)
    z = fake(F.conv2d(z, own["point.weight"], own["point.bias"]), next(at))
    v = fake(v + z, next(at))
    v = fake(v.mean((2, 3)), next(at))
    loss = F.cross_entropy(F.linear(v, head["head.weight"], head["head.bias"]), torch.tensor(y))
    loss.backward()
    return float(loss.detach()), {k: t.grad.numpy() for k, t in (own | head).items() if t.grad is not None}


@pytest.mark.parametrize("gradients", ["f32", "int16"])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_a_step_is_that_of_fake_quantised_torch(rounding: str, gradients: str) -> None:
    net, rng = Net().eval(), np.random.default_rng(0)
    x, y = rng.standard_normal((N, 3, 9, 9)).astype(np.float32), rng.integers(0, 4, N)
    options: dict[str, Any] = {"precision": smidgen.Int8(rounding=rounding, gradients=gradients), "data": x,
                               "optimizer": smidgen.SGD(RATE, momentum=0)}  # fmt: skip
    entries = api.build(net, torch.zeros(N, 3, 9, 9), **options)
    graph = entries.graphs["infer"]
    loss, grads = reference(entries.forward["infer"], x, y)
    assert len(grads) == 8
    for kernels in ("exact", "fast"):
        job = Job(encode(entries), kernels=kernels)
        assert job.train_step(x, y) == pytest.approx(loss, rel=1e-5)
        moved = 0.0
        for name, fact in job.program.meta["state"].items():
            if fact["role"] != "param":
                continue
            got, before, quant = job.engine.state.view(name), np.asarray(graph.data[name]), graph[name].quant
            grad = grads[name].transpose(0, 2, 3, 1) if grads[name].ndim == 4 else grads[name]
            if quant is None:
                np.testing.assert_allclose(got, before - RATE * grad, rtol=1e-4, atol=1e-6)
                continue
            # Behind a norm w = (its factor) · (the user's weight): a step for that one is the factor squared here.
            shape = (-1, *[1] * (got.ndim - 1))
            factor = np.asarray(quant.factors or np.ones(len(quant.scales))).reshape(shape)
            change = RATE * factor**2 * grad / np.asarray(quant.scales).reshape(shape)
            limit = 127 if got.dtype == np.int8 else 2**30
            want = np.clip(before - change, -limit, limit)
            room = (1.0 if rounding == "stochastic" else 0.5) + 1e-4 * np.abs(change)
            if gradients == "int16":  # two steps of the largest mantissa, in each of a channel's sums
                room += 1e-3 * np.abs(change).max()
            assert (np.abs(got - want) <= room + 1e-6).all(), name
            moved = max(moved, float(np.abs(change).max()))
        assert moved > 20, "the steps are many, so that a wrong gradient would be seen"
