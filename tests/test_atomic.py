"""Writing files: whatever happens while one is written, the last good one is still there, and nothing else."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen import atomic
from smidgen.checkpoint import Checkpoint
from smidgen.program import Program
from smidgen.trainer import Job

from . import small
from .test_checkpoint import adam_with_dropout, said, state

X, Y = small.data(14)


@pytest.fixture(scope="module")
def plain() -> Program:
    return adam_with_dropout()


CALLS = {"open": 2, "ftruncate": 1, "write": 4, "fchmod": 1, "fsync": 2, "replace": 1}
"""Times that each is called to write a checkpoint over an older one: open and fsync for the folder too."""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize(("call", "which"), [(call, k) for call, times in CALLS.items() for k in range(times)])
def test_a_failure_of_any_call_leaves_the_last_good_file(
    call: str, which: int, number: int, plain: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, path = Job(plain), tmp_path / "run.ckpt"
    job.checkpoint(path)
    good, real, count = path.read_bytes(), getattr(os, call), 0
    job.train_step(X[:4], Y[:4])

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == which + 1:
            if call == "write":
                real(args[0], bytes(args[1])[:5])  # part of it is on the disk already
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        text = said(lambda: job.checkpoint(path))
        assert text == (
            f"error[E505]: cannot write '{path}'\n  why  {os.strerror(number)}\n"
            "  help: name a file, in a folder that exists and can be written to"
        )
    assert [p.name for p in tmp_path.iterdir()] == ["run.ckpt"], "something was left behind"
    if which == 1 and call in ("open", "fsync"):  # of the folder: the new file is in place, and whole
        assert Checkpoint.from_bytes(path.read_bytes()).state == state(job)
    else:
        assert path.read_bytes() == good
    with monkeypatch.context() as patch:
        count = -1000
        patch.setattr(os, call, failing)
        job.checkpoint(path)
    assert count + 1000 == CALLS[call], "each call was made to fail"


LIMITED = """
import resource, sys
import numpy as np
import smidgen
program, data, path = sys.argv[1:]
job = smidgen.load(program)
x, y = (np.load(data)[k] for k in "xy")
job.fit(x, y, checkpoint=path)
good = open(path, "rb").read()
resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, resource.RLIM_INFINITY))
for write in (job.checkpoint, job.save):
    try:
        write(path)
    except smidgen.SmidgenError as error:
        print(str(error).splitlines()[1])
try:
    job.fit(x, y, epochs=2, checkpoint=path)
except smidgen.SmidgenError as error:
    print(error.code, job.step)
assert open(path, "rb").read() == good
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
job.checkpoint(path)
job.resume(path)
print(job.fit(x, y, epochs=2).stopped, job.step)
"""


def test_a_file_that_may_not_grow_is_an_error_and_training_can_go_on(plain: Program, tmp_path: Path) -> None:
    plain.save(tmp_path / "net.smg")
    np.savez(tmp_path / "data.npz", x=X, y=Y)
    command = [sys.executable, "-c", LIMITED, *(str(tmp_path / n) for n in ("net.smg", "data.npz", "run.ckpt"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["  why  File too large"] * 2 + ["E505 8", "done 12"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data.npz", "net.smg", "run.ckpt"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_devices_and_folders_are_never_replaced(plain: Program, tmp_path: Path) -> None:
    job = Job(plain)
    help = "\n  help: name a file, in a folder that exists and can be written to"
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (Path("/dev/full"), "it is not an ordinary file"),
        (tmp_path / "pipe", "it is not an ordinary file"),
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "run.ckpt", "No such file or directory"),
    ):
        for call in (job.checkpoint, job.save, lambda path: job.fit(X, Y, checkpoint=path)):
            assert said(lambda call=call, path=path: call(path)) == (  # type: ignore[misc]
                f"error[E505]: cannot write '{path}'\n  why  {why}{help}"
            )
    assert job.step == 0, "said before the first step"
    assert stat.S_ISCHR(Path("/dev/full").stat().st_mode)


def test_links_stay_links_and_permissions_are_kept(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o640)
    link.symlink_to(real)
    atomic.write(link, b"new", memoryview(b"er"))
    assert link.is_symlink()
    assert (real.read_bytes(), stat.S_IMODE(real.stat().st_mode)) == (b"newer", 0o640)
    old = os.umask(0o027)
    try:
        atomic.write(tmp_path / "fresh", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640
    long = tmp_path / ("n" * 255)
    atomic.write(long, b"1")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["real", "link", "fresh", "n" * 255])


def test_what_a_killed_writer_left_behind_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "file"
    (tmp_path / ".file.part").write_bytes(b"x" * 1000)
    atomic.write(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_many_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    wanted = [bytes([k]) * 300_000 for k in range(6)]
    errors: list[BaseException] = []

    def write(data: bytes) -> None:
        try:
            for _ in range(10):
                atomic.write(path, data)
                assert path.read_bytes() in wanted
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(data,)) for data in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
