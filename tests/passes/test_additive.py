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
from tests.support.arguments import compiled


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
    optimizer = smidgen.SGD(0.1, momentum=0.9)
    options = {"loss": loss, "target": y, "optimizer": optimizer, "accumulate": True, "kernels": "exact"}
    whole, parts = (compiled(model(), X, batch=b, **options) for b in (6, 2))
    for _ in range(3):
        assert parts.train_step(X, y) == whole.train_step(X, y)
    for key, value in whole.state_dict().items():
        np.testing.assert_array_equal(parts.state_dict()[key], value)


class Twice(nn.Module):
    """Gradients that are no single sum over samples: of a layer that is used twice, and of what is computed from
    parameters alone before any sample meets it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.places = nn.Linear(5, 5), nn.Embedding(5, 1)
        self.scale, self.shift, self.head = nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(5)), model()
        self.register_buffer("order", torch.tensor([3, 1, 1, 0, 4]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(torch.tanh(self.layer(x))) + self.places(self.order).flatten()
        x = x * torch.tanh(self.scale * self.shift) + self.shift + self.scale
        return self.head(x)


@pytest.mark.parametrize("clip_norm", [None, 0.1])
@pytest.mark.parametrize("part", [1, 2, 4])
def test_parts_give_the_bits_of_the_whole_where_gradients_are_made_of_sums(part: int, clip_norm: float | None) -> None:
    x = np.random.default_rng(2).standard_normal((11, 5)).astype(np.float32)
    y = np.arange(11) % 3
    optimizer = smidgen.SGD(0.1, momentum=0.9, clip_norm=clip_norm)
    options = {"kernels": "exact", "optimizer": optimizer, "accumulate": True}
    whole, parts = (compiled(Twice(), x, batch=b, **options) for b in (11, part))
    for _ in range(3):
        assert whole.train_step(x, y) == parts.train_step(x, y)
    assert len(whole.state_dict()) == 9
    for key, value in whole.state_dict().items():
        np.testing.assert_array_equal(parts.state_dict()[key], value, err_msg=key)
    for key, slots in whole.optimizer_state().items():
        np.testing.assert_array_equal(parts.optimizer_state()[key]["momentum"], slots["momentum"], err_msg=key)


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_that_is_no_sum_over_samples_is_refused(name: str) -> None:
    loss, y = REFUSED[name]
    smidgen.compile(model(), X, loss=loss, target=y)  # in one piece it is fine
    with pytest.raises(NotAdditive, match="E306"):
        smidgen.compile(model(), X, loss=loss, target=y, memory=smidgen.Memory(accumulate=True))


def test_ignored_labels_of_a_part_of_a_sample_need_the_whole_batch() -> None:
    x, y = torch.randn(6, 2, 4, 4), torch.randint(0, 3, (6, 4, 4))
    job = smidgen.compile(
        nn.Conv2d(2, 3, 1), x, loss="cross_entropy", target=y, batch=3, memory=smidgen.Memory(accumulate=True)
    )
    job.train_step(x, y)
    with pytest.raises(RunFailed, match="ignored labels needs the whole batch"):
        job.train_step(x, torch.where(y == 2, -100, y))
