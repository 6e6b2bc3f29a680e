"""A stream on emulated boards: learned, observed and scored sample by sample with the bits of this machine. Needs the
ARM compiler, QEMU and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Adam
from smidgen.deploy import emulate
from smidgen.deploy.firmware import write_firmware
from smidgen.deploy.stream_run import run_stream
from smidgen.devices.device import load_device
from smidgen.errors import RunFailed
from smidgen.train.job import Job
from tests.support.boards import EMULATOR, need

CASES = [("mps2-an386", "tinyol"), ("mps2-an385", "tinyol:attach"), ("nano33ble", "tinyol")]


def keywords() -> nn.Module:
    """DS-CNN in small: a convolution, depthwise and pointwise ones, a classifier."""
    torch.manual_seed(0)
    block = [nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 1), nn.ReLU()]
    return nn.Sequential(
        nn.Conv2d(1, 8, (4, 3), (2, 2), 1), nn.BatchNorm2d(8), nn.ReLU(), *block, nn.AvgPool2d((4, 3)), nn.Flatten(),
        nn.Dropout(0.2), nn.Linear(12 * 1 * 1, 5),
    ).eval()  # fmt: skip


def motion() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(36, 10), nn.ReLU(), nn.Linear(10, 6), nn.Tanh(), nn.Linear(6, 36)).eval()


def built(model: nn.Module, shape: tuple[int, ...], device: str, folder: Path, **more: Any) -> tuple[Job, Any]:
    job = smidgen.compile(model, torch.zeros(1, *shape), device=device, kernels="exact", **more)
    made = write_firmware(folder, job.program, load_device(device))
    assert "warning" not in emulate.make(folder, "MAIN=stream.c")
    return Job(job.program, kernels="exact"), made


@pytest.mark.parametrize(("device", "method"), CASES)
def test_a_classifier_learns_on_a_board_as_on_the_host(device: str, method: str, tmp_path: Path) -> None:
    need(*EMULATOR)
    job, made = built(keywords(), (1, 9, 7), device, tmp_path / "fw", method=method, optimizer=SGD(0.05, momentum=0.9))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((48, 1, 1, 9, 7)).astype(np.float32), np.arange(48) % 5
    x += 0.5 * y[:, None, None, None, None].astype(np.float32)
    told = [("learn", (x[i], y[i : i + 1].astype(np.int32))) for i in range(40)]
    told += [("restart", [np.array(0)]), *(("observe", (x[i],)) for i in range(40, 48)), ("detect", (x[3],))]
    found = run_stream(tmp_path / "fw", job.program, told)
    for i in range(40):
        np.testing.assert_array_equal(found.answers[i][1], job.learn(x[i], y[i : i + 1]))
    job.calibrate()
    for i in range(40, 48):
        job.engine.run_step("observe", [x[i]], [], 1)
    assert float(found.answers[-1][0][0]) == job.detect(x[3][0])
    assert found.state == job.engine.state.copy().tobytes()
    assert found.usual[0] == job.drift
    assert found.stack_used <= made.stack_bytes
    assert not np.array_equal(found.answers[0][1], found.answers[35][1])


def test_an_autoencoder_learns_what_is_normal_on_a_nano_33_ble(tmp_path: Path) -> None:
    """The original's own case: no labels, one board, what was learned beside is reported."""
    need(*EMULATOR)
    job, _ = built(motion(), (36,), "nano33ble", tmp_path / "fw", method="tinyol", loss="mse", optimizer=Adam(0.01))
    rng = np.random.default_rng(1)
    phase = rng.uniform(0, 6, (300, 1, 1))
    usual = (np.sin(phase + np.arange(36) / 3) + 0.05 * rng.standard_normal((300, 1, 36))).astype(np.float32)
    other = rng.standard_normal((20, 1, 36)).astype(np.float32)
    told: list[Any] = [("learn", (x, x)) for x in usual]
    told += [("detect", (x,)) for x in other]
    found = run_stream(tmp_path / "fw", job.program, told, count=True)
    for x in usual:
        job.learn(x)
    assert found.state == job.engine.state.copy().tobytes()
    losses = [float(a[0]) for a in found.answers[:300]]
    assert np.mean(losses[-50:]) < 0.5 * np.mean(losses[:50])
    scores = np.array([float(a[0][0]) for a in found.answers[300:]])
    _, mean, deviation = found.usual
    assert (scores > mean + 4 * deviation).mean() > 0.9
    assert job.threshold(4) == mean + 4 * deviation
    assert found.counts is not None
    learned, detected = found.counts.runs[100:300], found.counts.runs[300:320]
    assert max(learned) < 1.1 * min(learned)
    assert max(detected) < 0.7 * min(learned)


def test_a_sample_that_is_not_finite_is_refused_on_the_board(tmp_path: Path) -> None:
    need(*EMULATOR)
    job, _ = built(motion(), (36,), "mps2-an386", tmp_path / "fw", method="tinyol", loss="mse")
    bad = np.full((1, 36), np.nan, np.float32)
    with pytest.raises(RunFailed, match="holds NaN or an infinite number"):
        run_stream(tmp_path / "fw", job.program, [("learn", (bad, bad))])
    emulate.make(tmp_path / "fw")
    with pytest.raises(RunFailed, match=r"MAIN=stream\.c"):
        run_stream(tmp_path / "fw", job.program, [])
