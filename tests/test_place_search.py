"""Offsets for blocks with known lives."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from smidgen.place_search import Block, first_fit, peak, searched


def generated(seed: int, count: int = 40) -> list[Block]:
    rng = random.Random(seed)
    born = [rng.randrange(60) for _ in range(count)]
    return [Block(f"b{i}", 16 * rng.randint(0, 20), at, at + rng.randrange(25)) for i, at in enumerate(born)]


@pytest.mark.parametrize("seed", range(12))
def test_no_two_blocks_that_live_at_a_time_share_a_byte(seed: int) -> None:
    blocks = generated(seed)
    for offsets, top in (first_fit(blocks), searched(blocks, peak(blocks)), searched(blocks, 0, most_rounds=0)):
        assert top == max(offsets[b.name] + b.bytes for b in blocks) >= peak(blocks)
        for a, b in combinations(blocks, 2):
            if a.bytes and b.bytes and a.birth <= b.death and b.birth <= a.death:
                assert offsets[a.name] + a.bytes <= offsets[b.name] or offsets[b.name] + b.bytes <= offsets[a.name]


def test_a_search_comes_nearer_to_the_bound_than_one_order_does() -> None:
    every = [generated(seed) for seed in range(30)]
    near = sum(searched(blocks, peak(blocks))[1] for blocks in every)
    assert near < sum(searched(blocks, 0, most_rounds=0)[1] for blocks in every)
    assert near <= 1.01 * sum(map(peak, every))


def test_the_same_blocks_are_placed_alike_and_what_is_low_enough_is_not_improved() -> None:
    blocks = generated(3)
    assert searched(blocks, 0) == searched(blocks, 0)
    first = searched(blocks, sum(b.bytes for b in blocks))
    assert first[1] >= searched(blocks, 0)[1]
