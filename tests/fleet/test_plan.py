"""`smidgen fleet plan`: what each device can train of one model, and programs that do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import smidgen
from smidgen import cli, fleet
from tests.support.transcripts import documented

NETS = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 4),
    )
"""
MODEL = ["fleet", "plan", "nets.py:build", "--input", "8x3x8x8"]


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)


def test_each_device_gets_what_it_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    """All of the model, all of it in micro-batches, less of it, and nothing."""
    status = cli.main([*MODEL, "--devices", "pi4,50KB,20KB,4KB", "--json", "-o", "programs"])
    said = json.loads(capsys.readouterr().out)
    assert status == 1
    assert list(said) == documented()["fleet plan"]
    rows = {row["device"]: row for row in said["devices"]}
    assert rows["pi4"]["method"] == rows["50KB"]["method"] == "full"
    assert rows["pi4"]["version"] == rows["50KB"]["version"] != rows["20KB"]["version"]
    assert rows["pi4"]["techniques"] == []
    assert rows["50KB"]["techniques"] != []
    assert rows["20KB"]["method"] not in ("", "full")
    assert "needs" in rows["4KB"]["why"]
    assert "fleet.Elementwise()" in said["advice"]
    for name, row in rows.items():
        path = Path("programs") / f"{name}.smg"
        assert path.exists() == (not row["why"])
        if not row["why"]:
            job = smidgen.load(path, kernels="exact")
            assert job.plan.ram_bytes == row["ram_bytes"] <= row["limit_bytes"]
            terms = fleet.Terms.of(job)
            assert (terms.version, terms.sent_bytes) == (row["version"], row["sent_bytes"])


def test_devices_that_learn_the_same_take_any_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*MODEL, "--devices", "pi4,stm32h743"]) == 0
    out = capsys.readouterr().out
    assert "all learn the same tensors: any strategy of Flower" in out
    assert [line.split()[:3] for line in out.splitlines()[1:3]] == [
        ["pi4", "full", "f32"],
        ["stm32h743", "full", "f32"],
    ]


@pytest.mark.parametrize(("words", "says"), [
    (["--devices", "pi5"], "error[E203]: there is no device 'pi5'\n  help: did you mean 'pi"),
    (["--devices", ","], "error[E304]: --devices ',' is no list of different devices"),
    (["--devices", "pi4,pi4"], "error[E304]: --devices 'pi4,pi4' is no list"),
    (["--devices", "pi4", "--device", "rp2040"], "error[E304]: a fleet has several devices"),
    (["--devices", "9XB"], "error[E304]: "),
])  # fmt: skip
def test_wrong_usage_says_what_to_type(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*MODEL, *words]) == 2
    assert capsys.readouterr().err.startswith(says)
