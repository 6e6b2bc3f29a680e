"""`job.fit` and `job.evaluate`: what they compute, which data they take, how a run ends, and what they say if not."""

from __future__ import annotations

import json
import math
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.compiler.optimizers import SGD, Adam, Optimizer
from smidgen.errors import NotFinite
from smidgen.ir import Array
from smidgen.train import divergence
from smidgen.train.batches import order
from smidgen.train.job import Job
from tests.support import small
from tests.support.jobs import made, said, state

X, Y = small.data(19)


# -- what a run computes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [4, 3, 7])
def test_fit_does_the_same_steps_as_a_loop_of_train_step(batch: int) -> None:
    ours, loop = (made(dropout=0.3, accumulate=True) for _ in range(2))
    history = ours.fit(X, Y, epochs=2, batch=batch)
    losses = []
    for epoch in range(2):
        which = order(7, epoch, len(X))  # 7 is the program's seed
        parts = [which[k : k + batch] for k in range(0, len(X), batch)]
        losses.append([loop.train_step(X[w], Y[w]) * len(w) for w in parts])
    assert state(ours) == state(loop)
    assert [e.loss for e in history.epochs] == [sum(each) / len(X) for each in losses]
    assert (history.steps, history.samples, history.stopped) == (ours.step, 2 * len(X), "done")


def test_the_order_of_samples_never_changes() -> None:
    assert order(7, 0, 12).tolist() == [4, 8, 11, 2, 7, 5, 1, 0, 10, 6, 9, 3]
    assert order(7, 1, 5).tolist() == [3, 2, 4, 1, 0]
    for count in (1, 2, 1000):
        assert sorted(order(0, 0, count)) == list(range(count))
    orders = {tuple(order(seed, epoch, 50)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100
    mean = np.mean([order(seed, 0, 9) for seed in range(4000)], axis=0)
    assert np.abs(mean - 4).max() < 0.2, "every sample is everywhere equally often"


def test_the_seed_decides_and_without_shuffling_samples_come_as_they_are() -> None:
    runs = [made() for _ in range(4)]
    for job, options in zip(runs, ({"seed": 1}, {"seed": 1}, {"seed": 2}, {"shuffle": False}), strict=True):
        job.fit(X, Y, **options)
    assert state(runs[0]) == state(runs[1])
    assert len({state(job) for job in runs}) == 3
    plain = made()
    plain.fit([(X[k : k + 4], Y[k : k + 4]) for k in range(0, len(X), 4)])
    assert state(plain) == state(runs[3])


def test_torch_tensors_and_other_dtypes_give_the_same_bits() -> None:
    small_numbers = np.round(X * 8) / 8
    jobs = [made() for _ in range(4)]
    jobs[0].fit(small_numbers, Y)
    jobs[1].fit(torch.from_numpy(small_numbers), torch.from_numpy(Y).long())
    jobs[2].fit(small_numbers.astype(np.float16), Y.astype(np.uint8))
    jobs[3].fit(np.asfortranarray(small_numbers.astype(np.float64)), Y.tolist())
    assert len({state(job) for job in jobs}) == 1


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        (None, [0.5, 0.5, 0.5, 0.5]),
        ("constant", [0.5, 0.5, 0.5, 0.5]),
        ("linear", [0.5, 0.375, 0.25, 0.125]),
        ("cosine", [0.5, 0.25 + 0.25 * math.sqrt(0.5), 0.25, 0.25 - 0.25 * math.sqrt(0.5)]),
        (lambda progress: 2 - progress, [1.0, 0.875, 0.75, 0.625]),
    ],
    ids=["none", "constant", "linear", "cosine", "function"],
)
def test_a_schedule_multiplies_the_learning_rate_and_leaves_it_as_it_was(schedule: Any, want: list[float]) -> None:
    ours, loop = (made(SGD(0.5)) for _ in range(2))
    history = ours.fit([(X[:4], Y[:4])] * 2, epochs=2, schedule=schedule)
    for lr in want:
        loop.lr = lr
        loop.train_step(X[:4], Y[:4])
    loop.lr = 0.5
    assert state(ours) == state(loop)
    assert ours.lr == 0.5
    assert [e.lr for e in history.epochs] == pytest.approx([want[1], want[3]], rel=1e-7)


def test_a_warmup_rises_to_the_full_rate_before_the_schedule_begins() -> None:
    seen: list[float] = []
    job = made(SGD(0.8))
    job.fit([(X[:4], Y[:4])], epochs=6, schedule="linear", warmup=0.5, on_epoch=lambda e: seen.append(e.lr))
    np.testing.assert_allclose(seen, [0.2, 0.4, 0.6, 0.8, 0.8 * 2 / 3, 0.8 / 3], rtol=1e-6)


def test_the_rate_can_be_changed_between_epochs() -> None:
    job = made(SGD(0.4))

    def halve(_: Any) -> None:
        job.lr /= 2

    history = job.fit(X[:4], Y[:4], epochs=3, on_epoch=halve)
    assert [e.lr for e in history.epochs] == pytest.approx([0.4, 0.2, 0.1])


# -- how a run ends ----------------------------------------------------------------------------------------------


def test_patience_ends_the_run_and_brings_back_the_best_state() -> None:
    job = made(SGD(0.3, momentum=0.9))
    others = small.data(19, 5)  # other random labels: learning these by heart makes the eval loss rise
    states: list[bytes] = []
    history = job.fit(X, Y, epochs=40, eval=others, patience=3, on_epoch=lambda _: states.append(state(job)))
    losses = [e.eval["loss"] for e in history.epochs if e.eval]
    best = int(np.argmin(losses))
    assert history.stopped == "patience"
    assert len(history.epochs) == best + 1 + 3 < 40
    assert (history.best_epoch, history.restored) == (best + 1, True)
    assert state(job) == states[best]
    assert (
        str(history)
        .splitlines()[-1]
        .startswith(
            f"stopped: nothing got better any more; back in the state after epoch {best + 1}; {5 * len(losses)} steps"
        )
    )


def test_without_eval_patience_watches_the_training_loss() -> None:
    job = made(SGD(0.0))
    history = job.fit(X, Y, epochs=9, patience=2)
    assert (history.stopped, len(history.epochs), history.best_epoch) == ("patience", 3, 1)


def test_an_eval_loss_that_is_not_finite_is_never_the_best() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return output.mean() + torch.log(target).mean()

    x = np.ones((4, 3), np.float32)
    job = smidgen.compile(nn.Linear(3, 1), x, loss=loss, target=np.ones((4, 1), np.float32))
    history = job.fit(x, np.ones((4, 1)), eval=(x, np.zeros((4, 1))), epochs=9, patience=2)
    assert (history.stopped, len(history.epochs), history.best_epoch) == ("patience", 3, 1)
    assert history.to_json()["epochs"][0]["eval"] == {"loss": None, "samples": 4}


def interrupting(step: int, times: int = 1) -> Iterator[tuple[Array, Array]]:
    """Batches; Ctrl-C is pressed while one is fetched."""
    for k in range(4):
        if k == step:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        yield X[4 * k : 4 * k + 4], Y[4 * k : 4 * k + 4]


def test_ctrl_c_ends_after_the_step_with_a_usable_job(tmp_path: Path) -> None:
    job, handler = made(), signal.getsignal(signal.SIGINT)
    history = job.fit(interrupting(1), checkpoint=tmp_path / "run.ckpt")
    assert (history.stopped, history.steps, history.epochs, job.step) == ("interrupted", 2, (), 2)
    assert str(history).startswith("stopped by Ctrl-C; 2 steps, 8 samples, ")
    assert signal.getsignal(signal.SIGINT) is handler
    assert job.evaluate(X, Y)["samples"] == 19
    assert job.fit(X, Y).stopped == "done"
    again = made()
    again.resume(tmp_path / "run.ckpt")
    assert again.step == 2


def test_a_second_ctrl_c_stops_at_once() -> None:
    job, handler = made(), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        job.fit(interrupting(1, times=2))
    assert (job.step, signal.getsignal(signal.SIGINT)) == (1, handler)


def test_ctrl_c_while_measuring_leaves_the_epoch_open() -> None:
    job = made()
    history = job.fit(X, Y, eval=list(interrupting(9)), epochs=2)
    assert history.stopped == "done"

    class Eval:
        def __iter__(self) -> Iterator[tuple[Array, Array]]:
            return interrupting(2)

    history = job.fit(X, Y, eval=Eval(), epochs=2)
    assert (history.stopped, history.epochs, history.steps) == ("interrupted", (), 5)


def test_another_thread_leaves_ctrl_c_alone() -> None:
    done: list[str] = []
    thread = threading.Thread(target=lambda: done.append(made().fit(X, Y).stopped))
    thread.start()
    thread.join()
    assert done == ["done"]


def test_where_ctrl_c_is_ignored_it_stays_ignored() -> None:
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert made().fit(interrupting(1)).stopped == "done"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, old)


# -- numbers that are none ---------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_ends_the_run_in_the_last_good_state() -> None:
    job, twin = (made(SGD(1e7, momentum=0.9), batch=4) for _ in range(2))
    with pytest.raises(NotFinite) as caught:
        job.fit(X, Y, shuffle=False)
    states, losses = [state(twin)], []
    for k in range(0, 12, 4):
        losses.append(twin.train_step(X[k : k + 4], Y[k : k + 4]))
        states.append(state(twin))
    failed = [math.isfinite(loss) for loss in losses].index(False)
    assert failed == 2, "the test wants a finite loss before"
    assert state(job) == states[1], "the state from which the last finite loss was computed"
    assert str(caught.value) == (
        "error[E506]: the loss is NaN in step 3 (epoch 1)\n"
        "  why  the gradients of the step before are as large as b1 6e+13, w3 5.6e+13, w2 2.8e+13 and 3 more\n"
        "  help: the job is back before step 2 (epoch 1); go on with job.lr = 1e+06, or compile with clip_norm=1.0"
    )
    job.lr = 0.01
    assert math.isfinite(job.fit(X[4:], Y[4:]).epochs[-1].loss)


def test_weights_that_are_not_finite_at_the_end_of_an_epoch_are_not_kept(tmp_path: Path) -> None:
    job = made(SGD(3e38, weight_decay=1.0))
    path = tmp_path / "run.ckpt"
    job.checkpoint(path)
    before, file = state(job), path.read_bytes()
    text = said(lambda: job.fit(X[:4], Y[:4], checkpoint=path, checkpoint_every=1))
    assert text.startswith("error[E506]: step 1 (epoch 1) made 'w2' NaN or infinite\n  why  the gradients of that step")
    assert state(job) == before
    assert path.read_bytes() == file
    assert said(lambda: job.fit(X[:4], Y[:4])) == text


def test_a_broken_row_is_noticed_at_once_although_the_loss_does_not_meet_it_again() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 2)

        def forward(self, word: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.table(word) * torch.where(word == 3, 1e3, 1e-3)[:, None]
            return found

    word, y = np.array([1, 3, 2, 4, 5]), np.zeros((5, 2), np.float32)
    job = smidgen.compile(Table(), word[:1], loss="l1", optimizer=SGD(3e36))
    losses = [Job(job.program).train_step(word[k : k + 1], y[k : k + 1]) for k in range(5)]
    assert np.isfinite(losses).all()
    assert said(lambda: job.fit(word, y, shuffle=False)) == (
        "error[E506]: step 2 (epoch 1) made 'table.weight' NaN or infinite\n"
        "  why  the gradients of that step are as large as table.weight 5e+02\n"
        "  help: the job is back before step 2 (epoch 1); go on with job.lr = 3e+35, or compile with clip_norm=1.0"
    )
    assert job.step == 1
    assert np.isfinite(job.state_dict()["table.weight"]).all()


def test_the_first_step_names_its_own_gradients_and_weights_that_were_bad_before() -> None:
    job = made(SGD(0.1))
    before = state(job)
    text = said(lambda: job.fit(np.full_like(X, 3e38), Y))
    first, why, help = text.splitlines()
    assert first == "error[E506]: the loss is NaN in step 1 (epoch 1)"
    assert why.startswith("  why  its gradients are as large as ")
    assert "nan" in why
    assert help.startswith("  help: the job is back before step 1 (epoch 1); go on with job.lr = 0.01")
    assert state(job) == before
    bad = job.state_dict()["b2"] * np.nan
    job.load_state_dict({"b2": bad})
    assert said(lambda: job.fit(X, Y)) == (
        "error[E506]: the loss is NaN in step 1 (epoch 1)\n"
        "  why  'b2' holds NaN or infinity, and did so before\n"
        "  help: load finite weights: job.load_state_dict, job.import_weights"
    )


@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.1), SGD(0.1, weight_decay=0.1), SGD(0.1, momentum=0.9, nesterov=True), Adam(0.01, betas=(0.8, 0.9))],
    ids=["sgd", "decay", "nesterov", "adam"],
)
@pytest.mark.parametrize("n", [4, 10])
def test_gradients_in_a_message_are_those_of_the_step(optimizer: Optimizer, n: int) -> None:
    job = made(optimizer, accumulate=True)
    job.fit(X, Y)  # so that the optimizer has a past
    x, y = X[:n], Y[:n]
    before, weights = state(job), job.state_dict()
    found = divergence.gradients(
        job.engine.state, job.engine.kept().data(), lambda: job.engine.train([x, y], n), job.engine.optimizer
    )
    assert state(job) == before
    twin = made(SGD(1.0), accumulate=True)
    twin.load_state_dict(weights)
    twin.train_step(x, y)
    after = twin.state_dict()
    decay = optimizer.weight_decay
    for name, start in weights.items():
        want = np.abs(start - after[name] + decay * start).max()
        assert found[name] == pytest.approx(want, rel=1e-3), name


# -- what a user sees --------------------------------------------------------------------------------------------


def test_a_history_is_a_table_and_valid_json() -> None:
    job = made()
    lines: list[str] = []
    history = job.fit(X, Y, epochs=2, eval=(X, Y), on_epoch=lambda e: lines.append(str(e)))
    head, *rows, end = str(history).splitlines()
    assert head.split() == ["epoch", "loss", "eval", "loss", "accuracy", "samples/s", "time"]
    assert [row.split()[0] for row in rows] == ["1", "2"]
    assert end.startswith("done; 10 steps, 38 samples, ")
    assert lines[0].startswith(f"epoch 1  loss {history.epochs[0].loss:.4g}  eval loss ")
    data = json.loads(json.dumps(history.to_json(), allow_nan=False))
    assert list(data) == ["epochs", "steps", "samples", "seconds", "stopped", "best_epoch", "restored", "switches"]
    assert list(data["epochs"][0]) == ["epoch", "loss", "eval", "lr", "seconds", "samples", "samples_per_s"]
    assert data["epochs"][0]["eval"] == job_eval_keys(history.epochs[0].eval)
    assert history.last is history.epochs[-1]
    odd = replace(history.epochs[0], loss=float("nan"), eval={"loss": float("inf")}, seconds=0.0)
    assert json.dumps(odd.to_json(), allow_nan=False)
    assert "nan" in str(odd)


def job_eval_keys(measured: Any) -> dict[str, float]:
    assert list(measured) == ["loss", "accuracy", "samples"]
    return dict(measured)


SCRIPT = """
import sys
import numpy as np
import smidgen
job = smidgen.load(sys.argv[1])
x, y = (np.load(sys.argv[2])[k][: int(sys.argv[4])] for k in "xy")
how = {"none": None, "true": True, "false": False}[sys.argv[3]]
if sys.argv[5:] == ["closed"]:
    sys.stderr.close()
elif sys.argv[5:] == ["gone"]:
    sys.stderr = None
h = job.fit(x, y, epochs=3, eval=(x, y), progress=how)
print(h.stopped, job.step)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("show")
    made().save(folder / "net.smg")
    x, y = small.data(4000)
    np.savez(folder / "data.npz", x=x, y=y)
    return [str(folder / "net.smg"), str(folder / "data.npz")]


def test_a_terminal_shows_a_bar_and_a_pipe_nothing(files: list[str]) -> None:
    command = [sys.executable, "-c", SCRIPT, *files]
    done = subprocess.run([*command, "none", "80"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("done 60\n", "")
    done = subprocess.run([*command, "true", "80"], capture_output=True, text=True, check=True)
    assert [line.split("  ")[0] for line in done.stderr.splitlines()] == ["epoch 1", "epoch 2", "epoch 3"]
    assert "\x1b" not in done.stderr
    for how in ("closed", "gone"):
        done = subprocess.run([*command, "true", "80", how], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "done 60\n"), done.stderr


def test_a_bar_shows_loss_accuracy_and_speed(files: list[str]) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-c", SCRIPT, *files, "none", "4000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                shown += os.read(ours, 65536)
            except OSError:
                break
        assert process.stdout is not None
        assert process.stdout.read() == b"done 3000\n"
    os.close(ours)
    text = shown.decode()
    lines = [line for line in text.split("\r\x1b[K") if line]
    assert lines[0].startswith("epoch 1/3  ")
    assert any(" accuracy " in line and " samples/s" in line and "loss " in line for line in lines), lines[-1]
    assert text.endswith("\r\x1b[K"), "the bar is taken away at the end"
