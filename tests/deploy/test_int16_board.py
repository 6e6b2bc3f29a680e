"""Gradients in int16 on emulated boards: a core with SMLAD, and one without, compute the bits of the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smidgen import SGD, Int8, Update
from smidgen.deploy import emulate
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.arguments import compiled
from tests.support.boards import EMULATOR, need


class Net(nn.Module):
    """Widths that are no multiples of a block, a depthwise layer in place and one with stride, a residual."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.widen = nn.Conv2d(2, 7, 3, padding=1), nn.Conv2d(7, 21, 1)
        self.depth, self.narrow = nn.Conv2d(21, 21, 3, padding=1, groups=21), nn.Conv2d(21, 7, 1)
        self.down, self.mix = nn.Conv2d(7, 7, 3, 2, 1, groups=7), nn.Conv2d(7, 18, 1)
        self.head = nn.Linear(18, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + self.narrow(F.relu6(self.depth(F.hardswish(self.widen(x)))))
        x = F.relu(self.mix(F.relu(self.down(x))))
        out: Tensor = self.head(x.mean((2, 3)))
        return out


@pytest.mark.parametrize("device", ["mps2-an386", "mps2-an385"])
def test_a_board_learns_with_int16_gradients_as_the_host(device: str, tmp_path: Path) -> None:
    need(*EMULATOR)
    parts = ["stem.bias", "stem.weight", Update("widen.weight", 1, (1, 2, 6)), "depth.bias",
             Update("narrow.weight", 0, (0, 3)), "down.weight", "mix.weight", "mix.bias", "head.weight"]  # fmt: skip
    x = np.random.default_rng(0).standard_normal((12, 2, 7, 6)).astype(np.float32)
    job = compiled(
        Net(), x[:2], method=parts, optimizer=SGD(0.05, momentum=0.9), device=device, kernels="exact",
        precision=Int8(gradients="int16"), data=x,
    )  # fmt: skip
    used = set(job.program.kernels)
    assert {"qconv2d_dx16_i16", "qconv2d_dx16_put_i16", "qdepthwise_dx16_i16", "qconv2d_dw16_qmomentum_i8",
            "bias_dw16_qmomentum_i32", "add16_i16"} <= used  # fmt: skip
    made = write_firmware(tmp_path / "fw", job.program, load_device(device))
    emulate.make(tmp_path / "fw")
    y = np.arange(12) % 3
    report = train_on_board(tmp_path / "fw", Samples((x,), y), check=True)
    here = Job(job.program, kernels="exact")
    here.fit(x, y, progress=False)
    assert report.run.state == here.engine.state.copy().tobytes()
    assert report.sections.ram_bytes == made.ram_bytes
