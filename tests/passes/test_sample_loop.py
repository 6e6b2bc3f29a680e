"""Where the loop over samples ends: it gathers as little as it can, and what leaves it costs nothing."""

from __future__ import annotations

import pytest

from smidgen.compiler.graph.text import parse
from smidgen.compiler.passes.sample_loop import sample_loop
from smidgen.compiler.place import arena
from smidgen.ir import Graph


def network(middle: int, wide: int, outs: int, view: bool = False) -> Graph:
    """input 64 → middle → wide, all frozen; then a layer that learns."""
    last = "k" if view else "g"
    return parse(f"""
        input x: f32[n,64]
        const w: f32[{middle},64]
        const u: f32[{wide},{middle}]
        param v: f32[{outs},{wide}]
        setting l: f32[]
        x.fed: f32[n,64] = feed(x) perm=(0, 1)
        h: f32[n,{middle}] = linear(x.fed, w)
        g: f32[n,{wide}] = linear(h, u)
        {f"k: f32[n,{wide}] = reshape(g) shape=(n, {wide})" if view else ""}
        o: f32[n,{outs}] = linear({last}, v)
        output y: f32[n,{outs}] = fetch(o) perm=(0, 1)
        param v': f32[{outs},{wide}] = linear_dw_sgd(o, {last}, v, l) weight_decay=0.0 @update
    """)


def looped(graph: Graph) -> tuple[str, ...]:
    """What the loop gathers."""
    return next(node.outs for node in sample_loop(graph).nodes if node.op == "loop")


@pytest.mark.parametrize(
    ("sizes", "gathered"),
    [
        ((4, 32, 8), ("h",)),  # h and g at a time, g and o behind: nothing is lost
        ((4, 32, 2), ("g",)),  # one more number a sample at a time than behind the loop
        ((32, 4, 8), ("g",)),  # the end is the narrowest
        ((16, 16, 16), ("g",)),  # of two that are alike the later
    ],
)
def test_the_loop_ends_where_it_gathers_least(sizes: tuple[int, int, int], gathered: tuple[str, ...]) -> None:
    assert looped(network(*sizes)) == gathered


def test_a_view_is_what_it_is_of() -> None:
    assert looped(network(4, 32, 8, view=True)) == ("h",)
    assert looped(network(32, 4, 8, view=True)) == ("g",)


@pytest.mark.parametrize("n", [1, 2, 8, 100])
@pytest.mark.parametrize("sizes", [(4, 32, 8), (4, 32, 2), (32, 4, 8), (3, 64, 64), (2, 100, 50)])
def test_less_room_or_as_much_for_any_number_of_samples(sizes: tuple[int, int, int], n: int) -> None:
    """Beside the loop that gathers what the layer that learns reads."""
    graph = network(*sizes)
    middle, wide, _ = sizes
    behind = arena.lower_bound(sample_loop(graph), n)
    assert behind <= 4 * max(64 + middle + n * wide, n * (wide + sizes[2]), middle + wide + n * wide) + 64
