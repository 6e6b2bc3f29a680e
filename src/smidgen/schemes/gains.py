"""Contribution analysis: how much the accuracy on validation samples grows if one more part of the network learns
beside the classifier. Samples are split once, each class alike; what is frozen before a part is computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ..compiler.assemble import encode
from ..compiler.optimizers import SGD
from ..compiler.options import Options
from ..compiler.pipeline import Lowering
from ..errors import BadData, NotFinite
from ..ir import Array, Role
from ..methods import Update
from ..methods.cuts import cuts
from ..train.job import Job
from .cut import cut_at, last_before

VALIDATION: Final = 0.25  # of each class
MOST_SAMPLES: Final = 512  # that are learned from
BATCH: Final = 16
RATES: Final = (0.1, 0.03, 0.01, 0.003, 0.001)


@dataclass(frozen=True, slots=True)
class Trial:
    """How long a part may learn."""

    epochs: int = 6
    rate: float = 0.01


@dataclass(frozen=True, slots=True)
class Split:
    """Rows to learn from, and rows to judge by: no row is in both."""

    learn: Array
    judge: Array


def split(labels: Array, seed: int = 0) -> Split:
    """Of each class a quarter to judge by, at least one if it has two; no more than so many to learn from, all classes
    alike."""
    rng = np.random.default_rng(seed)
    learn: list[Array] = []
    judge: list[Array] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        count = max(1, round(VALIDATION * len(rows))) if len(rows) > 1 else 0
        judge.append(rows[:count])
        learn.append(rows[count:])
    most = max(1, MOST_SAMPLES // len(learn))
    found = Split(np.concatenate([rows[:most] for rows in learn]), np.concatenate([rows[:most] for rows in judge]))
    if not len(found.judge):
        raise BadData("a search needs two samples of at least one class", why="one of them is to judge by")
    return found


@dataclass
class Gains:
    """`of(updates, position)` is the accuracy when these learn, all of them at or after the node at `position`."""

    lowering: Lowering
    options: Options
    inputs: Array
    labels: Array
    trial: Trial = field(default_factory=Trial)
    _split: Split = field(init=False)
    _parts: dict[str | None, tuple[Lowering, Array]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._split = split(self.labels)
        self._forward = self.lowering.forward(self.options)
        train = self._forward["train"]
        self._cuts = cuts(train, without=train.inputs[-1:])  # the target

    def of(self, updates: Sequence[Update], position: int, trial: Trial | None = None) -> float:
        lowering, features = self._part(last_before(self._cuts, position))
        trial = trial or self.trial
        job = _job(lowering, self.options, updates, trial.rate)
        learn, judge = self._split.learn, self._split.judge
        try:
            job.fit(features[learn], self.labels[learn], epochs=trial.epochs, seed=0, schedule="cosine", progress=False)
        except NotFinite:  # it diverged
            return 0.0
        return _judged(job.evaluate(features[judge], self.labels[judge]))

    def best(self, updates: Sequence[Update], position: int, trial: Trial) -> tuple[float, float]:
        """Accuracy and rate: that of the trial, or lower ones as long as they are better. Parts far from the loss, and
        several together, want lower rates than the classifier."""
        best = self.of(updates, position, trial), trial.rate
        for rate in (rate for rate in RATES if rate < trial.rate):
            found = self.of(updates, position, replace(trial, rate=rate))
            if found <= best[0]:
                break
            best = found, rate
        return best

    def _part(self, cut: str | None) -> tuple[Lowering, Array]:
        """What learns behind a cut, and what it gets; the last one is remembered."""
        if cut not in self._parts:
            imported = None if cut is None else cut_at(self.lowering.imported, self._forward, cut)
            self._parts.clear()
            if imported is None:
                self._parts[cut] = self.lowering, self.inputs
            else:
                lowering = Lowering(imported)
                self._parts[cut] = lowering, _features(lowering, self.options, self.inputs)
        return self._parts[cut]


def _job(lowering: Lowering, options: Options, updates: Sequence[Update], rate: float) -> Job:
    batch = min(BATCH, max(options.batch, 1)) if options.batch else BATCH
    usual = SGD(lr=rate, momentum=0.9)
    asked = replace(options, optimizer=usual, method=tuple(updates), batch=batch, accumulate=False, replay=None)
    return Job(encode(lowering.entries(asked), proven=False))


def _features(lowering: Lowering, options: Options, inputs: Array) -> Array:
    used = {t.name for t in lowering.imported.train.of_role(Role.PARAM)}
    last = [Update(p.name) for p in lowering.imported.parameters if p.requires_grad and p.name in used][-1:]
    found: Any = _job(lowering, options, last, 0.01).predict(inputs)
    return np.asarray(found)


def _judged(found: dict[str, float]) -> float:
    """Accuracy; where there is none, how small the loss is."""
    return found["accuracy"] if "accuracy" in found else -found["loss"]


Told = Callable[[int, int, str], None]

__all__ = ["Gains", "Split", "Told", "Trial", "split"]
