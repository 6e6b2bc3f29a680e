"""Jobs of small networks, their state as bytes, and the text of the error that a call raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import Adam, Optimizer
from smidgen.errors import SmidgenError
from smidgen.ir import Graph
from smidgen.program.program import Program
from smidgen.train.job import Job
from tests.support import small
from tests.support.encoded import encoded


def state(job: Job) -> bytes:
    return job.engine.machine.state.tobytes()


def said(call: Callable[[], Any]) -> str:
    with pytest.raises(SmidgenError) as caught:
        call()
    return str(caught.value)


def adam_with_dropout() -> Program:
    return encode(small.entries(optimizer=Adam(0.02), dropout=0.3, batch=4, accumulate=True, evaluate=True))


def made(optimizer: Optimizer | None = None, **options: Any) -> Job:
    return Job(encode(small.entries(optimizer=optimizer or Adam(0.01), evaluate=True, **options)))


def job_of(graphs: dict[str, Graph], batch: int) -> Job:
    """Of graphs without anything that learns."""
    plan = Job(encode(small.entries())).plan.to_json()
    return Job(encoded(graphs, batch, {"plan": plan, "state": {}}))
