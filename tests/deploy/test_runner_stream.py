"""`runner learn`: a stream on Linux without Python, with the bits of job.learn here. Needs zig."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import smidgen
from smidgen import SGD, Memory, Replay
from smidgen.deploy import linux_binary
from smidgen.train.job import Job
from tests.support.runner import command, fnv, ready

TARGET = "x86_64-linux"
X = np.random.default_rng(0).standard_normal((30, 6)).astype(np.float32)
Y = np.arange(30) % 3


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


def made(folder: Path, model: nn.Module, **options: Any) -> Job:
    job = smidgen.compile(model, torch.zeros(2, 6), method="tinyol", optimizer=SGD(0.05), kernels="exact", **options)
    linux_binary.build_binary(job.program, TARGET, folder / "runner")
    return job


def learned(folder: Path, run: Any, *words: str | Path, **arrays: Any) -> dict[str, Any]:
    np.savez(folder / "data.npz", **arrays)
    given = ["learn", "--data", folder / "data.npz", "-o", folder / "out.npy", "--json", *words]
    found: dict[str, Any] = json.loads(command(run, folder / "runner", *given))
    return found


def test_a_classifier_learns_a_stream_as_on_the_host(tmp_path: Path) -> None:
    run = ready(TARGET)
    job = made(tmp_path, classifier())
    words = ["--state", tmp_path / "state.bin", "--losses", tmp_path / "losses"]
    said = learned(tmp_path, run, *words, x=X[:20], y=Y[:20])
    out = np.array([job.learn(X[i], Y[i]) for i in range(20)])
    assert np.load(tmp_path / "out.npy").tobytes() == out.tobytes()
    assert said["state_hash"] == fnv(job.engine.state.copy().tobytes())
    assert (said["samples"], np.float32(said["drift"])) == (20, np.float32(job.drift))
    losses = np.fromfile(tmp_path / "losses", np.float32)
    assert len(losses) == 20
    assert abs(losses.mean() - said["loss"]) < 1e-5
    said = learned(tmp_path, run, *words, x=X[20:], y=Y[20:])
    for i in range(20, 30):
        job.learn(X[i], Y[i])
    assert said["state_hash"] == fnv(job.engine.state.copy().tobytes()), "a second run goes on"
    other = Job(job.program, kernels="exact")
    other.restore(tmp_path / "state.bin")
    assert other.drift == job.drift


def test_a_model_that_reconstructs_needs_no_targets(tmp_path: Path) -> None:
    run = ready(TARGET)
    job = made(tmp_path, nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 6)).eval(), loss="mse")
    said = learned(tmp_path, run, x=X)
    out = np.array([job.learn(x) for x in X])
    assert np.load(tmp_path / "out.npy").tobytes() == out.tobytes()
    assert said["state_hash"] == fnv(job.engine.state.copy().tobytes())


def test_old_samples_are_learned_beside_each_with_replay(tmp_path: Path) -> None:
    run = ready(TARGET)
    job = made(tmp_path, classifier(), memory=Memory(replay=Replay(9)))
    said = learned(tmp_path, run, x=X, y=Y)
    out = np.array([job.learn(X[i], Y[i]) for i in range(30)])
    assert np.load(tmp_path / "out.npy").tobytes() == out.tobytes()
    assert said["state_hash"] == fnv(job.engine.state.copy().tobytes())
    assert len(job.replay) == 9


def test_what_is_no_stream_is_said(tmp_path: Path) -> None:
    run = ready(TARGET)
    job = smidgen.compile(classifier(), torch.zeros(2, 6), kernels="exact")
    linux_binary.build_binary(job.program, TARGET, tmp_path / "runner")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    words = [*run, tmp_path / "runner", "learn", "--data", tmp_path / "data.npz"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: the program does not learn from a stream: use train\n")
    made(tmp_path, classifier())
    np.savez(tmp_path / "data.npz", x=X)
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "y" in done.stderr
