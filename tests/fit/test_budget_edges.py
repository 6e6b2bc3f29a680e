"""Budgets and deadlines at the edge: what is sized is what is made, and errors say what would fit. Needs torch."""

from __future__ import annotations

import contextlib
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from benchmarks.nets import NETS
from smidgen.compiler.fit import misfit
from smidgen.compiler.fit.misfit import OverLimit, TooLate
from smidgen.compiler.fit.search import best_for
from smidgen.compiler.fit.smallest import Smallest
from smidgen.compiler.options import checked_budget, checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.goal import QUICK, Goal
from smidgen.compiler.torch_import.capture import import_model
from smidgen.devices.room import Limit
from smidgen.errors import BadOption, DoesNotFit
from smidgen.runtime.work import has_fast
from smidgen.terminal import bytes_text
from tests.support.arguments import compiled
from tests.support.arguments import compiled as compiled_with


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
    options, goal = checked_options(model, batch=model.samples), Goal()
    least = Smallest(None, lowering, options, goal).found.need.ram_bytes
    for budget in range(least, least + 400, 133):
        made = best_for(Limit.of_budget(budget), lowering, options, goal, QUICK)
        assert made.program().arena_bytes == made.need.arena_bytes
        assert made.need.ram_bytes <= budget
    for budget in range(least, least + 400, 266):
        with contextlib.suppress(OverLimit):
            rungs = smidgen.compile(model, x, kernels="exact", memory=smidgen.Memory(ladder=[budget], effort=0)).rungs
            assert rungs[-1].ram_bytes <= budget


def test_the_slots_of_a_device_are_aligned_as_the_device_says() -> None:
    """With slots of 16 bytes this network would not fit, with 8 as on this device it does."""
    model = Woven(6, 5, 9).eval()
    x = torch.randn(model.samples, 12)
    for budget in (50614, 50840):
        job = smidgen.compile(
            model,
            x,
            device="esp32-s3",
            budget=budget,
            optimizer=smidgen.SGD(0.01),
            memory=smidgen.Memory(effort=0, accumulate=False),
        )
        assert job.plan.ram_bytes <= budget


@pytest.mark.skipif(not has_fast(), reason="built without fast kernels")
@pytest.mark.parametrize("more", [{"budget": 1}, {"ladder": [1]}, {"budget": 1, "device": "jetson-nano"}])
def test_a_budget_below_the_work_memory_of_kernels_is_an_error_with_the_budget_in_it(more: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFit, match=r"has 1 byte") as refused:
        compiled(mlp(), torch.randn(2, 16), kernels="fast", **more)
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
    with pytest.raises(OverLimit) as refused:
        smidgen.compile(model, x, kernels="fast:2", budget=exact)
    assert "kernels='exact' needs" in refused.value.help
    assert "--kernels exact --threads 1 needs" in refused.value.in_command_line().help


@pytest.mark.parametrize("count", [1023, 1025, 10_230, 10_241, 102_349, 1_022_977, 1_023_489, 2**20 + 1, 2**40 + 1])
def test_a_size_that_is_rounded_up_is_enough(count: int) -> None:
    enough = checked_budget(bytes_text(count, math.ceil).replace(",", ""))
    assert enough is not None
    assert count <= enough < 1.011 * count


def refused(model: nn.Module, x: torch.Tensor, budget: int, optimizer: smidgen.SGD) -> OverLimit:
    with pytest.raises(OverLimit) as error:
        smidgen.compile(model, x, kernels="exact", memory=smidgen.Memory(effort=0), budget=budget, optimizer=optimizer)
    return error.value


def named(error: OverLimit) -> str:
    found = re.match(r"needs (.*) \(([\d,]+) bytes\) of RAM, the budget has", error.what)
    assert found
    assert int(found[2].replace(",", "")) == error.needs_bytes
    return found[1]


def test_the_ram_that_an_error_asks_for_is_enough() -> None:
    """A little more than 273 KB."""
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)).eval()
    x, optimizer = torch.randn(2, 64), smidgen.SGD(0.01, momentum=0.9)
    needs = named(refused(model, x, 1, optimizer))
    smidgen.compile(model, x, kernels="exact", memory=smidgen.Memory(effort=0), budget=needs, optimizer=optimizer)


@pytest.mark.parametrize("has", [279_552, 279_700, 279_727])
def test_what_is_needed_never_reads_like_what_there_is(has: int) -> None:
    assert misfit._apart(279_728, has) == ("274 KB (279,728 bytes)", f"273 KB ({has:,} bytes)")


@pytest.mark.parametrize("budget", [1, 130_000])
def test_every_option_of_an_error_can_be_typed_and_needs_what_it_says(budget: int, tmp_path: Path) -> None:
    """All that were tried if none fits, else those that fit."""
    optimizer = smidgen.SGD(0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    error = refused(mlp(), torch.randn(2, 16), budget, optimizer)
    said, *texts = error.help.split("; ") if budget == 1 else ["", *error.help.split("; ")]
    assert said == ("" if budget > 1 else f"{error.tried} other choices were tried, none fits")
    assert 2 <= len(texts) == len(error.options)
    for text in texts:
        call, _, needs = text.partition(" needs ")
        arguments = eval(f"dict({call})", {"smidgen": smidgen, "dict": dict})
        if "memory" in arguments:
            arguments["page_to"] = tmp_path / arguments["memory"].page_to
        arguments = {"kernels": "exact", "effort": 0, "optimizer": optimizer, **arguments}
        compiled(mlp(), torch.randn(2, 16), budget=needs, **arguments)
    if budget == 1:
        return
    assert any(text.startswith("memory=smidgen.Memory(page_to='page.bin') needs ") for text in texts)
    assert "optimizer=smidgen.SGD(lr=0.02, weight_decay=0.0001)" in error.help
    assert "--page-to page.bin needs " in error.in_command_line().help
    assert "--momentum 0" in error.in_command_line().help


def test_an_error_asks_for_no_more_than_the_smallest_that_is_found() -> None:
    """In parts, though not even the state fits."""
    model = nn.Sequential(
        nn.Linear(16, 2), *(nn.Tanh() for _ in range(9)), nn.Linear(2, 300), nn.Tanh(), nn.Linear(300, 2)
    )
    lowering = Lowering(import_model(model.eval(), torch.randn(64, 16), loss="cross_entropy"))
    options = checked_options(model, batch=64)
    least = Smallest(None, lowering, options, Goal()).found
    assert least.entries.step_samples
    with pytest.raises(OverLimit) as error:
        best_for(Limit.of_budget(1), lowering, options, Goal(), QUICK)
    assert named(error.value) == bytes_text(least.need.ram_bytes, math.ceil)
    assert error.value.what.endswith(": parameters and momentum alone are 12 KB")
    assert any("batch" in option.arguments for option in error.value.options)


@pytest.mark.parametrize("more", [{}, {"ladder": ["1GB"]}, {"budget": "1GB"}])
def test_a_deadline_holds_with_a_budget_or_without(more: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFit, match="the deadline is"):
        compiled(mlp(), torch.randn(16, 16), kernels="exact", memory=smidgen.Memory(deadline=1e-12), **more)
    assert compiled(
        mlp(), torch.randn(16, 16), kernels="exact", memory=smidgen.Memory(deadline=10.0), **more
    ).plan.ram_bytes


def test_a_step_at_once_is_at_once_on_a_ladder() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.Tanh(), nn.Conv2d(12, 12, 3, padding=1), nn.Tanh(), nn.Flatten(),
        nn.Linear(12 * 144, 3),
    ).eval()  # fmt: skip
    x = torch.randn(16, 1, 12, 12)
    free = smidgen.compile(model, x, kernels="exact").plan.ram_bytes
    more: dict[str, Any] = {"kernels": "exact", "effort": 0.2, "ladder": [free]}
    parts = compiled(model, x, budget=free // 2, **more).plan
    assert parts.batch < parts.step_samples == 16
    with pytest.raises(DoesNotFit):
        compiled(model, x, budget=free // 2, memory=smidgen.Memory(accumulate=False), **more)


@pytest.mark.parametrize("wrong", [5, b"page", "a\0b", ["page"]])
def test_what_is_no_path_to_page_to_is_said_first(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="is not a path"):
        smidgen.compile(mlp(), torch.randn(2, 16), budget="1GB", memory=smidgen.Memory(page_to=wrong))
    memory = smidgen.Memory(90_000, tmp_path / "pages", effort=0.2)
    optimizer = smidgen.SGD(0.1, momentum=0.9)
    job = smidgen.compile(mlp(), torch.randn(2, 16), kernels="exact", memory=memory, optimizer=optimizer)
    assert job.plan.page_bytes
    job.save(tmp_path / "net.smg")
    with pytest.raises(BadOption, match="is not a path"):
        smidgen.load(tmp_path / "net.smg", kernels="exact", page_to=wrong)


def test_an_empty_name_of_the_library_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMIDGEN_LIBRARY", "")
    from smidgen.runtime.library import LIBRARY, library_path

    assert library_path() == LIBRARY
    assert smidgen.compile(mlp(), torch.randn(2, 16)).predict(np.zeros((2, 16), np.float32)).shape == (2, 4)


def test_a_deadline_that_cannot_be_met_says_what_could_be_done_instead() -> None:
    net = NETS["resnet8"]
    x, _ = net.data(8)
    more = {"loss": net.loss, "kernels": "exact", "effort": 0.2, "accumulate": False}

    def compiled(**other: Any) -> smidgen.Job:
        return compiled_with(net.model().eval(), x, **{**more, **other})

    free = compiled(budget="1GB").plan
    budget = free.ram_bytes * 5 // 10
    tight = compiled(budget=budget).plan
    deadline = (free.step_seconds + tight.step_seconds) / 2
    assert free.step_seconds < deadline < tight.step_seconds
    with pytest.raises(TooLate) as refused:
        compiled(budget=budget, deadline=deadline)
    error = refused.value
    assert "without a limit it takes" in error.why
    assert error.later_s == 0 or compiled(budget=budget, deadline=error.later_s * 1.001)
    assert compiled(budget=error.more_bytes, deadline=deadline).plan.step_seconds <= deadline
    assert "budget='" in error.help
    assert "--budget " in error.in_command_line().help
    good = [one for one in error.options if error._is_good(one)]
    assert good
    assert all(one.text(False) in error.help for one in good)
    for one in good:
        assert compiled(budget=budget, deadline=deadline, **one.arguments).plan.step_seconds <= deadline


def test_an_error_says_whether_more_effort_may_help() -> None:
    net = NETS["resnet8"]
    x, _ = net.data(8)
    sure, unsure = (
        misfit.OverLimit("needs", at="", why="", options=(), limit=Limit.of_budget(1), effort_s=effort_s)
        for effort_s in (0.0, 30.0)
    )
    assert sure.help == ""
    assert unsure.help.startswith("memory=smidgen.Memory(effort=30.0) searches longer")
    assert unsure.in_command_line().help.startswith("--effort 30 searches longer")
    with pytest.raises(OverLimit) as refused:
        smidgen.compile(
            net.model().eval(), x, loss=net.loss, kernels="exact", budget=1024, memory=smidgen.Memory(effort=0.2)
        )
    assert refused.value.effort_s == 0
