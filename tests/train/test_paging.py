"""Programs that page, on this machine: the same bits as without, whenever pages arrive; and what happens when they do
not."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smidgen
from smidgen.compiler.assemble import encode
from smidgen.compiler.graph import interp
from smidgen.compiler.optimizers import Adam
from smidgen.errors import BadData, BadOption, CannotWrite, RunFailed
from smidgen.ir import Array
from smidgen.program.plan import Plan
from smidgen.report.plan_text import answer
from smidgen.runtime.machine import Machine
from smidgen.runtime.work import has_fast
from smidgen.train.job import Job
from tests.support import small
from tests.support.disk import CRead, Disk
from tests.support.libraries import compiled
from tests.support.paged import BATCH, batches, bits, momentum_in_pages, optimizer_state, paged, same_bits

# -- the same bits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_program_that_pages_gives_the_same_bits_and_moves_what_the_plan_says(ahead: int, tmp_path: Path) -> None:
    same_bits(small.entries(optimizer=Adam(0.01), dropout=0.3), ahead, (3, 8, 8), 5, tmp_path)


def test_fast_kernels_page_too(tmp_path: Path) -> None:
    entries = small.entries()
    if not has_fast():
        pytest.skip("the runtime has no fast kernels")
    plain = Job(encode(entries), kernels="fast", threads=2)
    job = Job(encode(paged(entries)), kernels="fast", threads=2, page_to=tmp_path / "page")
    for x, y in batches(3):
        assert job.train_step(x, y) == plain.train_step(x, y)
    assert bits(job) == bits(plain)
    assert job.plan.ram_bytes == job.mapped_bytes + job.plan.context_bytes + job.plan.stack_bytes


def test_the_interpreter_runs_a_graph_that_pages() -> None:
    entries = small.entries()
    moved = paged(entries, state=optimizer_state(entries.graphs))
    x, y = batches(1)[0]
    feeds = {"x": x.astype(np.float64), "target": y}
    plain = entries.graphs["train"]
    wanted = interp.advance(plain, interp.initial_state(plain), feeds, n=BATCH)
    got = interp.advance(moved.graphs["train"], interp.initial_state(moved.graphs["train"]), feeds, n=BATCH)
    for one, other in zip(wanted, got, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


# -- files -----------------------------------------------------------------------------------------------------------


def test_state_in_pages_is_saved_and_comes_back(tmp_path: Path) -> None:
    plain = Job(encode(small.entries()))
    job = Job(momentum_in_pages(), page_to=tmp_path / "page")
    assert bits(job) == bits(plain)
    steps = batches(4)
    for x, y in steps[:2]:
        plain.train_step(x, y), job.train_step(x, y)
    job.save(tmp_path / "net.smg")
    job.checkpoint(tmp_path / "run.ckpt")
    for x, y in steps[2:]:
        plain.train_step(x, y), job.train_step(x, y)
    loaded = smidgen.load(tmp_path / "net.smg", page_to=tmp_path / "other")
    resumed = Job(momentum_in_pages(), page_to=tmp_path / "third")
    resumed.resume(tmp_path / "run.ckpt")
    moved = smidgen.load(tmp_path / "net.smg", page_to=tmp_path / "fifth")
    moved.train_step(*steps[3])
    moved.resume(tmp_path / "run.ckpt")  # another start is not another program
    assert bits(moved) == bits(resumed)
    for x, y in steps[2:]:
        loaded.train_step(x, y), resumed.train_step(x, y)
    assert bits(loaded) == bits(resumed) == bits(job) == bits(plain)
    assert job.step == 4
    other = Job(momentum_in_pages(), page_to=tmp_path / "fourth")
    other.load_state_dict(job.state_dict())
    other.load_optimizer_state(job.optimizer_state(), job.step)
    assert bits(other) == bits(job)


def test_fit_gives_the_same_bits_with_state_in_pages(tmp_path: Path) -> None:
    x, y = batches(1, n=10)[0]
    plain, job = Job(encode(small.entries())), Job(momentum_in_pages(), page_to=tmp_path / "page")
    for one in (plain, job):
        one.fit(x, y, epochs=2, eval=(x, y), patience=2, progress=False)
    assert bits(job) == bits(plain)


def test_the_plan_says_what_is_paged() -> None:
    program = momentum_in_pages()
    plan = Plan.from_json(program.meta["plan"])
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert (plan.page_bytes, plan.page_state_bytes) == (program.page_bytes, program.page_state_bytes)
    assert plan.paged["infer"].out_bytes == 0 < plan.paged["infer"].in_bytes  # a parameter is at home in PAGE
    line = next(line for line in answer(plan).splitlines() if line.startswith("pages"))
    assert f"{program.page_bytes:,} bytes in PAGE; a step brings" in line
    assert sum(s.bytes for s in plan.facts.stored if s.role != "const") <= plan.state_bytes


def test_nowhere_to_page_to_is_said_with_what_to_do(tmp_path: Path) -> None:
    momentum_in_pages().save(tmp_path / "net.smg")
    with pytest.raises(BadOption, match="nowhere to page to") as raised:
        smidgen.load(tmp_path / "net.smg")
    assert 'smidgen.load("net.smg", page_to="page.bin")' in raised.value.help


@pytest.mark.parametrize("path", ["a\ud800", "a\0b", 5, b"page"])
def test_what_is_no_path_is_no_place_to_page_to(path: Any) -> None:
    with pytest.raises(BadOption, match="is not a path"):
        Job(momentum_in_pages(), page_to=path)


def test_a_file_that_is_not_a_page_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear all")
    with pytest.raises(CannotWrite, match="not a page file"):
        Job(momentum_in_pages(), page_to=tmp_path / "letter")
    assert (tmp_path / "letter").read_text() == "dear all"
    for place, why in (
        (tmp_path, "directory"),
        (tmp_path / "none" / "page", "No such file"),
        ("/dev/null", "not a file"),
    ):
        with pytest.raises(CannotWrite, match=why):
            Job(momentum_in_pages(), page_to=place)


def test_an_old_page_file_is_used_again_but_not_by_two_jobs_at_a_time(tmp_path: Path) -> None:
    x, y = batches(1)[0]
    job = Job(momentum_in_pages(), page_to=tmp_path / "page")
    job.train_step(x, y)
    with pytest.raises(CannotWrite, match="another job uses it"):
        Job(momentum_in_pages(), page_to=tmp_path / "page")
    after = bits(job)
    del job
    again = Job(momentum_in_pages(), page_to=tmp_path / "page")
    again.train_step(x, y)
    assert bits(again) == after


def test_a_program_that_does_not_page_touches_no_file(tmp_path: Path) -> None:
    job = Job(encode(small.entries()), page_to=tmp_path / "page")
    job.train_step(*batches(1)[0])
    assert not (tmp_path / "page").exists()
    assert job.paged == (0, 0)


# -- full and failing disks --------------------------------------------------------------------------------------------

FULL = """
import resource, sys
import numpy as np
from smidgen.errors import CannotWrite
from smidgen.runtime.work import has_fast
import smidgen
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    smidgen.load(sys.argv[1], page_to=sys.argv[2])
except CannotWrite as error:
    print(error)
"""


def test_a_full_disk_is_found_before_the_first_step(tmp_path: Path) -> None:
    momentum_in_pages().save(tmp_path / "net.smg")
    command = [sys.executable, "-c", FULL, tmp_path / "net.smg", tmp_path / "page"]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "error[E505]: cannot page to" in done.stdout
    assert "File too large" in done.stdout
    assert (tmp_path / "page").stat().st_size == 0, "what was reserved is given back"


def test_a_file_that_shrinks_stops_the_step_and_the_state_is_that_before_it(tmp_path: Path) -> None:
    """As on a network disk that went away: what was written is not there when it is read."""
    x, y = batches(1)[0]
    job = Job(momentum_in_pages(), page_to=tmp_path / "page")
    job.train_step(x, y)
    before = job.engine.machine.state.tobytes()
    os.truncate(tmp_path / "page", 0)
    for _ in range(2):
        with pytest.raises(RunFailed, match="the page file was truncated"):
            job.train_step(x, y)
        assert job.engine.machine.state.tobytes() == before


@pytest.mark.parametrize("prefetch", [{"late": True}, {"late": False}, {"prefetch": False}])
def test_it_does_not_matter_when_a_page_arrives(prefetch: dict[str, bool], tmp_path: Path) -> None:
    entries = small.entries()
    plain, job = Job(encode(entries)), Job(encode(paged(entries, ahead=4)), page_to=tmp_path / "page")
    disk = Disk(job.engine.machine, **prefetch)
    for x, y in batches(3):
        assert job.train_step(x, y) == plain.train_step(x, y)
    assert bits(job) == bits(plain)
    assert ("start" in disk.said) == ("prefetch" not in prefetch)
    assert not disk.started


def test_whenever_the_disk_fails_the_state_is_that_before_the_step(tmp_path: Path) -> None:
    steps = batches(2)
    job = Job(encode(paged(small.entries(), ahead=4)), page_to=tmp_path / "page")
    disk = Disk(job.engine.machine)
    job.train_step(*steps[0])
    before, calls = bits(job), disk.calls
    partly = 0
    for at in range(calls):
        disk.calls, disk.fail_at, disk.said = 0, at, []
        with pytest.raises(RunFailed, match="the disk is on fire") as raised:
            job.train_step(*steps[1])
        assert "the job is in the state before this step" in raised.value.help
        assert bits(job) == before
        assert job.step == 1
        assert disk.said[-1] == "wait for all", "nothing may arrive after the step"
        partly += at > calls // 2
    assert partly
    disk.fail_at = -1
    plain = Job(encode(small.entries()))
    plain.train_step(*steps[0]), plain.train_step(*steps[1])
    job.train_step(*steps[1])
    assert bits(job) == bits(plain)


def test_a_job_whose_pages_hold_half_a_step_says_so_until_it_is_given_a_whole_state(tmp_path: Path) -> None:
    x, y = batches(1)[0]
    job = Job(momentum_in_pages(), page_to=tmp_path / "page")
    disk = Disk(job.engine.machine)
    job.train_step(x, y)
    a_step = disk.calls
    before = bits(job)
    job.checkpoint(tmp_path / "run.ckpt")
    disk.fail_at = disk.calls + a_step - 1
    with pytest.raises(RunFailed, match="the disk is on fire"):
        job.train_step(x, y)
    disk.fail_at = -1
    for call in (
        lambda: job.train_step(x, y),
        lambda: job.checkpoint(tmp_path / "bad"),
        lambda: job.save(tmp_path / "b"),
    ):
        with pytest.raises(RunFailed, match="a step stopped halfway") as raised:
            call()
        assert "job.resume" in raised.value.help
    job.resume(tmp_path / "run.ckpt")
    assert bits(job) == before
    job.train_step(x, y)


def test_a_step_that_stops_before_it_wrote_state_is_undone(tmp_path: Path) -> None:
    (x, y), (x2, y2) = batches(2)
    job = Job(momentum_in_pages(), page_to=tmp_path / "page")
    job.train_step(x, y)
    before = bits(job)
    with pytest.raises(BadData, match="is not the number of a class"):
        job.train_step(x2, y2 + 100)
    assert bits(job) == before
    disk = Disk(job.engine.machine)
    before = bits(job)
    disk.fail_at = 2
    with pytest.raises(RunFailed, match="the disk is on fire") as raised:
        job.train_step(x2, y2)
    assert "the job is in the state before this step" in raised.value.help
    disk.fail_at = -1
    assert bits(job) == before
    job.train_step(x2, y2)


def test_fit_brings_back_even_what_is_in_pages(tmp_path: Path) -> None:
    x, y = batches(1)[0]
    job = Job(momentum_in_pages(), page_to=tmp_path / "page")
    disk = Disk(job.engine.machine)
    job.train_step(x, y)
    before, a_step = bits(job), disk.calls
    real, count = disk._write, 0

    def once(*arguments: int) -> int | None:
        nonlocal count
        count += 1
        return ctypes.addressof(disk.why) if count == 7 else real(*arguments)

    assert a_step > 7
    disk.pager.write = CRead(once)
    with pytest.raises(RunFailed, match="the disk is on fire"):
        job.fit(x, y, progress=False)
    assert bits(job) == before
    job.train_step(x, y)


# -- checksums -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checking() -> Path:
    return compiled(flags=("-O1", "-DSMG_PAGE_CHECK"))


def machine_step(machine: Machine, x: Array, y: Array) -> float:
    loss = np.zeros((), np.float32)
    machine.run("train", [x, y], [loss], len(x))
    return float(loss)


@pytest.mark.parametrize("ahead", [0, 3])
def test_a_build_with_checksums_finds_a_page_that_changed(checking: Path, ahead: int, tmp_path: Path) -> None:
    entries = small.entries()
    program = encode(paged(entries, ahead=ahead, state=optimizer_state(entries.graphs)))
    x, y = batches(1)[0]
    machine = Machine(program.to_bytes(), checking, page_to=tmp_path / "page")
    plain = Machine(encode(entries).to_bytes(), checking)
    for _ in range(3):
        assert machine_step(machine, x, y) == machine_step(plain, x, y)
    Disk(machine, prefetch=False)
    machine_step(machine, x, y)
    disk = Disk(machine, prefetch=False, flip=True)
    with pytest.raises(RunFailed, match=r"page_(in|wait): a page does not read as it was written"):
        machine_step(machine, x, y)
    assert disk.said.count("read") <= 4, "the first page that is written and comes back is found"


@pytest.mark.parametrize("how", ["train_step", "fit"])
def test_a_job_whose_state_in_pages_is_damaged_is_not_said_to_be_whole(
    how: str, checking: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SMIDGEN_LIBRARY", str(checking))
    x, y = batches(1)[0]
    job = Job(momentum_in_pages(), kernels="exact", page_to=tmp_path / "page")
    disk = Disk(job.engine.machine, prefetch=False)
    job.train_step(x, y)
    job.checkpoint(tmp_path / "run.ckpt")
    disk.memory[0] ^= 1
    with pytest.raises(RunFailed, match="a page does not read as it was written") as raised:
        job.train_step(x, y) if how == "train_step" else job.fit(x, y, progress=False)
    assert "the job is in the state before this step" not in raised.value.help
    with pytest.raises(RunFailed, match="a step stopped halfway"):
        job.save(tmp_path / "b")
    job.resume(tmp_path / "run.ckpt")
    job.fit(x, y, progress=False)


def test_without_checksums_nobody_looks(tmp_path: Path) -> None:
    machine = Machine(encode(paged(small.entries())).to_bytes(), page_to=tmp_path / "page")
    disk = Disk(machine, prefetch=False, flip=True)
    machine_step(machine, *batches(1)[0])
    assert "read" in disk.said
