"""A step in micro-batches where that is faster and smaller; work memory of fast kernels beside programs of any size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import BadData, DoesNotFit, NotFinite
from smidgen.report.plan_text import answer
from smidgen.runtime.work import EXACT, Work
from smidgen.train.batches import order
from tests.support.arguments import compiled as compiled_with

SAMPLES = 24
X = torch.from_numpy(np.random.default_rng(0).standard_normal((SAMPLES, 3, 40, 40)).astype(np.float32))
Y = np.arange(SAMPLES) % 5


def images(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)]
    layers += [nn.BatchNorm2d(16)] if norm else []
    return nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)).eval()


class Mixed(nn.Module):
    """Every sample's output depends on all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = images()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        return torch.as_tensor(y - y.mean(0, keepdim=True))


def compiled(model: nn.Module, x: torch.Tensor = X, **more: Any) -> smidgen.Job:
    return compiled_with(model, x, optimizer=smidgen.SGD(lr=0.1, momentum=0.9), **{"kernels": "fast", **more})


def test_large_values_and_small_weights_are_taken_in_parts() -> None:
    parts, whole = compiled(images()), compiled(images(), accumulate=False)
    assert (whole.plan.batch, whole.plan.step_samples) == (SAMPLES, SAMPLES)
    assert 4 <= parts.plan.batch < SAMPLES == parts.plan.step_samples
    assert parts.plan.ram_bytes < 0.75 * whole.plan.ram_bytes
    assert any(d.kind == "split" and f"micro-batches of {parts.plan.batch}" in d.why for d in parts.plan.decisions)
    losses = [[job.train_step(X.numpy(), Y) for _ in range(4)] for job in (parts, whole)]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_parts_learn_the_bits_of_the_whole(tmp_path: Path) -> None:
    compiled(images()).save(tmp_path / "net.smg")
    parts, whole = smidgen.load(tmp_path / "net.smg", kernels="exact"), compiled(images(), kernels="exact")
    assert parts.plan.batch < whole.plan.batch == SAMPLES
    for _ in range(3):
        assert parts.train_step(X.numpy(), Y) == whole.train_step(X.numpy(), Y)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(parts.state_dict()[name], value)


@pytest.mark.parametrize("threads", [1, 2])
def test_every_thread_has_samples_enough(threads: int) -> None:
    assert compiled(images(), threads=threads).plan.batch >= 4 * threads


@pytest.mark.parametrize(
    ("model", "more"),
    [
        (images(), {"kernels": "exact"}),
        (images(), {"device": "raspberry-pi-zero-2"}),
        (images(), {"deadline": "3x"}),
        (images(norm=True), {"bn": "batch"}),
        (Mixed(), {}),
        (nn.Sequential(nn.Flatten(), nn.Linear(4800, 900), nn.ReLU(), nn.Linear(900, 5)), {}),
    ],
    ids=["exact", "device", "deadline", "batch statistics", "mixed samples", "large weights"],
)
def test_others_are_taken_at_once(model: nn.Module, more: dict[str, Any]) -> None:
    assert compiled(model, **more).plan.batch == SAMPLES


def test_a_budget_that_is_large_enough_changes_nothing() -> None:
    free = compiled(images())
    assert compiled(images(), budget="1GB").plan.batch == free.plan.batch
    assert compiled(images(), budget=free.plan.ram_bytes).plan.ram_bytes <= free.plan.ram_bytes
    whole = compiled(images(), accumulate=False).plan.ram_bytes
    tight = compiled(images(), budget=whole)
    assert tight.plan.ram_bytes <= whole


def test_fewer_and_more_samples_than_planned_are_taken() -> None:
    job = compiled(images())
    for count in (1, 5, SAMPLES):
        assert np.isfinite(job.train_step(X.numpy()[:count], Y[:count]))
    assert job.predict(X.numpy()).shape == (SAMPLES, 5)


def test_ignored_labels_are_left_out_with_their_samples() -> None:
    y = np.where(np.arange(SAMPLES) % 5 == 1, -100, Y)
    parts, whole = compiled(images()), compiled(images(), accumulate=False)
    assert parts.plan.batch < SAMPLES
    for labels in (y, np.where(np.arange(SAMPLES) < 3, Y, -100)):
        assert parts.train_step(X.numpy(), labels) == pytest.approx(whole.train_step(X.numpy(), labels), rel=1e-5)
    for name, value in whole.state_dict().items():
        np.testing.assert_allclose(parts.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def dense(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A label for every pixel: how many are ignored is known of the whole batch only."""
    return nn.functional.cross_entropy(output, target, ignore_index=4)


def compound(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target) + 0.1 * (output**2).mean()


def test_labels_that_cannot_be_left_out_are_taken_at_once() -> None:
    pixels = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 5, 1)).eval()
    target = torch.zeros(SAMPLES, 40, 40, dtype=torch.int64)
    assert compiled(pixels, loss=dense, target=target).plan.batch == SAMPLES
    assert compiled(images(), loss=compound, target=torch.from_numpy(Y)).plan.batch == SAMPLES


def first_of_two(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs[0], target)


class WithMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = images()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.inner(x)
        return y, y.mean(0)


def test_outputs_over_all_samples_are_still_predicted() -> None:
    job = compiled(WithMean(), loss=first_of_two, target=torch.from_numpy(Y))
    assert job.predict(X.numpy())[1].shape == (5,)


def test_asked_for_at_once_means_at_once_within_a_budget_too() -> None:
    whole = compiled(images(), accumulate=False).plan.ram_bytes
    assert compiled(images(), budget=whole - 100_000).plan.batch < SAMPLES
    with pytest.raises(DoesNotFit):
        compiled(images(), budget=whole - 100_000, accumulate=False)


def test_a_plan_says_how_many_samples_its_figures_are_about() -> None:
    plan = compiled(images()).plan
    text = answer(plan, seconds_per_step=0.01)
    assert f"{plan.batch} samples, of the {SAMPLES} of a step" in text


def test_work_memory_is_wide_beside_a_large_program_only() -> None:
    work = Work("fast", 1)
    small, large = compiled(images(), X[:1]), compiled(images(), accumulate=False)
    for job in (small, large):
        assert job.plan.work_bytes == work.beside(job.plan.state_bytes + job.plan.arena_bytes)
    assert small.plan.arena_bytes < 4 << 20 < large.plan.arena_bytes
    assert small.plan.work_bytes < large.plan.work_bytes
    assert EXACT.beside(1 << 30) == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_what_a_budget_leaves_and_its_work_memory_are_within_it(threads: int) -> None:
    work = Work("fast", threads)
    before = 0
    for budget in range(1 << 20, 6 << 20, 8192):
        left = work.left(budget)
        assert left + work.beside(left) <= budget
        assert left >= before
        before = left


class Tagger(nn.Module):
    """Several rows for each sample: (samples, tokens) flattened, or (tokens, samples)."""

    def __init__(self, turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.turned, self.inner = turned, nn.Sequential(nn.Linear(200, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return (y.transpose(0, 1) if self.turned else y).reshape(-1, 5)


def test_a_target_with_several_rows_a_sample_is_cut_by_samples() -> None:
    x, y = torch.randn(12, 50, 200), torch.randint(0, 5, (600,))
    whole = smidgen.compile(Tagger(False), x, batch=12, kernels="exact")
    parts = smidgen.compile(Tagger(False), x, batch=4, memory=smidgen.Memory(accumulate=True), kernels="exact")
    assert parts.evaluate(x, y) == pytest.approx(whole.evaluate(x, y), rel=1e-5)
    assert parts.train_step(x, y) == pytest.approx(whole.train_step(x, y), rel=1e-5)
    for name, value in whole.state_dict().items():
        np.testing.assert_allclose(parts.state_dict()[name], value, rtol=1e-5, atol=1e-7)


def test_a_target_whose_rows_are_in_another_order_is_not_cut() -> None:
    x, y = torch.randn(12, 50, 200), torch.randint(0, 5, (600,))
    job = smidgen.compile(Tagger(True), x, batch=4, memory=smidgen.Memory(accumulate=True), kernels="exact")
    before = job.engine.machine.state.tobytes()
    for call in (job.train_step, job.evaluate):
        with pytest.raises(BadData, match="in an unknown order"):
            call(x, y)
    assert job.engine.machine.state.tobytes() == before


def test_a_budget_does_not_split_a_target_with_several_rows_a_sample() -> None:
    x = torch.randn(12, 50, 200)
    whole = smidgen.compile(Tagger(False), x, kernels="exact").plan.ram_bytes
    with pytest.raises(DoesNotFit):
        smidgen.compile(Tagger(False), x, kernels="exact", budget=int(0.5 * whole))


def total(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, target, reduction="sum")


def test_a_summed_loss_is_that_of_as_many_samples_as_a_step_has() -> None:
    job = compiled(images(), loss=total, target=torch.from_numpy(Y))
    assert job.plan.batch < SAMPLES
    whole = compiled(images(), loss=total, target=torch.from_numpy(Y), accumulate=False)
    assert job.evaluate(X.numpy(), Y)["loss"] == pytest.approx(whole.evaluate(X.numpy(), Y)["loss"], rel=1e-4)


@pytest.mark.parametrize("kernels", ["exact", "fast"])
@pytest.mark.parametrize("loss", ["cross_entropy", "segmentation"])
def test_a_batch_of_ignored_labels_is_the_same_at_once_and_in_parts(loss: str, kernels: str) -> None:
    """As in PyTorch: the loss is NaN, the gradient zero, and the step is done with it."""
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(6, 3)
    x, y = torch.randn(10, 6), torch.arange(10) % 3
    if loss == "segmentation":
        model, x, y = nn.Conv2d(2, 3, 3, padding=1), torch.randn(10, 2, 4, 4), (torch.arange(160) % 3).view(10, 4, 4)
    start = [p.detach().clone() for p in model.parameters()]
    found = []
    for batch in (10, 3):
        job = smidgen.compile(
            model, x, batch=batch, memory=smidgen.Memory(accumulate=True), kernels=kernels,
            optimizer=smidgen.SGD(lr=0.1, momentum=0.9, weight_decay=0.1),
        )  # fmt: skip
        losses = [job.train_step(x, labels) for labels in (y, torch.full_like(y, -100), y)]
        assert np.isnan(losses[1])
        assert np.isfinite(losses[::2]).all()
        assert job.step == 3
        found.append(job.state_dict())
        before = job.state_dict()
        with pytest.raises(NotFinite, match="NaN in step 1") as caught:
            job.fit(x, torch.full_like(y, -100), batch=10)
        assert "all labels of this batch are ignored" in caught.value.why
        assert job.step == 3
        assert all(np.array_equal(before[k], v) for k, v in job.state_dict().items())
    ours = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for labels in (y, torch.full_like(y, -100), y):
        ours.zero_grad()
        nn.functional.cross_entropy(model(x), labels).backward()
        ours.step()
    for state in found:
        for (name, value), first in zip(model.named_parameters(), start, strict=True):
            np.testing.assert_allclose(state[name], value.detach().numpy(), rtol=1e-4, atol=1e-6)
            assert not np.array_equal(state[name], first.numpy())


def test_fit_cuts_and_shuffles_a_target_with_several_rows_by_samples() -> None:
    x, y = torch.randn(10, 50, 200), torch.randint(0, 5, (500,))
    fitted, stepped = (smidgen.compile(Tagger(False), x[:4], kernels="exact") for _ in range(2))
    fitted.fit(x, y, epochs=2, seed=5)
    for epoch in range(2):
        which = order(5, epoch, 10)
        for first in range(0, 10, 4):
            taken = which[first : first + 4]
            stepped.train_step(x[taken], y.view(10, 50)[taken].reshape(-1))
    for name, value in stepped.state_dict().items():
        np.testing.assert_array_equal(fitted.state_dict()[name], value)


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"batch": 2, "shuffle": False}, {"batch": 8}])
def test_fit_refuses_to_cut_or_shuffle_rows_in_another_order(options: dict[str, Any]) -> None:
    x, y = torch.randn(8, 50, 200), torch.randint(0, 5, (400,))
    whole, parts = (
        smidgen.compile(Tagger(True), x[:n], memory=smidgen.Memory(accumulate=True), kernels="exact") for n in (8, 4)
    )
    before = whole.engine.machine.state.tobytes()
    for job in (whole, parts) if options.get("batch") != 8 else (parts, whole):
        if job is whole and options == {"shuffle": False}:
            continue
        with pytest.raises(BadData, match="in an unknown order"):
            job.fit(x, y, **options)
        assert job.engine.machine.state.tobytes() == before
    stepped = smidgen.compile(Tagger(True), x, kernels="exact")
    stepped.train_step(x, y)
    for data in ((x, y), ([(x, y)],)):  # as they are, at once
        job = smidgen.compile(Tagger(True), x, kernels="exact")
        job.fit(*data, shuffle=False)
        assert job.engine.machine.state.tobytes() == stepped.engine.machine.state.tobytes()
