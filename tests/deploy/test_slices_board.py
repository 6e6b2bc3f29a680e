"""Slices on emulated boards: the same bits as here, in the RAM that was planned, beside constants in f32 and int8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smidgen import SGD, Memory, Update
from smidgen.deploy import emulate
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.arguments import compiled
from tests.support.boards import EMULATOR, need
from tests.support.int8_values import rounded


def net() -> nn.Module:
    torch.manual_seed(0)
    return rounded(nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 20, 1, bias=False), nn.ReLU6(),
        nn.Conv2d(20, 20, 3, stride=2, padding=1, groups=20), nn.ReLU(), nn.Conv2d(20, 12, 3, groups=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(12, 9, bias=False), nn.Tanh(), nn.Linear(9, 3),
    ).eval())  # fmt: skip


@pytest.mark.parametrize("const", ["f32", "int8"])
@pytest.mark.parametrize("device", ["mps2-an386", "mps2-an385"])
def test_slices_learn_on_a_board_as_on_the_host(device: str, const: str, tmp_path: Path) -> None:
    need(*EMULATOR)
    parts = [
        "0.bias", Update("2.weight", 1, (1, 2, 6)), Update("4.weight", 0, (0, 7, 19)),
        Update("6.weight", 0, (2, 3, 11)), Update("9.weight", 1, (0, 4)), Update("11.weight", 0, (1,)),
    ]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((6, 2, 6, 6)).astype(np.float32)
    job = compiled(
        net(), x[:2], method=parts, optimizer=SGD(0.05, momentum=0.9), memory=Memory(const=const), device=device,
        kernels="exact",
    )  # fmt: skip
    forms = {"_put_f32"} if const == "f32" else {"_put_f32", "_w8_f32"}
    assert all(any(kernel.endswith(form) for kernel in job.program.kernels) for form in forms)
    made = write_firmware(tmp_path / "fw", job.program, load_device(device))
    emulate.make(tmp_path / "fw")
    y = np.arange(6) % 3
    report = train_on_board(tmp_path / "fw", Samples((x,), y), check=True)
    here = Job(job.program, kernels="exact")
    here.fit(x, y, progress=False)
    assert report.run.state == here.engine.state.copy().tobytes()
    assert report.sections.ram_bytes == made.ram_bytes
