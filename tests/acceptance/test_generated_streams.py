"""Random streams of random networks give the bits of the same network run layer by layer, and are proven safe.

SMIDGEN_STREAMED says how many networks (`make long`: 500, of which `make test` has a sample), three choices of streams
each.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from smidgen.compiler.graph.rows import Held
from smidgen.compiler.passes.stream_rows import with_streams
from smidgen.errors import BadProgram, UnsafeLayout
from smidgen.program.program import Program
from smidgen.runtime.machine import Machine
from tests.support.generated_streams import network, outcome, program, random_streams

COUNT, CHUNK = int(os.environ.get("SMIDGEN_STREAMED", "500")), 50


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_streams_of_random_networks_give_the_same_bits(first: int) -> None:
    found = [outcome(seed) for seed in range(first, min(first + CHUNK, COUNT))]
    assert sum(streams for streams, _ in found) > 2 * len(found)
    assert sum(nodes for _, nodes in found) > 6 * len(found)


FAULTS: Final[dict[str, Callable[[Held], Held]]] = {
    "one row short": lambda held: replace(held, kept=held.kept + 1),
    "rows come too late": lambda held: replace(held, ahead=held.ahead - 1, kept=held.kept - 1),
    "too few rows": lambda held: replace(held, count=held.count - 1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_that_forgets_or_delays_a_row_is_refused(fault: str) -> None:
    """A skip that is delayed by one, a window without its first row, a value without its last."""
    tried = caught = 0
    for seed in range(40):
        graph, rng = network(seed), random.Random(seed)
        found = random_streams(graph, rng)
        for k, stream in enumerate(found):
            inner = [name for name, held in stream.values.items() if held.most < held.count and held.row_bytes]
            for name in inner[:3]:
                changed = {**stream.values, name: FAULTS[fault](stream.values[name])}
                broken = [*found[:k], replace(stream, values=changed), *found[k + 1 :]]
                tried += 1
                try:
                    Machine(program(with_streams(graph, broken)).to_bytes())
                except (UnsafeLayout, BadProgram):
                    caught += 1
    assert tried > 50
    assert caught > 0.9 * tried  # where the row was not needed, nothing is wrong


def test_streams_survive_the_file() -> None:
    graph = network(3)
    found = random_streams(graph, random.Random(1))
    assert found
    made = program(with_streams(graph, found))
    assert Program.from_bytes(made.to_bytes()) == made
