"""A budget or a device's RAM holds wherever the program is loaded: with other kernels, more threads, on the command
line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.cli import main
from smidgen.errors import BadProgram, DoesNotFit
from smidgen.program.plan import Plan
from smidgen.program.program import checked_meta
from smidgen.runtime.work import Work, has_fast
from smidgen.train.job import Job
from tests.support.arguments import compiled as compiled_with

pytestmark = pytest.mark.skipif(not has_fast(), reason="exact kernels take no work memory")
X = torch.randn(8, 3, 8, 8)
TIGHT = 1024  # bytes left


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("SMIDGEN_KERNELS", raising=False)
    return monkeypatch


def compiled(**options: Any) -> smidgen.Job:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    return compiled_with(model, X, memory=smidgen.Memory(effort=0), **options)


def tight(path: Path, **options: Any) -> smidgen.Job:
    """With a budget of just what these kernels take, saved."""
    free = compiled(**options)
    job = compiled(budget=free.plan.ram_bytes + TIGHT, **options)
    job.save(path)
    return job


def test_more_threads_than_the_budget_has_room_for_are_refused(tmp_path: Path) -> None:
    job = tight(tmp_path / "net.smg", kernels="fast")
    assert smidgen.load(tmp_path / "net.smg", kernels="fast").plan == job.plan
    assert smidgen.load(tmp_path / "net.smg", kernels="exact").plan.ram_bytes < job.plan.ram_bytes
    with pytest.raises(DoesNotFit, match="fast kernels on 2 threads") as caught:
        smidgen.load(tmp_path / "net.smg", kernels="fast", threads=2)
    assert caught.value.help.startswith("kernels='fast'; kernels='exact'; or compile with")
    assert "planned for fast kernels" in caught.value.why


def test_the_message_names_only_what_fits(tmp_path: Path) -> None:
    tight(tmp_path / "net.smg", kernels="exact")
    with pytest.raises(DoesNotFit) as caught:
        smidgen.load(tmp_path / "net.smg", kernels="fast", threads=3)
    assert caught.value.help.startswith("kernels='exact'; or compile with")


def test_the_default_is_fast_where_that_fits_and_else_exact(tmp_path: Path) -> None:
    tight(tmp_path / "net.smg", kernels="exact")
    assert smidgen.load(tmp_path / "net.smg").engine.machine.instruction_set == "exact"
    compiled(kernels="exact", budget="4MB").save(tmp_path / "roomy.smg")
    roomy = smidgen.load(tmp_path / "roomy.smg", threads=2)
    assert roomy.engine.machine.instruction_set != "exact"
    assert roomy.plan.ram_bytes <= 4 << 20


def test_the_environment_asks_like_an_argument(unset: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tight(tmp_path / "net.smg", kernels="exact")
    unset.setenv("SMIDGEN_KERNELS", "fast")
    with pytest.raises(DoesNotFit, match="fast kernels"):
        smidgen.load(tmp_path / "net.smg")
    smidgen.load(tmp_path / "net.smg", kernels="exact")


def test_without_a_limit_ram_is_as_mapped(tmp_path: Path) -> None:
    compiled(kernels="exact").save(tmp_path / "net.smg")
    for threads in (1, 3):
        job = smidgen.load(tmp_path / "net.smg", kernels="fast", threads=threads)
        plan = job.plan
        assert plan.ram_bytes == job.mapped_bytes + plan.context_bytes + plan.stack_bytes
        assert plan.work_bytes == Work("fast", threads).beside(plan.state_bytes + plan.arena_bytes)
        assert not plan.limits


def test_a_plan_says_what_it_was_made_for() -> None:
    plan = compiled(budget="4MB", kernels="fast", threads=2).plan
    assert (plan.limits, plan.kernels, plan.threads) == ({"train": 4 << 20}, "fast", 2)
    assert plan == replace(Plan.from_json(json.loads(json.dumps(plan.to_json()))), work_bytes=plan.work_bytes)


def test_every_rung_keeps_its_budget(tmp_path: Path) -> None:
    job = compiled(kernels="exact", ladder=["52KB", "40KB"])
    assert job.plan.limits == {"train@1": 52 << 10, "train@2": 40 << 10}
    job.save(tmp_path / "net.smg")
    with pytest.raises(DoesNotFit, match=r"rung 1 .* is for 52 KB"):
        smidgen.load(tmp_path / "net.smg", kernels="fast")
    again = smidgen.load(tmp_path / "net.smg")
    assert [r.ram_bytes for r in again.rungs] == [r.ram_bytes for r in job.rungs]


def test_the_ram_of_a_linux_device_is_a_limit_and_that_of_a_board_is_none_for_a_host(tmp_path: Path) -> None:
    linux = compiled(device="raspberry-pi-zero-2", kernels="fast")
    assert linux.plan.limits == {"train": 512 << 20}
    assert linux.plan.ram_bytes <= 512 << 20
    board = compiled(device="stm32f746")
    assert not board.plan.limits
    board.save(tmp_path / "net.smg")
    assert smidgen.load(tmp_path / "net.smg", kernels="fast", threads=8).plan.work_bytes > 320 << 10


def test_the_command_line_refuses_with_what_to_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tight(tmp_path / "net.smg", kernels="fast")
    np.savez(tmp_path / "d.npz", x=X.numpy(), y=np.arange(8) % 3)
    files = [str(tmp_path / "net.smg"), "--data", str(tmp_path / "d.npz")]
    for command in ("train", "infer"):
        assert main([command, *files, "--threads", "2"]) == 1
        said = capsys.readouterr().err
        assert "error[E201]" in said
        assert "help: --kernels fast; --kernels exact; or build with" in said
        assert main([command, *files]) == 0


def test_limits_that_make_no_sense_are_a_bad_program() -> None:
    program = compiled(kernels="exact", budget="4MB").program
    for bad in ({"train": -1}, {"train": "4MB"}, [1], {"train": True}):
        meta = checked_meta({**program.meta, "plan": {**program.meta["plan"], "limits": bad}})
        with pytest.raises(BadProgram):
            Job(replace(program, meta=meta))
