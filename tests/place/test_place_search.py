"""Offsets for blocks with known lives."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import pytest

from smidgen.compiler.effort import metered
from smidgen.compiler.place import solver
from smidgen.compiler.place.first_fit import (
    Block,
    FirstFits,
    Part,
    _Search,
    first_fit,
    gaps_filled,
    hasty,
    peak,
    searched,
)
from smidgen.compiler.place.solver import nearer, within


def generated(seed: int, count: int = 40) -> list[Block]:
    rng = random.Random(seed)
    born = [rng.randrange(60) for _ in range(count)]
    return [Block(f"b{i}", 16 * rng.randint(0, 20), at, at + rng.randrange(25)) for i, at in enumerate(born)]


def in_parts(seed: int, count: int = 40) -> list[Block]:
    """Of which some change their size and place in the course of their life."""
    rng = random.Random(seed)
    found = []
    for block in generated(seed, count):
        parts, at = [], block.birth
        while at <= block.death and rng.random() < 0.7:
            end = rng.randint(at, block.death)
            parts.append(Part(16 * rng.randrange(6), 16 * rng.randint(1, 20), at, end))
            at = end + 1
        some = replace(block, bytes=max(p.at + p.bytes for p in parts), some=tuple(parts), death=at - 1) if parts else 0
        found.append(some or block)
    return found


def overlaps(blocks: Sequence[Block], offsets: Mapping[str, int]) -> list[tuple[Block, Block]]:
    """Pairs that live at a time and share a byte."""
    return [
        (a, b)
        for a, b in combinations([b for b in blocks if b.bytes], 2)
        for p in a.parts
        for q in b.parts
        if p.birth <= q.death and q.birth <= p.death
        if offsets[a.name] + p.at < offsets[b.name] + q.at + q.bytes
        if offsets[b.name] + q.at < offsets[a.name] + p.at + p.bytes
    ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("made", [generated, in_parts])
def test_no_two_blocks_that_live_at_a_time_share_a_byte(made: Callable[[int], list[Block]], seed: int) -> None:
    blocks = made(seed)
    for offsets, top in (first_fit(blocks), searched(blocks, peak(blocks)), hasty(blocks)):
        assert top == max(offsets[b.name] + b.bytes for b in blocks) >= peak(blocks)
        assert not overlaps(blocks, offsets)


def test_the_peak_counts_what_a_block_takes_at_the_time() -> None:
    for seed in range(12):
        blocks = in_parts(seed)
        parts = [p for b in blocks for p in b.parts]
        assert peak(blocks) == max(sum(p.bytes for p in parts if p.birth <= at <= p.death) for at in range(90))


def test_a_block_in_parts_lies_as_low_as_they_fit() -> None:
    below = [Block("a", 32, 0, 1), Block("b", 48, 2, 3)]
    stairs = Block("stairs", 64, 1, 2, (Part(0, 32, 1, 1), Part(16, 48, 2, 2)))
    assert first_fit([*below, stairs]) == ({"a": 0, "b": 0, "stairs": 32}, 96)
    assert first_fit([stairs, *below]) == ({"stairs": 0, "a": 32, "b": 64}, 112)
    small = Block("small", 16, 2, 2)
    assert first_fit([stairs, small]) == ({"stairs": 0, "small": 0}, 64)
    assert peak([stairs, small]) == 64


@pytest.mark.parametrize("seed", range(6))
def test_a_solver_places_blocks_in_parts(seed: int) -> None:
    pytest.importorskip("ortools")
    blocks = in_parts(seed)
    top = searched(blocks, peak(blocks))[1]
    found = within(blocks, top, 16)
    assert found is not None
    assert found[1] <= top
    assert not overlaps(blocks, found[0])


def test_a_search_comes_nearer_to_the_bound_than_one_order_does() -> None:
    every = [generated(seed) for seed in range(30)]
    near = sum(searched(blocks, peak(blocks))[1] for blocks in every)
    assert near < sum(hasty(blocks)[1] for blocks in every)
    assert near <= 1.01 * sum(map(peak, every))


def test_the_same_blocks_are_placed_alike_and_what_is_low_enough_is_not_improved() -> None:
    blocks = generated(3)
    assert searched(blocks, 0) == searched(blocks, 0)
    first = searched(blocks, sum(b.bytes for b in blocks))
    assert first[1] >= searched(blocks, 0)[1]


def test_a_solver_mostly_places_without_a_byte_to_spare_more_often_than_a_walk() -> None:
    pytest.importorskip("ortools")
    solved = walked = 0
    for seed in range(20):
        blocks = generated(seed, 120)
        room = peak(blocks)
        found = within(blocks, room, 16)
        solver._KNOWN.clear()
        assert found == within(blocks, room, 16)
        walked += searched(blocks, room)[1] == room
        if found is not None:
            solved += 1
            assert found[1] == max(found[0][b.name] + b.bytes for b in blocks) == room
            assert not overlaps(blocks, found[0])
    assert solved >= 16 > 2 * walked


def test_what_the_solver_was_asked_before_is_known_and_counts_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ortools")
    blocks = generated(3, 120)
    renamed = [replace(b, name=f"other {b.name}") for b in blocks]
    monkeypatch.setattr(solver, "_KNOWN", {})
    with metered() as first:
        found = within(blocks, peak(blocks), 16)
    assert found is not None
    monkeypatch.setattr(solver, "_asked", lambda *args: pytest.fail("asked again"))
    with metered() as second:
        again = within(renamed, peak(blocks), 16)
    assert again is not None
    assert {f"other {name}": offset for name, offset in found[0].items()} == again[0]
    assert first.units == second.units > 0


def test_what_is_impossible_is_not_placed_and_a_lower_top_is_never_a_higher_one() -> None:
    pytest.importorskip("ortools")
    blocks = generated(5, 120)
    assert within(blocks, peak(blocks) - 16, 16) is None
    offsets, top = hasty(blocks)
    better, lower = nearer(blocks, offsets, top, peak(blocks), 16)
    assert peak(blocks) <= lower < top
    assert not overlaps(blocks, better)


def test_small_blocks_go_into_the_gaps_that_large_ones_leave() -> None:
    blocks = [Block("low", 64, 0, 9), Block("high", 64, 0, 9), Block("small", 16, 3, 4), Block("late", 32, 12, 13)]
    found = gaps_filled(blocks, {"low": 0, "high": 80}, 144)
    assert found == ({"low": 0, "high": 80, "small": 64, "late": 0}, 144)
    assert gaps_filled(blocks, {"low": 0, "high": 64}, 128) is None


def defined(
    blocks: Sequence[Block], order: Sequence[int], tightest: bool, same: int, before: Sequence[int], most: int
) -> tuple[list[int], int] | None:
    """A first fit as it is meant."""
    at: dict[int, int] = {}
    for k, i in enumerate(order):
        alive = [j for j in at if blocks[j].birth <= blocks[i].death and blocks[i].birth <= blocks[j].death]
        gaps, start = [], 0
        for low, high in sorted((at[j], at[j] + blocks[j].bytes) for j in alive):
            gaps += [(low - start, start)] if low - start >= blocks[i].bytes else []
            start = max(start, high)
        fits = gaps[0][1] if gaps else start
        if gaps and tightest:
            fits = min(gaps)[1]
        at[i] = before[i] if k < same else fits
        if k >= same and at[i] + blocks[i].bytes > max(most, *(at[j] + blocks[j].bytes for j in at if j != i), 0):
            return None
    return [at[i] for i in range(len(blocks))], max(at[i] + blocks[i].bytes for i in at)


@pytest.mark.parametrize("seed", range(20))
def test_no_place_below_is_free_for_a_block_in_parts(seed: int) -> None:
    blocks = in_parts(seed, 14)
    offsets, _ = first_fit(blocks)
    for k, block in enumerate(blocks):
        before = blocks[: k + 1]
        for lower in range(0, offsets[block.name] if len(block.parts) > 1 else 0, 16):
            assert overlaps(before, {**offsets, block.name: lower})


@pytest.mark.parametrize("seed", range(40))
def test_a_first_fit_is_the_lowest_or_the_tightest_gap_among_those_alive(seed: int) -> None:
    rng = random.Random(seed)
    blocks = generated(seed, rng.randint(1, 60))
    order = rng.sample(range(len(blocks)), len(blocks))
    search = _Search(blocks)
    for tightest in (True, False):
        whole = defined(blocks, order, tightest, 0, [], 1 << 40)
        found = search.placed(order, tightest)
        assert whole == (found.offsets.tolist(), found.top)
        same, most = rng.randrange(len(blocks)), found.top - rng.randrange(64)
        swapped = [*order[:same], *rng.sample(order[same:], len(order) - same)]
        wanted = defined(blocks, swapped, tightest, same, found.offsets.tolist(), most)
        again = search.placed_within(most, swapped, tightest, same, found.offsets)
        assert wanted == (None if again is None else (again.offsets.tolist(), again.top))


def test_pairs_and_neighbours_are_those_that_are_alive_at_the_same_time() -> None:
    for seed in range(10):
        blocks = generated(seed)
        search = _Search(blocks)
        near = {
            i: {j for j, b in enumerate(blocks) if j != i and b.birth <= a.death and a.birth <= b.death}
            for i, a in enumerate(blocks)
        }
        assert {i: set(search.beside(i).tolist()) for i in near} == near
        assert search.pairs == sum(map(len, near.values()))


def test_the_meter_does_not_know_what_is_remembered() -> None:
    blocks, spent = generated(7), []
    for fits in (FirstFits(blocks, 0), None):
        with metered() as meter:
            fits.again() if fits else FirstFits(blocks, 0)
            spent.append(meter.units)
    assert spent[0] == spent[1] > 0
