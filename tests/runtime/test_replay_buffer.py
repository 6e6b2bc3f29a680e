"""The replay buffer in C: a reference in numpy to the bit, balanced, uniform, safe on whatever bytes it meets."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen.ir import Array, DType
from smidgen.runtime.replay import Added, Buffer, Kind, Part, Shape
from tests.support.replay_reference import Reference

LABEL = Part((1,), DType.I32, Kind.RAW)


def shape(samples: int, classes: int, *, kind: Kind = Kind.F32, elements: int = 3, seed: int = 0) -> Shape:
    return Shape(samples, classes, (Part((1, elements), DType.F32, kind), LABEL), seed=seed)


def buffer(of: Shape) -> Buffer:
    return Buffer(of, np.zeros(of.bytes, np.uint8))


def sample(value: float, label: int, elements: int = 3) -> list[Array]:
    return [np.full((1, elements), value, np.float32), np.array([label], np.int32)]


@pytest.mark.parametrize(
    ("parts", "each"),
    [((Part((1, 5), DType.F32, Kind.F32), LABEL), 20 + 4), ((Part((1, 5), DType.F32, Kind.INT8), LABEL), 4 + 8 + 4),
     ((Part((2, 3), DType.U8, Kind.RAW), Part((1, 8), DType.F32, Kind.INT8), LABEL), 8 + 12 + 4)],
)  # fmt: skip
def test_its_bytes_can_be_told_before(parts: tuple[Part, ...], each: int) -> None:
    assert Shape(200, 10, parts).bytes == 16 + 8 * 10 + 200 * each
    assert Shape(200, 0, parts).bytes == 16 + 8 + 200 * each


def test_what_cannot_be_a_buffer_has_no_bytes() -> None:
    assert shape(0, 0).bytes == 0
    assert shape(5, 6).bytes == 0, "each class needs a place"
    assert Shape(9, 3, (Part((1, 3), DType.F32, Kind.F32),)).bytes == 0, "a float is no class"
    assert Shape(9, 0, ()).bytes == 0
    assert Shape(9, 0, (LABEL,) * 10).bytes == 0
    assert shape(2**31, 0, elements=2**20).bytes == 0


@pytest.mark.parametrize("classes", [0, 1, 4])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.INT8])
def test_it_is_the_reference_in_numpy_to_the_bit(kind: Kind, classes: int) -> None:
    of = Shape(7, classes, (Part((1, 6), DType.F32, kind), Part((2, 3), DType.U8, Kind.RAW), LABEL), seed=11 + classes)
    here, there = buffer(of), Reference(of)
    rng = np.random.default_rng(classes)
    for i in range(120):
        one = [
            (rng.standard_normal((1, 6)) * 10.0 ** rng.integers(-30, 30)).astype(np.float32),
            rng.integers(0, 256, (2, 3)).astype(np.uint8),
            np.array([min(int(rng.geometric(0.6)) - 1, max(classes - 1, 0))], np.int32),
        ]
        assert here.add(one, 1) == [Added.KEPT if there.add(one) else Added.PASSED]
        for k in (1, 3, 20)[: 1 + i % 3]:
            for ours, theirs in zip(here.draw(k), there.draw(k), strict=True):
                assert ours.tobytes() == theirs.tobytes()
    assert not here.wrong()
    for number in range(classes):
        assert (here.held_of(number), here.seen_of(number)) == (there.held(number), there.seen.get(number, 0))


def test_many_samples_at_once_are_as_one_after_the_other() -> None:
    of = shape(6, 3)
    one, many = buffer(of), buffer(of)
    x, y = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32), np.arange(30, dtype=np.int32) % 3
    found = [one.add([x[i : i + 1], y[i : i + 1]], 1)[0] for i in range(30)]
    assert many.add([x, y], 30) == found
    assert one.memory.tobytes() == many.memory.tobytes()


def test_classes_have_equal_shares_however_the_stream_is_ordered() -> None:
    rng = np.random.default_rng(0)
    for labels in ([0] * 300 + [1] * 20 + [2] * 90 + [3] * 20, list(rng.choice(4, 400, p=[0.85, 0.07, 0.05, 0.03]))):
        b = buffer(shape(40, 4, seed=3))
        for i, label in enumerate(labels):
            b.add(sample(i, label), 1)
        held = [b.held_of(c) for c in range(4)]
        seen = [b.seen_of(c) for c in range(4)]
        assert sum(held) == b.held == 40
        assert seen == [labels.count(c) for c in range(4)]
        most = max(held)
        assert all(h >= most - 1 or h == s for h, s in zip(held, seen, strict=True)), (held, seen)


def test_a_new_class_makes_room_for_itself_at_the_cost_of_the_largest() -> None:
    b = buffer(shape(12, 3))
    b.add([np.zeros((50, 3), np.float32), np.zeros(50, np.int32)], 50)
    assert [b.held_of(c) for c in range(3)] == [12, 0, 0]
    b.add([np.zeros((50, 3), np.float32), np.ones(50, np.int32)], 50)
    assert [b.held_of(c) for c in range(3)] == [6, 6, 0]
    b.add([np.zeros((2, 3), np.float32), np.full(2, 2, np.int32)], 2)
    assert sorted(b.held_of(c) for c in range(2)) == [5, 5]
    assert b.held_of(2) == 2


def chi_square(counts: Array, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("after", [0, 1])
def test_within_its_share_a_class_is_a_uniform_sample_of_its_stream(after: int) -> None:
    """Also when another class took places of it in the middle: 40 samples of class 0, each kept as often."""
    runs, length, room = 1500, 40, 10
    counts = np.zeros(length)
    for seed in range(runs):
        b = buffer(shape(room, 2, elements=1, seed=seed))
        for i in range(length):
            b.add(sample(i, 0, 1), 1)
            if after and i == length // 2:
                b.add([np.full((30, 1), -1, np.float32), np.ones(30, np.int32)], 30)
        x, y = b.draw(b.held)
        kept = x[y == 0].reshape(-1).astype(int)
        assert len(set(kept)) == len(kept) == (room // 2 if after else room)
        counts[kept] += 1
    degrees = length - 1
    assert chi_square(counts, counts.sum() / length) < degrees + 3.5 * np.sqrt(2 * degrees)


def test_a_draw_takes_each_sample_equally_often_and_none_twice() -> None:
    b = buffer(shape(13, 0, elements=1, seed=5))
    b.add([np.arange(13, dtype=np.float32)[:, None], np.zeros(13, np.int32)], 13)
    counts, pairs, rounds = np.zeros(13), np.zeros((13, 13)), 4000
    for _ in range(rounds):
        x = b.draw(4)[0].reshape(-1).astype(int)
        assert len(set(x)) == 4
        counts[x] += 1
        for i in x:
            pairs[i, x] += 1
    assert chi_square(counts, rounds * 4 / 13) < 12 + 3.5 * np.sqrt(24)
    others = pairs[~np.eye(13, dtype=bool)]
    assert chi_square(others, rounds * 4 * 3 / 13 / 12) / 2 < 77 + 3.5 * np.sqrt(2 * 77)


def test_a_draw_of_more_than_it_holds_takes_all_before_any_twice() -> None:
    b = buffer(shape(9, 0, elements=1))
    b.add([np.arange(4, dtype=np.float32)[:, None], np.zeros(4, np.int32)], 4)
    x = b.draw(10)[0].reshape(-1)
    assert sorted(np.bincount(x.astype(int))) == [2, 2, 3, 3]
    assert sorted(b.draw(4)[0].reshape(-1)) == [0, 1, 2, 3]


def test_int8_is_within_half_a_step_of_its_own_scale() -> None:
    rng = np.random.default_rng(0)
    b = buffer(shape(50, 0, kind=Kind.INT8, elements=97))
    x = (rng.standard_normal((50, 97)) * 10.0 ** rng.integers(-35, 36, (50, 1))).astype(np.float32)
    b.add([x, np.zeros(50, np.int32)], 50)
    back = np.concatenate([b.draw(50)[0]])
    scale = np.abs(x).max(1, keepdims=True).astype(np.float64) / 127
    assert (np.abs(back.astype(np.float64) - x) <= scale / 2 * (1 + 1e-5)).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, 1e-38, 3.4028235e38, -3.4028235e38, 1.0])
def test_the_ends_of_what_a_float_can_be_stay_finite(value: float) -> None:
    b = buffer(shape(2, 0, kind=Kind.INT8))
    b.add(sample(value, 0), 1)
    back = b.draw(1)[0]
    assert np.isfinite(back).all()
    assert not b.wrong()
    assert np.allclose(back, value, rtol=1e-6, atol=1e-36)


def test_a_sample_that_cannot_be_used_is_refused_and_changes_nothing() -> None:
    b = buffer(shape(4, 2))
    b.add(sample(1, 0), 1)
    before = b.memory.tobytes()
    assert b.add(sample(1, 2), 1) == [Added.LABEL]
    assert b.add(sample(1, -100), 1) == [Added.LABEL]
    assert b.add(sample(np.nan, 1), 1) == [Added.NOT_FINITE]
    assert b.add(sample(np.inf, 1), 1) == [Added.NOT_FINITE]
    assert b.memory.tobytes() == before


def test_a_draw_from_nothing_leaves_the_counter_alone() -> None:
    b = buffer(shape(4, 2))
    assert b.draw(0)[0].shape == (0, 3)
    assert not b.counters.any()


def filled(kind: Kind) -> Buffer:
    b = buffer(shape(6, 3, kind=kind, elements=2))
    rng = np.random.default_rng(1)
    b.add([rng.standard_normal((20, 2)).astype(np.float32), np.arange(20, dtype=np.int32) % 3], 20)
    assert not b.wrong()
    return b


def test_each_damage_is_found() -> None:
    words = 4 + 2 * 3
    for at, value, said in [
        (0, 7, "more samples than it has room"), (3, 1, "more samples than it has room"), (4, 0, "more of a class"),
        (7, 1, "do not fit its counts"), (words + 2, 1 << 31, "do not fit its counts"),
        (words, 0x7FC00000, "NaN or an infinite"), (words + 1, 0xFF800000, "NaN or an infinite"),
    ]:  # fmt: skip
        b = filled(Kind.F32)
        b.memory.view(np.uint32)[at] = value
        assert said in b.wrong(), (at, b.wrong())
    for scale in (0x7F800000, 0x7FC00000, 0xBF800000, 0x7F000000):
        b = filled(Kind.INT8)
        b.memory.view(np.uint32)[words] = scale
        assert "scale" in b.wrong()


def test_whatever_the_memory_holds_nothing_outside_is_touched() -> None:
    rng = np.random.default_rng(7)
    for turn in range(400):
        kind = (Kind.F32, Kind.INT8)[turn % 2]
        of = shape(6, 3, kind=kind, elements=2, seed=turn)
        memory = rng.integers(0, 256, of.bytes + 128).astype(np.uint8)
        b = Buffer(of, memory[64:-64])
        if turn % 4 == 0:
            b.counters[0] = rng.integers(0, 7)
        if turn % 8 == 0:
            b.memory[16:40] = 0
        around = memory[:64].tobytes(), memory[-64:].tobytes()
        b.wrong()
        for _ in range(5):
            b.add(sample(1, int(rng.integers(0, 3)), 2), 1)
            if b.held:
                b.draw(int(rng.integers(1, 20)))
        assert (memory[:64].tobytes(), memory[-64:].tobytes()) == around


@pytest.mark.parametrize(
    ("step", "fresh", "n", "split", "share"),
    [(8, 4, 4, False, 4), (8, 4, 8, False, 0), (8, 4, 6, False, 2), (8, 4, 8, True, 8), (8, 2, 2, False, 6),
     (8, 2, 1, False, 3), (2, 1, 1, False, 1), (1, 1, 1, False, 0), (8, 8, 8, False, 0), (8, 4, 60, True, 20)],
)  # fmt: skip
def test_old_samples_have_their_share_of_a_step(step: int, fresh: int, n: int, split: bool, share: int) -> None:
    of = Shape(20, 0, (Part((1, 1), DType.F32, Kind.F32), LABEL), fresh, step)
    b = buffer(of)
    assert b.share(n, split) == 0, "of none there are none"
    b.add([np.zeros((20, 1), np.float32), np.zeros(20, np.int32)], 20)
    assert b.share(n, split) == share
