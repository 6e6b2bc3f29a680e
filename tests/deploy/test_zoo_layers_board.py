"""Windows, resampling, volumes, Fourier transforms, sorting and gathering on an emulated board: this machine's bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.deploy import emulate
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.zoo_nets import ZOO_NETS


@pytest.mark.parametrize(("make", "shape"), [pytest.param(*n[1:], id=n[0]) for n in ZOO_NETS])
def test_three_steps_on_a_board_give_the_bits_of_this_machine(
    make: type[nn.Module], shape: tuple[int, ...], tmp_path: Path
) -> None:
    need(*EMULATOR)
    torch.manual_seed(0)
    x, y = torch.randn(6, *shape).numpy(), np.arange(6) % 3
    program = smidgen.compile(make(), x[:2], optimizer=smidgen.SGD(0.05), device="stm32f746", kernels="exact").program
    made = write_firmware(tmp_path / "fw", program, load_device("stm32f746"))
    emulate.make(tmp_path / "fw")
    report = train_on_board(tmp_path / "fw", Samples((x,), y), check=True)
    here = Job(program, kernels="exact")
    here.fit(x, y, progress=False)
    assert len(report.run.losses) == here.step == 3
    assert report.run.state == here.engine.state.copy().tobytes()
    assert report.sections.ram_bytes == made.ram_bytes
