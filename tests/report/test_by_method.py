"""`smidgen plan --methods`: one line a method, with figures that `compile` confirms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smidgen
from smidgen import api, cli
from smidgen.compiler.fit.by_method import ByMethod, MethodRow
from smidgen.compiler.fit.misfit import OverLimit
from smidgen.errors import BadOption
from smidgen.program.plan import Decision
from smidgen.report import methods_text
from tests.support.snapshots import check_snapshot
from tests.support.transcripts import NETS, documented

DEVICE = "mkr1000"  # 32 KB
MODEL = ["plan", "nets.py:build", "--input", "4x1x8x8", "--methods", "--effort", "0"]


def motion() -> nn.Module:
    """Over time, without batch norm; its first linear layer does not fit with momentum."""
    torch.manual_seed(0)
    layers = [nn.Conv1d(3, 8, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 12, 5, padding=2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12 * 32, 24), nn.ReLU(), nn.Linear(24, 5)).eval()


X = torch.randn(2, 3, 64)


def table(**given: Any) -> ByMethod:
    memory = smidgen.Memory(given.pop("budget", None), effort=0, deadline=given.pop("deadline", None))
    with api.prepared(motion(), X, memory=memory, kernels="exact", **given) as task:
        return api.compared(task)


def compiled(method: str, **given: Any) -> smidgen.Job:
    memory = smidgen.Memory(given.pop("budget", None), effort=0)
    return smidgen.compile(motion(), X, method=method, memory=memory, kernels="exact", **given)


@pytest.fixture(scope="module")
def on_device() -> ByMethod:
    return table(device=DEVICE)


def test_every_method_that_learns_something_of_its_own_has_a_line(on_device: ByMethod) -> None:
    assert {row.method for row in on_device.rows} == {
        "full",
        "last_layer",
        "bias",
        "last:2",
        "last:3",
        "tinytl",
        "tinyol",
        "lora:4",
    }
    assert on_device.left_out["bn+last"] == "learns the same as last_layer"
    assert on_device.left_out["last:4"] == "learns the same as full"
    assert "nothing to train" in on_device.left_out["bn"]
    learned = [row.own_parameters for row in on_device.rows]
    assert learned == sorted(learned, reverse=True)
    assert {row.method for row in on_device.rows if row.added_parameters} == {"tinytl", "tinyol", "lora:4"}
    assert learned[0] == on_device.model_parameters == sum(p.numel() for p in motion().parameters())


def test_a_line_says_what_compile_finds(on_device: ByMethod) -> None:
    assert {row.fits for row in on_device.rows} == {True, False}
    for row in on_device.rows:
        if row.fits:
            plan = compiled(row.method, device=DEVICE).plan
            assert (row.ram_bytes, row.flash_bytes) == (plan.ram_bytes, plan.flash_bytes)
            assert (row.step_seconds, row.step_joules) == (plan.step_seconds, plan.step_joules)
            assert row.infer_seconds == plan.infer_seconds > 0
            assert row.learned_parameters == plan.learned_parameters
        else:
            with pytest.raises(OverLimit) as error:
                compiled(row.method, device=DEVICE)
            assert (row.lacks, row.needs_bytes) == ("ram", error.value.needs_bytes)


def test_a_budget_or_nothing_at_all_is_a_limit_too() -> None:
    found = table(budget=24 << 10)
    assert (found.device, found.ram_limit_bytes, found.prices) == ("", 24 << 10, "host")
    assert {row.fits for row in found.rows} == {True, False}
    assert all(row.ram_bytes <= 24 << 10 for row in found.rows if row.fits)
    free = table()
    assert free.ram_limit_bytes is None
    assert all(row.fits for row in free.rows)
    for row in free.rows[::2]:
        plan = compiled(row.method).plan
        assert (row.ram_bytes, row.flash_bytes) == (plan.ram_bytes, plan.flash_bytes)


def test_a_deadline_is_met_or_not() -> None:
    usual = {row.method: row.step_seconds for row in table(device="stm32h743").rows}
    found = table(device="stm32h743", deadline=(usual["last_layer"] + usual["full"]) / 2)
    assert {row.method: row.lacks for row in found.rows if row.method in ("full", "last_layer")} == {
        "full": "time",
        "last_layer": "",
    }
    with pytest.raises(BadOption, match="depends on the method"):
        table(device="stm32h743", deadline="2x")


def example() -> ByMethod:
    split = Decision("split", "4 micro-batches of 2 samples", 9000, 0.001, "4 micro-batches of 2")
    rows = (
        MethodRow("full", 61_706, 512_000, 512_040, 250_000, 0.62, 0.01, 0.1, 1, (), "ram"),
        MethodRow("last:2", 11_014, 190_000, 190_000, 270_000, 0.31, 0.005, 0.1, 4, (split,)),
        MethodRow("bias", 236, 60_000, 60_000, 1_270_000, 0.29, 0.004, 0.1, 1, (), "flash"),
    )
    left_out = {"bn": "method 'bn' finds nothing to train in this model"}
    return ByMethod(8, 61_706, "nano33ble", "nano33ble", 256 << 10, 1 << 20, None, rows, left_out)


def test_the_table_reads_as_in_the_snapshot() -> None:
    check_snapshot("methods.txt", methods_text.methods_text(example(), title="nets.py:build", width=100))


def test_the_command_prints_a_table_or_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    assert cli.main([*MODEL, "--device", DEVICE]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert re.search(r"^full +243 .* yes", shown.out, re.MULTILINE)
    assert cli.main([*MODEL, "--method", "*.weight", "--budget", "8KB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == documented()["plan with methods"]
    assert "*.weight" in {row["method"] for row in found["methods"]}
    assert {row["lacks"] for row in found["methods"]} <= {"ram", None}
    described = (Path(__file__).parents[2] / "docs/reference/cli.md").read_text()
    assert all(f"`{key}`" in described for key in found["methods"][0])


@pytest.mark.parametrize("wrong", ["--sweep", "--max-batch", "--ladder 8KB", "--html x.html", "--all-layers"])
def test_what_does_not_go_together_is_refused_at_once(
    wrong: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smidgen.cli.sweep.described", _refuse)
    assert cli.main([*MODEL, *wrong.split()]) == 2
    assert wrong.split()[0] in capsys.readouterr().err


def _refuse(*_: object) -> Callable[..., None]:
    raise AssertionError("the model was loaded")
