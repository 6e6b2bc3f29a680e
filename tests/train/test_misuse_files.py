"""Files that cannot be written or read: every message is exact, and nothing is left behind."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import numpy as np
import pytest

from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.program import Program
from smidgen.runtime import library
from smidgen.train.job import Job
from smidgen.train.load import load
from tests.support.encoded import encoded
from tests.support.jobs import job_of, said
from tests.support.small import N

# -- files ---------------------------------------------------------------------------------------------------------

WRITE_HELP = "  help: name a file, in a folder that exists and can be written to"


def test_a_file_that_cannot_be_written_is_an_error_and_leaves_nothing(untouched: Job, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for path, why in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "net.smg", "No such file or directory"),
        (tmp_path / "file" / "net.smg", "Not a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        text = said(lambda path=path: untouched.save(path))  # type: ignore[misc]
        assert text == f"error[E505]: cannot write '{path}'\n  why  {why}\n{WRITE_HELP}"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "mine"


def test_what_is_no_path_is_no_path(untouched: Job) -> None:
    for path in (None, 3, b"net.smg", "a\0b"):
        text = f"error[E304]: {path!r} is not a path\n  help: "
        assert said(lambda path=path: untouched.save(path)) == text + 'job.save("model.smg")'  # type: ignore[misc]
        assert said(lambda path=path: load(path)) == text + 'smidgen.load("model.smg")'  # type: ignore[misc]


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    missing = tmp_path / "net.smg"
    assert said(lambda: load(missing)) == f"error[E501]: cannot read '{missing}'\n  why  No such file or directory"
    assert said(lambda: load(tmp_path)) == f"error[E501]: cannot read '{tmp_path}'\n  why  Is a directory"
    os.mkfifo(tmp_path / "pipe")  # nobody writes into it, and nobody waits for that
    text = f"error[E501]: cannot read '{tmp_path / 'pipe'}'\n  why  it is not an ordinary file"
    assert said(lambda: load(tmp_path / "pipe")) == text
    missing.write_bytes(b"")
    assert said(lambda: load(missing)) == (
        f"error[E501]: the file has 0 bytes, fewer than its header\n  at   {missing}"
    )  # fmt: skip
    b = Builder()
    fetch(b, feed(b, "x", (N, 2)), "output")
    encoded({"infer": b.graph()}, 2).save(missing)
    assert said(lambda: load(missing)) == (
        f"error[E501]: the program does not describe its plan and state\n  at   {missing}\n  why  KeyError: 'state'"
    )


def test_a_file_that_changes_while_it_is_read_is_refused(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "net.smg", Program.open
    job.save(path)

    def replaced(place: Path) -> Program:
        program = read(place)
        job.save(path)
        return program

    monkeypatch.setattr(Program, "open", staticmethod(replaced))
    text = f"error[E501]: the file changed while it was read\n  at   {path}\n  help: load it again"
    assert said(lambda: load(path)) == text


def test_a_state_outside_the_program_is_refused(job: Job) -> None:
    facts = copy.deepcopy(job.program.meta["state"])
    facts["b3"]["offset"] = job.program.state_bytes
    p = job.program
    bad = Program(
        p.batch, p.align, p.entries, p.const, p.state, p.state_bytes, p.arena_bytes, {**p.meta, "state": facts}
    )
    assert said(lambda: Job(bad)) == "error[E501]: 'b3' lies outside the program's state"
    facts["b3"]["offset"] = 0
    facts["b3"]["stored"] = [10**50]
    assert said(lambda: Job(bad)) == "error[E501]: 'b3' lies outside the program's state"


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_constants_of_a_loaded_program_stay_in_the_file(tmp_path: Path) -> None:
    b = Builder()
    x = feed(b, "x", (N, 1500))
    fetch(b, b.add("linear", x, b.const("w", np.random.default_rng(0).standard_normal((1500, 1500)))), "output")
    made = job_of({"infer": b.graph()}, 2)
    made.save(tmp_path / "net.smg")
    data = np.ones((2, 1500), np.float32)
    want = made.predict(data)
    library.release_freed()
    before = _anonymous_bytes()
    job = load(tmp_path / "net.smg")
    np.testing.assert_array_equal(job.predict(data), want)
    assert job.program.const_bytes > 8_000_000
    assert _anonymous_bytes() - before < 2_000_000
    assert job.program == made.program
    job.save(tmp_path / "net.smg")  # over the file in use
    os.truncate(tmp_path / "net.smg", 100)
    np.testing.assert_array_equal(job.predict(data), want)
