"""Random slices of random networks learn as in PyTorch with the same mask, and nothing else moves.

SMIDGEN_SLICED says how many networks (`make long`: 300, of which `make test` has a sample). Needs torch.
"""

from __future__ import annotations

import os

import pytest

from tests.support.generated_slices import outcome

COUNT, CHUNK = int(os.environ.get("SMIDGEN_SLICED", "300")), 15


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_slices_of_random_networks_learn_as_in_pytorch(first: int) -> None:
    found = {seed: outcome(seed) for seed in range(first, min(first + CHUNK, COUNT))}
    assert {seed: o for seed, o in found.items() if not o.passed} == {}
    slices, refused = sum(o.slices for o in found.values()), sum(o.refused for o in found.values())
    assert slices > CHUNK
    assert refused < 0.1 * (slices + refused)
