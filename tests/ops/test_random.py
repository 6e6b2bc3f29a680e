"""Dropout's hash: numpy and C draw the same mask, and masks look random along every input of the hash."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smidgen import ops
from smidgen.ir import Array, Batch, DType, Tensor
from smidgen.ops.random import hashed
from smidgen.runtime import library

COUNT = 1 << 16


def bits(seed: int, step: int, key: int, first: int = 0) -> Array:
    """32 columns of 0/1 for COUNT elements."""
    words = hashed(np.array([seed, step], np.int32), key, np.arange(first, first + COUNT, dtype=np.uint32))
    return (words[:, None] >> np.arange(32, dtype=np.uint32)) & 1


def test_every_bit_is_fair() -> None:
    for seed, step, key in itertools.product((0, 1, -5), (0, 1, 77), (0, 1, 2)):
        share = bits(seed, step, key).mean(axis=0)
        assert np.abs(share - 0.5).max() < 5 * 0.5 / COUNT**0.5


def test_masks_of_other_seeds_steps_keys_and_elements_are_uncorrelated() -> None:
    base = (3, 10, 2)
    reference = bits(*base)[:, -1] * 2.0 - 1
    others = [bits(3 + d, 10, 2) for d in (1, 2, 256, -3)] + [bits(3, 10 + d, 2) for d in (1, 2, 3, 100)]
    others += [bits(3, 10, 2 + d) for d in (1, 2, 3, 1000)] + [bits(10, 3, 2), bits(2, 10, 3), bits(3, 2, 10)]
    others += [bits(*base, first=d) for d in (1, 2, 3, 4, 8, 64, 1024, COUNT)]
    for other in others:
        signs = other[:, -1] * 2.0 - 1
        assert abs(float((reference * signs).mean())) < 5 / COUNT**0.5


def test_neighbouring_pairs_and_bytes_are_spread_evenly() -> None:
    words = hashed(np.array([1, 1], np.int32), 1, np.arange(COUNT, dtype=np.uint32))
    for shift in (0, 8, 16, 24):
        counts = np.bincount((words >> np.uint32(shift)) & 255, minlength=256)
        chi2 = float(((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum())
        assert 150 < chi2 < 380  # 255 degrees of freedom: mean 255, deviation 22.6
    pairs = np.bincount((words[:-1] >> np.uint32(28)) * 16 + (words[1:] >> np.uint32(28)), minlength=256)
    chi2 = float(((pairs - COUNT / 256) ** 2 / (COUNT / 256)).sum())
    assert 150 < chi2 < 380


def test_changing_one_bit_of_any_input_changes_half_of_the_result() -> None:
    index = np.arange(0, 1 << 20, 257, dtype=np.uint32)
    counter = np.array([5, 9], np.int32)
    base = hashed(counter, 3, index)
    for bit in range(31):
        flipped = [
            hashed(counter ^ np.array([1 << bit, 0], np.int32), 3, index),
            hashed(counter ^ np.array([0, 1 << bit], np.int32), 3, index),
            hashed(counter, 3 ^ (1 << bit), index),
            hashed(counter, 3, index ^ np.uint32(1 << bit)),
        ]
        for words in flipped:
            changed = np.unpackbits((words ^ base).view(np.uint8)).mean()
            assert 0.48 < changed < 0.52


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_share_kept_is_one_minus_p_and_the_mean_is_kept(p: float) -> None:
    (y,) = ops.get("dropout").ref(np.ones(COUNT), np.array([1, 2], np.int32), p=p, key=4, run=ops.Run())
    assert float((y > 0).mean()) == pytest.approx(1 - p, abs=5 * (p * (1 - p) / COUNT) ** 0.5)
    if p < 1:
        assert float(y.mean()) == pytest.approx(1, abs=5 * (p / (1 - p) / COUNT) ** 0.5)


@pytest.mark.parametrize("name", ["dropout", "feature_dropout"])
@pytest.mark.parametrize("counter", [(0, 0), (-1, 2**31 - 1), (-(2**31), 1)])
def test_a_sample_gets_the_same_mask_alone_in_a_loop_and_in_the_batch(name: str, counter: tuple[int, int]) -> None:
    shape, op, attrs = (5, 3, 4, 70), ops.get(name), {"p": 0.4, "key": -9}
    x, state = np.ones(shape, np.float32), np.array(counter, np.int32)
    (whole,) = op.ref(x, state, **attrs, run=ops.Run(5, 5, 0))

    def in_c(part: Array, leading: int | Batch, run: tuple[int, int, int]) -> Array:
        t = Tensor("x", (leading, *shape[1:]))
        call = ops.Call((t, Tensor("c", (2,), DType.I32)), (t,), attrs)
        params = [v.at(run[0]) if isinstance(v, Batch) else v for v in op.params(call)]
        y = np.zeros_like(part)
        assert library.run_kernel(op.kernels["f32"], [y, part, state], params, run) is None
        return y

    np.testing.assert_array_equal(in_c(x, Batch(1), (5, 5, 0)), whole)
    for i in range(5):
        (alone,) = op.ref(x[i : i + 1], state, **attrs, run=ops.Run(5, 5, i))
        np.testing.assert_array_equal(alone, whole[i : i + 1])
        np.testing.assert_array_equal(in_c(x[i : i + 1].copy(), 1, (5, 5, i)), whole[i : i + 1])
    if name == "feature_dropout":
        assert ((whole == 0).all(axis=(1, 2)) | (whole > 0).all(axis=(1, 2))).all()


def test_an_empty_tensor_with_huge_other_axes_takes_no_time() -> None:
    huge, empty = 2**31 - 1, np.zeros(1, np.float32)
    for sizes in ((huge, 0, huge), (huge, huge, 0)):
        params = [*sizes, 1, 0, 0, 1.0]
        assert library.kernel_needs("feature_dropout_f32", params, 3) == [0, 0, 8]
        assert library.run_kernel("feature_dropout_f32", [empty, empty, np.zeros(2, np.int32)], params) is None
