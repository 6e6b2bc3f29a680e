"""What each technique of a training step saves is told by a step without it: made only where it changed something."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from smidgen.compiler import pipeline
from smidgen.compiler.torch_import.capture import import_model
from smidgen.ir import Graph


def net(activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(40, 30), activation, nn.Linear(30, 20), activation, nn.Linear(20, 4))


@pytest.mark.parametrize(
    ("activation", "method", "expected"),
    [
        (nn.SiLU(), "full", {"fuse"}),
        (nn.ReLU(), "full", {"fuse", "bits"}),
        (nn.SiLU(), "last_layer", {"fuse", "loop"}),
    ],
)
def test_only_techniques_that_may_have_changed_the_step_are_undone(
    activation: nn.Module, method: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: set[str] = set()
    real = pipeline.train_graph

    def noting(*args: Any, **switches: bool) -> Graph:
        undone.update(switches)
        return real(*args, **switches)

    monkeypatch.setattr(pipeline, "train_graph", noting)
    imported = import_model(net(activation).eval(), torch.zeros(8, 40), loss="cross_entropy")
    entries = pipeline.lower(imported, batch=8, method=method)
    assert not undone, "before anybody asks"
    assert {d.kind for d in entries.all_decisions} - {"cheap"} <= expected
    assert undone == expected
