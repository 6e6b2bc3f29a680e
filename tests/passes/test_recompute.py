"""recompute: nodes are repeated before a later reader, which takes the copy; the numbers stay."""

from __future__ import annotations

import pytest

from smidgen.compiler.graph.check import check
from smidgen.compiler.graph.text import canonical, parse
from smidgen.compiler.passes.recompute import recompute
from smidgen.errors import Internal

REWRITES: dict[str, tuple[dict[int, list[int]], str, str]] = {
    "a later reader takes the copy, an earlier one the original": (
        {2: [0]},
        """
        const x: f32[3,4]
        a = relu(x)
        b = exp(a)
        c = mul(a, b)
        """,
        """
        const x: f32[3,4]
        a = relu(x)
        b = exp(a)
        a~2 = relu(x)
        c = mul(a~2, b)
        """,
    ),
    "copies are made of copies, in the order given": (
        {3: [0, 1]},
        """
        const x: f32[3,4]
        a = relu(x)
        b = exp(a)
        c = relu(b)
        d = add(c, b)
        """,
        """
        const x: f32[3,4]
        a = relu(x)
        b = exp(a)
        c = relu(b)
        a~2 = relu(x)
        b~2 = exp(a~2)
        d = add(c, b~2)
        """,
    ),
    "twice over: each reader takes the newest": (
        {2: [0], 3: [0]},
        """
        const x: f32[3,4]
        a = relu(x)
        b = exp(a)
        c = mul(a, b)
        d = add(a, c)
        """,
        """
        const x: f32[3,4]
        a = relu(x)
        b = exp(a)
        a~2 = relu(x)
        c = mul(a~2, b)
        a~3 = relu(x)
        d = add(a~3, c)
        """,
    ),
    "a view of a copy is made anew": (
        {3: [0]},
        """
        const x: f32[3,4]
        a = relu(x)
        v = reshape(a) shape=(3, 2, 2)
        b = exp(v)
        c = mul(v, b)
        """,
        """
        const x: f32[3,4]
        a = relu(x)
        v = reshape(a) shape=(3, 2, 2)
        b = exp(v)
        a~2 = relu(x)
        v~2 = reshape(a~2) shape=(3, 2, 2)
        c = mul(v~2, b)
        """,
    ),
}


@pytest.mark.parametrize("case", REWRITES)
def test_readers_after_a_copy_take_it(case: str) -> None:
    again, before, expected = REWRITES[case]
    after = recompute(parse(before), again)
    check(after, "recompute")
    assert canonical(after) == canonical(parse(expected))


def test_dropout_is_not_drawn_anew() -> None:
    graph = parse("""
        const x: f32[3,4]
        setting counter: i32[2] = [0, 0]
        a = dropout(x, counter) key=7 p=0.5
        b = exp(a)
        c = mul(a, b)
        """)
    check(recompute(graph, {2: [0]}), "recompute")  # the checker refuses one key that draws for two values


def test_nobody_computes_again_from_what_an_update_has_overwritten() -> None:
    graph = parse("""
        const x: f32[3,4]
        const g: f32[3,4]
        param w: f32[3,4]
        setting lr: f32[]
        a = linear(x, w)
        param w': f32[3,4] = sgd(w, g, lr) weight_decay=0.0
        b = exp(a)
        """)
    with pytest.raises(Internal, match="'w' is read after an update overwrote it"):
        check(recompute(graph, {2: [0]}), "recompute")
