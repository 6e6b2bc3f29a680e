"""How much the loss depends on each channel of each layer, by a user's samples: one forward and backward pass a sample,
computed by entry points of the program (compiler/passes/scores.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData, CannotSelect
from ..ir import Array
from ..program.arrays import (
    as_dtype,
    check_layout,
    check_number_of_arrays,
    check_numbers,
    listed,
    number_of_samples,
    rows,
    to_numpy,
)
from ..program.loss import check_labels
from ..program.program import Program

if TYPE_CHECKING:
    from .job import Job


@dataclass(frozen=True, slots=True)
class LayerScores:
    """A layer, and of each channel of its output ½ of the mean over samples of (Σ of activation · gradient)²."""

    weight: str
    bias: str | None
    axis: int | None  # of the outputs in the weight; None: they are no axis of it
    parameters: int
    macs: int  # of one sample
    channels: Array

    @property
    def potential(self) -> float:
        return float(np.sum(self.channels, dtype=np.float64))


Chooser = Callable[[list[LayerScores], Mapping[str, Array]], Program]
"""From scores of channels and the weights learned so far to a program in which the best of them learn."""


def scores(job: Job, x: Any, y: Any) -> list[LayerScores]:
    """In execution order. Nothing changes."""
    if "score" not in job.program.entries:
        raise CannotSelect(
            "this program scores no channels", why=f"it was compiled with method='{job.plan.method}'",
            help='smidgen.compile(model, x, method="tinytrain")',
        )  # fmt: skip
    arrays, n = _samples(job, [*listed(x), y])
    _check_classes(job, arrays[-1])
    facts: Sequence[Mapping[str, Any]] = job.program.meta["scores"]
    found = np.zeros(sum(int(fact["channels"]) for fact in facts), np.float32)
    loss, buffers = np.zeros((), np.float32), job.engine.sample_buffers
    with job.engine.machine.lock:  # the scores are in the arena, which every entry point uses
        job.engine.run_whole("clear_scores", [], [], 1, 1)
        for i in range(n):
            one = [rows(array, buffer, i, 1) for array, buffer in zip(arrays, buffers, strict=True)]
            job.engine.run_whole("score", one, [loss], 1, 1)
        job.engine.run_whole("scores", [], [found], 1, 1)
    made = [_layer(fact, found / np.float32(n)) for fact in facts]
    wrong = [layer.weight for layer in made if not np.isfinite(layer.channels).all()]
    if wrong:
        raise CannotSelect(
            f"the scores of '{wrong[0]}' are not finite", why=f"{len(wrong)} of {len(made)} layers have such scores",
            help="look for weights or samples that are too large; the job is as it was",
        )  # fmt: skip
    return made


def reselected(job: Job, choose: Chooser | None, x: Any, y: Any) -> Program:
    """The program in which what is best for these samples learns."""
    found = scores(job, x, y)
    if choose is None:
        raise CannotSelect(
            "a loaded program cannot be planned anew", why="its file holds no model to plan",
            help='job = smidgen.compile(model, x, method="tinytrain"); job.select(x, y); job.save("model.smg")',
        )  # fmt: skip
    return choose(found, job.state_dict())


def _layer(fact: Mapping[str, Any], values: Array) -> LayerScores:
    channels = values[int(fact["at"]) : int(fact["at"]) + int(fact["channels"])]
    return LayerScores(fact["weight"], fact["bias"], fact["axis"], int(fact["parameters"]), int(fact["macs"]), channels)


def _samples(job: Job, given: Sequence[Any]) -> tuple[list[Array], int]:
    """As the program reads them, any number of them."""
    buffers = job.engine.sample_buffers
    check_number_of_arrays(given, buffers)
    arrays = [to_numpy(value, buffer.name) for value, buffer in zip(given, buffers, strict=True)]
    for array, buffer in zip(arrays, buffers, strict=True):
        check_layout(array, buffer)
    n = number_of_samples(arrays, buffers)
    if n < 1:
        raise BadData("no samples to choose by", help="job.select(x, y), with some of each class")
    arrays = [as_dtype(array, buffer) for array, buffer in zip(arrays, buffers, strict=True)]
    for array, buffer in zip(arrays, buffers, strict=True):
        check_numbers(array, buffer)
    return arrays, n


def _check_classes(job: Job, labels: Array) -> None:
    """Of a loss for classes: at least two of them, and all that have names."""
    loss = job.engine.loss
    check_labels(labels, job.engine.sample_buffers[-1], loss)
    if not loss.classes or not np.issubdtype(labels.dtype, np.integer):
        return
    present = set(np.unique(labels).tolist()) - {loss.ignore}
    if len(present) < 2:
        raise CannotSelect(
            f"all samples are of one class, {min(present, default='none')}",
            why="the scores would say what that class needs, and nothing of how it differs from others",
            help="job.select(x, y) with samples of two classes or more; nothing has changed",
        )  # fmt: skip
    missing = [name for number, name in enumerate(job.classes) if number not in present]
    if missing:
        raise CannotSelect(
            f"class '{missing[0]}' has no sample", why=f"{len(missing)} of {len(job.classes)} classes have none",
            help="job.select(x, y) with samples of every class; nothing has changed",
        )  # fmt: skip


__all__ = ["Chooser", "LayerScores", "reselected", "scores"]
