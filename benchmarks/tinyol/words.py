"""Keywords: a DS-CNN that knows thirty Arabic words meets ten more, one after the other, a few samples of each once.

Learned from speakers of the train split, rates chosen by those of the valid split, reported on those of the test split.
The seed draws which words are new.
"""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import smidgen
from smidgen import SGD, Classes, Memory, Replay, files
from smidgen.train.job import Job

from ..methods.tasks import BUILD, DATA, keyword_net

OLD, NEW = 30, 10  # words
TAKES: Final = 2  # of each speaker, of a new word: with 18 speakers 36 samples
BASE_RATES: Final = (0.02, 0.01)
BASE_STEP: Final = 32  # where they are compared
EPOCHS, BATCH, COPIES, DECAY = 8, 8, 5, 2e-3  # copies: of the samples of old words, each another one
SHIFT, NOISE = 6, 0.2  # of a copy: frames of 20 ms; deviations of each coefficient
KEPT: Final = 1200  # samples of the replay buffer
STEPS: Final = (32, 64, 128)  # samples of a step: a new one, and old ones
REPLAY_RATES: Final = (0.7, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1)
ALONE_RATES: Final = (0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.003)
AIM: Final = 0.05  # at most so much of the old words' accuracy should be lost with replay
MOST_LOST: Final = 0.04  # of the old words' accuracy, where rates are chosen: a point less than what may be lost
Array = np.ndarray[Any, np.dtype[Any]]
Json = dict[str, Any]


@dataclass(frozen=True)
class Words:
    x: Array  # [N, 1, 49, 10]
    y: Array  # below 30: old ones
    split: Array
    take: Array

    @staticmethod
    @functools.cache
    def of(seed: int) -> Words:
        found = np.load(DATA / "signal" / "arabic_kws40_mfcc.npz")
        place = np.argsort(np.random.default_rng(seed).permutation(OLD + NEW))
        x = found["mfcc"].astype(np.float32)[:, None]
        return Words(x, place[found["label"].astype(int)], found["split"], found["take"])

    def part(self, split: str, first: int, last: int) -> tuple[Array, Array]:
        rows = (self.split == split) & (self.y >= first) & (self.y < last)
        return self.x[rows], self.y[rows]

    def samples_of(self, word: int, rng: np.random.Generator) -> Array:
        rows = np.flatnonzero((self.split == "train") & (self.y == word) & (self.take <= TAKES))
        return rng.permutation(rows)


# -- thirty words ------------------------------------------------------------------------------------------------------


def base(seed: int, rate: float) -> nn.Module:
    """The network that knows the old words; kept in `build`."""
    words, kept = Words.of(seed), BUILD.parent / "tinyol" / f"words-{seed}-{rate:g}.pt"
    model = keyword_net(OLD, seed).eval()
    if not kept.exists():
        x, y = words.part("train", 0, OLD)
        rng = np.random.default_rng(seed)
        x, y = np.concatenate([x, *(another(x, rng) for _ in range(COPIES))]), np.tile(y, 1 + COPIES)
        optimizer = SGD(rate, momentum=0.9, weight_decay=DECAY)
        job = smidgen.compile(model, torch.zeros(BATCH, 1, 49, 10), optimizer=optimizer, kernels="fast:1")
        job.fit(x, y, epochs=EPOCHS, seed=seed, schedule="cosine", warmup=0.05, progress=False)
        job.load_into(model)
        held = io.BytesIO()
        torch.save(model.state_dict(), held)
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.write(kept, held.getvalue())
    model.load_state_dict(torch.load(kept, weights_only=True))
    return model


def another(x: Array, rng: np.random.Generator) -> Array:
    """The same words, spoken a bit earlier or later, in another room."""
    frames = np.arange(x.shape[2]) + rng.integers(-SHIFT, SHIFT + 1, (len(x), 1))
    moved = np.take_along_axis(x, np.clip(frames, 0, x.shape[2] - 1)[:, None, :, None], axis=2)
    size = NOISE * x.std(axis=(0, 2))
    colour, noise = rng.standard_normal((len(x), 1, 1, x.shape[3])), rng.standard_normal(x.shape)
    return (moved + size * colour + 0.5 * size * noise).astype(np.float32)


# -- ten more ----------------------------------------------------------------------------------------------------------


def compiled(model: nn.Module, rate: float, step: int, **options: Any) -> Job:
    """A step of one sample is the new one alone, without replay."""
    memory = Memory(replay=Replay(KEPT, fresh=1)) if step > 1 else Memory()
    return smidgen.compile(model, torch.zeros(step, 1, 49, 10), method="tinyol", optimizer=SGD(rate),
                           classes=Classes(spare=NEW), memory=memory, **{"kernels": "fast:1", **options})  # fmt: skip


def learn(seed: int, base_rate: float, rate: float, step: int, split: str, each: bool) -> Json:
    """Accuracy on old and new words of a split before, and after each new word (or only after the last)."""
    words = Words.of(seed)
    job = compiled(base(seed, base_rate), rate, step)
    known = words.part("train", 0, OLD)
    job.calibrate(known[0])
    if step > 1:
        job.replay.add(*known)

    def accuracy(first: int, last: int) -> float:
        return float(job.evaluate(*words.part(split, first, last))["accuracy"])

    rng = np.random.default_rng(seed)
    old, new = [accuracy(0, OLD)], []
    for word in range(OLD, OLD + NEW):
        assert job.add_class(f"word {word}") == word
        for i in words.samples_of(word, rng):
            job.learn(words.x[i], words.y[i])
        if each or word == OLD + NEW - 1:
            old.append(accuracy(0, OLD))
            new.append(accuracy(OLD, word + 1))
    return {"old": old, "new": new}


def sizes(seed: int, base_rate: float, step: int) -> Json:
    """With the exact kernels of boards, for a Nano 33 BLE."""
    found: Json = {}
    for name, samples in (("replay", step), ("alone", 1)):
        plan = compiled(base(seed, base_rate), 0.1, samples, kernels="exact", device="nano33ble").plan
        found[name] = {"ram_bytes": plan.ram_bytes, "flash_bytes": plan.flash_bytes, "replay_bytes": plan.replay_bytes,
                       "learned": plan.learned_parameters}  # fmt: skip
    return found


__all__ = ["AIM", "ALONE_RATES", "BASE_RATES", "BASE_STEP", "KEPT", "MOST_LOST", "NEW", "OLD", "REPLAY_RATES", "STEPS",
           "base", "learn", "sizes"]  # fmt: skip
