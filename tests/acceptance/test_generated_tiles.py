"""Random networks of wide blocks learn the same bits with random chains of gradients in tiles of channels as with whole
maps, in f32 and in int8, and are proven safe.

SMIDGEN_TILED says how many networks (`make long`: 300, of which `make test` has a sample), two choices of tiles each.
"""

from __future__ import annotations

import os

import pytest

from tests.support.generated_tiles import outcome

COUNT, CHUNK = int(os.environ.get("SMIDGEN_TILED", "300")), 10


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_chains_of_random_networks_learn_the_same_bits_in_tiles(first: int) -> None:
    found = [outcome(seed) for seed in range(first, min(first + CHUNK, COUNT))]
    assert first or sum(found) >= 8, "in the first ten there are chains"
