"""`job.evaluate`: the loss and the accuracy of a program on data, without training and without changing anything."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .batches import Data
from .errors import BadProgram
from .metrics import Accuracy, LossFacts
from .program import Program

NO_ENTRY = "the loss does not take what the model returns in evaluation mode, or it was compiled long ago"


def evaluate(
    program: Program, run: Callable[..., None], data: Data, facts: LossFacts, go_on: Callable[[], bool]
) -> dict[str, float] | None:
    """Loss, accuracy and number of samples, part by part; None if `go_on` says no in between.

    The loss is the mean over the parts, weighted by their samples (by their labels that count, for a mean over labels).
    """
    entry = "evaluate" if "evaluate" in program.entries else "infer"
    outs = [b for b in program.entry_buffers(entry) if b.direction == "output"]
    has_loss = entry == "evaluate"
    accuracy = Accuracy(facts, outs[has_loss:], data.buffers[-1])
    samples, total, weight = 0, 0.0, 0
    for arrays, n in data.epoch(None):
        for first in range(0, n, program.batch):
            if not go_on():
                return None
            part = [a[first : first + program.batch] for a in arrays]
            count, target = len(part[0]), part[-1]
            results = [np.empty(b.shape(count), b.dtype.numpy) for b in outs]
            run(entry, part if has_loss else part[:-1], results, count, count)
            accuracy.add(results[has_loss:], target)
            samples += count
            counts = int((target != facts.ignore).sum()) if facts.mean else count
            if has_loss and counts:  # the mean over no label is NaN
                total, weight = total + float(results[0]) * counts, weight + counts
    found: dict[str, float] = {"loss": total / weight if weight else float("nan")} if has_loss else {}
    if accuracy.value is not None:
        found["accuracy"] = accuracy.value
    if not found:
        raise BadProgram("the program has no entry point 'evaluate'", why=NO_ENTRY)
    return found | {"samples": samples}


__all__ = ["evaluate"]
