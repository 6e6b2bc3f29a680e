"""A search takes networks as they are: what never learns, weights in several places, spare classes. Needs torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import CannotUpdate
from smidgen.schemes import Found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMIDGEN_CACHE", str(tmp_path / "cache"))


def chain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8))


def half_frozen() -> nn.Module:
    model = chain()
    model[0].requires_grad_(False)
    return model


class Shared(nn.Module):
    """The last layer's weight is the second's, or the middle layer runs twice."""

    def __init__(self, head: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        if head:
            self.head.weight = self.mix.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return self.head(torch.relu(self.mix(torch.relu(self.mix(x)))))


class Words(nn.Module):
    """What scores words is the table of words, and what is named last runs before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.mix, self.norm = nn.Embedding(8, 6), nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.norm(torch.relu(self.mix(self.words(tokens)))).mean(1) @ self.words.weight.t()


def data(tokens: bool = False) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    y = np.arange(48) % 8
    if tokens:
        return np.stack([y, rng.integers(0, 8, 48)], 1), y
    x = 0.3 * rng.standard_normal((48, 8)).astype(np.float32)
    x[np.arange(48), y] += 2
    return x, y


def found(model: nn.Module, **more: Any) -> Found:
    x, y = more.pop("data", data())
    return smidgen.search(model.eval(), torch.as_tensor(x[:4]), data=(x, y), budget="64KB", kernels="exact", **more)


def test_what_never_learns_is_no_part_of_a_scheme() -> None:
    result = found(half_frozen())
    assert {row.part.partition(":")[0] for row in result.rows} == {"b1", "1"}
    assert {row.part.partition(":")[0] for row in found(chain()).rows} == {"b1", "b2", "0", "1"}  # nor is it remembered


@pytest.mark.parametrize(("head", "layers"), [(True, {"0"}), (False, {"0", "1"})])
def test_a_weight_in_several_places_is_one_part(head: bool, layers: set[str]) -> None:
    result = found(Shared(head))
    assert {row.part.partition(":")[0] for row in result.rows if not row.part.startswith("b")} == layers
    job = smidgen.compile(Shared(head), torch.zeros(4, 8), method=f"sparse_update:{result.scheme}", kernels="exact")
    assert "head.bias" in job.plan.learns


def test_a_share_of_the_classifiers_weight_is_refused() -> None:
    with pytest.raises(CannotUpdate, match="layer 1 has the weight of the classifier") as caught:
        smidgen.compile(Shared(True), torch.zeros(4, 8), method="sparse_update:b0 w1:1/2")
    assert caught.value.help == "leave w1 out"


def test_a_table_that_is_the_classifier_too_is_searched() -> None:
    assert found(Words(), data=data(tokens=True)).rows


def test_spare_classes_do_not_change_what_is_worth_learning() -> None:
    plain, spare = found(chain()), found(chain(), classes=smidgen.Classes(spare=3))
    assert [(r.part, r.gain) for r in plain.rows] == [(r.part, r.gain) for r in spare.rows]
    assert spare.ram_bytes > plain.ram_bytes
