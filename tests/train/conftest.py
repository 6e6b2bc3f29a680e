"""A job of the small network, and one whose state must stay as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import Adam
from smidgen.train.job import Job
from tests.support import small


@pytest.fixture
def job() -> Job:
    return Job(encode(small.entries(optimizer=Adam(0.01))))


@pytest.fixture
def untouched(job: Job) -> Iterator[Job]:
    """A job whose state is the same before and after the test."""
    before = job.engine.machine.state.tobytes()
    yield job
    assert job.engine.machine.state.tobytes() == before
