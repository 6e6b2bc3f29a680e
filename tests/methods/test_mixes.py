"""Several methods at once: each means the same as alone, and what was learned goes back into the model. Needs torch."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Memory, Update
from smidgen.errors import BadData, CannotUpdate
from tests.support.int8_values import rounded


class Mlp(nn.Module):
    """Layers: first 0, mix 1 and 2, head 3."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.mix, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return self.head(torch.relu(self.mix(torch.relu(self.mix(x)))))


def enlarging() -> nn.Module:
    """Pointwise layers that skip, pad or enlarge."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv1d(4, 12, 1, stride=2), nn.ReLU(), nn.Conv1d(12, 10, 1, padding=1), nn.ReLU(),
        nn.ConvTranspose1d(10, 12, 1, stride=2, output_padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12 * 14, 3),
    )  # fmt: skip


def data(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(5, *shape, generator=g), torch.randint(0, 3, (5,), generator=g)


def trained(model: nn.Module, method: Any, *shape: int, **more: Any) -> smidgen.Job:
    x, y = data(*shape)
    job = smidgen.compile(model, x, method=method, optimizer=SGD(0.1, momentum=0.9), kernels="exact", **more)
    for _ in range(6):
        job.train_step(x, y)
    return job


def check_home(job: smidgen.Job, model: nn.Module, *shape: int) -> nn.Module:
    """What was learned makes the model predict as the job does."""
    home, (x, _) = copy.deepcopy(model).eval(), data(*shape)
    job.load_into(home)
    with torch.no_grad():
        np.testing.assert_allclose(job.predict(x), home(x).numpy(), rtol=0, atol=1e-5)
    return home


@pytest.mark.parametrize("const", ["f32", "int8"])
@pytest.mark.parametrize("part", ["mix.weight", Update("mix.weight", 0, (0, 3)), Update("mix.weight", 1, (7,)), "full"])
def test_adapters_are_merged_into_a_weight_that_learns_too(part: Any, const: str) -> None:
    model = rounded(Mlp())
    job = trained(model, ["lora:2", part], 6, memory=Memory(const=const))
    home = check_home(job, model, 6)
    assert not torch.equal(home.mix.weight, model.mix.weight)


def test_pointwise_layers_that_enlarge_have_adapters() -> None:
    model = enlarging()
    job = trained(model, "lora:2", 4, 9)
    assert {n for n in job.plan.learns if n.endswith("up")} == {f"{i}.weight.lora_up" for i in (0, 2, 4)}
    check_home(job, model, 4, 9)


@pytest.mark.parametrize("methods", [("lora:2", "lora:3"), ("tinyol", "tinyol:attach"), ("lora:2", "bias", "lora:2")])
def test_a_network_is_changed_once_by_each_method(methods: tuple[str, ...]) -> None:
    with pytest.raises(CannotUpdate, match="cannot both change the network") as caught:
        trained(Mlp(), list(methods), 6)
    assert caught.value.help == "leave one of them out"


def test_a_layer_is_one_of_the_model_whatever_other_methods_add() -> None:
    own = {"mix.weight", "mix.bias", "head.weight", "head.bias"}
    for other in ("lora:2", "tinyol"):
        for method in ("sparse_update:b2 w2:1", "last:2"):
            learns = set(trained(Mlp(), [other, method], 6).plan.learns)
            assert {n for n in learns if "lora" not in n and "tinyol" not in n} == own, (other, method)


@pytest.mark.parametrize("methods", [("tinyol", "lora:2"), ("lora:2", "tinyol")])
def test_the_order_of_methods_does_not_matter(methods: tuple[str, ...]) -> None:
    model, (x, y) = Mlp(), data(6)
    job = smidgen.compile(model, x, method=list(methods), optimizer=SGD(0.05), kernels="exact")
    assert {n for n in job.plan.learns if "lora" in n} == {
        f"{layer}.weight.lora_{side}" for layer in ("first", "mix") for side in ("down", "up")
    }
    for _ in range(10):
        for sample, label in zip(x, y, strict=True):
            job.learn(sample, label)
    check_home(job, model, 6)


def test_the_layer_of_a_stream_goes_home_beside_spare_classes() -> None:
    model, (x, y) = Mlp(), data(6)
    job = smidgen.compile(
        model, x, method="tinyol", optimizer=SGD(0.05), kernels="exact", classes=smidgen.Classes(spare=2)
    )
    for _ in range(10):
        for sample, label in zip(x, y, strict=True):
            job.learn(sample, label)
    check_home(job, model, 6)
    label = job.add_class("new")
    job.learn(x[0], label)
    wider = Mlp()
    wider.head = nn.Linear(16, 4)
    wider.load_state_dict({**wider.state_dict(), **{n: v for n, v in model.state_dict().items() if "head" not in n}})
    check_home(job, wider, 6)


def test_a_score_is_of_a_sample_wherever_its_axis_is() -> None:
    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.table = nn.Linear(6, 5), nn.Parameter(torch.randn(3, 5, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.einsum("bi,kij->bkj", self.first(x), self.table).sum(2)

    x, y = data(6)
    job = smidgen.compile(Product(), x, method="tinyol", kernels="exact")
    for _ in range(10):
        job.learn(x, y)
    scores = job.detect(x)
    assert scores.shape == (5,)
    np.testing.assert_array_equal(scores, [job.detect(sample) for sample in x])


@pytest.mark.parametrize("method", ["tinyol:attach", "tinytl"])
def test_what_a_method_added_and_cannot_merge_is_named_as_such(method: str) -> None:
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(24, 3)
    )
    job = smidgen.compile(model, x, method=method, kernels="exact")
    job.train_step(x, y)
    with pytest.raises(BadData, match="is no part of the model") as caught:
        job.load_into(model)
    assert "job.save" in caught.value.help


def test_a_single_number_keeps_its_shape_in_a_file(tmp_path: Path) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale

    from safetensors.numpy import load_file

    job = trained(Scaled(), "full", 6)
    job.export_weights(tmp_path / "w.safetensors")
    assert load_file(tmp_path / "w.safetensors")["scale"].shape == ()
    job.import_weights(tmp_path / "w.safetensors")
