"""Batches in parts: bit-equal to the whole where the loss is a sum over samples, refused where it is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smidgen
from smidgen.errors import NotAdditive, RunFailed


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


X = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
LABELS = np.array([0, 1, 2, 0, 0, 1])
FLOATS = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
Loss = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

ADDITIVE: dict[str, tuple[Loss, np.ndarray]] = {
    "cross_entropy": ("cross_entropy", LABELS),
    "mse": ("mse", FLOATS),
    "smoothed": (lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1), LABELS),
    "sum": (lambda o, t: F.mse_loss(o, t, reduction="sum"), FLOATS),
    "weighted sum of means": (lambda o, t: 2 * F.mse_loss(o, t) - 0.3 * (o * t).mean() / 2, FLOATS),
}
REFUSED: dict[str, tuple[Loss, np.ndarray]] = {
    "class weights": (lambda o, t: F.cross_entropy(o, t, weight=torch.tensor([1.0, 2.0, 0.5])), LABELS),
    "root": (lambda o, t: F.mse_loss(o, t).sqrt(), FLOATS),
    "constant": (lambda o, t: F.mse_loss(o, t) + 1, FLOATS),
    "mixed samples": (lambda o, t: ((o - o.mean(0) - t) ** 2).mean(), FLOATS),
    "ratio of sums": (lambda o, t: (o * t).sum() / (t * t).sum(), FLOATS),
}


@pytest.mark.parametrize("name", ADDITIVE)
def test_parts_give_the_bits_of_the_whole(name: str) -> None:
    loss, y = ADDITIVE[name]
    options = {"loss": loss, "target": y, "optimizer": smidgen.SGD(0.1, momentum=0.9), "accumulate": True}
    whole, parts = (smidgen.compile(model(), X, batch=b, **options) for b in (6, 2))
    for _ in range(3):
        assert parts.train_step(X, y) == pytest.approx(whole.train_step(X, y), rel=1e-6)
    for key, value in whole.state_dict().items():
        np.testing.assert_array_equal(parts.state_dict()[key], value)


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_no_sum_over_samples_is_refused(name: str) -> None:
    loss, y = REFUSED[name]
    smidgen.compile(model(), X, loss=loss, target=y)  # in one piece it is fine
    with pytest.raises(NotAdditive, match="E306"):
        smidgen.compile(model(), X, loss=loss, target=y, accumulate=True)


def test_ignored_labels_of_a_part_of_a_sample_need_the_whole_batch() -> None:
    x, y = torch.randn(6, 2, 4, 4), torch.randint(0, 3, (6, 4, 4))
    job = smidgen.compile(nn.Conv2d(2, 3, 1), x, loss="cross_entropy", target=y, batch=3, accumulate=True)
    job.train_step(x, y)
    with pytest.raises(RunFailed, match="ignored labels needs the whole batch"):
        job.train_step(x, torch.where(y == 2, -100, y))
