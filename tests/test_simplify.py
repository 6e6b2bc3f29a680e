"""simplify: each rule as a graph before and after, then random networks that must mean the same with fewer copies."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from smidgen import interp, ops
from smidgen.build import Builder, feed, fetch
from smidgen.check import check
from smidgen.errors import Internal
from smidgen.ir import Array, Batch, Graph, Role, at, size
from smidgen.passes.axes import POINTWISE, RULES
from smidgen.passes.layout import View
from smidgen.passes.simplify import simplify, simplify_all
from smidgen.text import canonical, parse, to_text

N = Batch()

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

# Where data comes in and goes out, and what layers do with their weights.
LAYER_REWRITES: dict[str, tuple[str, str]] = {
    "feed and fetch permute for free": (
        """
        input x: f32[n,3,4,4]
        x.fed = feed(x) perm=(0, 1, 2, 3)
        a = permute(x.fed) perm=(0, 2, 3, 1)
        b = max_pool2d_plain(a) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        y = permute(b) perm=(0, 3, 1, 2)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
        """
        input x: f32[n,3,4,4]
        a = feed(x) perm=(0, 2, 3, 1)
        b = max_pool2d_plain(a) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(b) perm=(0, 3, 1, 2)
        """,
    ),
    "arithmetic on the input is done in the order the first layer wants": (
        """
        input x: f32[n,3,4,4]
        const mean: f32[3,1,1] = [0.5, 0.25, 0.125]
        x.fed = feed(x) perm=(0, 1, 2, 3)
        d = sub(x.fed, mean)
        a = permute(d) perm=(0, 2, 3, 1)
        b = max_pool2d_plain(a) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
        """
        input x: f32[n,3,4,4]
        const mean: f32[1,1,1,3] = [0.5, 0.25, 0.125]
        layout mean: reshape(1, 1, 1, 3)
        x.fed = feed(x) perm=(0, 2, 3, 1)
        d = sub(x.fed, mean)
        b = max_pool2d_plain(d) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
    ),
    "a weight used twice through the same permute is stored permuted": (
        """
        value x: f32[n,4,4,2]
        param w: f32[2,2,3,3]
        w1 = permute(w) perm=(0, 2, 3, 1)
        a = conv2d(x, w1) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        w2 = permute(w) perm=(0, 2, 3, 1)
        b = conv2d(a, w2) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,4,2]
        param w: f32[2,3,3,2]
        layout w: permute(0, 2, 3, 1)
        a = conv2d(x, w) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        b = conv2d(a, w) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
    ),
    "a weight used in two orders keeps its own": (
        """
        value x: f32[n,4,4,2]
        param w: f32[2,2,3,3]
        w1 = permute(w) perm=(0, 2, 3, 1)
        a = conv2d(x, w1) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        s = sum_squares(w)
        b = mul(a, s)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,4,2]
        param w: f32[2,2,3,3]
        w1 = permute(w) perm=(0, 2, 3, 1)
        a = conv2d(x, w1) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1
        s = sum_squares(w)
        b = mul(a, s)
        output out = fetch(b) perm=(0, 1, 2, 3)
        """,
    ),
    "flattening before a linear layer reorders its columns, also across what lies between": (
        """
        value x: f32[n,4,5,3]
        param w: f32[7,60]
        setting counter: i32[2]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 60)
        c = dropout(b, counter) p=0.5 key=1
        y = linear(c, w)
        output out = fetch(y) perm=(0, 1)
        """,
        """
        value x: f32[n,4,5,3]
        param w: f32[7,60]
        setting counter: i32[2]
        layout w: reshape(7, 3, 20), permute(0, 2, 1), reshape(7, 60)
        c = dropout(x, counter) p=0.5 key=1
        b = reshape(c) shape=(n, 60)
        y = linear(b, w)
        output out = fetch(y) perm=(0, 1)
        """,
    ),
    "a linear layer whose weight has another reader keeps it; its input is copied": (
        """
        value x: f32[n,4,5,3]
        value u: f32[n,60]
        param w: f32[7,60]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 60)
        y = linear(b, w)
        z = linear(u, w)
        output oy = fetch(y) perm=(0, 1)
        output oz = fetch(z) perm=(0, 1)
        """,
        """
        value x: f32[n,4,5,3]
        value u: f32[n,60]
        param w: f32[7,60]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 60)
        y = linear(b, w)
        z = linear(u, w)
        output oy = fetch(y) perm=(0, 1)
        output oz = fetch(z) perm=(0, 1)
        """,
    ),
    "tokens of an image need no copy": (
        """
        value x: f32[n,4,5,3]
        param p: f32[1,20,3]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 3, 20)
        c = permute(b) perm=(0, 2, 1)
        y = add(c, p)
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,4,5,3]
        param p: f32[1,20,3]
        b = reshape(x) shape=(n, 20, 3)
        y = add(b, p)
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "a channel shuffle is one copy": (
        """
        value x: f32[n,4,5,6]
        a = permute(x) perm=(0, 3, 1, 2)
        b = reshape(a) shape=(n, 2, 3, 4, 5)
        c = permute(b) perm=(0, 2, 1, 3, 4)
        d = reshape(c) shape=(n, 6, 4, 5)
        e = permute(d) perm=(0, 2, 3, 1)
        y = max_pool2d_plain(e) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,6]
        b = reshape(x) shape=(n, 20, 2, 3)
        c = permute(b) perm=(0, 1, 3, 2)
        d = reshape(c) shape=(n, 4, 5, 6)
        y = max_pool2d_plain(d) kernel=(2, 2) stride=(2, 2) padding=(0, 0) dilation=(1, 1) out_hw=(2, 2)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
    ),
    "a transposed operand of matmul is read transposed": (
        """
        value q: f32[n,5,3]
        value k: f32[n,5,3]
        t = permute(k) perm=(0, 2, 1)
        y = matmul(q, t) ta=False tb=False
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value q: f32[n,5,3]
        value k: f32[n,5,3]
        y = matmul(q, k) ta=False tb=True
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "layer norm over permuted axes permutes gamma and beta": (
        """
        value x: f32[n,4,5,3]
        param g: f32[3,4,5]
        param b: f32[3,4,5]
        a = permute(x) perm=(0, 3, 1, 2)
        y = layer_norm(a, g, b) axes=3 eps=0.001
        z = permute(y) perm=(0, 2, 3, 1)
        output out = fetch(z) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,3]
        param g: f32[4,5,3]
        param b: f32[4,5,3]
        layout b: permute(1, 2, 0)
        layout g: permute(1, 2, 0)
        y = layer_norm(x, g, b) axes=3 eps=0.001
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
    ),
    "linear layers work on the last axis in any order of the others": (
        """
        value x: f32[n,5,3]
        param w: f32[2,3]
        a = permute(x) perm=(1, 0, 2)
        b = linear(a, w)
        y = permute(b) perm=(1, 0, 2)
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,5,3]
        param w: f32[2,3]
        b = linear(x, w)
        output out = fetch(b) perm=(0, 1, 2)
        """,
    ),
    "a copy before a linear layer puts the samples first": (
        """
        value x: f32[n,2,5,3]
        param w: f32[6,6]
        a = permute(x) perm=(2, 0, 1, 3)
        b = reshape(a) shape=(5, n, 6)
        c = linear(b, w)
        y = permute(c) perm=(1, 0, 2)
        z = softmax(y) axis=2
        output out = fetch(z) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,2,5,3]
        param w: f32[6,6]
        a = permute(x) perm=(0, 2, 1, 3)
        b = reshape(a) shape=(n, 5, 6)
        c = linear(b, w)
        z = softmax(c) axis=2
        output out = fetch(z) perm=(0, 1, 2)
        """,
    ),
    "squeeze and excite needs no views": (
        """
        value x: f32[n,4,5,3]
        param w: f32[3,3,1,1]
        a = permute(x) perm=(0, 3, 1, 2)
        m = mean(a) axes=(2, 3) keepdim=True
        p = permute(m) perm=(0, 2, 3, 1)
        v = permute(w) perm=(0, 2, 3, 1)
        c = conv2d(p, v) stride=(1, 1) padding=((0, 0), (0, 0)) dilation=(1, 1) groups=1
        q = permute(c) perm=(0, 3, 1, 2)
        s = sigmoid(q)
        y = mul(a, s)
        output out = fetch(y) perm=(0, 1, 2, 3)
        """,
        """
        value x: f32[n,4,5,3]
        param w: f32[3,1,1,3]
        layout w: reshape(3, 1, 1, 3)
        m = mean(x) axes=(1, 2) keepdim=True
        c = conv2d(m, w) stride=(1, 1) padding=((0, 0), (0, 0)) dilation=(1, 1) groups=1
        s = sigmoid(c)
        y = mul(x, s)
        output out = fetch(y) perm=(0, 3, 1, 2)
        """,
    ),
    "an expansion is left to the op that broadcasts anyway": (
        """
        value x: f32[n,3,4]
        value s: f32[n,3,1]
        e = expand(s) shape=(n, 3, 4)
        y = mul(x, e)
        output out = fetch(y) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,3,4]
        value s: f32[n,3,1]
        y = mul(x, s)
        output out = fetch(y) perm=(0, 1, 2)
        """,
    ),
    "one early copy instead of two late ones": (
        """
        value x: f32[n,3,4]
        param g: f32[3]
        param b: f32[3]
        a = permute(x) perm=(0, 2, 1)
        c = relu(a)
        y = group_norm(a, g, b) groups=1 eps=0.001
        z = group_norm(c, g, b) groups=1 eps=0.001
        output oy = fetch(y) perm=(0, 1, 2)
        output oz = fetch(z) perm=(0, 1, 2)
        """,
        """
        value x: f32[n,3,4]
        param g: f32[3]
        param b: f32[3]
        a = permute(x) perm=(0, 2, 1)
        c = relu(a)
        y = group_norm(a, g, b) groups=1 eps=0.001
        z = group_norm(c, g, b) groups=1 eps=0.001
        output oy = fetch(y) perm=(0, 1, 2)
        output oz = fetch(z) perm=(0, 1, 2)
        """,
    ),
    "what is updated is read exactly where it was": (
        """
        param w: f32[2,3]
        value g: f32[2,3]
        setting lr: f32[]
        value x: f32[n,2]
        t = permute(w) perm=(1, 0)
        param w1 = sgd(w, g, lr) weight_decay=0.0 @update
        y = linear(x, t)
        output out = fetch(y) perm=(0, 1)
        """,
        """
        param w: f32[2,3]
        value g: f32[2,3]
        setting lr: f32[]
        value x: f32[n,2]
        t = permute(w) perm=(1, 0)
        param w1 = sgd(w, g, lr) weight_decay=0.0 @update
        y = linear(x, t)
        output out = fetch(y) perm=(0, 1)
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
    found = {op.name for op in ops.all_ops().values() if not op.needs_run and commutes(op)}
    updates = {op.name for op in ops.all_ops().values() if op.shares or op.page}  # pages come after all passes
    whole = {"sum_squares", "layer_norm_dx"}  # these work on all elements at once
    assert found - set(RULES) - updates <= whole
    assert {name for name in POINTWISE if commutes(ops.get(name)) is False} == set()
    assert set(RULES) <= set(ops.all_ops())


# Views.


@pytest.mark.parametrize("seed", range(60))
def test_a_view_rearranges_as_numpy_does(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.choice([1, 2, 2, 3, 4, 6]) for _ in range(rng.randint(1, 5)))
    array = np.arange(math.prod(shape)).reshape(shape)
    solid = tuple(d for d in shape if d != 1)
    index = iter(range(len(solid)))
    view = View("x", solid, tuple((next(index),) if d != 1 else () for d in shape))
    for _ in range(5):
        if rng.random() < 0.5:
            perm = rng.sample(range(len(view.groups)), len(view.groups))
            view, array = view.permuted(perm), array.transpose(perm)
        else:
            sizes = _other_shape(rng, array.size)
            new = view.reshaped(sizes)
            if new is not None:
                view, array = new, array.reshape(sizes)
        assert view.shape == array.shape
        for seen in (view, view.joined()):
            base = np.arange(math.prod(shape)).reshape(seen.dims)
            np.testing.assert_array_equal(base.transpose(seen.order).reshape(seen.shape), array)
        assert view.natural == (array.ravel() == np.arange(array.size)).all() or array.size == 1


def _other_shape(rng: random.Random, count: int) -> tuple[int, ...]:
    sizes = []
    while count > 1:
        divisor = rng.choice([d for d in range(2, count + 1) if count % d == 0])
        sizes.append(divisor)
        count //= divisor
        if rng.random() < 0.2:
            sizes.append(1)
    return tuple(sizes)


# Random networks, written as an importer would: channels second, permutes around every layer that wants them last.

TO_LAST, TO_SECOND = (0, 2, 3, 1), (0, 3, 1, 2)


class Net:
    """Grows a graph at random; `images` are values [n,C,H,W], `rows` values [n,S,D], `flat` values [n,K]."""

    def __init__(self, seed: int, only_cnn: bool = False) -> None:
        self.r = random.Random(seed)
        self.g = np.random.default_rng(seed)
        self.b = Builder()
        self.only_cnn = only_cnn
        self.count = 0
        shape = (N, self.r.choice([1, 2, 4, 6]), self.r.choice([4, 6]), self.r.choice([4, 5, 6]))
        self.values = [feed(self.b, "x", shape)]
        for _ in range(self.r.randint(3, 14)):
            self.step()

    def param(self, *shape: int, role: Role = Role.PARAM, positive: bool = False) -> str:
        self.count += 1
        value = (
            self.g.uniform(0.5, 1.5, shape) if positive else self.g.standard_normal(shape) / math.prod(shape[1:]) ** 0.5
        )
        return self.b.stored(f"p{self.count}", value, role)

    def add(self, op: str, *ins: str, **attrs: Any) -> str:
        return self.b.add(op, *ins, **attrs)

    def last(self, x: str) -> str:
        return self.add("permute", x, perm=TO_LAST)

    def second(self, x: str) -> str:
        return self.add("permute", x, perm=TO_SECOND)

    def step(self) -> None:
        x = self.values[-1] if self.r.random() < 0.6 else self.r.choice(self.values)
        rank = len(self.b[x].shape)
        steps = [self.conv, self.norm, self.act, self.binary, self.residual]
        if not self.only_cnn:
            steps += [self.pool, self.concat, self.cut, self.pad, self.reduce, self.along, self.shuffle, self.turn]
            steps += [
                self.flatten,
                self.rows,
                self.layer_norm,
                self.attention,
                self.expand,
                self.select,
                self.parameter,
            ]
        step = self.r.choice(steps)
        made = step(x, rank)
        if made is not None and at(size(self.b[made].shape), 1) <= 3000:
            self.values.append(made)

    def conv(self, x: str, rank: int) -> str | None:
        if rank != 4 or not isinstance(self.b[x].shape[0], Batch):
            return None
        c = int(self.b[x].shape[1])  # type: ignore[arg-type]
        depthwise = self.r.random() < 0.3
        groups, out = (c, c) if depthwise else (1, self.r.choice([c, 2, 4]))
        k = self.r.choice([1, 3])
        w = self.param(out, c // groups, k, k, role=self.r.choice([Role.PARAM, Role.CONST]))
        half = ((k // 2, k // 2), (k // 2, k // 2))
        attrs = {"stride": (1, 1), "padding": half, "dilation": (1, 1), "groups": groups}
        bias = (self.param(out),) if self.r.random() < 0.5 else ()
        return self.second(self.add("conv2d", self.last(x), self.add("permute", w, perm=TO_LAST), *bias, **attrs))

    def norm(self, x: str, rank: int) -> str | None:
        if rank != 4 or isinstance(self.b[x].shape[1], Batch):
            return None
        c = int(self.b[x].shape[1])  # type: ignore[arg-type]
        vectors = [
            self.param(c),
            self.param(c),
            self.param(c, role=Role.STAT),
            self.param(c, role=Role.STAT, positive=True),
        ]
        return self.second(self.add("batch_norm", self.last(x), *vectors, eps=1e-3))

    def act(self, x: str, rank: int) -> str:
        op, attrs = self.r.choice(
            [("relu", {}), ("tanh", {}), ("scale", {"by": self.r.choice([1.0, 0.5])}), ("sigmoid", {})]
        )
        return self.add(op, x, **attrs)

    def binary(self, x: str, rank: int) -> str:
        shape = self.b[x].shape
        sizes = [1 if isinstance(d, Batch) or self.r.random() < 0.4 else int(d) for d in shape]
        sizes = sizes[self.r.randint(1, rank) :]
        other = self.param(*sizes, role=self.r.choice([Role.PARAM, Role.CONST]))
        ins = (x, other) if self.r.random() < 0.7 else (other, x)
        return self.add(self.r.choice(["add", "mul", "sub", "maximum"]), *ins)

    def residual(self, x: str, rank: int) -> str:
        same = [v for v in self.values if self.b[v].shape == self.b[x].shape]
        return self.add(self.r.choice(["add", "mul"]), x, self.r.choice(same))

    def pool(self, x: str, rank: int) -> str | None:
        if rank != 4 or not isinstance(self.b[x].shape[0], Batch):
            return None
        _, _, h, w = self.b[x].shape
        if isinstance(h, Batch) or isinstance(w, Batch) or min(h, w) < 2:
            return None
        attrs = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "out_hw": (h // 2, w // 2)}
        return self.second(self.add("max_pool2d_plain", self.last(x), **attrs))

    def axis(self, x: str) -> int | None:
        axes = [i for i, d in enumerate(self.b[x].shape) if not isinstance(d, Batch)]
        return self.r.choice(axes) if axes else None

    def concat(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)

        def rest(v: str) -> Any:
            shape = self.b[v].shape
            return len(shape), [d for i, d in enumerate(shape) if i != axis]

        others = [v for v in self.values if axis is not None and rest(v) == rest(x)]
        return self.add("concat", x, self.r.choice(others), x, axis=axis) if others else None

    def cut(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)
        if axis is None:
            return None
        dim = int(self.b[x].shape[axis])  # type: ignore[arg-type]
        start = self.r.randint(0, dim - 1)
        stop, step = self.r.randint(start + 1, dim), self.r.choice([1, 1, 2])
        return self.add("slice", x, axis=axis, start=start, stop=stop, step=step)

    def pad(self, x: str, rank: int) -> str:
        pads = [
            (0, 0) if isinstance(d, Batch) else (self.r.randint(0, 1), self.r.randint(0, 1)) for d in self.b[x].shape
        ]
        return self.add("pad", x, pads=tuple(pads), value=0.5)

    def reduce(self, x: str, rank: int) -> str | None:
        axes = tuple(i for i, d in enumerate(self.b[x].shape) if not isinstance(d, Batch) and self.r.random() < 0.5)
        if not axes or len(axes) >= rank:
            return None
        return self.add(self.r.choice(["sum", "mean", "amax"]), x, axes=axes, keepdim=self.r.random() < 0.5)

    def along(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)
        if axis is None:
            return None
        if self.r.random() < 0.3 and rank > 1:
            return self.b.add_many("max_index", x, axis=axis, keepdim=self.r.random() < 0.5)[0]
        return self.add(self.r.choice(["softmax", "log_softmax", "cumsum"]), x, axis=axis)

    def shuffle(self, x: str, rank: int) -> str | None:
        axis = self.axis(x)
        shape = self.b[x].shape
        if axis is None or shape[axis] == 1:
            return None
        dim = int(shape[axis])  # type: ignore[arg-type]
        part = self.r.choice([d for d in range(1, dim + 1) if dim % d == 0])
        split = self.add("reshape", x, shape=(*shape[:axis], part, dim // part, *shape[axis + 1 :]))
        perm = [*range(axis), axis + 1, axis, *range(axis + 2, rank + 1)]
        return self.add("reshape", self.add("permute", split, perm=tuple(perm)), shape=shape)

    def turn(self, x: str, rank: int) -> str:
        perm = self.r.sample(range(1, rank), rank - 1)
        return self.add("permute", x, perm=(0, *perm) if self.r.random() < 0.8 else (*perm, 0))

    def flatten(self, x: str, rank: int) -> str | None:
        shape = self.b[x].shape
        if not isinstance(shape[0], Batch) or rank < 3:
            return None
        k = int(size(shape[1:]))  # type: ignore[arg-type]
        flat = self.add("reshape", x, shape=(N, k))
        if self.r.random() < 0.5:
            flat = self.add("relu", flat)
        if self.r.random() < 0.3:
            return self.add("reshape", flat, shape=shape)
        if self.r.random() < 0.3:
            return self.add("reshape", flat, shape=(N, int(shape[1]), k // int(shape[1])))  # type: ignore[arg-type]
        return self.add("linear", flat, self.param(5, k), *([self.param(5)] if self.r.random() < 0.5 else []))

    def rows(self, x: str, rank: int) -> str | None:
        k = self.b[x].shape[-1]
        return None if isinstance(k, Batch) or rank < 2 else self.add("linear", x, self.param(4, k))

    def layer_norm(self, x: str, rank: int) -> str | None:
        count = self.r.randint(1, rank - 1) if rank > 1 else 0
        sizes = self.b[x].shape[rank - count :]
        if not count or any(isinstance(d, Batch) for d in sizes) or at(size(sizes), 1) == 1:
            return None
        vectors = [self.param(*sizes), self.param(*sizes)]  # type: ignore[arg-type]
        return self.add("layer_norm", x, *vectors, axes=count, eps=1e-2)

    def attention(self, x: str, rank: int) -> str | None:
        shape = self.b[x].shape
        if rank < 3 or any(isinstance(d, Batch) for d in shape[1:]):
            return None
        swap = (*range(rank - 2), rank - 1, rank - 2)
        return self.add("matmul", x, self.add("permute", x, perm=swap), ta=False, tb=False)

    def expand(self, x: str, rank: int) -> str | None:
        shape = self.b[x].shape
        if rank < 2 or isinstance(shape[-1], Batch):
            return None
        small = self.add("mean", x, axes=(rank - 1,), keepdim=True)
        return self.add("mul", x, self.add("expand", small, shape=shape))

    def select(self, x: str, rank: int) -> str:
        mask = self.add("gt", x, self.param())
        return self.add("where", mask, x, self.add("scale", x, by=0.1))

    def parameter(self, x: str, rank: int) -> str | None:
        """A parameter is itself rearranged and computed with before use."""
        shape = self.b[x].shape
        if any(isinstance(d, Batch) for d in shape[1:]):
            return None
        perm = self.r.sample(range(rank - 1), rank - 1)
        stored: list[int] = [0] * (rank - 1)
        for i, p in enumerate(perm):
            stored[p] = int(shape[1 + i])  # type: ignore[call-overload]
        p = self.param(*stored, role=self.r.choice([Role.PARAM, Role.CONST]))
        p = self.add("tanh", p) if self.r.random() < 0.5 else p
        return self.add("add", x, self.add("permute", p, perm=tuple(perm)))

    def graph(self) -> Graph:
        ends = self.r.sample(self.values, min(len(self.values), self.r.randint(1, 3)))
        if self.values[-1] not in ends:
            ends.append(self.values[-1])
        for i, value in enumerate(ends):
            rank = len(self.b[value].shape)
            fetch(self.b, value, f"y{i}", tuple(self.r.sample(range(rank), rank)) if self.r.random() < 0.3 else None)
        return self.b.graph()


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
