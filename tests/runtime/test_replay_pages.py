"""A replay buffer whose samples are in pages: the same samples as in memory, and whatever a card does is found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smidgen.ir import Array, DType
from smidgen.runtime.replay import Added, ArrayPager, Buffer, Kind, Part, Shape

LABEL = Part((1,), DType.I32, Kind.RAW)
SEVERAL = (Part((1, 150), DType.F32, Kind.INT8), Part((2, 3), DType.U8, Kind.RAW), Part((1, 7), DType.F32, Kind.F32))


def pages(of: Shape, room: int | None = None) -> ArrayPager:
    return ArrayPager(np.full(of.page + of.page_bytes if room is None else room, 0xEE, np.uint8))


def buffers(of: Shape) -> tuple[Buffer, Buffer]:
    """In memory, and with samples in pages."""
    outside = replace(of, is_outside=True, page=512)
    here = Buffer(of, np.zeros(of.bytes, np.uint8))
    return here, Buffer(outside, np.zeros(outside.bytes, np.uint8), pages(outside))


def samples(parts: tuple[Part, ...], n: int, classes: int, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    made = []
    for part in parts:
        rows = part.rows(n)
        rows[...] = rng.standard_normal(rows.shape) * 20 if part.dtype is DType.F32 else rng.integers(0, 99, rows.shape)
        made.append(rows)
    labels = np.minimum(rng.geometric(0.5, n) - 1, max(classes - 1, 0)).astype(np.int32)
    return [*made, labels]


@pytest.mark.parametrize(("classes", "each"), [(0, 0), (1, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4)])
def test_ram_holds_counters_and_classes_only(classes: int, each: int) -> None:
    of = Shape(70_001, classes, (Part((1, 5), DType.F32, Kind.INT8), LABEL), is_outside=True)
    assert of.bytes == -(-(16 + 8 * max(classes, 1) + 70_001 * each) // 4) * 4
    assert of.page_bytes == 70_001 * (4 + 8 + 4 + 4)


def test_what_is_in_memory_has_no_pages() -> None:
    assert Shape(9, 2, (Part((1, 5), DType.F32, Kind.F32), LABEL)).page_bytes == 0


@pytest.mark.parametrize("classes", [0, 3, 300])
def test_the_same_samples_are_kept_and_drawn_as_in_memory(classes: int) -> None:
    of = Shape(max(17, classes), classes, (*SEVERAL, LABEL), seed=5)
    here, there = buffers(of)
    for turn in range(12):
        given = samples(SEVERAL, 40, classes, turn)
        assert here.add(given, 40) == there.add(given, 40)
        for k in (1, 7, 25):
            for ours, theirs in zip(there.draw(k), here.draw(k), strict=True):
                assert ours.tobytes() == theirs.tobytes()
    assert not there.wrong()
    head = 16 + 8 * max(classes, 1)
    assert there.memory[:head].tobytes() == here.memory[:head].tobytes()
    assert here.held == there.held == of.samples


def filled() -> tuple[Buffer, ArrayPager]:
    of = Shape(6, 3, (*SEVERAL, LABEL), is_outside=True, page=64)
    pager = pages(of)
    found = Buffer(of, np.zeros(of.bytes, np.uint8), pager)
    given = samples(SEVERAL, 40, 3)
    given[-1][:] = np.arange(40) % 3
    found.add(given, 40)
    assert not found.wrong()
    return found, pager


def test_any_bit_that_a_card_loses_is_found_when_its_sample_is_drawn() -> None:
    found, pager = filled()
    each = found.shape.page_bytes // 6
    for at in range(64, 64 + each, 3):
        pager.pages[at] ^= 16
        assert found.wrong()
        with pytest.raises(OSError, match="of the replay buffer"):
            found.draw(6)
        pager.pages[at] ^= 16
    assert not found.wrong()


def test_a_sample_of_another_class_than_noted_is_found() -> None:
    found, pager = filled()
    each = found.shape.page_bytes // 6
    pager.pages[64 : 64 + each] = pager.pages[64 + each : 64 + 2 * each].copy()
    assert found.wrong() == "a sample of the replay buffer is of another class than noted"


def test_a_failed_draw_is_not_counted() -> None:
    found, pager = filled()
    before = found.counters.copy()
    pager.pages[70] ^= 1
    with pytest.raises(OSError, match="not what was written"):
        found.draw(6)
    assert np.array_equal(found.counters, before)


def test_a_card_that_cannot_be_written_keeps_nothing_and_counts_nothing() -> None:
    of = Shape(6, 3, (*SEVERAL, LABEL), is_outside=True)
    each = of.page_bytes // 6
    found = Buffer(of, np.zeros(of.bytes, np.uint8), pages(of, 2 * each + 10))
    given = samples(SEVERAL, 4, 3)
    assert found.add(given, 4) == [Added.KEPT, Added.KEPT, Added.NOT_WRITTEN, Added.NOT_WRITTEN]
    assert list(found.counters[:2]) == [2, 2]
    assert sum(found.held_of(c) for c in range(3)) == sum(found.seen_of(c) for c in range(3)) == 2
    assert not found.wrong()


def test_without_a_pager_nothing_happens() -> None:
    of = Shape(6, 0, (*SEVERAL, LABEL), is_outside=True)
    found = Buffer(of, np.zeros(of.bytes, np.uint8))
    assert found.add(samples(SEVERAL, 1, 0), 1) == [Added.NOT_WRITTEN]
    assert not found.memory.any()


def test_whatever_pages_hold_nothing_outside_is_touched() -> None:
    rng = np.random.default_rng(7)
    for turn in range(100):
        of = Shape(6, 3, (*SEVERAL, LABEL), is_outside=True, page=64, seed=turn)
        memory = rng.integers(0, 256, of.bytes + 128).astype(np.uint8)
        pager = pages(of, 64 + of.page_bytes + 64)
        pager.pages[64:-64] = rng.integers(0, 256, of.page_bytes)
        found = Buffer(of, memory[64:-64], pager)
        if turn % 2 == 0:
            found.memory[:] = 0
            found.add(samples(SEVERAL, 20, 3, turn), 20)
            at = rng.integers(64, 64 + of.page_bytes, 3)
            pager.pages[at] = rng.integers(0, 256, 3)
        around = memory[:64].tobytes(), memory[-64:].tobytes()
        found.wrong()
        for _ in range(3):
            found.add(samples(SEVERAL, 1, 3, turn), 1)
            try:
                found.draw(5)
            except OSError:
                continue
        assert (memory[:64].tobytes(), memory[-64:].tobytes()) == around
        assert (pager.pages[:64] == 0xEE).all()
        assert (pager.pages[-64:] == 0xEE).all()
