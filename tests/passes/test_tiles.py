"""Tiles of channels: inner gradients exist for some channels at a time, the meaning is that of the whole, and nothing
that is needed as a whole is touched. Bits: tests/acceptance/test_generated_tiles.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import smidgen
from smidgen import api
from smidgen.compiler import verify
from smidgen.compiler.encode import encode
from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.passes.tiles import BLOCK, chains, in_tiles, tile_spans
from smidgen.compiler.place import arena
from smidgen.errors import UnsafeLayout
from smidgen.ir import Graph, Role
from smidgen.ops.optim import FIRST

WIDE: Final = 150
SHAPE: Final = (3, 5, 4)


class Bottleneck(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, 1, 1)
        self.expand, self.project = nn.Conv2d(6, WIDE, 1), nn.Conv2d(WIDE, 6, 1)
        self.depthwise = nn.Conv2d(WIDE, WIDE, 3, 1, 1, groups=WIDE)
        self.head, self.between = nn.Linear(6, 2), between

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = torch.relu(self.depthwise(self.between(self.expand(x))))
        y: Tensor = self.head((x + self.project(inner)).mean((2, 3)))
        return y


def step(between: Callable[[Tensor], Tensor] = torch.relu, **options: Any) -> Graph:
    torch.manual_seed(0)
    entries = api.build(
        Bottleneck(between), torch.zeros(2, *SHAPE), batch=2, **{"optimizer": smidgen.SGD(0.1), **options}
    )
    return dict(entries.plain)["train"]


def widest(graph: Graph) -> int:
    """Channels of the widest gradient."""
    made = [graph[out] for node in graph.nodes if node.stage == "backward" for out in node.outs]
    return max(int(t.shape[-1]) for t in made if t.role is Role.VALUE and len(t.shape) == 4)  # type: ignore[arg-type]


def test_inner_gradients_exist_for_some_channels_at_a_time() -> None:
    graph = step()
    [chain] = chains(graph)
    made = in_tiles(graph, chain, 9)
    check(made, "tiles")
    assert (widest(graph), widest(made)) == (WIDE, BLOCK)
    assert [len(span) for span in tile_spans(WIDE, 9)] == [64, 64, 22]
    assert [len(span) for span in tile_spans(WIDE, 2)] == [128, 22]


@pytest.mark.parametrize("optimizer", [smidgen.SGD(0.1), smidgen.SGD(0.1, momentum=0.9), smidgen.Adam(0.01)])
def test_the_meaning_is_that_of_whole_maps(optimizer: Any) -> None:
    graph = step(optimizer=optimizer)
    made = in_tiles(graph, chains(graph)[0], 9)
    rng = np.random.default_rng(0)
    given = dict(zip(graph.inputs, [rng.standard_normal((2, *SHAPE)), np.array([0, 1], np.int32)], strict=True))
    results = [interp.advance(g, interp.initial_state(g), given, n=2)[1] for g in (graph, made)]
    assert any(FIRST in node.attrs for node in made.nodes)
    for name, want in results[0].items():
        np.testing.assert_allclose(results[1][name], want, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "between", [lambda x: torch.softmax(x, 1), lambda x: nn.functional.group_norm(x, 3), lambda x: x * x.mean()]
)
def test_a_gradient_that_is_needed_as_a_whole_stays_so(between: Callable[[Tensor], Tensor]) -> None:
    """What is in tiles ends where somebody reads all channels."""
    graph = step(between)
    assert not any(chain.channels == WIDE and len(chain.nodes) > 6 for chain in chains(graph))


def test_an_update_of_another_part_is_not_safe() -> None:
    graph = step()
    made = in_tiles(graph, chains(graph)[0], 9)
    layout = arena.place(made, 2, *arena.place_state([made]))
    program = encode({"train": (made, layout)}, 2, {})
    verify.verify(program, {"train": made}, {"train": layout})
    entry, broken = program.entries["train"], 0
    kernels = {node.op for node in made.nodes if FIRST in node.attrs}
    for k, one in enumerate(entry.code):
        if one.kernel.removesuffix("_f32") not in kernels:
            continue
        shifted = replace(one.operands[0], offset=one.operands[0].offset + 16)
        code = (*entry.code[:k], replace(one, operands=(shifted, *one.operands[1:])), *entry.code[k + 1 :])
        other = replace(program, entries={"train": replace(entry, code=code)})
        with pytest.raises(UnsafeLayout):
            verify.verify(other, {"train": made}, {"train": layout})
        broken += 1
    assert broken >= 3
