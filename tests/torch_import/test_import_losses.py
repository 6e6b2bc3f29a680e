"""A table of losses: value and gradients of the imported graphs are those of torch in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from smidgen.compiler.graph import interp
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.torch_import.capture import import_model
from smidgen.compiler.torch_import.translate import LOSSES
from tests.support.torch_compare import SAMPLES, close, feeds

# Losses.


@dataclass(frozen=True)
class LossRow:
    name: str
    loss: Any
    output: tuple[int, ...]
    target: Callable[[torch.Generator], torch.Tensor] | None = None


def classes(high: int, *shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda g: torch.randint(0, high, (SAMPLES, *shape), generator=g)


def shares(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda g: torch.rand(SAMPLES, *shape, generator=g, dtype=torch.float64)


def floats(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda g: torch.randn(SAMPLES, *shape, generator=g, dtype=torch.float64)


def squares(output: torch.Tensor, target: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    return F.cross_entropy(output, target, *args, reduction="none", **options).square().mean()


WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.7, 1.5], dtype=torch.float64)
LOSS_ROWS = [
    LossRow("cross_entropy", "cross_entropy", (5,), classes(5)),
    LossRow("cross_entropy-images", "cross_entropy", (5, 2, 3), classes(5, 2, 3)),
    LossRow("mse", "mse", (4,), floats(4)),
    LossRow("l1", "l1", (4, 2), floats(4, 2)),
    LossRow("huber", "huber", (4,), floats(4)),
    LossRow("smooth_l1", "smooth_l1", (4,), floats(4)),
    LossRow("bce_with_logits", "bce_with_logits", (4,), shares(4)),
    LossRow("module", nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1, ignore_index=1), (5,), classes(5)),
    LossRow("sum", nn.CrossEntropyLoss(reduction="sum"), (5, 3), classes(5, 3)),
    LossRow("none", lambda o, t: squares(o, t), (5, 3), classes(5, 3)),
    LossRow("none-smooth", lambda o, t: squares(o, t, WEIGHT, ignore_index=2, label_smoothing=0.2), (5,), classes(5)),
    LossRow("soft", nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), (5,), shares(5)),
    LossRow("nll", lambda o, t: F.nll_loss(o.log_softmax(1), t, weight=WEIGHT), (5,), classes(5)),
    LossRow("nll-none", lambda o, t: F.nll_loss(o, t, reduction="none").sum() / t.shape[0], (5,), classes(5)),
    LossRow("mse-sum", nn.MSELoss(reduction="sum"), (4,), floats(4)),
    LossRow("mse-none", lambda o, t: F.mse_loss(o, t, reduction="none").sum(1).mean(), (4,), floats(4)),
    LossRow("mse-plus", lambda o, t: F.mse_loss(o, t) + 0.1 * o.abs().mean(), (4,), floats(4)),
    LossRow("huber-delta", nn.HuberLoss(delta=0.4), (4,), floats(4)),
    LossRow("huber-none", lambda o, t: F.huber_loss(o, t, reduction="none", delta=0.4).mean(), (4,), floats(4)),
    LossRow("smooth_l1-none", lambda o, t: F.smooth_l1_loss(o, t, reduction="none", beta=0.4).mean(), (4,), floats(4)),
    LossRow("bce-weights", nn.BCEWithLogitsLoss(weight=WEIGHT[:4], pos_weight=WEIGHT[1:]), (4,), shares(4)),
    LossRow("bce-positive", nn.BCEWithLogitsLoss(pos_weight=WEIGHT[1:]), (4,), shares(4)),
    LossRow("bce", lambda o, t: F.binary_cross_entropy(o.sigmoid(), t), (4,), shares(4)),
    LossRow("kl", lambda o, t: F.kl_div(o.log_softmax(1), t.softmax(1), reduction="batchmean"), (4,), floats(4)),
    LossRow("kl-log", lambda o, t: F.kl_div(o, t.log_softmax(1), log_target=True, reduction="sum"), (4,), floats(4)),
    LossRow("cosine", lambda o, t: 1 - F.cosine_similarity(o, t).mean(), (4,), floats(4)),
    LossRow("gathered", lambda o, t: -o.log_softmax(1).gather(1, t[:, None]).mean(), (5,), classes(5)),
    LossRow("root-mean-square", lambda o, t: ((o - t) ** 2).mean().sqrt(), (4,), floats(4)),
]


@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in LOSS_ROWS])
def test_losses_and_their_gradients_are_those_of_torch(case: LossRow) -> None:
    g = torch.Generator().manual_seed(1)
    count = math.prod(case.output)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, count), nn.Unflatten(1, case.output)).double()
    x = torch.randn(SAMPLES, 6, generator=g, dtype=torch.float64)
    assert case.target is not None
    target = case.target(g)
    named = isinstance(case.loss, str)
    imported = import_model(model, x.numpy(), loss=case.loss, target=None if named else target)
    wanted = [p.name for p in imported.parameters]
    whole, grads = autodiff(imported.train, imported.loss, wanted)
    env = interp.run(whole, feeds(imported, [x], target), n=SAMPLES)
    real = case.loss
    if isinstance(real, str):
        real = LOSSES[real]
    loss = real(model(x), target)
    close(env[imported.loss], loss)
    loss.backward()
    for name in wanted:
        close(env[grads[name]], model.get_parameter(name).grad, 1e-9)  # type: ignore[arg-type]
