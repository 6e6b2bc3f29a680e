"""Walks along more axes than kernels have become several; the values stay the same, and every walk fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen import ops
from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.passes.few_axes import few_axes
from smidgen.compiler.passes.sample_loop import sample_loop
from smidgen.errors import BadShape
from smidgen.ir import Graph
from smidgen.ops import N
from smidgen.ops.build import Builder, feed, fetch, typed
from smidgen.ops.strides import TooManyAxes
from smidgen.report.parity import Reference, relative


def fits(graph: Graph) -> bool:
    try:
        for node in graph.nodes:
            ops.get(node.op).params(typed(graph, node))
    except TooManyAxes:
        return False
    return True


def run(graph: Graph, x: Any) -> Any:
    return interp.run(graph, {"x": x}, n=len(x))[graph.outputs[0]]


def moved(rng: np.random.Generator, b: Builder, x: str) -> str:
    return b.add("permute", x, perm=(0, *(1 + rng.permutation(len(b[x].shape) - 1)).tolist()))


def repeated(rng: np.random.Generator, b: Builder, x: str) -> str:
    shape = [d if d != 1 else int(rng.integers(2, 4)) for d in b[x].shape[1:]]  # type: ignore[comparison-overlap]
    return b.add("expand", x, shape=(N, *shape))


def combined(rng: np.random.Generator, b: Builder, x: str) -> str:
    """With a constant that has every other axis, more or less."""
    shape = [d if i % 2 or rng.random() < 0.1 else 1 for i, d in enumerate(b[x].shape[1:])]
    shape = shape[int(rng.integers(0, 2)) :]
    return b.add("mul", b.const("c", rng.standard_normal(shape)), b.add("relu", x))  # type: ignore[arg-type]


@pytest.mark.parametrize("looped", [False, True])
@pytest.mark.parametrize("rule", [moved, repeated, combined])
def test_values_stay_and_walks_fit(rule: Any, looped: bool) -> None:
    split = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        b = Builder()
        count = int(rng.integers(9, 12))
        sizes = tuple(1 if rule is repeated and i % 2 and rng.random() < 0.9 else 2 for i in range(count))
        x = b.add("reshape", feed(b, "x", (N, int(np.prod(sizes)))), shape=(N, *sizes))
        y = rule(rng, b, x)
        fetch(b, b.add("reshape", y, shape=(N, int(np.prod(b[y].shape[1:])))), "y")  # type: ignore[arg-type]
        before = sample_loop(b.graph()) if looped else b.graph()
        after = few_axes(before)
        check(after, "few_axes")
        assert fits(after)
        split += after is not before
        assert (after is before) == fits(before)
        value = rng.standard_normal((3, int(np.prod(sizes))))
        np.testing.assert_array_equal(run(after, value), run(before, value))
    assert split >= 3


def test_what_fits_is_left_alone() -> None:
    b = Builder()
    x = b.add("reshape", feed(b, "x", (N, 1024)), shape=(N, *[2] * 10))
    fetch(b, b.add("reshape", b.add("permute", x, perm=(0, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5)), shape=(N, 1024)), "y")
    assert few_axes(b.graph()) == b.graph()


class Windows(nn.Module):
    """Windows of windows of a volume, all axes split and sorted: ten of them, none of which move together."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(2, 1, 2, 1, 3, 1, 2, 1, 4))
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).reshape(-1, 2, 2, 2, 2, 3, 1, 2, 2, 4)
        x = x.permute(0, 1, 3, 5, 7, 2, 4, 6, 8, 9) * 2
        x = x.permute(0, 9, 8, 1, 7, 2, 6, 3, 5, 4).permute(0, 3, 6, 5, 8, 7, 9, 4, 2, 1)
        x = torch.tanh(x.reshape(-1, 2, 2, 2, 2, 3, 1, 2, 2, 4) * self.scale)
        y: Tensor = self.head(x.reshape(x.shape[0], -1, 16).mean(1))
        return y


def test_a_network_with_many_axes_learns_as_torch_does() -> None:
    torch.manual_seed(0)
    model, optimizer = Windows(), smidgen.SGD(0.1, momentum=0.9)
    x = np.random.default_rng(0).standard_normal((3, 192, 4)).astype(np.float32)
    labels = np.array([0, 2, 1])
    job = smidgen.compile(model, x, optimizer=optimizer)
    reference = Reference(model, "cross_entropy", optimizer, job.plan.learns, "frozen", torch.float64)
    for _ in range(3):
        reference.step([x], labels)
        job.train_step(x, labels)
    for name, want in reference.values().items():
        assert relative(job.state_dict()[name], want) < 1e-5, name


def test_an_input_of_more_axes_than_a_program_has_is_refused_with_help() -> None:
    with pytest.raises(BadShape, match="'input' has 10 axes, at most 8 are possible") as caught:
        smidgen.compile(nn.Sequential(nn.Flatten(), nn.Linear(8, 2)), torch.zeros(2, 2, 1, 2, 1, 1, 1, 1, 2, 1))
    assert "flatten" in caught.value.help
