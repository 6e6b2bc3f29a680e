"""A program with other constants is that of the model that has them, to the bit; or it says that it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks.nets.plain import Encoder
from smidgen import fleet
from smidgen.errors import BadOption, BrokenUpdate, CannotSet
from smidgen.train.frozen import with_frozen
from smidgen.train.job import Job


class Twice(nn.Module):
    """The same weight as it is, and the other way round: it is stored twice where it does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(torch.relu(self.layer(x)) @ self.layer.weight)
        return y


class Scaled(nn.Module):
    """A weight as it is, and times another parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gain, self.head = nn.Linear(6, 6), nn.Parameter(torch.rand(6, 1)), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x) + nn.functional.linear(x, self.layer.weight * self.gain)
        z: torch.Tensor = self.head(torch.relu(y))
        return z


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.layer(x)[0][:, -1])
        return y


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2), nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def words() -> torch.Tensor:
    return torch.randint(0, 100, (4, 16))


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], set[str]]] = {
    "transformer": (Encoder, words, set()),
    "recurrent": (Recurrent, lambda: torch.randn(4, 5, 6), set()),
    "convolutions": (convolutions, lambda: torch.randn(4, 3, 8, 8), set()),
    "normed": (normed, lambda: torch.randn(4, 6), {"last", "one", "slice"}),
    "twice": (Twice, lambda: torch.randn(4, 6), {"last", "bias", "one", "slice"}),
    "scaled": (Scaled, lambda: torch.randn(4, 6), {"last", "bias", "one", "slice"}),
}
"""Network, input, and the methods with which something is merged: it is refused then."""
METHODS = {
    "last": lambda names: "last_layer",
    "bias": lambda names: "bias",
    "first": lambda names: [names[0], names[-2]],
    "one": lambda names: [names[-1]],
    "slice": lambda names: [smidgen.Update(names[-2], axis=1, indices=[1, 3])],
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("net", NETS)
def test_a_program_with_other_constants_is_that_of_the_other_model(net: str, method: str) -> None:
    build, example, refused = NETS[net]
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(build().eval())
    x, y = example(), torch.arange(4) % 3
    chosen = METHODS[method]([name for name, _ in models[0].named_parameters()])
    start, want = (smidgen.compile(model, x, method=chosen, kernels="exact") for model in models)
    values = {name: p.detach().numpy() for name, p in models[1].named_parameters()}
    if method in refused:
        with pytest.raises(CannotSet):
            with_frozen(start.program, values)
        return
    job = Job(with_frozen(start.program, values), kernels="exact")
    terms = fleet.Terms.of(want)
    terms.put(job, terms.values_of(want))
    for _ in range(2):
        assert job.train_step(x, y) == want.train_step(x, y)
    assert np.array_equal(job.predict(x), want.predict(x))


def test_what_the_model_does_not_have_cannot_be_set() -> None:
    program = smidgen.compile(nn.Linear(4, 2), torch.randn(4, 4), method="bias").program
    with pytest.raises(CannotSet, match="does not have it"):
        with_frozen(program, {"other": np.zeros(3)})


def test_a_network_that_is_no_part_of_the_fleets_is_refused(tmp_path: Path) -> None:
    paths: list[Any] = []
    for width in (8, 9):
        model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
        smidgen.compile(model, torch.randn(4, 6)).save(tmp_path / f"{width}.smg")
        paths.append(tmp_path / f"{width}.smg")
    job = smidgen.load(paths[0])
    with pytest.raises(BrokenUpdate, match="has no part like"):
        fleet.Client(paths[1], np.zeros((4, 6)), np.zeros(4, int)).train(fleet.Terms.of(job).values_of(job), whole=True)
    with pytest.raises(BadOption, match="one architecture"):
        fleet.SplitMix(paths)
