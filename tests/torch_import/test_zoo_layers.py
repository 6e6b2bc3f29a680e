"""Layers that models of the public zoos bring: norms over weights, windows, resampling, volumes, Fourier transforms.

Each is compared with torch as imported, in float64, and for three steps of training in C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smidgen
from smidgen.report.parity import Reference, relative
from tests.support.torch_models import Fn
from tests.torch_import import test_import as table

ROWS: list[table.Row] = []


def row(name: str, model: Any, *inputs: Any, weights: Any = (), **options: Any) -> None:
    """As in the table of test_import.py."""
    make = model if isinstance(model, type) else lambda: Fn(model, *weights)
    ROWS.append(table.Row(name, make, inputs, options))


# Norms over what holds no samples.


class StdConv(nn.Conv2d):
    """A standardised convolution, as in NF nets and BiT: its weight is normalised by a batch-norm without samples."""

    def __init__(self, *sizes: int, gamma: float = 1.7, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.gain = nn.Parameter(torch.full((self.out_channels, 1, 1, 1), 1.2))
        self.scale = gamma * self.weight[0].numel() ** -0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, gain = self.weight.reshape(1, self.out_channels, -1), (self.gain * self.scale).view(-1)
        weight = F.batch_norm(rows, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        return self._conv_forward(x, weight.reshape_as(self.weight), self.bias)


class StdNet(nn.Module):
    """One of its convolutions is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = StdConv(3, 6, 3, stride=2, padding=1)
        self.twice = StdConv(6, 6, 3, padding=1, groups=2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = F.silu(self.stem(x))
        x = x + F.silu(self.twice(self.twice(x)))
        return self.head(x.mean((2, 3)))


class NormedWeight(nn.Module):
    """A batch-norm layer with running statistics over a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(5, 3)), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> Any:
        return x @ self.norm(self.weight)


def each_image(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Instance norm as some libraries write it: samples and channels are one axis."""
    n, c, *hw = x.shape
    flat = F.batch_norm(x.reshape(1, n * c, *hw), None, None, w.repeat(n), None, True)
    return flat.reshape(x.shape)


def normed(w: torch.Tensor, *affine: Any) -> torch.Tensor:
    return F.batch_norm(w, None, None, *affine, training=True)


for _bn in ("frozen", "batch"):
    row(f"standardised-conv-{_bn}", StdNet, (3, 7, 5), bn=_bn)
    row(f"norm-of-a-weight-{_bn}", NormedWeight, (5,), bn=_bn)
    row(f"norm-of-each-image-{_bn}", each_image, (3, 4, 5), weights=[(3,)], bn=_bn)
row("norm-of-a-weight-affine", lambda x, w, a, b: x + normed(w, a, b), (5, 3), weights=[(5, 3), (3,), (3,)])
row("norm-of-a-volume", lambda x, w: x * normed(w), (4, 5, 2, 3), weights=[(4, 5, 2, 3)])


# The tests.


@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in ROWS])
def test_outputs_loss_and_gradients_are_those_of_torch(case: table.Row) -> None:
    table.test_outputs_loss_and_gradients_are_those_of_torch(case)


NETS: list[tuple[str, type[nn.Module], tuple[int, ...]]] = [("standardised-conv", StdNet, (3, 9, 7))]


@pytest.mark.parametrize("memory", [None, smidgen.Memory(accumulate=True)], ids=["whole", "micro-batches"])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize(("make", "shape"), [pytest.param(*n[1:], id=n[0]) for n in NETS])
def test_three_steps_in_c_are_those_of_torch(
    make: type[nn.Module], shape: tuple[int, ...], batch: int, memory: smidgen.Memory | None
) -> None:
    torch.manual_seed(1)
    model, optimizer = make(), smidgen.SGD(0.05, momentum=0.9)
    x, y = torch.randn(batch, *shape).numpy(), np.arange(batch) % 3
    given = {} if memory is None else {"memory": memory}
    job = smidgen.compile(model, x, optimizer=optimizer, kernels="exact", **given)
    reference = Reference(model, "cross_entropy", optimizer, job.plan.learns, "frozen", torch.float64)
    assert set(job.plan.learns) == {name for name, _ in model.named_parameters()}
    for _ in range(3):
        want = reference.step([x], y)
        assert abs(job.train_step(x, y) - want) < 1e-4 * (1 + abs(want))
    for name, value in reference.values().items():
        assert relative(job.state_dict()[name], value) < 1e-4, name
