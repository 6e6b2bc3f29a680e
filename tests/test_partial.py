"""A state of which only a part is there is refused by all that would use it, and whole again after `resume`. And what
must not be cut in two: a batch that is taken in parts, by other threads; pages, by another process."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from smidgen import api, slots
from smidgen.errors import BadData, RunFailed
from smidgen.kept import InFile, InRam
from smidgen.trainer import Job

from . import small
from .paged import optimizer_state, paged
from .test_paging import Disk, batches, bits

(X, Y), (X2, Y2) = batches(2)


class Halfway:
    """A job with state in pages after one good step, and its checkpoint."""

    def __init__(self, folder: Path) -> None:
        entries = small.entries(evaluate=True)
        self.job = Job(api.encode(paged(entries, state=["w1", *optimizer_state(entries.graphs)])), page_to=folder / "p")
        self.disk = Disk(self.job._machine)
        self.job.train_step(X, Y)
        self.calls, self.before = self.disk.calls, bits(self.job)
        self.checkpoint = folder / "run.ckpt"
        self.job.checkpoint(self.checkpoint)

    def fail(self) -> None:
        """A step that stops at the end, after it wrote pages."""
        self.failing(lambda: self.job.train_step(X2, Y2), self.calls - 1)

    def failing(self, call: Callable[[], object], after: int = 0) -> None:
        """The disk fails after so many accesses."""
        self.disk.fail_at = self.disk.calls + after
        with pytest.raises(RunFailed) as raised:
            call()
        assert "the disk is on fire" in str(raised.value)
        self.disk.fail_at = -1

    def refused(self, call: Callable[[], object]) -> None:
        with pytest.raises(RunFailed, match="a step stopped halfway, or setting the state did") as raised:
            call()
        assert "job.resume" in raised.value.help


@pytest.fixture
def made(tmp_path: Path) -> Halfway:
    return Halfway(tmp_path)


USES: dict[str, Callable[[Job, Path], object]] = {
    "train_step": lambda job, _: job.train_step(X, Y),
    "fit": lambda job, _: job.fit(X, Y, progress=False),
    "predict": lambda job, _: job.predict(X),
    "evaluate": lambda job, _: job.evaluate(X, Y),
    "state_dict": lambda job, _: job.state_dict(),
    "optimizer_state": lambda job, _: job.optimizer_state(),
    "export_weights": lambda job, folder: job.export_weights(folder / "w.safetensors"),
    "save": lambda job, folder: job.save(folder / "b.smg"),
    "checkpoint": lambda job, folder: job.checkpoint(folder / "b.ckpt"),
}


@pytest.mark.parametrize("name", USES)
def test_a_part_of_a_state_is_used_by_nothing_however_often_one_asks(
    name: str, made: Halfway, tmp_path: Path
) -> None:  # fmt: skip
    made.fail()
    for _ in range(3):
        made.refused(partial(USES[name], made.job, tmp_path))
    made.job.resume(made.checkpoint)
    assert bits(made.job) == made.before
    USES[name](made.job, tmp_path)


def test_no_copy_is_kept_of_a_part(made: Halfway, tmp_path: Path) -> None:
    """Going back to it would make it look whole."""
    count = made.job.program.saved_bytes
    made.fail()
    for kept in (InRam(count), InFile([tmp_path], count)):
        made.refused(partial(kept.keep, made.job._state))
    made.refused(made.job._state.copy)


def test_an_epochs_end_that_breaks_the_job_is_not_hidden_by_the_next_step(made: Halfway) -> None:
    """`fit` keeps a copy before each step, and goes back to it after an error."""
    made.refused(lambda: made.job.fit(X, Y, epochs=2, progress=False, on_epoch=lambda _: made.fail()))
    made.refused(lambda: made.job.train_step(X, Y))


def image(job: Job, folder: Path) -> Path:
    """The state as a runner saves it, in both slots."""
    state = job._state.copy().tobytes()
    facts = slots.MAGIC, slots.VERSION, len(state), 1, job.program.checksum, zlib.crc32(state), 0
    head = slots.HEAD.pack(*facts, 0)[:-4]
    place = folder / "state.bin"
    place.write_bytes((head + zlib.crc32(head).to_bytes(4, "little") + state) * 2)
    return place


SETS: dict[str, Callable[[Halfway, Path], Callable[[], object]]] = {
    "resume": lambda made, _: partial(made.job.resume, made.checkpoint),
    "restore": lambda made, folder: partial(made.job.restore, image(made.job, folder)),
    "load_state_dict": lambda made, _: partial(made.job.load_state_dict, made.job.state_dict()),
    "load_optimizer_state": lambda made, _: partial(made.job.load_optimizer_state, made.job.optimizer_state(), 7),
}


@pytest.mark.parametrize("name", SETS)
def test_a_disk_that_fails_while_the_state_is_set_leaves_a_part_and_says_so(
    name: str, made: Halfway, tmp_path: Path
) -> None:  # fmt: skip
    made.job.train_step(X2, Y2)
    call = SETS[name](made, tmp_path)
    made.failing(call)
    for use in ("train_step", "save"):
        made.refused(partial(USES[use], made.job, tmp_path))
    made.job.resume(made.checkpoint)
    assert bits(made.job) == made.before
    call()
    made.job.train_step(X, Y)


def test_a_run_is_continued_only_from_a_state_that_was_set(made: Halfway, tmp_path: Path) -> None:
    made.job.fit(X, Y, progress=False, checkpoint=tmp_path / "fit.ckpt")
    made.failing(lambda: made.job.resume(tmp_path / "fit.ckpt"))
    assert made.job._resumed is None


def test_an_error_before_a_step_is_not_taken_for_that_of_an_earlier_one(made: Halfway) -> None:
    made.fail()
    made.job.resume(made.checkpoint)
    (many,) = batches(1, n=9)
    with pytest.raises(BadData, match="9 samples given"):
        made.job.train_step(*many)
    assert bits(made.job) == made.before
    made.job.train_step(X, Y)


LOOKS: dict[str, Callable[[Job], Any]] = {
    "predict": lambda job: job.predict(X),
    "evaluate": lambda job: job.evaluate(X, Y),
    "state_dict": lambda job: job.state_dict(),
}


@pytest.mark.parametrize("name", LOOKS)
def test_other_threads_wait_for_all_parts_of_a_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the parts so far are where `infer` works."""
    program = api.encode(small.entries(accumulate=True, evaluate=True))
    job, alone = Job(program, kernels="exact"), Job(program, kernels="exact")
    run, looked = job._machine.run, threading.Event()

    def look() -> None:
        LOOKS[name](job)
        looked.set()

    other = threading.Thread(target=look)
    early = []

    def watched(entry: str, *rest: Any) -> None:
        run(entry, *rest)
        if entry == "grad" and not other.ident:
            other.start()
            early.append(looked.wait(0.3))

    monkeypatch.setattr(job._machine, "run", watched)
    (many,) = batches(1, n=11)
    assert job.train_step(*many) == alone.train_step(*many)
    other.join(60)
    assert (early, looked.is_set()) == ([False], True)
    assert bits(job) == bits(alone)


FORK = """
import os, sys
import numpy as np
import smidgen
job = smidgen.load(sys.argv[1], page_to=sys.argv[2])
x, y = np.ones((4, 3, 8, 8), np.float32), np.arange(4)
job.train_step(x, y)
before = job._state.copy().tobytes()
child = os.fork()
if not child:
    for call in (lambda: job.train_step(x, y), lambda: job.predict(x), lambda: job.load_state_dict({})):
        try:
            call()
        except smidgen.errors.RunFailed as error:
            print(error.what, flush=True)
    del call, job  # waits for no thread: there is none
    os._exit(0)
os.waitpid(child, 0)
print(job._state.copy().tobytes() == before)
job.train_step(x, y)
"""


def test_a_fork_does_not_write_the_pages_of_its_parent(made: Halfway, tmp_path: Path) -> None:
    made.job.save(tmp_path / "net.smg")
    command = [sys.executable, "-W", "ignore", "-c", FORK, tmp_path / "net.smg", tmp_path / "other"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the program was opened by another process\n" * 3 + "True\n"
