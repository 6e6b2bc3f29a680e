"""How long a training step and an inference take on this machine."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from ..errors import SmidgenError
from ..ir import Array

if TYPE_CHECKING:
    from .job import Job

MEASURE_S: Final = 1.0
MEASURE_STEPS: Final = (3, 25)  # at least and at most, as long as they fit


def measure_step(job: Job) -> float | None:
    """Seconds of one training step with a full batch of random numbers: the median of as many as fit a second.

    The job is left as it was. None if the program does not learn, or refuses such data.
    """
    return _measured(job, "train", job.program.batch)


def measure_inference(job: Job) -> float | None:
    """The same of an inference of one sample; None if the program does not infer."""
    return _measured(job, "infer", 1)


def _measured(job: Job, entry: str, samples: int) -> float | None:
    if entry not in job.program.entries:
        return None
    machine, rng = job.engine.machine, np.random.default_rng(0)
    inputs: list[Array] = []
    outputs: list[Array] = []
    for buffer in job.program.entry_buffers(entry):
        value = np.zeros(buffer.shape(samples), buffer.dtype.numpy)  # 0 is a class, a token, and False
        if value.dtype.kind == "f":
            value[...] = rng.standard_normal(value.shape)
        (inputs if buffer.direction == "input" else outputs).append(value)
    before, spent = job.engine.state.copy(), list[float]()

    def step() -> float:
        start = time.perf_counter()
        machine.run(entry, inputs, outputs, samples, samples)
        return time.perf_counter() - start

    try:
        first = step()  # also proves the extents and touches the memory
        least, most = MEASURE_STEPS
        while len(spent) < most and sum(spent) + first < (MEASURE_S if len(spent) < least else MEASURE_S / 2):
            spent.append(step())
    except SmidgenError:
        return None
    finally:
        job.engine.state.set_all(before)
    return statistics.median(spent or [first])


__all__ = ["measure_inference", "measure_step"]
