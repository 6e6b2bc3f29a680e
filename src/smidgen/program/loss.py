"""What the numbers of a run mean: facts about the loss, noted when a program is made, and accuracy, where it means
something: labels against the largest score, yes and no against the sign of the score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadData
from ..ir import Array, DType
from .buffer import Buffer

LABELS, YES_OR_NO = "cross_entropy", "bce_with_logits"  # kinds of loss in a program's facts


@dataclass(frozen=True, slots=True)
class LossFacts:
    """`kind` is cross_entropy (the target holds class numbers), bce_with_logits (it says yes or no), or other."""

    kind: str = "other"
    classes: int = 0
    ignore: int | None = None  # the label that counts for nothing
    mean: bool = False  # over the labels that count
    alone: bool = False  # it is all of the loss
    in_use: int | None = None  # of the classes; None: all of them

    @staticmethod
    def from_json(data: Any) -> LossFacts:
        """Of a program without such facts, nothing is known."""
        if not isinstance(data, Mapping) or data.get("kind") not in (LABELS, YES_OR_NO):
            return LossFacts()
        if data["kind"] == YES_OR_NO:
            return LossFacts(YES_OR_NO)
        return LossFacts(LABELS, int(data["classes"]), int(data["ignore"]), bool(data["mean"]),
                         data.get("alone") is True)  # fmt: skip


# -- labels ------------------------------------------------------------------------------------------------------


def check_labels(target: Array, buffer: Buffer, facts: LossFacts, first: int = 0) -> None:
    """Raise unless every label is a class; `first` is the number of the first sample at hand."""
    if facts.kind != LABELS or buffer.dtype is not DType.I32:
        return
    classes = facts.classes if facts.in_use is None else facts.in_use
    bad = ((target < 0) | (target >= classes)) & (target != facts.ignore)
    if not bad.any():
        return
    where = np.unravel_index(int(bad.argmax()), bad.shape)
    sample = first + int(where[0]) // buffer.per_sample
    help = (
        "add the class first: job.add_class(name), or --add-class NAME on a command line"
        if facts.in_use not in (None, facts.classes)
        else ""
    )
    counted = target[target != facts.ignore] if facts.ignore is not None else target
    if not help and counted.min() >= 1 and counted.max() == classes:
        help = "they seem to count from 1: give y - 1"
    raise BadData(
        f"label {int(target[where])} in sample {sample} (counted from 0) is not the number of a class",
        why=f"there are {classes} classes, 0 to {classes - 1}", help=help,
    )  # fmt: skip


class Accuracy:
    """Counts right answers over the parts of a data set."""

    def __init__(self, facts: LossFacts, outputs: Sequence[Buffer], target: Buffer) -> None:
        self.facts, self.right, self.counted = facts, 0, 0
        fitting = [(k, axis) for k, out in enumerate(outputs) if (axis := self._class_axis(out, target)) is not None]
        self._output, self._axis = fitting[0] if fitting else (-1, 0)
        self._possible = bool(fitting)

    def _class_axis(self, out: Buffer, target: Buffer) -> int | None:
        """Where an output has its scores for each class, if it has; for yes or no there is no such axis (0)."""
        if out.dtype is not DType.F32:
            return None
        if self.facts.kind == YES_OR_NO:
            return 0 if out.dims == target.dims else None
        # Class numbers, or, if the loss is unknown, integers that may be some: torch has classes along axis 1.
        for axis in (1, len(out.dims) - 1) if self.facts.classes else (1,):
            if target.dtype is DType.I32 and 0 < axis < len(out.dims):
                classes, rest = out.dims[axis], (*out.dims[:axis], *out.dims[axis + 1 :])
                if rest == target.dims and (classes == self.facts.classes if self.facts.classes else classes != 1):
                    return axis
        return None

    def add(self, outputs: Sequence[Array], target: Array) -> None:
        if not self._possible:
            return
        scores = outputs[self._output]
        if self.facts.kind == YES_OR_NO:
            self.right += int(((scores > 0) == (target > 0.5)).sum())
            self.counted += target.size
            return
        if self.facts.kind == "other" and not bool(((target >= 0) & (target < scores.shape[self._axis])).all()):
            self._possible = False  # integers, but not numbers of classes
            return
        counts = target != self.facts.ignore if self.facts.ignore is not None else np.ones(target.shape, bool)
        self.right += int(((scores.argmax(self._axis) == target) & counts).sum())
        self.counted += int(counts.sum())

    @property
    def value(self) -> float | None:
        """A share from 0 to 1, or None where it means nothing."""
        return self.right / self.counted if self._possible and self.counted else None


__all__ = ["Accuracy", "LossFacts", "check_labels"]
