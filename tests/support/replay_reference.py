"""The replay buffer of runtime/replay.c once more, in numpy: lists of samples in place of bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from smidgen.ir import Array
from smidgen.ops.random import hashed
from smidgen.runtime.replay import Kind, Shape

ADD_KEY, DRAW_KEY = 0x52504C41, 0x52504C44
LEAST = np.float32(2.0**-119)
MOST = np.array(0x7C010203, np.uint32).view(np.float32)[()]


def below(seed: int, step: int, key: int, index: int, bound: int) -> int:
    bits = hashed(np.array([seed, step]), key, np.array([index], np.uint32))
    return int(bits[0]) * bound >> 32


def kept(row: Array, kind: Kind) -> Array:
    """A part of a sample as the buffer gives it back."""
    if kind is not Kind.INT8:
        return row
    most = np.abs(row).max()
    if most < LEAST:
        return np.zeros_like(row)
    scale = min(np.float32(most) / np.float32(127), MOST)
    return np.clip(np.rint(row / scale), -127, 127).astype(np.int8).astype(np.float32) * scale


@dataclass
class Reference:
    shape: Shape
    samples: list[list[Array]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    seen: dict[int, int] = field(default_factory=dict)
    offered: int = 0
    drawn: int = 0

    def held(self, number: int) -> int:
        return self.labels.count(number)

    def add(self, parts: list[Array]) -> bool:
        own = int(parts[-1].reshape(-1)[0]) if self.shape.classes else 0
        step, self.offered = self.offered, self.offered + 1
        self.seen[own] = self.seen.get(own, 0) + 1
        sample = [kept(row, part.kind) for row, part in zip(parts, self.shape.parts, strict=True)]
        if len(self.samples) < self.shape.samples:
            self.samples.append(sample)
            self.labels.append(own)
            return True
        most = max(map(self.held, self.labels))
        if self.held(own) < most and self.held(own) + 1 >= self.seen[own]:
            places = [i for i, c in enumerate(self.labels) if self.held(c) == most]
            place = places[below(self.shape.seed, step, ADD_KEY, 0, len(places))]
        else:
            places = [i for i, c in enumerate(self.labels) if c == own]
            n = below(self.shape.seed, step, ADD_KEY, 0, self.seen[own])
            if n >= len(places):
                return False
            place = places[n]
        self.samples[place], self.labels[place] = sample, own
        return True

    def draw(self, k: int) -> list[Array]:
        m = len(self.samples)
        chosen = list(range(m)) * (k // m)
        left = k % m
        for place in range(m):
            if left and below(self.shape.seed, self.drawn, DRAW_KEY, place, m - place) < left:
                chosen.append(place)
                left -= 1
        self.drawn += 1
        return [np.concatenate([self.samples[i][p] for i in chosen]) for p in range(len(self.shape.parts))]
