"""simplify on random networks, written as an importer would: they mean the same with fewer copies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.graph.text import canonical, parse, to_text
from smidgen.compiler.passes.simplify import simplify
from smidgen.ir import Array, Graph, Role, at
from tests.support.random_graphs import Net


def inputs(graph: Graph, n: int) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal(at(graph[name].shape, n)) for name in graph.inputs}


def copies(graph: Graph) -> int:
    return Counter(node.op for node in graph.nodes)["permute"]


def stored_as(value: Array, steps: Any) -> Array:
    for kind, sizes in steps:
        value = value.reshape(sizes) if kind == "reshape" else value.transpose(sizes)
    return value


@pytest.mark.parametrize("seed", range(150))
def test_random_networks_mean_the_same(seed: int) -> None:
    before = Net(seed).graph()
    check(before, "the test itself")
    after = simplify(before)
    check(after, "simplify")
    assert copies(after) <= copies(before)
    for n in (1, 3):
        xs = inputs(before, n)
        wanted, got = interp.run(before, xs, n=n), interp.run(after, xs, n=n)
        for name in before.outputs:
            np.testing.assert_allclose(got[name], wanted[name], rtol=1e-12, atol=1e-12)
    for tensor in after.of_role(Role.PARAM, Role.STAT):
        np.testing.assert_array_equal(
            after.data[tensor.name], stored_as(before.data[tensor.name], after.layouts.get(tensor.name, ()))
        )
    assert canonical(simplify(after)) == canonical(after), "nothing is left for a second time"
    again = parse(to_text(after))
    assert to_text(again.with_(data=after.data)) == to_text(after)


@pytest.mark.parametrize("seed", range(100))
def test_residual_networks_come_out_without_permutes(seed: int) -> None:
    after = simplify(Net(seed, only_cnn=True).graph())
    assert copies(after) == 0, to_text(after)
