"""Episodes of various ways and various shots, as Meta-Dataset draws them (Triantafillou et al. 2020, appendix A): some
classes, as many queries of each, and a support set whose classes are of different sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..errors import BadData
from ..ir import Array
from .sets import ImageSet

LEAST_WAYS, MOST_WAYS, MOST_QUERIES, MOST_OF_CLASS = 5, 50, 10, 100
SKEW: Final = (math.log(0.5), math.log(2.0))  # of the logarithm of a class's weight


@dataclass(frozen=True)
class Episode:
    """Rows of a set, and labels counted from 0."""

    support: Array
    support_labels: Array
    query: Array
    query_labels: Array

    @property
    def ways(self) -> int:
        return int(self.support_labels.max()) + 1


def draw(images: ImageSet, number: int, seed: int, most_support: int, most_ways: int = MOST_WAYS) -> Episode:
    """Episode `number` of the set: the same whatever was drawn before."""
    rng = np.random.default_rng([seed, number, *images.name.encode()])
    rows = {int(c): np.flatnonzero(images.labels == c) for c in images.classes}
    classes = [c for c, found in rows.items() if len(found) >= 2]
    if images.groups is not None:
        classes = _of_one_group(images.groups, classes, rng)
    if len(classes) < LEAST_WAYS:
        raise BadData(
            f"set '{images.name}' has {len(classes)} classes to draw from, an episode needs {LEAST_WAYS}",
            why="a class counts if it is for testing and has two images", help="more classes, or another set",
        )  # fmt: skip
    ways = int(rng.integers(LEAST_WAYS, min(most_ways, len(classes)) + 1))
    chosen = [int(c) for c in rng.permutation(classes)[:ways]]
    sizes = np.array([len(rows[c]) for c in chosen])
    queries = max(1, min(MOST_QUERIES, int(sizes.min()) // 2))
    left = sizes - queries
    share = 1.0 - rng.random()  # from above 0 to 1
    total = min(most_support, int(sum(math.ceil(share * min(MOST_OF_CLASS, n)) for n in left)))
    total = max(total, ways)
    weights = np.exp(rng.uniform(*SKEW, ways)) * sizes
    shots = np.minimum((weights / weights.sum() * (total - ways)).astype(int) + 1, left)
    support, query = [], []
    for c, shot in zip(chosen, shots, strict=True):
        order = rng.permutation(rows[c])
        query.append(order[:queries])
        support.append(order[queries : queries + int(shot)])
    return Episode(
        np.concatenate(support), np.repeat(np.arange(ways), [len(s) for s in support]),
        np.concatenate(query), np.repeat(np.arange(ways), queries),
    )  # fmt: skip


def _of_one_group(groups: Array, classes: list[int], rng: np.random.Generator) -> list[int]:
    """Of those with enough classes."""
    named = {c: str(groups[c]) for c in classes}
    found = {g for g in named.values() if sum(own == g for own in named.values()) >= LEAST_WAYS}
    if not found:
        return classes
    group = sorted(found)[int(rng.integers(len(found)))]
    return [c for c in classes if named[c] == group]


def augmented(images: Array, rng: np.random.Generator, probability: float = 0.9) -> Array:
    """Each moved by up to an eighth of its size, and of other brightness, contrast and colour, or left as it is."""
    made = images.copy()
    for i, image in enumerate(images):
        if rng.random() >= probability:
            continue
        far = [max(1, n // 8) for n in image.shape[1:]]
        padded = np.pad(image, ((0, 0), (far[0], far[0]), (far[1], far[1])), mode="edge")
        y, x = (int(rng.integers(0, 2 * n + 1)) for n in far)
        moved = padded[:, y : y + image.shape[1], x : x + image.shape[2]]
        contrast, brightness = rng.uniform(0.6, 1.4), rng.uniform(-0.4, 0.4)
        colour = rng.uniform(0.8, 1.2, (len(image), 1, 1)) if len(image) > 1 else 1.0
        mean = moved.mean()
        made[i] = np.clip(((moved - mean) * contrast + mean) * colour + brightness, -1, 1)
    return made


__all__ = ["Episode", "augmented", "draw"]
