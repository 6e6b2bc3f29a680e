"""`python -m benchmarks.fleet`: every arm runs, goes on where it was interrupted, and begins with the same weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import fleet as benchmark


def small_net(width: float) -> nn.Module:
    c = max(1, int(np.ceil(16 * width)))
    return nn.Sequential(nn.Linear(10, c), nn.ReLU(), nn.Linear(c, c), nn.ReLU(), nn.Linear(c, 3))


def small_data(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((120, 10)).astype(np.float32)
    return x, x[:, :3].argmax(1), np.arange(120) % 6


@pytest.mark.slow
def test_every_arm_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(benchmark.TASKS, "small", benchmark.Task(small_net, small_data))
    monkeypatch.setattr(benchmark, "SHARES", (1.0, 0.85, 0.75))
    words = ["--only", "small", "--rounds", "1", "--seeds", "0", "--out", str(tmp_path / "f.json")]
    assert benchmark.main([*words, "--arms", "drop", "heterofl"]) == 0
    first = (tmp_path / "f.json").read_text()
    monkeypatch.setattr(benchmark, "describe", dict)
    assert benchmark.main(words) == 0
    runs = json.loads((tmp_path / "f.json").read_text())["runs"]
    assert {**runs, **json.loads(first)["runs"]} == runs, "what was known is not measured again"
    assert {json.loads(key)["arm"] for key in runs} == set(benchmark.ARMS)
    for run in runs.values():
        assert run["refused"] == 0
        assert all(ram <= budget for ram, budget in zip(run["ram_bytes"], run["budgets"], strict=True))
    taking_part = {json.loads(key)["arm"]: run["devices"] for key, run in runs.items()}
    assert taking_part["drop"] == 2
    assert taking_part["heterofl"] == 6
    assert "| small | splitmix | 1 |" in capsys.readouterr().out


@pytest.mark.parametrize("net", [benchmark.keyword_net, benchmark.motion_net, benchmark.picture_net])
def test_a_narrow_network_is_the_first_channels_of_the_wide_one(net: benchmark.Build, tmp_path: Path) -> None:
    shapes = {"keyword_net": (1, 49, 10), "motion_net": (3, 80), "picture_net": (3, 32, 32)}
    torch.manual_seed(0)
    wide, narrow = net(1.0), net(0.25)
    assert narrow(torch.randn(2, *shapes[net.__name__])).shape == wide(torch.randn(2, *shapes[net.__name__])).shape
    pairs = zip(narrow.parameters(), wide.parameters(), strict=True)
    assert all(a <= b for small, large in pairs for a, b in zip(small.shape, large.shape, strict=True))
