"""View: any order of permutes and reshapes rearranges as numpy does."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from smidgen.compiler.passes.view import View

# Views.


@pytest.mark.parametrize("seed", range(60))
def test_a_view_rearranges_as_numpy_does(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.choice([1, 2, 2, 3, 4, 6]) for _ in range(rng.randint(1, 5)))
    array = np.arange(math.prod(shape)).reshape(shape)
    solid = tuple(d for d in shape if d != 1)
    index = iter(range(len(solid)))
    view = View("x", solid, tuple((next(index),) if d != 1 else () for d in shape))
    for _ in range(5):
        if rng.random() < 0.5:
            perm = rng.sample(range(len(view.groups)), len(view.groups))
            view, array = view.permuted(perm), array.transpose(perm)
        else:
            sizes = _other_shape(rng, array.size)
            new = view.reshaped(sizes)
            if new is not None:
                view, array = new, array.reshape(sizes)
        assert view.shape == array.shape
        for seen in (view, view.joined()):
            base = np.arange(math.prod(shape)).reshape(seen.dims)
            np.testing.assert_array_equal(base.transpose(seen.order).reshape(seen.shape), array)
        assert view.natural == (array.ravel() == np.arange(array.size)).all() or array.size == 1


def _other_shape(rng: random.Random, count: int) -> tuple[int, ...]:
    sizes = []
    while count > 1:
        divisor = rng.choice([d for d in range(2, count + 1) if count % d == 0])
        sizes.append(divisor)
        count //= divisor
        if rng.random() < 0.2:
            sizes.append(1)
    return tuple(sizes)
