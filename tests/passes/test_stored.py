"""Readers of a weight that is put together read its parts: Before and Expected, and what keeps its put."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen import ops
from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.passes.stored import read_slices
from smidgen.ir import Graph, Role
from smidgen.ops import N
from smidgen.ops.build import Builder, feed, fetch

RNG = np.random.default_rng(0)


def layer(index: list[int], bias: bool = False) -> Graph:
    """A linear layer of whose inputs some learn, and its input gradient."""
    b = Builder()
    x, dy = feed(b, "x", (N, 5)), feed(b, "dy", (N, 4))
    w, learned = b.const("w", RNG.standard_normal((4, 5))), b.stored("learned", RNG.standard_normal((4, 2)), Role.PARAM)
    whole = b.add("put", w, learned, b.const("index", np.array(index, np.int32)), axis=1)
    rest = [b.const("bias", RNG.standard_normal(4))] if bias else []
    fetch(b, b.add("linear", x, whole, *rest), "y")
    fetch(b, b.add("linear_dx", dy, whole), "dx")
    return b.graph()


def named(graph: Graph) -> list[tuple[str, ...]]:
    return [(node.op, *node.ins[1:]) for node in graph.nodes if not ops.get(node.op).border]


def same_numbers(one: Graph, other: Graph) -> None:
    given = {name: RNG.standard_normal((3, size)) for name, size in (("x", 5), ("dy", 4))}
    results = [interp.run(graph, given, n=3) for graph in (one, other)]
    for name in one.outputs:
        np.testing.assert_array_equal(results[0][name], results[1][name])


@pytest.mark.parametrize("bias", [False, True])
def test_every_reader_takes_constant_slice_and_indices(bias: bool) -> None:
    before = layer([0, 3], bias)
    after = read_slices(before)
    check(after, "slices")
    assert named(after) == [
        ("linear_put", "w", "learned", "index", "bias" if bias else "no_bias:4"),
        ("linear_dx_put", "w", "learned", "index"),
    ]
    assert bias or np.signbit(after.data["no_bias:4"]).all()  # x - 0 is x, whatever its sign
    same_numbers(before, after)


@pytest.mark.parametrize("index", [[3, 0], [0, -2]])
def test_a_list_that_does_not_ascend_keeps_its_put(index: list[int]) -> None:
    before = layer(index)
    assert read_slices(before).nodes == before.nodes


def test_what_has_no_such_form_keeps_its_put() -> None:
    b = Builder()
    x, table = feed(b, "x", (N, 4)), b.const("w", RNG.standard_normal((4, 5)))
    learned = b.stored("learned", RNG.standard_normal((4, 1)), Role.PARAM)
    whole = b.add("put", table, learned, b.const("index", np.array([2], np.int32)), axis=1)
    fetch(b, b.add("matmul", x, whole, ta=False, tb=False), "y")
    fetch(b, b.add("linear_dx", x, whole), "dx")
    after = read_slices(b.graph())
    check(after, "slices")
    assert [name for name, *_ in named(after)] == ["put", "matmul", "linear_dx_put"]
