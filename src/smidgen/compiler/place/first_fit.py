"""Offsets for blocks of memory with known lives: first fits in several orders, then exchanges in the order.

The work is limited by a count, not by a time, so that the same model gives the same program on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...errors import Internal
from ...ir import Array
from ...runtime import library
from ..effort import BLOCK, PAIR, spend

Placement = tuple[dict[str, int], int]
"""Offsets, and the end of the last block."""
WORK, MOST_ROUNDS = 10_000_000, 1000  # comparisons of two blocks, and exchanges, spent on a placement


@dataclass(frozen=True, slots=True)
class Part:
    """`bytes` of a block, `at` bytes behind its start, in use from node `birth` to node `death`."""

    at: int
    bytes: int
    birth: int
    death: int


@dataclass(frozen=True, slots=True)
class Block:
    """`bytes` (aligned) that are in use from node `birth` to node `death`, both included; or of them some parts, each
    for a time, one after the other."""

    name: str
    bytes: int
    birth: int
    death: int
    some: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.some or (Part(0, self.bytes, self.birth, self.death),)


def peak(blocks: Sequence[Block]) -> int:
    """Largest sum of bytes alive at one moment: no placement can be smaller."""
    change: dict[int, int] = {}
    for b in (part for block in blocks for part in block.parts):
        change[b.birth] = change.get(b.birth, 0) + b.bytes
        change[b.death + 1] = change.get(b.death + 1, 0) - b.bytes
    best = total = 0
    for moment in sorted(change):
        total += change[moment]
        best = max(best, total)
    return best


def first_fit(order: Sequence[Block]) -> Placement:
    """Blocks one by one into the lowest gap that is free during their life."""
    work = _Search(order)
    return work.named(work.placed(range(len(order)), tightest=False))


def hasty(blocks: Sequence[Block]) -> Placement:
    """One order will do: where nothing could be low enough."""
    return gaps_filled(blocks, {}, sum(b.bytes for b in blocks)) or ({}, 0)


def gaps_filled(blocks: Sequence[Block], given: Mapping[str, int], most: int) -> Placement | None:
    """Some blocks where they are, the others, large ones first, in the tightest gaps, or else in the lowest; None if
    the end would be above `most`."""
    work = _Search(blocks)
    fixed = [i for i, b in enumerate(blocks) if b.name in given]
    rest = [i for i, b in enumerate(blocks) if b.name not in given]
    rest.sort(key=lambda i: (-blocks[i].bytes, blocks[i].birth))
    before = np.array([given.get(b.name, 0) for b in blocks], np.int64)
    for tightest in (True, False):
        found = work.placed_within(most, [*fixed, *rest], tightest, len(fixed), before)
        if found is not None:
            return work.named(found)
    return None


class FirstFits:
    """The best of several orders, then of exchanges in the best one, until the end is at most `enough` or the rounds
    and the work are spent."""

    def __init__(self, blocks: Sequence[Block], enough: int) -> None:
        self._blocks, self._enough = blocks, enough
        self._search = _Search(blocks)
        self._starts: dict[bool, _Start] = {}
        self._tried = 0
        orders = self._search.orders()
        for tightest in (True, False):
            made = [_Start(order, self._search.placed(order, tightest)) for order in orders]
            self._tried += len(made)
            self._starts[tightest] = min(made, key=lambda one: one.placed.top)
            if self._starts[tightest].placed.top <= enough:
                break

    def lowest(self) -> Placement:
        """Of the orders alone."""
        return self._checked(min((start.placed for start in self._starts.values()), key=lambda one: one.top))

    def exchanged(self) -> Placement:
        """A walk from the best order for each of the two rules."""
        search, best = self._search, min((s.placed for s in self._starts.values()), key=lambda one: one.top)
        rounds = min(MOST_ROUNDS, WORK // max(search.pairs, 1)) // 2
        for tightest, start in sorted(self._starts.items(), key=lambda one: one[1].placed.top):
            if best.top <= self._enough:
                break
            found = search.exchanged(start, tightest, self._enough, rounds)
            best = min(best, found, key=lambda one: one.top)
        return self._checked(best)

    def again(self) -> None:
        """The meter counts the orders once more: plans do not depend on what is remembered here."""
        self._search.count()
        spend(PAIR * self._search.pairs * self._tried)

    def _checked(self, found: _Placed) -> Placement:
        if found.top < peak(self._blocks):
            raise Internal("a placement below its own lower bound")
        return self._search.named(found)


def searched(blocks: Sequence[Block], enough: int) -> Placement:
    """The best that `FirstFits` finds."""
    return FirstFits(blocks, enough).exchanged()


class _Placed(NamedTuple):
    offsets: Array  # block → bytes
    top: int  # the end of the last


class _Start(NamedTuple):
    order: list[int]
    placed: _Placed


class _Search:
    """Blocks are numbers here. An order of them gives a placement: each goes as low as those before it allow, or into
    the tightest gap that they leave."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks
        self.sizes = np.array([b.bytes for b in blocks], np.int64)
        self.births = np.array([b.birth for b in blocks], np.int32)
        self.deaths = np.array([b.death for b in blocks], np.int32)
        self.parts = _listed(blocks)
        self.by_birth = np.argsort(self.births, kind="stable")
        self.pairs = _pairs(self.births, self.deaths)
        self._beside: dict[int, Array] = {}
        self.count()

    def count(self) -> None:
        spend(BLOCK * len(self.blocks) + PAIR * self.pairs)

    def named(self, found: _Placed) -> Placement:
        return dict(zip((b.name for b in self.blocks), found.offsets.tolist(), strict=True)), found.top

    def placed(self, order: Sequence[int], tightest: bool) -> _Placed:
        found = self.placed_within(int(self.sizes.sum()), order, tightest)
        if found is None:
            raise Internal("blocks that do not fit beside each other")
        return found

    def placed_within(
        self, most: int, order: Sequence[int], tightest: bool, same: int = 0, before: Array | None = None
    ) -> _Placed | None:
        """None: the end would be above `most`. The first `same` blocks of the order are where they were before."""
        spend(PAIR * self.pairs * (len(order) - same) // max(len(order), 1))
        offsets = np.zeros(len(order), np.int64) if before is None else before.copy()
        top = library.first_fit(self.parts, order, offsets, same=same, tightest=tightest, most=most)
        return None if top < 0 else _Placed(offsets, top)

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

    def exchanged(self, start: _Start, tightest: bool, enough: int, rounds: int) -> _Placed:
        """What reaches the top goes earlier, or a block of a stack that does so, or that one changes places with one
        beside it; or any block goes earlier."""
        rng = random.Random(0)
        order, now = start
        for _ in range(rounds):
            trial = list(order)
            kind = rng.random()
            if kind < 0.7:
                block = rng.choice(self._stack(now, rng))
                if kind < 0.35 or not len(self.beside(block)):
                    same = _earlier(trial, block, rng)
                else:
                    at, other = trial.index(block), trial.index(rng.choice(self.beside(block).tolist()))
                    trial[at], trial[other] = trial[other], trial[at]
                    same = min(at, other)
            else:
                high = self._highest(now, np.array(order)) if kind < 0.9 else [rng.choice(order)]
                same = min(_earlier(trial, block, rng) for block in high)
            found = self.placed_within(now.top, trial, tightest, same, now.offsets)
            if found is not None:
                now, order = found, trial
            if now.top <= enough:
                break
        return now

    def _highest(self, now: _Placed, among: Array) -> list[int]:
        """Blocks that end at the top."""
        found: list[int] = among[(now.offsets + self.sizes)[among] == now.top].tolist()
        return found

    def _stack(self, now: _Placed, rng: random.Random) -> list[int]:
        """From a block that ends at the top down to the bottom, each right below the one before."""
        ends = now.offsets + self.sizes
        found = [rng.choice(self._highest(now, np.arange(len(ends))))]
        while now.offsets[found[-1]] > 0:
            near = self.beside(found[-1])
            below = near[(ends[near] == now.offsets[found[-1]]) & (self.sizes[near] > 0)].tolist()
            if not below:
                break
            found.append(rng.choice(below))
        return found

    def beside(self, block: int) -> Array:
        """Those that are alive at the same time, in the order of their births."""
        if block not in self._beside:
            near = self.by_birth
            meets = (self.births[near] <= self.deaths[block]) & (self.deaths[near] >= self.births[block])
            self._beside[block] = near[meets & (near != block)]
        return self._beside[block]


def _earlier(order: list[int], block: int, rng: random.Random) -> int:
    """Where the block went to."""
    at = order.index(block)
    to = rng.randrange(at + 1)
    order.insert(to, order.pop(at))
    return to


def _listed(blocks: Sequence[Block]) -> tuple[Array, ...]:
    """As library.first_fit takes them."""
    parts = [part for block in blocks for part in block.parts]
    first = np.cumsum([0, *(len(block.parts) for block in blocks)], dtype=np.int32)
    at, sizes = (np.array([getattr(p, name) for p in parts], np.int64) for name in ("at", "bytes"))
    births, deaths = (np.array([getattr(p, name) for p in parts], np.int32) for name in ("birth", "death"))
    return first, at, sizes, births, deaths


def _pairs(births: Array, deaths: Array) -> int:
    """Of blocks that are alive at the same time, each pair counted for both."""
    ended = np.searchsorted(np.sort(deaths), np.sort(births))  # before each is born
    return 2 * int((np.arange(len(births)) - ended).sum())
