"""Offsets for blocks of memory with known lives: first fits in several orders, then exchanges in the order.

The work is limited by a count, not by a time, so that the same model gives the same program on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .effort import BLOCK, PAIR, spend
from .errors import Internal

WORK, MOST_ROUNDS = 10_000_000, 1000  # comparisons of two blocks, and exchanges, spent on a placement


@dataclass(frozen=True, slots=True)
class Block:
    """`bytes` (aligned) that are in use from node `birth` to node `death`, both included."""

    name: str
    bytes: int
    birth: int
    death: int


def peak(blocks: Sequence[Block]) -> int:
    """Largest sum of bytes alive at one moment: no placement can be smaller."""
    change: dict[int, int] = {}
    for b in blocks:
        change[b.birth] = change.get(b.birth, 0) + b.bytes
        change[b.death + 1] = change.get(b.death + 1, 0) - b.bytes
    best = total = 0
    for moment in sorted(change):
        total += change[moment]
        best = max(best, total)
    return best


def first_fit(order: Sequence[Block]) -> tuple[dict[str, int], int]:
    """Blocks one by one into the lowest gap that is free during their life; the offsets, and the end of the last."""
    work = _Search(order)
    offsets, top = work.placed(range(len(order)))
    return dict(zip((b.name for b in order), offsets, strict=True)), top


def hasty(blocks: Sequence[Block]) -> tuple[dict[str, int], int]:
    """One order will do: where nothing could be low enough."""
    return gaps_filled(blocks, {}, sum(b.bytes for b in blocks)) or ({}, 0)


def gaps_filled(blocks: Sequence[Block], given: Mapping[str, int], most: int) -> tuple[dict[str, int], int] | None:
    """Some blocks where they are, the others, large ones first, in the tightest gaps, or else in the lowest; None if
    the end would be above `most`."""
    work = _Search(blocks)
    fixed = [i for i, b in enumerate(blocks) if b.name in given]
    rest = [i for i, b in enumerate(blocks) if b.name not in given]
    rest.sort(key=lambda i: (-blocks[i].bytes, blocks[i].birth))
    before = [given.get(b.name, 0) for b in blocks]
    for tightest in (True, False):
        found = work._placed([*fixed, *rest], tightest, len(fixed), before, most)
        if found is not None:
            return dict(zip((b.name for b in blocks), found[0], strict=True)), found[1]
    return None


def searched(blocks: Sequence[Block], enough: int, most_rounds: int = MOST_ROUNDS) -> tuple[dict[str, int], int]:
    """The best of several orders, then of exchanges in the best one, until the end is at most `enough` or the rounds
    and the work are spent."""
    if not blocks:
        return {}, 0
    offsets, top = _Search(blocks).best(enough, most_rounds)
    if top < peak(blocks):
        raise Internal("a placement below its own lower bound")
    return dict(zip((b.name for b in blocks), offsets, strict=True)), top


class _Search:
    """Blocks are numbers here. An order of them gives a placement: each goes as low as those before it allow, or into
    the tightest gap that they leave."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.sizes = [b.bytes for b in blocks]
        self.beside = _beside(blocks)
        self.pairs = sum(map(len, self.beside))
        spend(BLOCK * len(blocks) + PAIR * self.pairs)

    def placed(self, order: Sequence[int], tightest: bool = False) -> tuple[list[int], int]:
        found = self._placed(order, tightest, 0, [], sum(self.sizes))
        if found is None:
            raise Internal("blocks that do not fit beside each other")
        return found

    def _placed(
        self, order: Sequence[int], tightest: bool, same: int, before: Sequence[int], most: int
    ) -> tuple[list[int], int] | None:
        """None: the end would be above `most`. The first `same` blocks of the order are where they were before."""
        sizes, beside = self.sizes, self.beside
        spend(PAIR * self.pairs * (len(order) - same) // max(len(order), 1))
        spans: list[tuple[int, int] | None] = [None] * len(sizes)  # where a block is, once it has its place
        top = 0
        for i in order[:same]:
            offset, end = spans[i] = before[i], before[i] + sizes[i]
            top = max(top, end)
        placed = spans.__getitem__
        for i in order[same:]:
            size, start, best, least = sizes[i], 0, -1, 0
            for offset, end in sorted(filter(None, map(placed, beside[i]))):
                gap = offset - start
                if gap >= size:
                    if not tightest:
                        best = start
                        break
                    if best < 0 or gap < least:
                        best, least = start, gap
                if end > start:
                    start = end
            at = start if best < 0 else best
            spans[i] = at, at + size
            if at + size > top:
                top = at + size
                if top > most:
                    return None
        return [span[0] for span in spans if span is not None], top

    def orders(self) -> list[list[int]]:
        blocks = self.blocks
        keys = [
            lambda i: (-blocks[i].bytes, blocks[i].birth),
            lambda i: (-(blocks[i].death - blocks[i].birth), -blocks[i].bytes),
            lambda i: (-blocks[i].bytes * (blocks[i].death - blocks[i].birth + 1), blocks[i].birth),
            lambda i: (blocks[i].birth, -blocks[i].bytes),
            lambda i: (-blocks[i].death, -blocks[i].bytes),
        ]
        return [sorted(range(len(blocks)), key=key) for key in keys]

    def best(self, enough: int, most_rounds: int) -> tuple[list[int], int]:
        """A walk from the best order for each of the two rules."""
        starts: dict[bool, tuple[list[int], list[int], int]] = {}
        for tightest in (True, False):
            made = [(order, *self.placed(order, tightest)) for order in self.orders()]
            starts[tightest] = min(made, key=lambda one: one[2])
            if starts[tightest][2] <= enough:
                return starts[tightest][1:]
        rounds = min(most_rounds, WORK // max(self.pairs, 1)) // 2
        best = min(starts.values(), key=lambda one: one[2])[1:]
        for tightest, start in sorted(starts.items(), key=lambda one: one[1][2]):
            found = self._exchanged(*start, tightest, enough, rounds)
            best = min(best, found, key=lambda one: one[1])
            if best[1] <= enough:
                break
        return best

    def _exchanged(
        self, order: list[int], offsets: list[int], top: int, tightest: bool, enough: int, rounds: int
    ) -> tuple[list[int], int]:
        """What reaches the top goes earlier, or a block of a stack that does so, or that one changes places with one
        beside it; or any block goes earlier."""
        rng = random.Random(0)
        for _ in range(rounds):
            trial = list(order)
            kind = rng.random()
            if kind < 0.7:
                block = rng.choice(self._stack(offsets, top, rng))
                if kind < 0.35 or not self.beside[block]:
                    same = _earlier(trial, block, rng)
                else:
                    at, other = trial.index(block), trial.index(rng.choice(self.beside[block]))
                    trial[at], trial[other] = trial[other], trial[at]
                    same = min(at, other)
            else:
                high = [i for i in order if offsets[i] + self.sizes[i] == top]
                same = min(_earlier(trial, block, rng) for block in (high if kind < 0.9 else [rng.choice(order)]))
            found = self._placed(trial, tightest, same, offsets, top)
            if found is not None:
                (offsets, top), order = found, trial
            if top <= enough:
                break
        return offsets, top

    def _stack(self, offsets: Sequence[int], top: int, rng: random.Random) -> list[int]:
        """From a block that ends at the top down to the bottom, each right below the one before."""
        ends = [offset + size for offset, size in zip(offsets, self.sizes, strict=True)]
        found = [rng.choice([i for i, end in enumerate(ends) if end == top])]
        while offsets[found[-1]] > 0:
            below = [j for j in self.beside[found[-1]] if ends[j] == offsets[found[-1]] and self.sizes[j]]
            if not below:
                break
            found.append(rng.choice(below))
        return found


def _earlier(order: list[int], block: int, rng: random.Random) -> int:
    """Where the block went to."""
    at = order.index(block)
    to = rng.randrange(at + 1)
    order.insert(to, order.pop(at))
    return to


def _beside(blocks: Sequence[Block]) -> list[list[int]]:
    """Block → those that are alive at the same time."""
    found: list[list[int]] = [[] for _ in blocks]
    alive: list[int] = []
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].birth):
        alive = [j for j in alive if blocks[j].death >= blocks[i].birth]
        for j in alive:
            found[i].append(j)
            found[j].append(i)
        alive.append(i)
    return found
