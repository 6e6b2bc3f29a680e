"""The streams for the least memory, against the least that regions need on paper (tests/support/region_bound.py).

SMIDGEN_BOUND says how many networks (`make long`: 500, of which `make test` has a sample)."""

from __future__ import annotations

import os

import pytest

from smidgen.compiler.planner.cost import EXACT
from smidgen.compiler.planner.streams import Way, streamed
from smidgen.compiler.place import arena
from tests.support.generated_streams import network
from tests.support.region_bound import Regions

COUNT, CHUNK = int(os.environ.get("SMIDGEN_BOUND", "500")), 25
TIMES = 3  # as large: that rows are rounded up to 16 bytes should not matter
NEAR = 1.05


def arena_of(seed: int) -> tuple[int, int, int]:
    """With streams; the bound; and without streams."""
    graph = network(seed, TIMES)
    made = []
    for one in (streamed(graph, 1, Way(EXACT), "least"), graph):
        stored, const, state = arena.place_state([one])
        made.append(arena.place(one, 1, stored, const, state).arena_bytes)
    return made[0], Regions(graph).bound(), made[1]


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_networks_need_hardly_more_than_regions_do_on_paper(first: int) -> None:
    saved = 0
    for seed in range(first, min(first + CHUNK, COUNT)):
        found, bound, whole = arena_of(seed)
        assert found <= NEAR * bound, f"seed {seed}: {found} bytes, on paper {bound}"
        saved += found < 0.9 * whole
    assert saved > CHUNK // 3
