"""Images of bytes where they are used: in a runner, from .npz and raw files, and on an emulated board, with the bits of
this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import Bytes, Memory
from smidgen.deploy import emulate, linux_binary
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.runner import command, fnv, ready

TARGET = "x86_64-linux"
RNG = np.random.default_rng(0)
X, Y = RNG.integers(0, 256, (12, 3, 32, 24)).astype(np.uint8), RNG.integers(0, 4, 12)


def job(whole_inputs: bool = False) -> Job:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip
    return smidgen.compile(
        model, Bytes(X[:2], (0.017, 0.0175, 0.0174), (-2.1, -2, -1.8)), method="last_layer", kernels="exact",
        optimizer=smidgen.SGD(0.05), memory=Memory(whole_inputs=whole_inputs),
    )  # fmt: skip


def test_a_runner_learns_from_files_of_bytes(tmp_path: Path) -> None:
    run, here = ready(TARGET), job()
    linux_binary.build_binary(here.program, TARGET, tmp_path / "runner")
    np.savez(tmp_path / "train.npz", x=X, y=Y)
    np.savez(tmp_path / "wide.npz", x=X.astype(np.int32), y=Y)
    X.tofile(tmp_path / "x.bin")
    Y.astype(np.int32).tofile(tmp_path / "y.bin")
    here.fit(X, Y, epochs=2, progress=False)
    assert "train: input u8[1n,3,32,24] target i32[1n] -> loss f32[]" in command(run, tmp_path / "runner", "info")
    raw = ["--raw", tmp_path / "x.bin", "--raw", tmp_path / "y.bin"]
    for k, data in enumerate((["--data", tmp_path / "train.npz"], ["--data", tmp_path / "wide.npz"], raw)):
        told = command(run, tmp_path / "runner", "train", *data, "--epochs", "2", "--state", tmp_path / f"state{k}")
        assert fnv(here.engine.state.copy().tobytes()) in told
    out = ["-o", tmp_path / "out.npy"]
    command(run, tmp_path / "runner", "infer", "--data", tmp_path / "train.npz", "--state", tmp_path / "state0", *out)
    assert np.load(tmp_path / "out.npy").tobytes() == here.predict(X).tobytes()


def test_a_runner_refuses_what_is_no_byte(tmp_path: Path) -> None:
    run, here = ready(TARGET), job()
    linux_binary.build_binary(here.program, TARGET, tmp_path / "runner")
    for k, x in enumerate((X.astype(np.int32) + 1, X / np.float32(255))):
        np.savez(tmp_path / f"{k}.npz", x=x, y=Y)
        with pytest.raises(AssertionError, match="out of range or not an integer"):
            command(run, tmp_path / "runner", "train", "--data", tmp_path / f"{k}.npz")


@pytest.mark.parametrize("whole_inputs", [False, True], ids=["rows", "a frame"])
def test_a_board_learns_from_images_of_bytes(whole_inputs: bool, tmp_path: Path) -> None:
    need(*EMULATOR)
    here = job(whole_inputs)
    assert any(step.is_stream for step in here.program.entry_code("train"))
    made = write_firmware(tmp_path / "fw", here.program, load_device("stm32f746"))
    emulate.make(tmp_path / "fw")
    report = train_on_board(tmp_path / "fw", Samples((X,), Y), check=True)
    here.fit(X, Y, progress=False)
    assert report.run.state == here.engine.state.copy().tobytes()
    assert report.sections.ram_bytes == made.ram_bytes
