"""WISDM: an autoencoder that knows one person's walking learns another one's from a stream; other activities are what
it should find unusual. Of a person, what is learned and what is scored are different minutes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn

import smidgen
from smidgen.train.job import Job

from ..methods.tasks import DATA, GRAVITY

HELD_BACK: Final = 11  # people that the rate is chosen with; the others are reported
LONG, STRIDE = 60, 10  # of a stretch that is one sample, of the 80 (4 s) that are recorded together: 3 s, each half
BANDS: Final = 8  # of the spectrum, a third of a hertz each
WALKING: Final = 0
KNOWN, KNOWN_LATER = slice(0, 20), slice(20, 30)  # recordings of A: to pretrain with, to see whether it drifts
ADAPT, SCORED = slice(0, 15), slice(15, 30)  # recordings of B
DRIFT_LIMIT: Final = 0.25  # docs/howto/methods.md
DRIFT_SAMPLES: Final = 30  # of the stream, after which it is looked at: both streams have as many
LIMIT: Final = 10.0  # standard deviations: what is further away counts as this far
HIDDEN, CODE = 24, 6
EPOCHS, BATCH, NOISE, PRETRAIN_RATE = 300, 16, 0.1, 3e-3
RATES: Final = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
Array = np.ndarray[Any, np.dtype[Any]]
Json = dict[str, Any]


@dataclass(frozen=True)
class Recordings:
    x: Array  # [N, 80, 3], in g
    y: Array
    who: Array
    names: tuple[str, ...]  # of activities

    def of(self, person: int, activity: int, which: slice = slice(None)) -> Array:
        """Features of one person's stretches, in the order of time; [0, …] where there is none."""
        x = self.x[(self.who == person) & (self.y == activity)][which]
        starts = range(0, x.shape[1] - LONG + 1, STRIDE)
        return features(np.stack([x[:, i : i + LONG] for i in starts], axis=1).reshape(-1, LONG, 3))


def features(x: Array) -> Array:
    """[N, LONG, 3] → [N, 30]: of each axis its mean, deviation and spectrum, the latter two as logarithms."""
    mean = x.mean(axis=1)
    rest = x - mean[:, None]
    spectrum = np.abs(np.fft.rfft(rest * np.hanning(x.shape[1])[:, None], axis=1))[:, 1 : 1 + BANDS]
    parts = [mean, np.log(0.01 + rest.std(axis=1)), np.log(0.1 + spectrum).reshape(len(x), 3 * BANDS)]
    return np.concatenate(parts, axis=1).astype(np.float32)


@functools.cache
def recordings() -> Recordings:
    found = np.load(DATA / "signal" / "wisdm_watch_accel6.npz")
    return Recordings(found["x"].astype(np.float32) / GRAVITY, found["label"].astype(int), found["subject"].astype(int),
                      tuple(map(str, found["class_names"])))  # fmt: skip


def pairs(part: str) -> list[tuple[int, int]]:
    """Who is known, who comes: everybody once each. `choose` and `report` have no person in common."""
    people = np.random.default_rng(0).permutation(np.unique(recordings().who))
    group = [int(p) for p in (people[-HELD_BACK:] if part == "choose" else people[:-HELD_BACK])]
    return list(zip(group, [*group[1:], group[0]], strict=True))


class Autoencoder(nn.Sequential):
    def __init__(self, channels: int) -> None:
        super().__init__(nn.Linear(channels, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CODE), nn.Tanh(),
                         nn.Linear(CODE, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, channels))  # fmt: skip


class Known:
    """One person's walking: how features are scaled, and a network that reconstructs them."""

    def __init__(self, person: int) -> None:
        known = recordings().of(person, WALKING, KNOWN)
        self.mean, self.deviation = known.mean(axis=0), known.std(axis=0) + np.float32(0.05)
        self.samples = self.scaled(known)
        self.net = pretrained(self.samples).eval()

    def scaled(self, x: Array) -> Array:
        return np.clip((x - self.mean) / self.deviation, -LIMIT, LIMIT).astype(np.float32)

    def of(self, person: int, activity: int, which: slice = slice(None)) -> Array:
        return self.scaled(recordings().of(person, activity, which))

    def compiled(self, rate: float, **options: Any) -> Job:
        x = torch.zeros(1, len(self.mean))
        return smidgen.compile(self.net, x, method="tinyol", loss="mse", optimizer=smidgen.SGD(rate),
                               kernels="exact", **options)  # fmt: skip


def pretrained(samples: Array) -> nn.Module:
    torch.manual_seed(0)
    x = torch.from_numpy(samples)
    net = Autoencoder(x.shape[1])
    optimizer = torch.optim.Adam(net.parameters(), PRETRAIN_RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            noisy = x[rows] + NOISE * torch.randn(len(rows), x.shape[1])
            loss = nn.functional.mse_loss(net(noisy), x[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net


def auc(usual: Array, unusual: Array) -> float:
    """How often what is unusual has the higher score; half of the ties."""
    above = (unusual[:, None] > usual).mean() + 0.5 * (unusual[:, None] == usual).mean()
    return float(above)


def measure(known: int, comes: int, rates: tuple[float, ...]) -> Json:
    """AUC on `comes` before and after its walking was learned at each rate; drift; AUC on `known` itself."""
    start = Known(known)
    program = start.compiled(rates[0]).program

    def deployed(rate: float) -> Job:
        job = Job(program, kernels="exact")
        job.lr = rate
        job.calibrate(start.samples)
        return job

    def others(person: int) -> dict[str, Array]:
        names = recordings().names
        found = {name: start.of(person, k) for k, name in enumerate(names) if k != WALKING}
        return {name: x for name, x in found.items() if len(x)}

    def scores(job: Job, walking: Array, unusual: dict[str, Array]) -> Json:
        usual, found = job.detect(walking), {name: job.detect(x) for name, x in unusual.items()}
        return {"all": auc(usual, np.concatenate(list(found.values()))),
                **{name: auc(usual, score) for name, score in found.items()}}  # fmt: skip

    walking, unusual = start.of(comes, WALKING, SCORED), others(comes)
    later = start.of(known, WALKING, KNOWN_LATER)
    result: Json = {
        "own": scores(deployed(0.0), later, others(known)),
        "before": scores(deployed(0.0), walking, unusual),
        "drift_known": drift(deployed(0.0), later),
        "after": {},
    }
    stream = start.of(comes, WALKING, ADAPT)
    result["drift_comes"] = drift(deployed(0.0), stream)
    for rate in rates:
        job = deployed(rate)
        for sample in stream:
            job.learn(sample)
        result["after"][f"{rate:g}"] = scores(job, walking, unusual)
    return result


def drift(job: Job, stream: Array) -> float:
    for sample in stream[:DRIFT_SAMPLES]:
        job.learn(sample)
    return job.drift


__all__ = ["ADAPT", "DRIFT_LIMIT", "RATES", "SCORED", "WALKING", "Known", "auc", "measure", "pairs", "recordings"]
