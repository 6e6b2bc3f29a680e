"""`job.evaluate`: the loss and the accuracy of a program on data, without training and without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..errors import BadProgram
from ..program.arrays import rows
from ..program.loss import Accuracy, LossFacts
from ..program.program import Program
from .batches import Arrays, Data
from .sample_rows import check_rows
from .settings import checked_batch

NO_ENTRY = "the loss does not take what the model returns in evaluation mode, or it was compiled long ago"


def evaluate(
    program: Program, run: Callable[..., None], data: Data, facts: LossFacts, go_on: Callable[[], bool]
) -> dict[str, float] | None:
    """Loss, accuracy and number of samples, part by part; None if `go_on` says no in between.

    The loss is the mean over batches, weighted by their samples (by their labels that count, for a mean over labels); a
    batch has as many samples as a step, in however many parts it is taken.
    """
    entry = "evaluate" if "evaluate" in program.entries else "infer"
    outs = [b for b in program.entry_buffers(entry) if b.direction == "output"]
    has_loss = entry == "evaluate"
    accuracy = Accuracy(facts, outs[has_loss:], data.buffers[-1])
    samples, total, weight = 0, 0.0, 0
    for arrays, n in data.epoch(None):
        check_rows(program, run, arrays, data.buffers, data.samples if isinstance(data, Arrays) else n)
        for first, count, together in parts(program, n, apart=facts.mean):
            if not go_on():
                return None
            part = [rows(a, b, first, count) for a, b in zip(arrays, data.buffers, strict=True)]
            results = [np.empty(b.shape(count), b.dtype.numpy) for b in outs]
            run(entry, part if has_loss else part[:-1], results, count, together)
            accuracy.add(results[has_loss:], part[-1])
            samples += count
            if facts.mean:
                together = counts = int((part[-1] != facts.ignore).sum())
            else:
                counts = count
            if has_loss and counts:  # the mean over no label is NaN
                total, weight = total + float(results[0]) * together, weight + counts
    found: dict[str, float] = {"loss": total / weight if weight else float("nan")} if has_loss else {}
    if accuracy.value is not None:
        found["accuracy"] = accuracy.value
    if not found:
        raise BadProgram("the program has no entry point 'evaluate'", why=NO_ENTRY)
    return found | {"samples": samples}


def parts(program: Program, n: int, apart: bool) -> Iterator[tuple[int, int, int]]:
    """First sample and number of samples of each part of n, and how many samples its batch has; `apart`: a part is a
    batch of its own."""
    whole = program.batch if apart else checked_batch(None, program)
    for start in range(0, n, whole):
        together = min(whole, n - start)
        for first in range(start, start + together, program.batch):
            yield first, min(program.batch, start + together - first), together


__all__ = ["evaluate"]
