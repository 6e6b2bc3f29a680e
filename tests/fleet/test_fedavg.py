"""A fleet of programs learns what a fleet of PyTorch clients learns, on Flower's own strategies."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, FedProx, Strategy
from torch import nn

import smidgen
from benchmarks.nets.plain import DSCNN
from smidgen import fleet
from smidgen.fleet.client import round_seed
from smidgen.fleet.records import unpacked
from tests.support.fleets import cnn, programmed, samples, trained, with_torch
from tests.support.fleets import program as compiled

NETS = {"cnn": (cnn, (3, 8, 8), 5, (13, 8, 20)), "ds-cnn": (lambda: DSCNN(4), (1, 49, 10), 4, (6, 9))}


def learned(app: Any, count: int, program: Path, strategy: Strategy, **asked: Any) -> dict[str, np.ndarray]:
    asked = {"rounds": 3, "epochs": 2, "batch": 4, "seed": 7, **asked}
    result, checked = fleet.federate(fleet.LocalGrid(app, count), strategy, program, **asked)
    assert checked.refused == []
    return unpacked(result.arrays)


def everyone(strategy: type[Strategy] = FedAvg, **options: Any) -> Strategy:
    return strategy(fraction_evaluate=0.0, **options)


@pytest.mark.parametrize("name", NETS)
def test_three_rounds_of_fedavg_are_those_of_pytorch(name: str, tmp_path: Path) -> None:
    build, shape, classes, sizes = NETS[name]
    torch.manual_seed(0)
    model, data = build().eval(), samples(shape, classes, sizes)
    program = compiled(tmp_path, model, data[0][0][:4])
    ours = learned(programmed(program, data), len(data), program, everyone())
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    theirs = learned(with_torch(model, data, sgd), len(data), program, everyone())
    assert set(ours) == set(theirs) == {n for n, _ in model.named_parameters()}
    assert max(np.abs(ours[n] - theirs[n]).max() for n in ours) < 1e-4
    before = {n: p.detach().numpy() for n, p in model.named_parameters()}
    moved = {n: np.abs(ours[n] - before[n]).max() for n in ours}
    assert min(moved.values()) > 1e-6
    assert max(moved.values()) > 0.01


@pytest.mark.parametrize("strategy", [partial(FedAdam, eta=0.01), FedMedian, partial(FedProx, proximal_mu=0.5)])
def test_other_strategies_of_flower_work(strategy: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = samples((3, 8, 8), 5, (9, 8, 12))
    program = compiled(tmp_path, cnn().eval(), data[0][0][:4])
    usual = learned(programmed(program, data), 3, program, everyone())
    other = learned(programmed(program, data), 3, program, everyone(strategy))
    assert set(other) == set(usual)
    assert any(not np.array_equal(other[n], usual[n]) for n in usual)


def test_the_same_seed_learns_the_same_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = samples((3, 8, 8), 5, (9, 8, 12))
    model = nn.Sequential(cnn()[:5], nn.Dropout(0.5), nn.Linear(32, 5))
    program = compiled(tmp_path, model, data[0][0][:4])
    first, again, other = (learned(programmed(program, data), 3, program, everyone(), seed=s) for s in (1, 1, 2))
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert any(not np.array_equal(first[n], other[n]) for n in first)


@pytest.mark.parametrize("sgd", [
    {"momentum": 0.0}, {"momentum": 0.9, "weight_decay": 0.01}, {"momentum": 0.9, "nesterov": True},
])  # fmt: skip
def test_the_proximal_term_is_that_of_fedprox(sgd: dict[str, Any], tmp_path: Path) -> None:
    """µ/2 ‖w - w₀‖² in PyTorch's loss, w₀ the values of the round."""
    torch.manual_seed(0)
    ((x, y),) = samples((3, 8, 8), 5, (14,))
    model = cnn().eval()
    program = compiled(tmp_path, model, x[:4], optimizer=smidgen.SGD(lr=0.05, **sgd))
    client = fleet.Client(program, x, y)
    job = client.open()
    start = {n: v + np.float32(0.01) for n, v in fleet.Terms.of(job).values_of(job).items()}
    reply = client.train(start, epochs=3, batch=4, proximal_mu=2.0)
    own = copy.deepcopy(model)
    own.load_state_dict({n: torch.from_numpy(v) for n, v in start.items()}, strict=False)
    near = {n: p.detach().clone() for n, p in own.named_parameters()}

    def term() -> torch.Tensor:
        return sum((p - near[n]).square().sum() for n, p in own.named_parameters())  # µ/2 is 1

    optimizer = torch.optim.SGD(own.parameters(), lr=0.05, **sgd)
    trained(own, optimizer, torch.from_numpy(x), torch.from_numpy(y), 3, 4, round_seed(0, 1, 0), term)
    theirs = {n: p.detach().numpy() for n, p in own.named_parameters()}
    assert max(np.abs(reply.values[n] - theirs[n]).max() for n in theirs) < 1e-5
    plain = client.train(start, epochs=3, batch=4)
    assert max(np.abs(reply.values[n] - plain.values[n]).max() for n in theirs) > 1e-3
