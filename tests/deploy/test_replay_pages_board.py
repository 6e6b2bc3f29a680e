"""Replay with samples on a card: emulated boards and the Linux runner compute what a job does with samples in RAM."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Memory, Replay
from smidgen.deploy import emulate, linux_binary
from smidgen.deploy.board_run import train_on_board
from smidgen.deploy.firmware import write_firmware
from smidgen.devices.device import load_device
from smidgen.train.job import Job
from smidgen.train.npz import Samples
from tests.support.boards import EMULATOR, need
from tests.support.runner import command, fnv, ready

X = np.random.default_rng(0).standard_normal((20, 2, 6, 6)).astype(np.float32)
Y = np.arange(20) % 3


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 40, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(160, 3),
    ).eval()  # fmt: skip


def made(device: str | None, replay: Replay, page_to: Path | None, memory: Memory | None = None) -> Job:
    return smidgen.compile(
        net(), torch.zeros(4, 2, 6, 6), optimizer=SGD(0.05, momentum=0.9), device=device, kernels="exact",
        method="last_layer", memory=replace(memory or Memory(), page_to=page_to, replay=replay),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "replay", "memory"),
    [("mps2-an386", Replay(9), Memory()), ("mps2-an385", Replay(9, precision="f32"), Memory()),
     ("mps2-an386", Replay(7, of="inputs", fresh=1), Memory()), ("mps2-an385", Replay(8), Memory(accumulate=True))],
    ids=["int8 features", "f32 features", "inputs", "micro-batches"],
)  # fmt: skip
def test_a_board_with_a_card_replays_as_the_host_does(
    device: str, replay: Replay, memory: Memory, tmp_path: Path
) -> None:
    need(*EMULATOR)
    job = made(device, replace(replay, where="page"), tmp_path / "first", memory)
    made_of = write_firmware(tmp_path / "fw", job.program, load_device(device))
    emulate.make(tmp_path / "fw")
    report = train_on_board(tmp_path / "fw", Samples((X,), Y), check=True, epochs=2)
    here = Job(job.program, kernels="exact", page_to=tmp_path / "second")
    here.fit(X, Y, epochs=2, progress=False)
    assert report.run.state == here.engine.state.copy().tobytes()
    assert len(here.replay) == replay.samples
    plain = made(device, replay, None, memory)
    plain.fit(X, Y, epochs=2, progress=False)
    for name, value in plain.state_dict().items():
        assert value.tobytes() == here.state_dict()[name].tobytes(), "as with samples in RAM"
    assert report.sections.ram_bytes == made_of.ram_bytes == job.plan.ram_bytes
    assert report.run.stack_used <= made_of.stack_bytes
    assert report.run.paged.out_bytes >= replay.samples * (here.replay.page_bytes // replay.samples)
    assert report.run.paged.in_bytes > report.run.paged.out_bytes


def test_a_device_counts_a_byte_of_ram_a_sample(tmp_path: Path) -> None:
    small, large = (made("mps2-an386", Replay(n, where="page"), tmp_path / f"{n}").plan for n in (8, 808))
    assert large.ram_bytes - small.ram_bytes == large.replay_bytes - small.replay_bytes == 800
    assert large.page_bytes > 800 * (160 + 4 + 4 + 4)


@pytest.mark.parametrize("replay", [Replay(9), Replay(9, of="inputs", fresh=1)], ids=str)
def test_a_runner_replays_as_the_host_does(replay: Replay, tmp_path: Path) -> None:
    run = ready("x86_64-linux")
    job = made(None, replace(replay, where="page"), tmp_path / "page")
    linux_binary.build_binary(job.program, "x86_64-linux", tmp_path / "runner")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    words = ["train", "--data", tmp_path / "data.npz", "--epochs", "2", "--state", tmp_path / "state.bin", "--json",
             "--page-to", tmp_path / "other"]  # fmt: skip
    said = json.loads(command(run, tmp_path / "runner", *words))
    job.fit(X, Y, epochs=2, progress=False)
    assert said["steps"] == job.step
    assert said["state_hash"] == fnv(job.engine.state.copy().tobytes())
    command(run, tmp_path / "runner", *words)
    job.fit(X, Y, epochs=2, progress=False)
    again = Job(job.program, kernels="exact", page_to=tmp_path / "third")
    again.restore(tmp_path / "state.bin")
    assert again.engine.state.copy().tobytes() == job.engine.state.copy().tobytes(), "a second run goes on"
