"""A step that fails is undone as long as no state in pages was written; only what that takes is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from smidgen.compiler.assemble import encode
from smidgen.errors import RunFailed
from smidgen.program.program import Program
from smidgen.train.job import Job
from smidgen.train.paged_undo import undone, writes_page_state
from tests.support import small
from tests.support.disk import Disk
from tests.support.paged import batches, bits, optimizer_state, paged


def some_in_pages(count: int | None) -> Program:
    """The optimizer's state of the first so many parameters."""
    entries = small.entries()
    return encode(paged(entries, ahead=2, state=optimizer_state(entries.graphs)[:count]))


def test_what_no_undo_can_reach_is_not_kept() -> None:
    kept = {count: undone(some_in_pages(count)) for count in (0, 1, None)}
    sizes = {count: sum(end - start for start, end in spans) for count, spans in kept.items()}
    assert sizes[0] == some_in_pages(0).state_bytes - 16, "all but the learning rate"
    assert sizes[None] < 64 < sizes[1] < sizes[0]


@pytest.mark.parametrize("count", [0, 1, 2, None])
def test_when_the_disk_fails_the_state_is_whole_or_the_job_says_it_is_not(count: int | None, tmp_path: Path) -> None:
    program = some_in_pages(count)
    job = Job(program, page_to=tmp_path / "page")
    steps = batches(2)
    disk = Disk(job.engine.machine)
    job.train_step(*steps[0])
    calls, before = disk.calls, bits(job)
    job.checkpoint(tmp_path / "run.ckpt")
    halfway = 0
    for at in range(calls):
        disk.calls, disk.fail_at = 0, at
        with pytest.raises(RunFailed, match="the disk is on fire") as raised:
            job.train_step(*steps[1])
        disk.fail_at = -1
        if "the job is in the state before this step" not in raised.value.help:
            halfway += 1
            with pytest.raises(RunFailed, match="a step stopped halfway"):
                job.train_step(*steps[1])
            job.resume(tmp_path / "run.ckpt")
        assert bits(job) == before, f"call {at}"
    assert bool(halfway) == any(writes_page_state(program, step) for step in program.entry_code("train"))
    plain = Job(encode(small.entries()))
    plain.train_step(*steps[0]), plain.train_step(*steps[1])
    job.train_step(*steps[1])
    assert bits(job) == bits(plain)
