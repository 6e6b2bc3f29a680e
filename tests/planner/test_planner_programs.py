"""Programs that recompute for a budget: the same bits in less memory, checked and verified."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.nets import NETS
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.passes.recompute import recompute
from smidgen.compiler.place.arena import lower_bound
from smidgen.compiler.planner.cost import HOST
from smidgen.compiler.planner.greedy import fit
from smidgen.compiler.planner.problem import doings, problem_of, profile
from smidgen.compiler.planner.solve import solve
from smidgen.ir import Array


def _built(name: str, method: str) -> tuple[Entries, dict[str, Array]]:
    """Entries, and what the caller gives to one step of `train`."""
    net = NETS[name]
    x, y = net.data(2)
    entries = api.build(net.model(), torch.from_numpy(x), loss=net.loss, method=method, batch=2)
    return entries, dict(zip(entries.graphs["train"].inputs, (x, y), strict=True))


@pytest.mark.parametrize(
    ("name", "method"),
    [("dscnn", "full"), ("resnet8", "full"), ("encoder", "full"), ("encoder", "bias")],
)
def test_a_program_with_less_memory_computes_the_same_bits(name: str, method: str) -> None:
    entries, given = _built(name, method)
    graph, batch = entries.graphs["train"], entries.batch
    problem = problem_of(graph, batch, HOST)
    plain = profile(problem, problem.plain())
    low = fit(problem, 0)[1].peak_bytes
    assert lower_bound(graph, batch) == plain.peak_bytes
    assert low < plain.peak_bytes
    for budget in (low, (low + plain.peak_bytes) // 2):
        found = solve(problem, budget, effort_s=1)
        assert found is not None
        after = recompute(graph, doings(graph, problem, found.schedule))
        check(after, "recompute")
        assert lower_bound(after, batch) == found.peak_bytes <= budget
        encode(replace(entries, graphs={**entries.graphs, "train": after}))  # with the verifier
        state = interp.initial_state(graph)
        for one, other in zip(interp.advance(graph, state, given, n=batch),
                              interp.advance(after, state, given, n=batch), strict=True):  # fmt: skip
            assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in other.items()}
