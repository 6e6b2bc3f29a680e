"""Which streams are looked at. Needs torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import smidgen
from smidgen.compiler.planner import streams


class Dense(nn.Module):
    """Each layer reads all results before it: many cuts, and much that outlives them."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3 + 4 * i, 4, 3, padding=1) for i in range(layers))
        self.head = nn.Linear(3 + 4 * layers, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, torch.relu(layer(x))], 1)
        y: torch.Tensor = self.head(x.mean((2, 3)))
        return y


def test_infer_and_evaluate_look_at_their_streams_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[int, int] = {}
    made = streams._Loop._made

    def counted(self: streams._Loop, *given: Any) -> Any:
        counts[id(self)] = counts.get(id(self), 0) + 1
        loops.append(self)  # so that no id comes twice
        return made(self, *given)

    loops: list[streams._Loop] = []
    monkeypatch.setattr(streams._Loop, "_made", counted)
    monkeypatch.setattr(streams, "_pieces", {})
    torch.manual_seed(0)
    smidgen.compile(Dense(8).eval(), torch.zeros(4, 3, 24, 24), kernels="exact")
    first, *others = counts.values()
    assert first > 20
    assert sum(others) < first / 4


def test_what_was_planned_before_changes_no_program() -> None:
    def program() -> bytes:
        torch.manual_seed(0)
        return smidgen.compile(Dense(4).eval(), torch.zeros(4, 3, 24, 24), kernels="exact").program.to_bytes()

    streams._pieces.clear()
    first = program()
    assert streams._pieces
    assert program() == first
