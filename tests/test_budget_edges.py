"""Budgets and deadlines at the edge: what is sized is what is made, and errors say what would fit. Needs torch."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import limits
from smidgen.errors import BadOption, DoesNotFit
from smidgen.fitting import found_for, smallest
from smidgen.limits import OverLimit
from smidgen.lower import Lowering
from smidgen.native import has_fast
from smidgen.options import checked_options
from smidgen.planner.within import Aim
from smidgen.torch_import import import_model


class Woven(nn.Module):
    """Layers that read the results of several others, all of odd sizes."""

    def __init__(self, seed: int, fewest: int, most: int) -> None:
        super().__init__()
        chance = random.Random(seed)
        torch.manual_seed(seed)
        count = chance.randint(fewest, most)
        widths = [chance.randint(3, 60) for _ in range(count)]
        self.layers, self.sources, sizes = nn.ModuleList(), [], [12]
        for width in widths:
            read = chance.sample(range(len(sizes)), min(len(sizes), chance.choice([1, 2, 2, 3])))
            if len(sizes) - 1 not in read and chance.random() < 0.7:
                read.append(len(sizes) - 1)
            self.sources.append(read)
            self.layers.append(nn.Linear(sum(sizes[i] for i in read), width))
            sizes.append(width)
        self.last = nn.Linear(sum(sizes[1:]), 5)
        self.samples = chance.choice([1, 3, 7])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = [x]
        for layer, read in zip(self.layers, self.sources, strict=True):
            joined = torch.cat([made[i] for i in read], 1) if len(read) > 1 else made[read[0]]
            made.append(torch.nn.functional.gelu(layer(joined)))
        return self.last(torch.cat(made[1:], 1))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    middle = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), *middle, nn.Linear(64, 4)).eval()


@pytest.mark.parametrize("seed", [9, 20, 21])
def test_a_program_is_placed_as_it_was_sized(seed: int) -> None:
    """Near the smallest budget, whatever its last digits are."""
    model = Woven(seed, 6, 16).eval()
    x = torch.randn(model.samples, 12)
    lowering = Lowering(import_model(model, x, loss="cross_entropy"))
    options, aim = checked_options(model, batch=model.samples), Aim()
    least = smallest(None, lowering, options, aim).need.ram_bytes
    for budget in range(least, least + 400, 29):
        with contextlib.suppress(DoesNotFit):  # another budget leads to another search
            made = found_for(limits.within(budget, None), lowering, options, aim)
            assert made.program.arena_bytes == made.need.arena_bytes
            assert made.need.ram_bytes <= budget
    for budget in range(least, least + 400, 133):
        with contextlib.suppress(OverLimit):
            rungs = smidgen.compile(model, x, kernels="exact", ladder=[budget], effort=0).rungs
            assert rungs[-1].ram_bytes <= budget


def test_the_slots_of_a_device_are_aligned_as_the_device_says() -> None:
    """With slots of 16 bytes this network would not fit, with 8 as on this device it does."""
    model = Woven(6, 5, 9).eval()
    x = torch.randn(model.samples, 12)
    for budget in (50614, 50840):
        job = smidgen.compile(model, x, device="esp32-s3", budget=budget, effort=0, accumulate=False)
        assert job.plan.ram_bytes <= budget


@pytest.mark.skipif(not has_fast(), reason="built without fast kernels")
@pytest.mark.parametrize("more", [{"budget": 1}, {"ladder": [1]}, {"budget": 1, "device": "jetson-nano"}])
def test_a_budget_below_the_work_memory_of_kernels_is_an_error_with_the_budget_in_it(more: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFit, match=r"has 1 byte") as refused:
        smidgen.compile(mlp(), torch.randn(2, 16), kernels="fast", **more)
    assert "work memory of fast kernels" in str(refused.value)
    assert "-" not in str(refused.value).split("has ")[1][:3]


@pytest.mark.skipif(not has_fast(), reason="built without fast kernels")
def test_exact_kernels_are_offered_where_only_they_fit() -> None:
    model, x = mlp(), torch.randn(16, 16)
    exact = smidgen.compile(model, x, kernels="exact").plan.ram_bytes
    with pytest.raises(DoesNotFit) as refused:
        smidgen.compile(model, x, kernels="fast", budget=exact)
    assert "kernels='exact' needs" in refused.value.help
    assert smidgen.compile(model, x, kernels="exact", budget=exact).plan.ram_bytes <= exact


@pytest.mark.parametrize("more", [{}, {"ladder": ["1GB"]}, {"budget": "1GB"}])
def test_a_deadline_holds_with_a_budget_or_without(more: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFit, match="the deadline is"):
        smidgen.compile(mlp(), torch.randn(16, 16), kernels="exact", deadline=1e-12, **more)
    assert smidgen.compile(mlp(), torch.randn(16, 16), kernels="exact", deadline=10.0, **more).plan.ram_bytes


def test_a_step_at_once_is_at_once_on_a_ladder() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.Tanh(), nn.Conv2d(12, 12, 3, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(12 * 144, 3),
    ).eval()  # fmt: skip
    x = torch.randn(16, 1, 12, 12)
    free = smidgen.compile(model, x, kernels="exact").plan.ram_bytes
    more: dict[str, Any] = {"kernels": "exact", "effort": 0.2, "ladder": [free]}
    parts = smidgen.compile(model, x, budget=free // 2, **more).plan
    assert parts.batch < parts.step_samples == 16
    with pytest.raises(DoesNotFit):
        smidgen.compile(model, x, budget=free // 2, accumulate=False, **more)


@pytest.mark.parametrize("wrong", [5, b"page", "a\0b", ["page"]])
def test_what_is_no_path_to_page_to_is_said_first(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="is not a path"):
        smidgen.compile(mlp(), torch.randn(2, 16), budget="1GB", page_to=wrong)
    job = smidgen.compile(mlp(), torch.randn(2, 16), kernels="exact", effort=0.2, budget=90_000,
                          optimizer=smidgen.SGD(0.1, momentum=0.9), page_to=tmp_path / "pages")  # fmt: skip
    assert job.plan.page_bytes
    job.save(tmp_path / "net.smg")
    with pytest.raises(BadOption, match="is not a path"):
        smidgen.load(tmp_path / "net.smg", kernels="exact", page_to=wrong)


def test_an_empty_name_of_the_library_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMIDGEN_LIBRARY", "")
    from smidgen.native import LIBRARY, library_path

    assert library_path() == LIBRARY
    assert smidgen.compile(mlp(), torch.randn(2, 16)).predict(np.zeros((2, 16), np.float32)).shape == (2, 4)
