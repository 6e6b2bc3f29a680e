"""A stream on the host: predict and learn, what is usual, how far it has moved; whatever happens in between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Adam, Memory
from smidgen.errors import BadData, CannotStream
from smidgen.ir import Array
from smidgen.methods import TinyOL
from smidgen.train.learn import report

DRIFT = 0.25  # as documented


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)).eval()


def autoencoder() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 12)).eval()


def compiled(model: nn.Module | None = None, method: Any = "tinyol", batch: int = 4, **more: Any) -> smidgen.Job:
    model = model or classifier()
    inputs = next(m.in_features for m in model.modules() if isinstance(m, nn.Linear))
    given = {"optimizer": SGD(0.05), "kernels": "exact", **more}
    return smidgen.compile(model, torch.zeros(batch, inputs), method=method, **given)


def stream(count: int, seed: int = 0, width: int = 6) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.standard_normal((count, width)) + y[:, None]
    return x.astype(np.float32), y


def state(job: smidgen.Job) -> bytes:
    return job.engine.state.copy().tobytes()


# -- the statistics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 1e4, -3e5])
@pytest.mark.parametrize("kernels", ["exact", "fast"])
def test_running_statistics_are_those_of_all_samples(offset: float, kernels: str) -> None:
    """The layer behind a network that does nothing sees the samples themselves; numpy has them in float64."""
    job = smidgen.compile(
        nn.Identity(), torch.zeros(50, 3), method=TinyOL("attach", samples=32), loss="mse", kernels=kernels
    )
    rng = np.random.default_rng(0)
    x = (offset + np.array([1, 0.01, 30]) * rng.standard_normal((10_000, 3))).astype(np.float32)
    for part in np.split(x, 200):
        job.engine.run_step("observe", [part], [], len(part))
    center, mean, var, spread, _ = job.state_dict()["tinyol.moments"].astype(np.float64)
    whole, first = x.astype(np.float64), x[:32].astype(np.float64)
    quantum = np.spacing(np.abs(x[0])).astype(np.float64)  # what a float can tell apart there
    deviation = whole.std(0)
    assert (np.abs(center + mean - whole.mean(0)) <= 1e-5 * deviation + quantum).all()
    np.testing.assert_allclose(np.sqrt(var), deviation, rtol=2e-5, atol=quantum.max())
    np.testing.assert_allclose(np.sqrt(spread), first.std(0), rtol=2e-5, atol=quantum.max())
    assert job.state_dict()["tinyol.seen"].tolist() == [10_000, 0, 1]


def test_a_batch_enters_its_samples_one_by_one() -> None:
    one, four = compiled(batch=1), compiled(batch=4)
    x, _ = stream(48)
    for i in range(48):
        one.engine.run_step("observe", [x[i : i + 1]], [], 1)
    for i in range(0, 48, 4):
        four.engine.run_step("observe", [x[i : i + 4]], [], 4)
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(value, four.state_dict()[name], err_msg=name)


def test_calibration_makes_the_reference_of_its_samples_alone() -> None:
    job = compiled()
    x, _ = stream(100)
    job.calibrate(stream(40, 1)[0] * 100)
    job.calibrate(x)
    again = compiled()
    again.calibrate(x)
    moments, other = (j.state_dict()["tinyol.moments"] for j in (job, again))
    np.testing.assert_array_equal(moments[[0, 3]], other[[0, 3]])  # center and spread
    scores = job.detect(x)
    _, mean, deviation = report(job)
    np.testing.assert_allclose([mean, deviation], [scores.mean(), scores.std()], rtol=1e-4)
    assert (scores > job.threshold()).mean() < 0.02


def test_drift_rises_on_data_that_has_moved_and_only_there() -> None:
    job = compiled()
    job.calibrate(stream(200)[0])
    x, y = stream(400, 1)
    for i in range(200):
        job.learn(x[i], y[i])
        assert job.drift < DRIFT, i
    for i in range(200, 400):
        job.learn(x[i] + 2, y[i])
    moved = job.drift
    assert moved > DRIFT
    job.calibrate()  # what comes now is usual
    for i in range(200, 400):
        job.learn(x[i] + 2, y[i])
    assert job.drift < DRIFT < moved


def test_nothing_is_unusual_before_anything_is_known() -> None:
    job = compiled()
    x, y = stream(33)
    assert (job.drift, job.detect(x[0])) == (0, 0)
    assert job.threshold() > 1e20
    for i in range(32):
        job.learn(x[i], y[i])
    assert not (job.state_dict()["tinyol.weight"]).any()  # only the bias learns from those
    job.learn(x[32], y[32])
    assert job.state_dict()["tinyol.weight"].any()


def test_an_autoencoder_learns_what_is_normal_and_tells_what_is_not() -> None:
    job = compiled(autoencoder(), loss="mse", optimizer=Adam(0.01))
    rng = np.random.default_rng(0)

    def usual(count: int) -> Array:
        phase = rng.uniform(0, 6, (count, 1))
        return (np.sin(phase + np.arange(12) / 2) + 0.05 * rng.standard_normal((count, 12))).astype(np.float32)

    before = job.detect(usual(200)).mean()
    for x in usual(1500):
        if job.detect(x) <= job.threshold(6):
            job.learn(x)
    assert job.detect(usual(200)).mean() < 0.5 * before
    assert (job.detect(usual(200)) > job.threshold()).mean() < 0.05
    assert (job.detect(rng.standard_normal((200, 12)).astype(np.float32)) > job.threshold()).mean() > 0.9


# -- a sample ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["tinyol", "tinyol:attach"])
def test_the_prediction_is_the_one_before_learning(method: str) -> None:
    job = compiled(method=method, optimizer=SGD(0.1, momentum=0.9))
    x, y = stream(60)
    right = 0
    for i in range(60):
        wanted = job.predict(x[i : i + 1])[0]
        got = job.learn(x[i], y[i])
        np.testing.assert_array_equal(got, wanted)
        right += int(got.argmax() == y[i])
    assert job.step == 60


def test_a_sample_comes_with_or_without_its_axis() -> None:
    job, other = compiled(), compiled()
    x, y = stream(4)
    assert job.learn(x[0], int(y[0])).shape == job.learn(torch.tensor(x[1]), np.int64(y[1])).shape == (3,)
    assert job.learn(torch.tensor(x[2:3]), torch.tensor(y[2:3])).shape == (1, 3)
    for i in range(3):
        other.learn(x[i], y[i])
    assert state(job) == state(other)
    assert isinstance(job.detect(x[0]), float)
    assert job.detect(x[:3]).shape == (3,)
    assert job.detect(np.concatenate([x] * 5)).shape == (20,)  # more than the batch


def test_the_frozen_network_runs_once() -> None:
    job = compiled(batch=1)
    macs = job.plan.cost.macs
    layer = 3 * 12 + 12  # forward, and the standardised input
    assert macs["learn"] < macs["infer"] + 2 * layer + 12 * 10
    assert macs["detect"] < macs["infer"]


def test_a_batch_is_the_step_of_training() -> None:
    x, y = stream(40)
    learned, trained = compiled(), compiled()
    for i in range(0, 40, 4):
        learned.learn(x[i : i + 4], y[i : i + 4])
        trained.train_step(x[i : i + 4], y[i : i + 4])
    for name, value in learned.state_dict().items():
        np.testing.assert_array_equal(value, trained.state_dict()[name], err_msg=name)


# -- misuse -----------------------------------------------------------------------------------------------------------


def test_with_replay_a_sample_is_learned_beside_old_ones() -> None:
    memory = smidgen.Memory(replay=smidgen.Replay(8))
    ours, theirs = (compiled(batch=3, memory=memory) for _ in range(2))
    x, y = stream(12)
    for sample, label in zip(x, y, strict=True):
        want = theirs.predict(sample[None])[0]
        theirs.train_step(sample[None], label[None])
        np.testing.assert_array_equal(ours.learn(sample, label), want)
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name], value, err_msg=name)
    assert len(ours.replay) == 8
    np.testing.assert_array_equal(ours.learn(x[:2], y[:2]), theirs.predict(x[:2]))


@pytest.mark.parametrize("reconstructs", [False, True])
def test_with_replay_scores_are_those_without(reconstructs: bool) -> None:
    """Nothing is learned here, so that the samples alone decide."""
    model, loss = (autoencoder(), "mse") if reconstructs else (classifier(), "cross_entropy")
    replaying, plain = (
        compiled(model, loss=loss, batch=3, optimizer=SGD(0.0), memory=memory)
        for memory in (Memory(replay=smidgen.Replay(8)), Memory())
    )
    x, y = stream(60, width=12 if reconstructs else 6)
    for job in (replaying, plain):
        job.calibrate(x[:20])
        for sample, label in zip(x[20:], y[20:], strict=True):
            job.learn(sample, *(() if reconstructs else (label,)))
    assert report(replaying)[1:] == report(plain)[1:]
    assert replaying.threshold() == plain.threshold() < 100
    replaying.replay.add(x, x if reconstructs else y)
    replaying.train_step(x[:2], x[:2] if reconstructs else y[:2])
    assert report(replaying)[1:] == report(plain)[1:], "these were not learned from a stream"


def test_a_program_that_does_not_stream_says_what_to_type() -> None:
    job = compiled(method="last_layer")
    x, y = stream(2)
    calls = [lambda: job.learn(x[0], y[0]), lambda: job.detect(x[0]), lambda: job.calibrate(x), lambda: job.drift,
             lambda: job.threshold()]  # fmt: skip
    for call in calls:
        with pytest.raises(CannotStream, match=r"error\[E310\]") as error:
            call()
        assert 'method="tinyol"' in str(error.value)
        assert "last_layer" in str(error.value)


def test_a_label_is_needed_unless_the_sample_is_the_target() -> None:
    x, _ = stream(2)
    with pytest.raises(CannotStream, match="needs a label") as error:
        compiled().learn(x[0])
    assert "job.learn(sample, label)" in str(error.value)
    job = compiled(autoencoder(), loss="mse")
    sample = np.ones(12, np.float32)
    assert job.learn(sample).shape == (12,)
    other = compiled(autoencoder(), loss="mse")
    other.learn(sample, sample)
    assert state(job) == state(other)


@pytest.mark.parametrize(
    ("sample", "label", "what"),
    [
        (np.zeros(5), 0, "has shape"), (np.zeros((1, 6)), np.zeros((1, 1), int), "has shape"),
        (np.zeros((5, 6)), np.zeros(5, int), "at most 4"), (np.full(6, np.nan), 0, "NaN"),
        (np.full(6, np.inf), 0, "infinite"), (np.zeros(6), 3, "not the number of a class"),
        (np.zeros(6), -1, "not the number of a class"), (np.zeros(6), 0.5, "integers"),
        (np.zeros((2, 6)), np.zeros(1, int), "different numbers of samples"),
        ((np.zeros(6), np.zeros(6)), 0, "arrays given"),
    ],
)  # fmt: skip
def test_a_sample_that_does_not_fit_changes_nothing(sample: Any, label: Any, what: str) -> None:
    job = compiled()
    job.calibrate(stream(20)[0])
    before = state(job)
    with pytest.raises(BadData, match=what):
        job.learn(sample, label)
    assert state(job) == before


def test_calibration_and_thresholds_are_checked() -> None:
    job = compiled()
    before = state(job)
    x, _ = stream(10)
    with pytest.raises(CannotStream, match="no reference"):
        job.calibrate(x[:1])
    bad = x.copy()
    bad[7, 2] = np.nan
    with pytest.raises(BadData, match="sample 7"):
        job.calibrate(bad)
    with pytest.raises(BadData, match="has shape"):
        job.calibrate(x[:, :3])
    for wrong in (-1, "4", float("nan")):
        with pytest.raises(CannotStream, match="standard deviations"):
            job.threshold(wrong)  # type: ignore[arg-type]
    assert state(job) == before


# -- whatever happens in between --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [SGD(0.05), SGD(0.05, momentum=0.9), Adam(0.01)], ids=["sgd", "momentum", "adam"])
def test_saved_loaded_and_resumed_it_goes_on_with_the_same_bits(optimizer: Any, tmp_path: Path) -> None:
    job = compiled(optimizer=optimizer)
    x, y = stream(90)
    for i in range(45):
        job.learn(x[i], y[i])
    job.save(tmp_path / "net.smg")
    job.checkpoint(tmp_path / "run.ckpt")
    loaded, resumed = smidgen.load(tmp_path / "net.smg", kernels="exact"), compiled(optimizer=optimizer)
    resumed.resume(tmp_path / "run.ckpt")
    for i in range(45, 90):
        results = [j.learn(x[i], y[i]) for j in (job, loaded, resumed)]
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])
    assert state(job) == state(loaded) == state(resumed)
    assert job.drift == loaded.drift == resumed.drift


def test_a_device_with_numpy_alone_learns_on(tmp_path: Path) -> None:
    job = compiled()
    x, y = stream(40)
    job.calibrate(x)
    job.save(tmp_path / "net.smg")
    np.savez(tmp_path / "data.npz", x=x, y=y)
    for sample, label in zip(x, y, strict=True):
        job.learn(sample, label)
    script = f"""
import sys
sys.modules["torch"] = None
import numpy as np, smidgen
job, data = smidgen.load({str(tmp_path / "net.smg")!r}, kernels="exact"), np.load({str(tmp_path / "data.npz")!r})
for x, y in zip(data["x"], data["y"]):
    job.learn(x, int(y))
print(job.engine.state.copy().tobytes().hex(), job.drift, job.detect(data["x"][0]))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert said == [state(job).hex(), str(job.drift), str(job.detect(x[0]))]


def images() -> tuple[nn.Module, Array]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 8 * 8, 10),
    ).eval()  # fmt: skip
    return net, np.random.default_rng(0).standard_normal((32, 3, 32, 32)).astype(np.float32)


@pytest.mark.parametrize("paged", [False, True])
def test_within_a_budget_the_same_is_learned(paged: bool, tmp_path: Path) -> None:
    """In micro-batches, or with state in pages, each sample is learned from as without a limit."""
    net, x = images()
    more: dict[str, Any] = {"method": TinyOL(samples=8), "kernels": "exact"}
    free = smidgen.compile(net, x[:8] if paged else x, **more)
    most = int((0.9 if paged else 0.85) * free.plan.ram_bytes)
    memory = Memory(page_to=tmp_path / "page.bin") if paged else None
    small = smidgen.compile(net, x[:8] if paged else x, budget=most, memory=memory, **more)
    assert small.plan.ram_bytes <= most
    assert bool(small.plan.page_state_bytes) == paged
    assert paged or small.program.batch < 32
    for i in range(24):
        np.testing.assert_array_equal(free.learn(x[i % 8], i % 10), small.learn(x[i % 8], i % 10))
    for name, value in free.state_dict().items():
        np.testing.assert_array_equal(value, small.state_dict()[name], err_msg=name)
    assert free.drift == small.drift
    assert free.threshold() == small.threshold()


def test_micro_batches_and_ladders_work_beside() -> None:
    x, y = stream(40)
    job = compiled(memory=Memory(accumulate=True, ladder=["1MB"]))
    job.calibrate(x)
    job.train_step(x, y)
    job.rung = 1
    assert job.learn(x[0], y[0]).shape == (3,)
    job.fit(x, y, epochs=2, progress=False)
    assert np.isfinite(job.predict(x)).all()
