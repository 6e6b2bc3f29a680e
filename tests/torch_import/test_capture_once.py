"""A model in training mode is captured a second time only if that can show something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from smidgen.compiler.graph.text import to_text
from smidgen.compiler.torch_import import capture
from smidgen.compiler.torch_import.modes import Watch
from smidgen.compiler.torch_import.translate import LOSSES
from smidgen.errors import SmidgenError, UnsupportedOp
from smidgen.ir import Graph


class AsksItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc(x.mean((2, 3)))
        return y * 2 if self.training else y


class Functional(AsksItself):
    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(super().forward(x), 0.5, self.training)


class Fixed(AsksItself):
    training = property(lambda self: True, lambda self, value: None)  # type: ignore[assignment]


class Rows(nn.Module):
    """An LSTM and attention over the rows of an image."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, 2, batch_first=True, dropout=dropout)
        self.attention = nn.MultiheadAttention(6, 2, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lstm(x[:, 0])[0]
        z: Tensor = self.attention(y, y, y, need_weights=False)[0].mean(1)
        return z


def convolutions(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(dropout), nn.Flatten(), nn.Linear(144, 4)
    )


def captures(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, always: bool = False, **given: Any
) -> tuple[int, list[Graph]]:
    """How often it is exported, and its graphs."""
    count, real = 0, torch.export.export

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(torch.export, "export", counting)
        if always:
            patched.setattr(Watch, "differs", property(lambda self: True, lambda self, value: None), raising=False)
        found = capture.import_model(model, torch.zeros(2, 6, 8, 8), **{"loss": "cross_entropy", **given})
    assert found.evaluate is not None
    return count, [found.train, found.infer, found.evaluate]


def texts(graphs: list[Graph]) -> list[str]:
    """With attributes in one order."""
    return [
        to_text(g.with_(nodes=tuple(n.with_(attrs=dict(sorted(n.attrs.items()))) for n in g.nodes))) for g in graphs
    ]


SAME = {
    "conv": lambda: convolutions(0.0),
    "rows": lambda: Rows(0.0),
    "identity": lambda: nn.Sequential(nn.Flatten(), nn.Linear(384, 4)),
}
OTHER = {
    "dropout": lambda: convolutions(0.5),
    "rows": lambda: Rows(0.5),
    "asks itself": AsksItself,
    "functional": Functional,
    "fixed": Fixed,
}


@pytest.mark.parametrize("name", SAME)
def test_a_model_that_never_asks_for_its_mode_is_captured_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = SAME[name]().train()
    once, graphs = captures(model, monkeypatch)
    twice, expected = captures(model, monkeypatch, always=True)
    assert (once, twice) == (1, 2)
    assert texts(graphs) == texts(expected)
    assert all(module.training for module in model.modules())
    assert "training" not in vars(nn.Module)


@pytest.mark.parametrize("name", OTHER)
def test_a_model_that_may_do_something_else_in_training_is_captured_twice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OTHER[name]().train()
    count, graphs = captures(model, monkeypatch)
    assert count == 2
    assert texts(graphs) == texts(captures(model, monkeypatch, always=True)[1])
    assert captures(model.eval(), monkeypatch)[0] == 1 or name == "fixed"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> Tensor:
        return dys[0] * 3


class OwnGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = Doubled.apply(self.fc(x.mean((2, 3))))
        return y


def test_gradients_that_a_model_defines_itself_are_refused_as_before() -> None:
    with pytest.raises(UnsupportedOp, match="Doubled"):
        capture.import_model(OwnGradient().train(), torch.zeros(2, 6, 8, 8), loss="cross_entropy")


CLASSES, VALUES = torch.tensor([1, 3]), torch.full((2, 4), 0.25)
TARGETS = {"cross_entropy": CLASSES, **dict.fromkeys(("bce_with_logits", "mse", "l1", "huber", "smooth_l1"), VALUES)}


@pytest.mark.parametrize("name", TARGETS)
def test_a_named_loss_is_added_to_the_one_capture_also_where_a_target_is_given(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs are those of torch's own function for it."""
    model, target = convolutions(0.0), TARGETS[name]
    for mode in (True, False):
        once, graphs = captures(model.train(mode), monkeypatch, loss=name, target=target)
        by_torch = captures(model, monkeypatch, loss=LOSSES[name], target=target)[1]
        assert once == 1
        assert texts(graphs) == texts(by_torch)


def test_maps_of_classes_are_compared_in_the_one_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores for each place of an image, and a class for each."""
    model, target = nn.Conv2d(6, 4, 3).eval(), torch.ones(2, 6, 6, dtype=torch.int64)
    once, graphs = captures(model, monkeypatch, target=target)
    by_torch = captures(model, monkeypatch, loss=LOSSES["cross_entropy"], target=target)[1]
    assert once == 1
    assert texts(graphs) == texts(by_torch)


def test_probabilities_of_classes_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolutions(0.0).eval()
    count, graphs = captures(model, monkeypatch, target=VALUES)
    by_torch = captures(model, monkeypatch, loss=LOSSES["cross_entropy"], target=VALUES)[1]
    assert count == 2
    assert texts(graphs) == texts(by_torch)


class MoreInTraining(AsksItself):
    """As networks with auxiliary heads do."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return (y, y) if self.training else y


def test_more_results_in_training_than_the_loss_takes_are_refused() -> None:
    with pytest.raises(SmidgenError, match="E102"):
        capture.import_model(
            MoreInTraining().train(), torch.zeros(2, 6, 8, 8), loss="cross_entropy", target=CLASSES
        )  # fmt: skip
