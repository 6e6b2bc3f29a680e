"""simplify: each rule as a graph before and after, then random networks that must mean the same with fewer copies."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen import ops
from smidgen.compiler.graph import interp
from smidgen.compiler.graph.text import canonical, parse
from smidgen.compiler.passes.simplify import simplify, simplify_all
from smidgen.errors import Internal
from smidgen.ir import Role, at
from tests.support.layer_rewrites import LAYER_REWRITES

# Rule: what it does, graph before, graph after. Types of results are inferred; names of computed values do not matter.
REWRITES: dict[str, tuple[str, str]] = {
    "dead code goes": (
        """
        value x: f32[n,4]
        param w: f32[4]
        dead = mul(x, w)
        y = relu(x)
        output out = fetch(y) perm=(0, 1)
        """,
        """
        value x: f32[n,4]
        y = relu(x)
        output out = fetch(y) perm=(0, 1)
        """,
    ),
    "a permute and its inverse cancel through elementwise ops": (
        """
        value x: f32[n,4,5,3]
        a = permute(x) perm=(0, 3, 1, 2)
        b = relu(a)
        c = scale(b) by=2.0
        y = permute(c) perm=(0, 2, 3, 1)
        z = max_pool2d_plain(y) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(z) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,3]
        b = relu(x)
        c = scale(b) by=2.0
        z = max_pool2d_plain(c) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(z) perm=(0, 1, 2, 3)
        """,
    ),
    "permutes compose": (
        """
        value x: f32[2,3,4]
        a = permute(x) perm=(1, 2, 0)
        b = permute(a) perm=(1, 2, 0)
        y = matmul(b, b) ta=True tb=False
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[2,3,4]
        b = permute(x) perm=(2, 0, 1)
        y = matmul(b, b) ta=True tb=False
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "a permute that moves only axes of size one is a view": (
        """
        value x: f32[n,1,1,8]
        param w: f32[5,8]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 8)
        y = linear(b, w)
        output out = fetch(y) perm=(0, 1)
        """,
        """
        value x: f32[n,1,1,8]
        param w: f32[5,8]
        b = reshape(x) shape=(n, 8)
        y = linear(b, w)
        output out = fetch(y) perm=(0, 1)
        """,
    ),
    "ops that change nothing go": (
        """
        value x: f32[n,4]
        a = reshape(x) shape=(n, 4)
        b = permute(a) perm=(0, 1)
        c = expand(b) shape=(n, 4)
        d = slice(c) axis=1 start=0 stop=4 step=1
        e = pad(d) pads=((0, 0), (0, 0)) value=0.0
        f = scale(e) by=1.0
        g = shift(f) by=0.0
        h = cast(g) dtype="f32"
        i = concat(h) axis=1
        y = exp(i)
        output out = fetch(y) perm=(0, 1)
        """,
        """
        value x: f32[n,4]
        y = exp(x)
        output out = fetch(y) perm=(0, 1)
        """,
    ),
    "reshapes of reshapes are one": (
        """
        value x: f32[n,6,4]
        a = reshape(x) shape=(n, 24)
        b = reshape(a) shape=(n, 2, 12)
        y = matmul(b, b) ta=False tb=True
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,6,4]
        b = reshape(x) shape=(n, 2, 12)
        y = matmul(b, b) ta=False tb=True
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "a residual sum of two permuted branches has no permute": (
        """
        value x: f32[n,4,5,3]
        value s: f32[n,4,5,3]
        a = permute(x) perm=(0, 3, 1, 2)
        b = permute(s) perm=(0, 3, 1, 2)
        y = add(a, b)
        z = permute(y) perm=(0, 2, 3, 1)
        output out = fetch(z) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,3]
        value s: f32[n,4,5,3]
        y = add(x, s)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
    ),
    "a parameter beside a permuted operand is laid out anew instead": (
        """
        value x: f32[n,4,5,3]
        param c: f32[3,1,1]
        param h: f32[4,1]
        param s: f32[]
        a = permute(x) perm=(0, 3, 1, 2)
        b = mul(a, c)
        d = add(b, h)
        e = div(d, s)
        y = permute(e) perm=(0, 2, 3, 1)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,3]
        param c: f32[1,1,1,3]
        param h: f32[1,4,1,1]
        param s: f32[]
        layout c: reshape(1, 1, 1, 3)
        layout h: reshape(1, 4, 1, 1)
        b = mul(x, c)
        d = add(b, h)
        e = div(d, s)
        output out = fetch(e) perm=(0, 1, 2, 3)
        """,
    ),
    "reductions, softmax, concat, slice and pad take the axes as they lie": (
        """
        value x: f32[n,4,5,3]
        a = permute(x) perm=(0, 3, 1, 2)
        b = softmax(a) axis=1
        c = concat(a, b) axis=1
        d = slice(c) axis=2 start=1 stop=4 step=1
        e = pad(d) pads=((0, 0), (0, 0), (1, 0), (0, 2)) value=0.0
        f = amax(e) axes=(1,) keepdim=True
        g = mean(e) axes=(2, 3) keepdim=False
        output of = fetch(f) perm=(0, 1, 2, 3)
        output og = fetch(g) perm=(0, 1)
        """,
        """
        value x: f32[n,4,5,3]
        b = softmax(x) axis=3
        c = concat(x, b) axis=3
        d = slice(c) axis=1 start=1 stop=4 step=1
        e = pad(d) pads=((0, 0), (1, 0), (0, 2), (0, 0)) value=0.0
        f = amax(e) axes=(3,) keepdim=True
        g = mean(e) axes=(1, 2) keepdim=False
        output of = fetch(f) perm=(0, 3, 1, 2)
        output og = fetch(g) perm=(0, 1)
        """,
    ),
    "where takes its three operands alike": (
        """
        value x: f32[n,5,3]
        value s: f32[n,5,3]
        a = permute(x) perm=(0, 2, 1)
        b = permute(s) perm=(0, 2, 1)
        c = gt(a, b)
        d = where(c, a, b)
        y = permute(d) perm=(0, 2, 1)
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,5,3]
        value s: f32[n,5,3]
        c = gt(x, s)
        d = where(c, x, s)
        output out = fetch(d) perm=(0, 1, 2)
        """,
    ),
}


@pytest.mark.parametrize("rule", [*REWRITES, *LAYER_REWRITES])
def test_rewrite(rule: str) -> None:
    before, expected = (parse(text) for text in (REWRITES | LAYER_REWRITES)[rule])
    after = simplify(before)
    assert canonical(after) == canonical(expected)


def test_values_to_keep_stay_under_their_names() -> None:
    graph = parse(
        """
        value x: f32[n,4,5,3]
        a = permute(x) perm=(0, 3, 1, 2)
        b = relu(a)
        c = reshape(b) shape=(n, 3, 4, 5)
        """
    )
    after = simplify(graph, keep=frozenset({"b", "c"}))
    assert after["b"].shape == after["c"].shape == graph["b"].shape
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 3))
    for name in ("b", "c"):
        np.testing.assert_array_equal(interp.run(after, {"x": x}, n=2)[name], interp.run(graph, {"x": x}, n=2)[name])


def test_a_graph_that_hands_nothing_out_is_taken_for_its_last_result() -> None:
    graph = parse("value x: f32[n,4]\na = exp(x)\nloss = batch_mean(a) axes=(0, 1) keepdim=False\n")
    assert canonical(simplify(graph)) == canonical(graph)
    assert "loss" in simplify(graph).tensors


def test_loops_are_made_later() -> None:
    graph = parse(
        "input x: f32[n,4]\nx1 = feed(x) perm=(0, 1) sample=True\ny = exp(x1)\noutput z = fetch(y) perm=(0, 1)"
    )
    loop = graph.nodes[0].with_(op="loop", ins=(), outs=(), attrs={"body": 3, "yields": (), "specs": ()})
    with pytest.raises(Internal, match="before loops"):
        simplify(graph.with_(nodes=(loop, *graph.nodes)))


CONV = "stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1"


def test_graphs_that_share_parameters_agree_on_their_layout() -> None:
    declared = "value x: f32[n,4,4,2]\nparam w: f32[2,2,3,3]\n"
    conv = f"p = permute(w) perm=(0, 2, 3, 1)\ny = conv2d(x, p) {CONV}\noutput out = fetch(y) perm=(0, 1, 2, 3)\n"
    train, infer, other = parse(declared + conv), parse(declared + conv), parse(declared + "s = sum_squares(w)\n")
    same = simplify_all({"train": train, "infer": infer})
    assert all(g["w"].shape == (2, 3, 3, 2) and len(g.nodes) == 2 for g in same.values())
    mixed = simplify_all({"train": train, "other": other})
    assert all(g["w"].shape == (2, 2, 3, 3) and not g.layouts for g in mixed.values())
    assert any(n.op == "permute" for n in mixed["train"].nodes)


def test_a_weight_that_another_graph_reads_in_its_own_order_is_not_relaid() -> None:
    declared = "param w: f32[7,60]\n"
    flat = (
        "value x: f32[n,4,5,3]\na = permute(x) perm=(0, 3, 1, 2)\nb = reshape(a) shape=(n, 60)\n"
        "y = linear(b, w)\noutput out = fetch(y) perm=(0, 1)\n"
    )
    plain = "value u: f32[n,60]\ny = linear(u, w)\noutput out = fetch(y) perm=(0, 1)\n"
    done = simplify_all({"a": parse(declared + flat), "b": parse(declared + plain)})
    assert not done["a"].layouts
    moved = next(node for node in done["a"].nodes if node.op == "permute")
    assert moved.ins == ("x",), "the input is copied, not the weight"


def test_one_name_never_stands_for_two_constants() -> None:
    text = "value x: f32[n,2]\nconst c: f32[2] = [1.0, {}]\ny = add(x, c)\noutput out = fetch(y) perm=(0, 1)\n"
    a, b, c = simplify_all({k: parse(text.format(k)) for k in ("2.0", "3.0", "2.0 ")}).values()
    assert a.of_role(Role.CONST) == c.of_role(Role.CONST)
    assert a.of_role(Role.CONST) != b.of_role(Role.CONST)
    assert [g.data[g.nodes[0].ins[1]].tolist() for g in (a, b, c)] == [[1, 2], [1, 3], [1, 2]]


def commutes(op: ops.Op) -> bool | None:
    """Does the op give the same, transposed, for transposed operands? None if its cases do not tell."""
    told = None
    for case in op.cases:
        rng = np.random.default_rng(5)
        arrays = [np.asarray(c(rng, 3) if callable(c) else rng.uniform(0.1, 2, at(c, 3))) for c in case.inputs]
        shapes = {a.shape for a in arrays if a.ndim}
        if len(shapes) != 1 or max(map(len, shapes)) < 2 or max(map(max, shapes)) == 1:
            continue
        with np.errstate(all="ignore"):
            try:
                wanted = op.ref(*arrays, **at(dict(case.attrs), 3))
                got = op.ref(*[a.T for a in arrays], **at(dict(case.attrs), 3))
            except (TypeError, ValueError, IndexError, ArithmeticError):
                return False
        if any(
            w.T.shape != g.shape or not np.array_equal(w.T, g, equal_nan=True) for w, g in zip(wanted, got, strict=True)
        ):
            return False
        told = True
    return told


def test_ops_that_are_said_to_work_element_by_element_do_and_no_other() -> None:
    """A wrong entry would change results; a missing one would stop permutes for no reason."""
    known = ops.all_ops().values()
    found = {op.name for op in known if not op.needs_run and commutes(op)}
    updates = {op.name for op in known if op.shares or op.page}  # pages come after all passes
    whole = {"sum_squares", "layer_norm_dx", "quantize16"}  # these work on all elements at once
    assert found - {op.name for op in known if op.layout} - updates <= whole
    assert {op.name for op in known if op.pointwise and commutes(op) is False} == set()
