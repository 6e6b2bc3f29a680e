"""Checkpoints: a run continues with the same bits from anywhere, and a damaged file or another run is refused."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD, Adam
from smidgen.ir import Array
from smidgen.program.program import Program
from smidgen.train import checkpoint as files
from smidgen.train.checkpoint import Checkpoint
from smidgen.train.job import Job
from tests.support import small
from tests.support.jobs import adam_with_dropout, said, state

X, Y = small.data(14)
OTHER = small.data(9, 4)


# -- continuing --------------------------------------------------------------------------------------------------


def batch_statistics() -> Program:
    torch.manual_seed(0)
    norm = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2))
    model = nn.Sequential(norm, nn.Flatten(), nn.Linear(4 * 36, 5))
    return smidgen.compile(model, X[:4], bn="batch", optimizer=SGD(0.05, momentum=0.9)).program


@pytest.fixture(scope="module", params=[adam_with_dropout, batch_statistics], ids=lambda f: f.__name__)
def program(request: pytest.FixtureRequest) -> Program:
    made: Program = request.param()
    return made


@pytest.fixture
def folder() -> Iterator[Path]:
    with small.memory_folder() as path:
        yield path


@pytest.fixture(scope="module")
def plain() -> Program:
    return adam_with_dropout()


RUNS: dict[str, dict[str, Any]] = {
    "plain": {"epochs": 2},
    "scheduled": {"epochs": 2, "schedule": "cosine", "warmup": 0.2, "seed": 5, "batch": 3},
    "measured": {"epochs": 5, "eval": OTHER, "patience": 2, "schedule": "linear"},
    "function": {"epochs": 2, "schedule": lambda progress: 1 - progress**2, "shuffle": False},
}


class Stop(Exception):
    """What ends a run from outside."""


def stopped_after(job: Job, steps: int, path: Path, *data: Any, **options: Any) -> None:
    """Train until so many steps are in the checkpoint, then lose the job."""
    write, count = files.write, 0

    def counting(place: Path, made: Checkpoint) -> None:
        nonlocal count
        write(place, made)
        count += 1
        if count == steps:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write", counting)
        with pytest.raises(Stop):
            job.fit(*(data or (X, Y)), **options, checkpoint=path, checkpoint_every=1)


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_run_continued_after_any_step_ends_with_the_same_bits(
    program: Program, options: dict[str, Any], folder: Path
) -> None:
    whole = Job(program)
    want = whole.fit(X, Y, **options)
    path = folder / "run.ckpt"
    for steps in range(1, want.steps + 1):
        stopped_after(Job(program), steps, path, **options)
        again = Job(program)
        again.resume(path)
        got = again.fit(X, Y, **options)
        assert hashlib.sha256(state(again)).digest() == hashlib.sha256(state(whole)).digest(), steps
        assert [(e.loss, e.eval, e.lr, e.samples) for e in got.epochs] == [
            (e.loss, e.eval, e.lr, e.samples) for e in want.epochs
        ]
        assert replace(got, epochs=(), seconds=0) == replace(want, epochs=(), seconds=0)


def test_a_larger_batch_in_parts_continues_too(plain: Program, tmp_path: Path) -> None:
    whole, path = Job(plain), tmp_path / "run.ckpt"
    whole.fit(X, Y, batch=9, epochs=3)
    stopped_after(Job(plain), 3, path, batch=9, epochs=3)
    again = Job(plain)
    again.resume(path)
    again.fit(X, Y, batch=9, epochs=3)
    assert state(again) == state(whole)


def batches() -> list[tuple[Array, Array]]:
    return [(X[k : k + 4], Y[k : k + 4]) for k in range(0, 14, 4)]


class Again:
    """Batches without a length."""

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        return iter(batches())


@pytest.mark.parametrize("data", [batches(), Again()], ids=["list", "unknown-length"])
def test_batches_of_the_caller_continue_after_those_that_were_done(plain: Program, data: Any, tmp_path: Path) -> None:
    whole = Job(plain)
    whole.fit(data, epochs=2)
    for steps in (1, 4, 5, 8):
        path, again = tmp_path / "run.ckpt", Job(plain)
        stopped_after(Job(plain), steps, path, data, epochs=2)
        again.resume(path)
        again.fit(data, epochs=2)
        assert state(again) == state(whole), steps


def test_a_finished_run_is_not_done_twice(plain: Program, tmp_path: Path) -> None:
    job, path = Job(plain), tmp_path / "run.ckpt"
    history = job.fit(X, Y, epochs=2, checkpoint=path)
    again = Job(plain)
    again.resume(path)
    assert again.fit(X, Y, epochs=2) == history
    assert state(again) == state(job)
    again.fit(X, Y, epochs=2)
    assert again.step == 2 * job.step, "but the next call begins a new one"
    third = Job(plain)
    third.resume(path)
    assert third.fit(X, Y, epochs=1).steps == 4, "and so does a call with other arguments"
    fourth = Job(plain)
    fourth.resume(path, position=False)
    assert fourth.fit(X, Y, epochs=2).steps == 8
    assert state(fourth) == state(again)


def test_a_checkpoint_of_a_loop_of_ones_own_keeps_the_state(plain: Program, tmp_path: Path) -> None:
    job, twin, path = Job(plain), Job(plain), tmp_path / "run.ckpt"
    job.fit(X, Y)
    job.train_step(X[:4], Y[:4])  # the position of fit is no longer that of the job
    job.lr = 0.5
    job.checkpoint(path)
    twin.resume(path)
    assert (state(twin), twin.lr, twin.step) == (state(job), 0.5, job.step)
    assert twin.fit(X, Y).steps == 4
    assert files.read(path).run is None


def test_steps_of_ones_own_after_resuming_end_the_old_run(plain: Program, tmp_path: Path) -> None:
    path, job = tmp_path / "run.ckpt", Job(plain)
    stopped_after(Job(plain), 2, path, epochs=2)
    job.resume(path)
    job.train_step(X[:4], Y[:4])
    assert job.fit(X, Y, epochs=2).steps == 8


def test_an_interrupted_run_can_be_written_and_continued(plain: Program, tmp_path: Path) -> None:
    whole = Job(plain)
    whole.fit(X, Y, epochs=3)
    job = Job(plain)

    def fail(epoch: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        job.fit(X, Y, epochs=3, on_epoch=fail)
    job.checkpoint(tmp_path / "late.ckpt")
    job.resume(tmp_path / "late.ckpt")
    assert job.fit(X, Y, epochs=3).steps == 12
    assert state(job) == state(whole)


def test_the_rate_of_a_resumed_run_can_be_changed(plain: Program, tmp_path: Path) -> None:
    stopped_after(Job(plain), 2, tmp_path / "run.ckpt", epochs=2)
    job = Job(plain)
    job.resume(tmp_path / "run.ckpt")
    job.lr = 0.001
    assert [e.lr for e in job.fit(X, Y, epochs=2).epochs] == pytest.approx([0.001, 0.001])


DIFFERENT: list[tuple[str, dict[str, Any], str]] = [
    ("epochs", {"epochs": 4}, "epochs was 3, is 4"),
    ("batch", {"batch": 2}, "batch was 4, is 2"),
    ("seed", {"seed": 1}, "seed was 7, is 1"),
    ("length", {"x": X[:8], "y": Y[:8]}, "samples was 14, is 8"),
    ("numbers", {"x": X + 1}, "the data are others"),
    ("labels", {"y": Y[::-1]}, "the data are others"),
    ("eval", {"eval": None}, "eval_samples was 9, is None"),
    ("other eval", {"eval": (OTHER[0] * 2, OTHER[1])}, "the eval data are others"),
    (
        "several", {"patience": 2, "schedule": "cosine", "shuffle": False, "warmup": 0.5},
        "shuffle was True, is False; schedule was constant, is cosine; warmup was 0.0, is 0.5; patience was None, is 2",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "text"), [pytest.param(*r[1:], id=r[0].replace(" ", "-")) for r in DIFFERENT])
def test_another_run_is_refused_and_the_difference_named(
    plain: Program, changes: dict[str, Any], text: str, folder: Path
) -> None:
    path, options = folder / "run.ckpt", {"epochs": 3, "eval": OTHER}
    stopped_after(Job(plain), 2, path, **options)
    job = Job(plain)
    job.resume(path)
    resumed = state(job)
    given = {"x": X, "y": Y, **options, **changes}
    assert said(lambda: job.fit(**given)) == (
        f"error[E507]: the checkpoint was written by another run of fit\n  why  {text}\n"
        "  help: call fit as then; or job.resume(path, position=False), to begin a new run from that state"
    )
    assert state(job) == resumed
    assert job.fit(X, Y, **options).steps == 12, "the right call still continues"


def test_other_kernels_would_give_other_bits(plain: Program, folder: Path) -> None:
    path = folder / "run.ckpt"
    stopped_after(Job(plain), 2, path, epochs=2)
    fast = Job(plain, kernels="fast")
    fast.resume(path)
    assert "\n  why  kernels was exact, is fast\n" in said(lambda: fast.fit(X, Y, epochs=2))
    whole = Job(plain, kernels="fast", threads=2)
    whole.fit(X, Y, epochs=2)
    stopped_after(Job(plain, kernels="fast"), 3, path, epochs=2)
    fast.resume(path)
    fast.fit(X, Y, epochs=2)
    assert state(fast) == state(whole)


def test_another_program_is_refused(plain: Program, tmp_path: Path) -> None:
    path, job = tmp_path / "run.ckpt", Job(plain)
    job.checkpoint(path)
    for other in (
        small.entries(optimizer=Adam(0.02, betas=(0.9, 0.99)), dropout=0.3, batch=4, accumulate=True, evaluate=True),
        small.entries(optimizer=Adam(0.02), dropout=0.2, batch=4, accumulate=True, evaluate=True),
        small.entries(optimizer=SGD(0.02)),
    ):
        wrong = Job(encode(other))
        before = state(wrong)
        assert said(lambda wrong=wrong: wrong.resume(path)) == (  # type: ignore[misc]
            f"error[E507]: the checkpoint is of another program\n  at   {path}\n"
            "  help: load the program that wrote it; the same model, options and versions compile to the same program"
        )
        assert state(wrong) == before
    job.train_step(X[:4], Y[:4])
    job.save(tmp_path / "trained.smg")
    trained = smidgen.load(tmp_path / "trained.smg")
    trained.resume(path)  # another state, but the same program
    assert state(trained) == state(Job(plain))


# -- damaged files -----------------------------------------------------------------------------------------------


def test_every_altered_or_missing_byte_is_noticed_and_nothing_is_set(plain: Program, tmp_path: Path) -> None:
    job, path = Job(plain), tmp_path / "run.ckpt"
    job.fit(X, Y, epochs=2, eval=OTHER, patience=3, checkpoint=path)
    good = path.read_bytes()
    assert Checkpoint.from_bytes(good).run is not None
    rng = np.random.default_rng(0)
    fresh = Job(plain)
    before = state(fresh)
    places = {*range(600), *rng.integers(0, len(good), 300).tolist(), len(good) - 1}
    damaged = [good[:k] + bytes([good[k] ^ (1 << int(rng.integers(8)))]) + good[k + 1 :] for k in sorted(places)]
    damaged += [good[:k] for k in (*range(60), len(good) - 1)] + [good + b"\0", b"", good * 2]
    for data in damaged:
        path.write_bytes(data)
        assert said(lambda: fresh.resume(path)).startswith("error[E507]: ")
    assert state(fresh) == before
    path.write_bytes(good)
    fresh.resume(path)


def test_messages_about_files_are_exact(plain: Program, tmp_path: Path) -> None:
    job, path = Job(plain), tmp_path / "run.ckpt"
    job.checkpoint(path)
    good = path.read_bytes()
    old = "  help: an older one may still be good"
    for data, text in (
        (good[:7], f"the checkpoint has 7 bytes, fewer than its header\n  at   {path}\n{old}"),
        (
            good[:-5],
            f"the checkpoint has {len(good) - 5} bytes, it says {len(good)}\n"
            f"  at   {path}\n  why  it is cut off\n{old}",
        ),
        (
            good[:-1] + b"\1",
            f"the checkpoint is damaged\n  at   {path}\n  why  its checksum does not fit\n{old}",
        ),
        (
            b"MZ" + good[2:],
            f'the file is not a checkpoint\n  at   {path}\n  help: job.checkpoint("run.ckpt") writes one',
        ),
        (
            good[:4] + struct.pack("<I", 1) + good[8:],
            f"the checkpoint has version 1, this smidgen reads 2\n  at   {path}\n"
            "  help: resume it with the smidgen that wrote it, or begin the run again",
        ),
    ):
        path.write_bytes(data)
        assert said(lambda: job.resume(path)) == f"error[E507]: {text}"
    missing = tmp_path / "no"
    assert (
        said(lambda: job.resume(missing)) == f"error[E507]: cannot read '{missing}'\n  why  No such file or directory"
    )
    assert said(lambda: job.resume(tmp_path)) == f"error[E507]: cannot read '{tmp_path}'\n  why  Is a directory"
    os.mkfifo(tmp_path / "pipe")
    text = f"error[E507]: cannot read '{tmp_path / 'pipe'}'\n  why  it is not an ordinary file"
    assert said(lambda: job.resume(tmp_path / "pipe")) == text
    assert said(lambda: job.resume(None)) == (  # type: ignore[arg-type]
        'error[E304]: None is not a path\n  help: job.resume("run.ckpt")'
    )
    assert said(lambda: job.checkpoint(3)) == (  # type: ignore[arg-type]
        'error[E304]: 3 is not a path\n  help: job.checkpoint("run.ckpt")'
    )


def sealed(facts: Any, state: bytes, best: bytes = b"") -> bytes:
    """A file with any description, and a checksum that fits."""
    text = facts if isinstance(facts, bytes) else json.dumps(facts).encode()
    rest = files.SIZES.pack(len(text), len(state), len(best)) + text + state + best
    return files.HEAD.pack(files.MAGIC, files.VERSION, zlib.crc32(rest)) + rest


def test_descriptions_that_make_no_sense_are_refused_whatever_the_checksum_says(plain: Program, tmp_path: Path) -> None:
    job, path = Job(plain), tmp_path / "run.ckpt"
    job.fit(X, Y, epochs=1, checkpoint=path)
    made = files.read(path)
    facts = {"program": made.program, "step": made.step, "run": made.run, "has_best": False}
    assert made.run is not None
    fresh, before = Job(plain), state(Job(plain))

    def with_position(**changes: Any) -> Any:
        assert made.run is not None
        return {**facts, "run": {**made.run, "position": {**made.run["position"], **changes}}}

    hostile: list[Any] = [
        b"", b"{", b"[]", b"3", b"\xff", b"[" * 100000, b'{"program":1}', {}, {**facts, "step": "1"},
        {**facts, "run": 3}, {**facts, "run": {}}, {**facts, "run": {"settings": 3, "position": {}}},
        with_position(step=-1), with_position(step=True), with_position(steps="a"), with_position(epochs=3),
        with_position(epochs=[{}]), with_position(best=3), with_position(stopped="never"), with_position(samples=1.5),
        with_position(step=100), with_position(step=1), with_position(epoch_samples=5), with_position(loss_sum=10**400),
        with_position(loss_sum="1"), with_position(lr=float("inf")), with_position(seconds=float("nan")),
        with_position(best={"epoch": 7, "loss": 1.0}), with_position(best={"epoch": 1, "loss": "nan"}),
        with_position(loss_sum=None), with_position(epochs=made.run["position"]["epochs"] * 2),
    ]  # fmt: skip
    for description in hostile:
        path.write_bytes(sealed(description, made.state))
        assert said(lambda: fresh.resume(path)).startswith("error[E507]: the checkpoint does not describe "), (
            description
        )
    for state_bytes, best in ((made.state[:-4], b""), (made.state, b"1234"), (b"", b"")):
        path.write_bytes(sealed({**facts, "has_best": bool(best)}, state_bytes, best))
        assert said(lambda: fresh.resume(path)).startswith("error[E507]: ")
    path.write_bytes(good_header_of_a_huge_file())
    assert said(lambda: fresh.resume(path)).startswith("error[E507]: the checkpoint has 36 bytes")
    assert state(fresh) == before


def good_header_of_a_huge_file() -> bytes:
    rest = files.SIZES.pack(2**32 - 1, 2**63, 2**63) + b"{}"
    return (files.HEAD.pack(files.MAGIC, files.VERSION, zlib.crc32(rest)) + rest).ljust(36, b"\0")
