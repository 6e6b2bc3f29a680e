"""The cut where the frozen part ends: features and the step that starts from them are the whole network, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Adam, Memory, Replay, Update
from smidgen.train.job import Job


class Residual(nn.Module):
    """Several tensors cross where the second block learns its last layer only."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.a = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        return self.head((x + self.a(x)).mean((2, 3)))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.table(x)).mean(1))


class TwoInputs(nn.Module):
    """The second input goes straight to what learns."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 7), nn.Linear(3, 4), nn.Linear(7, 4)

    def forward(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.a(x))) + self.b(z)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 4)
        self.drop = nn.Dropout(0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.b(self.drop(torch.relu(self.a(x))))))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(80, 4)
    )


def image() -> tuple[torch.Tensor, ...]:
    return (torch.randn(6, 3, 6, 6),)


NETS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]], dict[str, Any]]] = {
    "last layer": (Residual, image, {"method": "last_layer"}),
    "two tensors cross": (Residual, image, {"method": ["a.3.weight", "head.*"]}),
    "biases": (Residual, image, {"method": "bias"}),
    "a slice": (Residual, image, {"method": [Update("a.3.weight", 0, (1, 5)), "head.*"]}),
    "tokens": (Tokens, lambda: (torch.randint(0, 11, (6, 5)),), {"method": "last:2"}),
    "two inputs": (TwoInputs, lambda: (torch.randn(6, 5), torch.randn(6, 3)), {"method": ["head.*", "b.*"]}),
    "dropout": (lambda: Dropping().train(), lambda: (torch.randn(6, 6),), {"method": "last_layer"}),
    "batch statistics": (normed, image, {"method": "last_layer", "bn": "batch"}),
    "lora": (Tokens, lambda: (torch.randint(0, 11, (6, 5)),), {"method": "lora:2"}),
    "everything learns": (Residual, image, {"method": "full"}),
}


@pytest.mark.parametrize("optimizer", [SGD(0.1, momentum=0.9), Adam(0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("name", NETS)
def test_features_and_the_step_from_them_are_the_whole_network_to_the_bit(name: str, optimizer: Any) -> None:
    make, example, options = NETS[name]
    torch.manual_seed(0)
    model, x = make(), example()
    whole = smidgen.compile(model, x, optimizer=optimizer, kernels="exact", **options)
    kept = smidgen.compile(
        model, x, optimizer=optimizer, kernels="exact", memory=Memory(replay=Replay(20, precision="f32")), **options
    )
    assert ("features" in kept.program.entries) == (name not in ("everything learns", "biases"))
    rng = np.random.default_rng(0)
    for _ in range(4):
        batch = tuple(v[torch.from_numpy(rng.permutation(6))].numpy() for v in x)
        y = rng.integers(0, 4, 6)
        assert whole.train_step(batch, y) == kept.train_step(batch, y), "no room for old ones: the same step"
    for key, value in whole.state_dict().items():
        assert value.tobytes() == kept.state_dict()[key].tobytes(), key
    assert np.array_equal(whole.predict(x), kept.predict(x))
    assert len(kept.replay) == 20


@pytest.mark.parametrize("name", [n for n in NETS if n not in ("dropout", "batch statistics")])
def test_old_features_teach_what_old_inputs_teach(name: str) -> None:
    """With f32 both keep the same samples, and draw the same: every bit that is learned is the same."""
    make, example, options = NETS[name]
    torch.manual_seed(0)
    model, x = make(), example()
    jobs = [
        smidgen.compile(model, x, optimizer=SGD(0.05, momentum=0.9), kernels="exact",
                        memory=Memory(replay=Replay(9, of=of, precision="f32")), **options)
        for of in ("features", "inputs")
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    for _ in range(8):
        which = torch.from_numpy(rng.permutation(6)[:3])
        batch, y = tuple(v[which].numpy() for v in x), rng.integers(0, 4, 3)
        assert jobs[0].train_step(batch, y) == jobs[1].train_step(batch, y)
    assert jobs[0].replay.counts == jobs[1].replay.counts
    for key, value in jobs[0].state_dict().items():
        assert value.tobytes() == jobs[1].state_dict()[key].tobytes(), key


def kept_shapes(job: Job) -> list[tuple[int, ...]]:
    return [tuple(part[0]) for part in job.program.meta["replay"]["parts"][:-1]]


def compiled(name: str) -> Job:
    make, example, options = NETS[name]
    return smidgen.compile(make(), example(), kernels="exact", memory=Memory(replay=Replay(20)), **options)


def test_the_cut_is_where_the_frozen_part_ends() -> None:
    assert kept_shapes(compiled("last layer")) == [(1, 8)]
    assert kept_shapes(compiled("two tensors cross")) == [(1, 6, 6, 8)] * 2
    assert sorted(kept_shapes(compiled("two inputs"))) == [(1, 3), (1, 7)]
    assert kept_shapes(compiled("everything learns")) == [(1, 3, 6, 6)], "nothing is frozen: features are the inputs"


def test_what_changes_from_step_to_step_is_not_kept() -> None:
    assert kept_shapes(compiled("dropout")) == [(1, 9)], "before the dropout"
    shapes = kept_shapes(compiled("batch statistics"))
    assert shapes == [(1, 4, 4, 5)], "before the norm"


def test_the_frozen_part_does_not_run_again_in_a_step() -> None:
    make, example, options = NETS["last layer"]
    torch.manual_seed(0)
    model, x = make(), example()
    whole = smidgen.compile(model, x, kernels="exact", **options).plan
    kept = smidgen.compile(model, x, kernels="exact", memory=Memory(replay=Replay(20)), **options).plan
    assert kept.cost.macs["train"] + kept.cost.macs["features"] == whole.cost.macs["train"]
    assert kept.cost.macs["train"] < whole.cost.macs["train"] / 10
    assert kept.arena_by_entry["train"] < whole.arena_by_entry["train"] / 4


def test_a_step_is_priced_with_the_features_of_its_new_samples() -> None:
    make, example, options = NETS["last layer"]
    torch.manual_seed(0)
    model, x = make(), example()
    few, many = (
        smidgen.compile(model, x, kernels="exact", memory=Memory("1MB", replay=Replay(20, fresh=n)), **options)
        for n in (1, 5)
    )
    assert few.plan.step_seconds < many.plan.step_seconds
