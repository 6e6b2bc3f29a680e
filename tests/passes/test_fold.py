"""fold: constants are computed, frozen state becomes constant, norms move into the layer before them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.graph.text import canonical, parse, to_text
from smidgen.compiler.passes.fold import Folds, fold_batch_norm, fold_constants, freeze
from smidgen.ir import Array, Batch, Graph, Role
from smidgen.ops.build import Builder, feed, fetch, named_by_content

N = Batch()


def shown(graph: Graph) -> str:
    """Canonical text; the part of a constant's name that depends on its content is left out."""
    return re.sub(r"\.[0-9a-f]{8}\b", ".#", canonical(graph))


# Constants.

FOLDS: dict[str, tuple[str, str]] = {
    "nodes that read constants only are computed, also one after the other": (
        """
        value x: f32[n,2]
        const a: f32[2] = [1.0, 2.0]
        const b: f32[] = 0.5
        s = mul(a, b)
        t = shift(s) by=1.0
        y = add(x, t)
        """,
        """
        value x: f32[n,2]
        const t.#: f32[2] = [1.5, 2.0]
        y = add(x, t.#)
        """,
    ),
    "integers and booleans keep their type": (
        """
        const a: f32[3] = [1.0, -2.0, 3.0]
        const z: f32[] = 0.0
        value x: f32[3]
        m = gt(a, z)
        i = argmax(a) axis=0 keepdim=False
        y = where(m, x, a)
        j = cast(i) dtype="f32"
        k = add(y, j)
        """,
        """
        const a: f32[3] = [1.0, -2.0, 3.0]
        const j.#: f32[] = 2.0
        const m.#: u8[3] = [1, 0, 1]
        value x: f32[3]
        y = where(m.#, x, a)
        k = add(y, j.#)
        """,
    ),
    "what grows much is computed when it is needed": (
        """
        value x: f32[n,9]
        const a: f32[1,1] = [[3.0]]
        e = expand(a) shape=(1, 9)
        y = add(x, e)
        """,
        """
        value x: f32[n,9]
        const a: f32[1,1] = [[3.0]]
        e = expand(a) shape=(1, 9)
        y = add(x, e)
        """,
    ),
    "a view of a constant that is stored anyway stays a view": (
        """
        value x: f32[n,4]
        const a: f32[4] = [1.0, 2.0, 3.0, 4.0]
        v = reshape(a) shape=(1, 4)
        y = add(x, a)
        z = mul(y, v)
        """,
        """
        value x: f32[n,4]
        const a: f32[4] = [1.0, 2.0, 3.0, 4.0]
        v = reshape(a) shape=(1, 4)
        y = add(x, a)
        z = mul(y, v)
        """,
    ),
    "parameters, state and the batch are not known": (
        """
        param w: f32[2] = [1.0, 2.0]
        const a: f32[2] = [1.0, 2.0]
        const unknown: f32[2]
        y = add(w, a)
        z = exp(unknown)
        f = fill() shape=(2,) value=1.0
        g = add(f, a)
        """,
        """
        param w: f32[2] = [1.0, 2.0]
        const a: f32[2] = [1.0, 2.0]
        const unknown: f32[2]
        y = add(w, a)
        z = exp(unknown)
        f = fill() shape=(2,) value=1.0
        g = add(f, a)
        """,
    ),
}


@pytest.mark.parametrize("rule", FOLDS)
def test_fold_constants(rule: str) -> None:
    before, expected = (parse(re.sub(r"\.#", ".00000000", text)) for text in FOLDS[rule])
    after = fold_constants(before)
    assert shown(after) == shown(expected)


def test_a_value_to_keep_is_not_folded() -> None:
    graph = parse("const a: f32[2] = [1.0, 2.0]\ny = exp(a)\n")
    assert to_text(fold_constants(graph, {"y"})) == to_text(graph)


def test_equal_names_mean_equal_constants() -> None:
    """Entry points share constants by name."""
    a, b = np.arange(4.0), np.arange(4.0) + 1e-12
    assert named_by_content("w", a) == named_by_content("w", a.copy())
    names = {named_by_content("w", v) for v in (a, b, a.reshape(2, 2), a.astype(np.int32))}
    assert len(names) == 4


# Freezing.


def test_what_does_not_learn_becomes_constant() -> None:
    graph = parse(
        """
        param w: f32[2]
        param v: f32[2]
        stat mean: f32[2]
        stat var: f32[2]
        stat other: f32[2]
        value m: f32[2]
        mean', var' = running_stats(mean, var, m, m) momentum=0.1 count=n @update
        y = add(w, v)
        """
    )
    frozen = freeze(graph, {"w"}, {"mean", "var"})
    roles = {name: t.role.value for name, t in frozen.tensors.items()}
    wanted = {"w": "param", "v": "const", "mean": "stat", "var": "stat", "other": "const", "m": "value"}
    assert roles == wanted | {"mean'": "stat", "var'": "stat", "y": "value"}


# Batch-norm.

CONV = "stride=(1, 1) padding=((0, 0), (0, 0)) dilation=(1, 1) groups=1"
NORM = "const g: f32[2] = [2.0, 4.0]\nconst m: f32[2] = [1.0, -1.0]\nconst v: f32[2] = [3.0, 0.0]\n"
"""With eps = 1 the factors are 1 and 4."""


def test_a_norm_with_constant_beta_disappears() -> None:
    graph = parse(
        f"""
        value x: f32[n,3,3,1]
        const w: f32[2,1,1,1] = [[[[3.0]]], [[[5.0]]]]
        const b: f32[2] = [0.5, 0.25]
        const beta: f32[2] = [10.0, 20.0]
        {NORM}
        h = conv2d(x, w, b) {CONV}
        y = batch_norm(h, g, beta, m, v) eps=1.0
        z = relu(y)
        """
    )
    expected = f"""
        const w.bias.folded.#: f32[2] = [9.5, 25.0]
        const w.folded.#: f32[2,1,1,1] = [[[[3.0]]], [[[20.0]]]]
        value x: f32[n,3,3,1]
        h = conv2d(x, w.folded.#, w.bias.folded.#) {CONV}
        z = relu(h)
        """
    assert shown(fold_batch_norm(graph)) == shown(parse(expected.replace("#", "00000000")))


def test_a_beta_that_learns_is_added_afterwards() -> None:
    graph = parse(
        f"""
        value x: f32[n,3]
        const w: f32[2,3] = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
        param beta: f32[2]
        {NORM}
        h = linear(x, w)
        y = batch_norm(h, g, beta, m, v) eps=1.0
        z = relu(y)
        """
    )
    expected = """
        param beta: f32[2]
        const w.bias.folded.#: f32[2] = [-1.0, 4.0]
        const w.folded.#: f32[2,3] = [[1.0, 1.0, 1.0], [8.0, 8.0, 8.0]]
        value x: f32[n,3]
        h = linear(x, w.folded.#, w.bias.folded.#)
        y = add(h, beta)
        z = relu(y)
        """
    assert shown(fold_batch_norm(graph)) == shown(parse(expected.replace("#", "00000000")))


KEPT = {
    "gamma learns": ("const g", "param g"),
    "the weight learns": ("const w", "param w"),
    "the bias learns": ("const b:", "param b:"),
    "statistics change": ("const m", "stat m"),
    "the layer has another reader": ("z = relu(y)", "z = relu(y)\nu = exp(h)"),
    "something is in between": ("y = batch_norm(h,", "r = relu(h)\ny = batch_norm(r,"),
    "a reshape mixes channels": ("y = batch_norm(h,", "r = reshape(h) shape=(2n, 2)\ny = batch_norm(r,"),
}


@pytest.mark.parametrize("why", KEPT)
def test_a_norm_stays_if(why: str) -> None:
    channels = "const w: f32[4,3] = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]"
    text = f"""
        value x: f32[n,3]
        const w: f32[2,3] = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]
        const b: f32[2] = [0.5, 0.25]
        const beta: f32[2] = [10.0, 20.0]
        {NORM}
        h = linear(x, w, b)
        y = batch_norm(h, g, beta, m, v) eps=1.0
        z = relu(y)
        """
    if "mixes" in why:
        text = text.replace("const w: f32[2,3] = [[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]]", channels).replace(
            "(x, w, b)", "(x, w)"
        )
    assert KEPT[why][0] in text
    graph = parse(text.replace(*KEPT[why]))
    assert [n.op for n in fold_batch_norm(graph).nodes] == [n.op for n in graph.nodes]


LAYERS: dict[str, tuple[Any, ...]] = {
    # op, x, w, channels of the result, attributes
    "linear": ("linear", (N, 6), (4, 6), 4, {}),
    "conv2d": ("conv2d", (N, 5, 5, 4), (6, 3, 3, 4), 6, {"groups": 1}),
    "grouped": ("conv2d", (N, 5, 5, 4), (6, 3, 3, 2), 6, {"groups": 2}),
    "depthwise": ("conv2d", (N, 5, 5, 4), (4, 3, 3, 1), 4, {"groups": 4}),
    "transposed": ("conv_transpose2d", (N, 5, 5, 4), (4, 3, 3, 6), 6, {"groups": 1, "out_hw": (5, 5)}),
    "transposed, grouped": ("conv_transpose2d", (N, 5, 5, 4), (4, 3, 3, 3), 6, {"groups": 2, "out_hw": (5, 5)}),
}


@pytest.mark.parametrize("learns_beta", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_folded_layers_compute_the_same(layer: str, biased: bool, learns_beta: bool) -> None:
    op, x_shape, w_shape, channels, attrs = LAYERS[layer]
    if op != "linear":
        attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)} | attrs
    rng = np.random.default_rng(3)
    b = Builder()
    x = feed(b, "x", x_shape)
    w = b.const("w", rng.standard_normal(w_shape))
    bias = [b.const("b", rng.standard_normal(channels))] if biased else []
    h = b.add(op, x, w, *bias, **attrs)
    if op == "linear":  # a view in between that leaves channels alone
        h = b.add("reshape", h, shape=(N, 1, channels))
    for k in range(2):  # two in a row both go
        names = [b.const(f"{n}{k}", rng.uniform(0.5, 2, channels)) for n in ("g", "m", "v")]
        beta = b.stored(f"beta{k}", rng.standard_normal(channels), Role.PARAM if learns_beta else Role.CONST)
        h = b.add("batch_norm", h, names[0], beta, names[1], names[2], eps=1e-3)
    fetch(b, h, "y")
    before = b.graph()
    after = fold_batch_norm(before)
    check(after, "fold_batch_norm")
    norms = sum(node.op == "batch_norm" for node in after.nodes)
    assert norms == (1 if learns_beta else 0)  # beyond a beta that learns nothing is folded
    xs = {"x": rng.standard_normal((3, *x_shape[1:]))}
    np.testing.assert_allclose(
        interp.run(after, xs, n=3)["y"], interp.run(before, xs, n=3)["y"], rtol=1e-12, atol=1e-12
    )


def test_what_entry_points_and_methods_have_in_common_is_folded_once() -> None:
    rng = np.random.default_rng(3)

    def network(bias: Array, beta: Array | None) -> Graph:
        b = Builder()
        h = b.add("linear", feed(b, "x", (N, 4)), b.const("w", weight), b.const("b", bias))
        last = b.stored("beta", rng.standard_normal(5), Role.PARAM) if beta is None else b.const("beta", beta)
        names = [b.const(n, numbers[n]) for n in ("g", "m", "v")]
        fetch(b, b.add("batch_norm", h, names[0], last, names[1], names[2], eps=1e-3), "y")
        return b.graph()

    weight = rng.standard_normal((5, 4))
    numbers = {n: rng.uniform(0.5, 2, 5) for n in "gmv"}
    bias, beta, other = (rng.standard_normal(5) for _ in range(3))
    for array in (weight, *numbers.values(), bias, beta, other):
        array.setflags(write=False)  # kept as they are
    folds = Folds()
    first, again, others, learns = (
        fold_batch_norm(network(*given), folds) for given in ((bias, beta), (bias, beta), (other, beta), (bias, None))
    )
    for name in first.nodes[1].ins[1:]:
        assert again.data[name] is first.data[name]
    assert others.nodes[1].ins[2] not in first.data
    assert learns.nodes[1].ins[2] not in first.data
    assert len(folds.known) == 3
