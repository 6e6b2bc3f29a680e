"""Within a budget streams are looked for as if the loop alone mattered; in the end only those stay that are needed.
Needs torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import smidgen
from benchmarks import needs
from smidgen import api
from smidgen.compiler.entries import Entries, with_fewer_streams, without_streams
from smidgen.compiler.fit.misfit import OverLimit
from smidgen.compiler.graph.alias import loop_range
from smidgen.compiler.place.arena import lower_bound
from smidgen.ir import ALIGN, Graph


def deep() -> nn.Module:
    """The frozen part has the largest maps of one sample, the learning part those of all samples together."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
        *(layer for _ in range(6) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


def asked(**memory: Any) -> dict[str, Any]:
    return {
        "model": deep(), "example": torch.zeros(8, 1, 32, 32), "method": "last:7", "kernels": "exact",
        "memory": smidgen.Memory(effort=0, accumulate=False, **memory),
    }  # fmt: skip


@pytest.fixture(scope="module")
def least() -> Iterator[Entries]:
    with api.prepared(**asked()) as task:
        yield task.lowering.entries(task.options.least)


def streams(graph: Graph) -> tuple[Any, ...]:
    body = loop_range(graph)
    return graph.nodes[body.start - 1].attrs.get("streams", ()) if body else ()


def iterations(graph: Graph) -> int:
    return sum(nodes * turns for _, nodes, turns, _ in streams(graph))


def test_the_least_memory_of_the_loop_does_not_depend_on_what_is_beside_it(least: Entries) -> None:
    """The rest may be recomputed, and then the loop is what is left."""
    bound, whole = (lower_bound(g, 8) for g in (least.plain["train"], without_streams(least).plain["train"]))
    assert bound == whole  # the learning part takes more
    assert streams(least.plain["train"])


def test_a_graph_keeps_as_few_streams_as_its_arena_allows(least: Entries) -> None:
    whole = without_streams(least).graphs["infer"]
    bounds = [lower_bound(graph, 8) for graph in (least.graphs["infer"], whole)]
    calls = []
    for room in range(bounds[0], bounds[1] + 1, (bounds[1] - bounds[0]) // 4):
        graph = with_fewer_streams(least, room, ALIGN).graphs["infer"]
        assert lower_bound(graph, 8) <= room
        calls.append(iterations(graph))
    assert calls == sorted(calls, reverse=True)
    assert calls[0] > calls[-1] == 0
    too_little = with_fewer_streams(least, bounds[0] - ALIGN, ALIGN).graphs["infer"]
    assert streams(too_little) == streams(least.graphs["infer"])


def need(**memory: Any) -> int:
    with needs.without_choices(), pytest.raises(OverLimit) as error:
        smidgen.compile(**asked(budget=1024, **memory))
    return error.value.needs_bytes


def test_plans_within_budgets_stream_no_more_than_they_have_to() -> None:
    whole, rows = need(stream=False), need()
    assert rows < whole
    assert smidgen.compile(**asked(budget=rows)).plan.ram_bytes <= rows
    kinds = []
    for budget in (rows, (rows + whole) // 2, 2 * whole):
        job = smidgen.compile(**asked(budget=budget))
        assert job.plan.ram_bytes <= budget
        kinds.append("stream" in [d.kind for d in job.plan.decisions])
    assert kinds == [True, True, False]


def test_a_ladder_has_room_for_what_its_rungs_share() -> None:
    rows = need()
    given = asked(budget=2 * rows)
    ladder = replace(given["memory"], ladder=[rows + 4096])
    job = smidgen.compile(**{**given, "memory": ladder})
    assert job.rungs[-1].ram_bytes <= rows + 4096
