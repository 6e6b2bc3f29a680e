"""Random networks learn the same bits with random parts of a step row by row as layer by layer, and are proven safe.

SMIDGEN_LEARNING_STREAMED says how many networks (`make long`: 500, of which `make test` has a sample), two choices of
streams each.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from smidgen.compiler.graph.rows import Held, Stream, marked
from smidgen.errors import BadProgram, UnsafeLayout
from smidgen.ir import Graph
from smidgen.program.program import Program
from smidgen.runtime.machine import Machine
from tests.support.generated_learning import laid_out, network, outcome, program, streamed

COUNT, CHUNK = int(os.environ.get("SMIDGEN_LEARNING_STREAMED", "500")), 50


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_parts_of_random_networks_learn_the_same_bits_row_by_row(first: int) -> None:
    found = [outcome(seed) for seed in range(first, min(first + CHUNK, COUNT))]
    assert sum(streams for streams, _ in found) > 3 * len(found)
    assert sum(sums for _, sums in found) > 3 * len(found)


def test_streams_of_a_few_networks_learn_the_same_bits() -> None:
    assert sum(streams for streams, _ in map(outcome, range(6))) > 12


FAULTS: Final[dict[str, Callable[[Held], Held]]] = {
    "one row short": lambda held: replace(held, kept=held.kept + 1),
    "rows come too late": lambda held: replace(held, ahead=held.ahead - 1, kept=held.kept - 1),
    "too few rows": lambda held: replace(held, count=held.count - 1),
}


def with_fault(graph: Graph, at: int, name: str, fault: Callable[[Held], Held]) -> Graph:
    """The value of the stream at a node moves otherwise."""
    node = graph.nodes[at]
    first, nodes, iterations, values = node.attrs["rows"]
    new = []
    for value in values:
        held = fault(Held(*value[1:], 1))
        new.append((name, held.count, held.step, held.period, held.ahead, held.kept) if value[0] == name else value)
    attrs: Any = {**node.attrs, "rows": (first, nodes, iterations, tuple(new))}
    return graph.with_(nodes=(*graph.nodes[:at], node.with_(attrs=attrs), *graph.nodes[at + 1 :]))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_stream_that_forgets_or_delays_a_row_of_what_learns_is_refused(fault: str) -> None:
    """A gradient that is delayed by one, a sum without its last row, a window without its first."""
    tried = caught = 0
    for seed in range(30):
        graph = streamed(network(seed), random.Random(seed))
        for mark in marked(graph):
            inner = [name for name, held in mark.stream.values.items() if held.most < held.count or not held.row_bytes]
            for name in random.Random(seed).sample(inner, min(len(inner), 3)):
                tried += 1
                try:
                    broken = with_fault(graph, mark.nodes.start - 1, name, FAULTS[fault])
                    Machine(program(broken).to_bytes())
                except (UnsafeLayout, BadProgram):
                    caught += 1
    assert tried > 50
    assert caught > 0.85 * tried  # where the row was not needed, nothing is wrong


def turns_of(stream: Stream, name: str) -> list[int]:
    """Iterations in which rows of a value are made, or enter a sum."""
    held = stream.values[name]
    return [i for i in range(stream.iterations) if held.end(i) > (held.end(i - 1) if i else 0)]


def test_what_a_sum_keeps_from_call_to_call_is_not_overwritten() -> None:
    """Its memory is moved onto other memory that is written while the stream runs."""
    tried = 0
    for seed in range(20):
        graph = streamed(network(seed), random.Random(seed))
        layout = laid_out(graph)
        for mark in marked(graph):
            for i in mark.carries:
                first = turns_of(mark.stream, graph.nodes[i].outs[0])[0]
                moves = [n for n, held in mark.stream.values.items() if held.row_bytes and n in layout.slots
                         and turns_of(mark.stream, n)[-1] > first]  # fmt: skip
                if not moves or len(turns_of(mark.stream, graph.nodes[i].outs[0])) < 2:
                    continue
                slot = replace(layout.scratch[i], offset=layout.slots[moves[0]].offset)
                with pytest.raises((UnsafeLayout, BadProgram)):
                    program(graph, replace(layout, scratch={**layout.scratch, i: slot}))
                tried += 1
    assert tried > 20


def test_streams_of_a_step_survive_the_file() -> None:
    made = program(streamed(network(3), random.Random(1)))
    assert any(i.is_stream for i in made.entry_code("train"))
    assert Program.from_bytes(made.to_bytes()) == made
