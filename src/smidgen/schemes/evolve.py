"""Parts that together gain most within a price: a small evolutionary search over additive gains and prices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PEOPLE: Final = 96
GENERATIONS: Final = 160
ELITE: Final = 16
Genome = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One choice for a gene: what it gains and what it costs, alone and beside others."""

    name: str
    gain: float
    bytes: int
    more_bytes: int | None = None  # where a gradient passes by anyway; None: as alone

    @property
    def beside(self) -> int:
        return self.bytes if self.more_bytes is None else self.more_bytes


def best_parts(
    genes: Sequence[Sequence[Part]], most_bytes: int, seed: int = 0, count: int = 8, shared_bytes: int = 0
) -> list[list[Part]]:
    """Different choices, one of each gene, that cost no more than `most_bytes` together; what gains most first. Each
    gene's first choice is to leave it out, for nothing. `shared_bytes` takes a gradient that passes by all of them."""
    rng = random.Random(seed)
    sizes = [len(gene) for gene in genes]

    def value(one: Genome) -> tuple[float, int]:
        chosen = [gene[i] for gene, i in zip(genes, one, strict=True)]
        return sum(part.gain for part in chosen), -price(one)

    def price(one: Sequence[int]) -> int:
        chosen = [gene[i] for gene, i in zip(genes, one, strict=True) if i]
        apart, beside = sum(part.bytes for part in chosen), shared_bytes + sum(part.beside for part in chosen)
        return min(apart, beside) if shared_bytes else apart

    def repaired(one: list[int]) -> Genome:
        """Leaves out at random until it fits."""
        order = [i for i, chosen in enumerate(one) if chosen]
        rng.shuffle(order)
        while order and price(one) > most_bytes:
            at = order.pop()
            one[at] = rng.randrange(one[at]) if one[at] > 1 and rng.random() < 0.5 else 0
            if one[at]:
                order.insert(0, at)
        return tuple(one)

    known: dict[Genome, tuple[float, int]] = {}

    def add(one: Genome) -> None:
        if price(one) <= most_bytes:
            known.setdefault(one, value(one))

    add((0,) * len(genes))
    for _ in range(PEOPLE):
        add(repaired([rng.randrange(size) for size in sizes]))
    for _ in range(GENERATIONS):
        parents = sorted(known, key=lambda one: known[one], reverse=True)[:ELITE]
        for _ in range(PEOPLE):
            a, b = rng.choice(parents), rng.choice(parents)
            child = [rng.choice(pair) for pair in zip(a, b, strict=True)]
            for _ in range(rng.randint(1, 3)):
                at = rng.randrange(len(child))
                child[at] = rng.randrange(sizes[at])
            add(repaired(child))
    best = sorted(known, key=lambda one: known[one], reverse=True)[:count]
    return [[gene[i] for gene, i in zip(genes, one, strict=True)] for one in best]


__all__ = ["Part", "best_parts"]
