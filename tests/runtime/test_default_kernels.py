"""Which kernels a job has when nobody says: fast ones on a host, exact ones for a device or where nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import BadOption, MissingPart
from tests.support.libraries import compiled

X = torch.zeros(2, 6)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("SMIDGEN_KERNELS", raising=False)
    return monkeypatch


def test_a_host_gets_fast_kernels(unset: pytest.MonkeyPatch, tmp_path: Path) -> None:
    job = smidgen.compile(model(), X)
    assert job.engine.machine.instruction_set != "exact"
    assert job.plan.work_bytes > 0
    job.save(tmp_path / "net.smg")
    loaded = smidgen.load(tmp_path / "net.smg")
    assert loaded.plan == job.plan
    assert (
        loaded.plan.ram_bytes
        == loaded.engine.machine.mapped_bytes + loaded.plan.context_bytes + loaded.plan.stack_bytes
    )
    exact = smidgen.load(tmp_path / "net.smg", kernels="exact")
    assert exact.plan.ram_bytes == loaded.plan.ram_bytes - loaded.plan.work_bytes


def test_a_device_gets_exact_kernels(unset: pytest.MonkeyPatch) -> None:
    job = smidgen.compile(model(), X, device="stm32f746")
    assert job.engine.machine.instruction_set == "exact"
    assert smidgen.compile(model(), X, device="stm32f746", kernels="fast").plan.work_bytes > 0


def test_the_environment_changes_the_default_and_nothing_else(unset: pytest.MonkeyPatch) -> None:
    unset.setenv("SMIDGEN_KERNELS", "exact")
    assert smidgen.compile(model(), X).engine.machine.instruction_set == "exact"
    assert smidgen.compile(model(), X, kernels="fast").engine.machine.instruction_set != "exact"
    unset.setenv("SMIDGEN_KERNELS", "quick")
    with pytest.raises(BadOption, match="kernels='quick' is not understood"):
        smidgen.compile(model(), X)


def test_threads_need_fast_kernels(unset: pytest.MonkeyPatch) -> None:
    assert smidgen.compile(model(), X, kernels="fast:2").plan.work_bytes > smidgen.compile(model(), X).plan.work_bytes
    with pytest.raises(BadOption, match="exact kernels run on one thread"):
        smidgen.compile(model(), X, kernels="exact:2")


@pytest.mark.skipif(shutil.which("tcc") is None, reason="needs tcc, a compiler without vectors")
def test_a_runtime_without_fast_kernels_has_exact_ones(unset: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smidgen.compile(model(), X).save(tmp_path / "net.smg")
    library = compiled("tcc", ())
    code = (
        "import smidgen, sys\n"
        "print(smidgen.load(sys.argv[1]).engine.machine.instruction_set)\n"
        "try: smidgen.load(sys.argv[1], kernels='fast')\n"
        "except smidgen.SmidgenError as e: print(type(e).__name__, e.why)\n"
    )
    env = {**os.environ, "SMIDGEN_LIBRARY": str(library)}
    run = [sys.executable, "-c", code, str(tmp_path / "net.smg")]
    said = subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["exact", f"{MissingPart.__name__} built without fast kernels"]
