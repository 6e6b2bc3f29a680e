"""A stream of samples: predict and learn, what is usual, what is not, and how far it has moved.

All of it is computed by entry points of the program, so that a device without Python gets the same numbers
(runtime/smidgen_learn.h).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData, CannotStream
from ..ir import Array
from ..program.arguments import is_number
from ..program.arrays import as_buffer, check_number_of_arrays, check_numbers, listed, number_of_samples, rows, to_numpy
from ..program.buffer import Buffer
from ..program.loss import check_labels

if TYPE_CHECKING:
    from .job import Job


def learn(job: Job, sample: Any, label: Any = None) -> Any:
    """The prediction for the sample, made before learning from it. With replay, old samples are learned beside it."""
    *inputs, target = _buffers(job, "learn")
    given = listed(sample)
    check_number_of_arrays(given, inputs)
    if label is None:
        label = _own_target(job, given)
    arrays, alone = _samples([*given, label], [*inputs, target])
    n = number_of_samples(arrays, [*inputs, target])
    _check_few(job, n)
    check_labels(arrays[-1], target, job.engine.loss)
    entry = "learn" if job.engine.replay is None else "judge"
    loss, *outs = [b for b in job.program.entry_buffers(entry) if b.direction == "output"]
    results = [np.empty(b.shape(n), b.dtype.numpy) for b in outs]
    job.engine.run_step(entry, arrays, [np.zeros(loss.shape(n), np.float32), *results], n)
    if job.engine.replay is not None:
        job.engine.train(arrays, n)
    return _returned(job, outs, results, alone)


def calibrate(job: Job, samples: Any = None) -> None:
    """These samples become the reference, or, without any, the next ones."""
    buffers = _buffers(job, "observe")
    if samples is None:
        _restart(job, 0)
        return
    given = listed(samples)
    check_number_of_arrays(given, buffers)
    arrays = [as_buffer(value, buffer) for value, buffer in zip(given, buffers, strict=True)]
    n = number_of_samples(arrays, buffers)
    if n < 2:
        raise CannotStream(
            "one sample is no reference", why="its variance is 0", help="job.calibrate(samples), of some"
        )
    for array, buffer in zip(arrays, buffers, strict=True):
        check_numbers(array, buffer)
    _restart(job, n)
    for part, count in itertools.chain(_parts(job, arrays, buffers, n), _parts(job, arrays, buffers, n)):
        job.engine.run_step("observe", part, [], count)


def detect(job: Job, sample: Any) -> Any:
    """A float, or an array with a score for each sample."""
    buffers = _buffers(job, "detect")
    given = listed(sample)
    check_number_of_arrays(given, buffers)
    arrays, alone = _samples(given, buffers)
    n = number_of_samples(arrays, buffers)
    scores = np.empty(n, np.float32)
    first = 0
    for part, count in _parts(job, arrays, buffers, n):
        job.engine.run_whole("detect", part, [scores[first : first + count]], count, count)
        first += count
    return float(scores[0]) if alone else scores


def report(job: Job) -> tuple[float, float, float]:
    """Drift; mean and standard deviation of the scores (1e30 while less than two were seen)."""
    _buffers(job, "drift")
    found = np.zeros((2, 3), np.float32)
    job.engine.run_whole("drift", [], [found[0], found[1]], 1, 1)
    return float(found[0, 0]), float(found[1, 1]), float(found[1, 2])


def threshold(job: Job, deviations: float) -> float:
    if not is_number(deviations) or not 0 <= deviations < float("inf"):
        raise CannotStream(f"{deviations!r} is not a number of standard deviations", help="job.threshold(4)")
    _, mean, deviation = report(job)
    return mean + deviations * deviation


def _buffers(job: Job, entry: str) -> list[Buffer]:
    if entry not in job.program.entries:
        raise CannotStream(
            f"this program does not learn from a stream: it has no entry point '{entry}'",
            why=f"it was compiled with method='{job.plan.method}'",
            help='smidgen.compile(model, x, method="tinyol"); job.train_step(x, y) learns from a batch',
        )  # fmt: skip
    return [b for b in job.program.entry_buffers(entry) if b.direction == "input"]


def _own_target(job: Job, given: Sequence[Any]) -> Any:
    if job.program.meta.get("stream", {}).get("target") == "sample":
        return given[0]
    raise CannotStream(
        "the loss needs a label", why="it compares the output with something else than the sample",
        help="job.learn(sample, label); job.predict(sample) does not learn, job.calibrate(samples) needs no labels",
    )  # fmt: skip


def _samples(given: Sequence[Any], buffers: Sequence[Buffer]) -> tuple[list[Array], bool]:
    """As the program reads them; and whether they came without the axis of samples."""
    arrays = [to_numpy(value, buffer.name) for value, buffer in zip(given, buffers, strict=True)]
    alone = arrays[0].ndim == len(buffers[0].dims) - 1 and buffers[0].per_sample == 1
    found = []
    for array, buffer in zip(arrays, buffers, strict=True):
        bare = alone and array.ndim == len(buffer.dims) - 1 and buffer.per_sample == 1
        found.append(as_buffer(array[None] if bare else array, buffer))
        check_numbers(found[-1], buffer)
    return found, alone


def _check_few(job: Job, n: int) -> None:
    if n > job.program.batch:
        raise BadData(f"{n} samples given, the program takes at most {job.program.batch} at a time",
                      help="one after the other, or job.fit(x, y)")  # fmt: skip


def _parts(job: Job, arrays: Sequence[Array], buffers: Sequence[Buffer], n: int) -> Iterator[tuple[list[Array], int]]:
    for first in range(0, n, job.program.batch):
        count = min(job.program.batch, n - first)
        yield [rows(a, b, first, count) for a, b in zip(arrays, buffers, strict=True)], count


def _restart(job: Job, samples: int) -> None:
    job.engine.run_step("restart", [np.array([samples], np.float32)], [], 1)


def _returned(job: Job, outs: Sequence[Buffer], results: list[Array], alone: bool) -> Any:
    classes = job.engine.classes
    if classes is not None:
        wide = classes.outputs
        results = [r[..., : classes.count] if b.name in wide else r for b, r in zip(outs, results, strict=True)]
    if alone:
        results = [r[0] if b.per_sample == 1 and r.ndim else r for b, r in zip(outs, results, strict=True)]
    return results[0] if len(results) == 1 else tuple(results)


__all__ = ["calibrate", "detect", "learn", "report", "threshold"]
