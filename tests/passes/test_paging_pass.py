"""The rewrites of compiler/passes/page.py, in the IR's own text."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen.compiler.graph import interp
from smidgen.compiler.graph.check import check
from smidgen.compiler.graph.text import parse, to_text
from smidgen.compiler.passes.page import MOST_STARTED, cannot_page, page, page_state, times_read
from smidgen.errors import Internal
from smidgen.ir import Graph

CHAIN = """
input x: f32[n,4]
a = feed(x) perm=(0, 1)
h = relu(a)
i = sigmoid(h)
j = tanh(i)
dj = tanh_dx(j, j) @backward
di = sigmoid_dx(dj, i) @backward
dh = relu_dx(di, h) @backward
output y: f32[n,4] = fetch(dh) perm=(0, 1)
"""


def expect(before: str, after: str, gaps: dict[str, list[int]], ahead: int = 1) -> Graph:
    graph = page(parse(before), gaps, ahead=ahead)
    check(graph, "page")
    assert to_text(graph) == to_text(parse(after))
    return graph


def same(before: Graph, after: Graph) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4))
    np.testing.assert_array_equal(
        interp.run(before, {"x": x}, n=3)["y"], interp.run(after, {"x": x}, n=3)["y"], strict=True
    )


def test_a_value_goes_out_after_its_last_use_and_comes_back_before_the_next() -> None:
    after = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    h = relu(a)
    i = sigmoid(h)
    page h.page: f32[n,4] = page_out(h)
    j = tanh(i)
    dj = tanh_dx(j, j) @backward
    h.back.started = page_start(h.page) @backward
    di = sigmoid_dx(dj, i) @backward
    h.back = page_wait(h.back.started, h.page) @backward
    dh = relu_dx(di, h.back) @backward
    output y: f32[n,4] = fetch(dh) perm=(0, 1)
    """
    same(parse(CHAIN), expect(CHAIN, after, {"h": [6]}))


def test_without_a_node_in_between_it_is_brought_at_once() -> None:
    after = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    h = relu(a)
    i = sigmoid(h)
    j = tanh(i)
    page i.page: f32[n,4] = page_out(i)
    dj = tanh_dx(j, j) @backward
    i.back = page_in(i.page) @backward
    di = sigmoid_dx(dj, i.back) @backward
    dh = relu_dx(di, h) @backward
    output y: f32[n,4] = fetch(dh) perm=(0, 1)
    """
    same(parse(CHAIN), expect(CHAIN, after, {"i": [5]}, ahead=0))


def test_it_is_not_started_before_it_went_out() -> None:
    after = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    h = relu(a)
    i = sigmoid(h)
    j = tanh(i)
    page i.page: f32[n,4] = page_out(i)
    i.back.started = page_start(i.page)
    dj = tanh_dx(j, j) @backward
    i.back = page_wait(i.back.started, i.page) @backward
    di = sigmoid_dx(dj, i.back) @backward
    dh = relu_dx(di, h) @backward
    output y: f32[n,4] = fetch(dh) perm=(0, 1)
    """
    same(
        parse(CHAIN), expect(CHAIN, after.replace("page_start(i.page)", "page_start(i.page) @backward"), {"i": [5]}, 9)
    )


def test_several_copies_come_from_one_page() -> None:
    before = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    b = relu(a)
    c = exp(b)
    d = add(c, a)
    e = tanh(d)
    f = mul(e, a)
    output y: f32[n,4] = fetch(f) perm=(0, 1)
    """
    after = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    b = relu(a)
    page a.page: f32[n,4] = page_out(a)
    c = exp(b)
    a.back = page_in(a.page)
    d = add(c, a.back)
    e = tanh(d)
    a.back.2 = page_in(a.page)
    f = mul(e, a.back.2)
    output y: f32[n,4] = fetch(f) perm=(0, 1)
    """
    same(parse(before), expect(before, after, {"a": [3, 5]}, ahead=0))


def test_a_view_of_the_copy_is_made_for_those_who_read_through_one() -> None:
    before = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    h = relu(a)
    v = reshape(h) shape=(n, 2, 2)
    w = exp(v)
    u = reshape(w) shape=(n, 4)
    k = reshape(v) shape=(n, 4)
    z = add(u, k)
    output y: f32[n,4] = fetch(z) perm=(0, 1)
    """
    after = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    h = relu(a)
    v = reshape(h) shape=(n, 2, 2)
    w = exp(v)
    page h.page: f32[n,4] = page_out(h)
    u = reshape(w) shape=(n, 4)
    h.back = page_in(h.page)
    v.back = reshape(h.back) shape=(n, 2, 2)
    k.back = reshape(v.back) shape=(n, 4)
    z = add(u, k.back)
    output y: f32[n,4] = fetch(z) perm=(0, 1)
    """
    same(parse(before), expect(before, after, {"h": [6]}, ahead=0))


LOOPED = """
input x: f32[n,4]
whole: f32[n,4] = loop() body=3 yields=('c',) specs=(((1, 4), f32),)
  a: f32[1,4] = feed(x) perm=(0, 1) sample=True
  b: f32[1,4] = relu(a)
  c: f32[1,4] = exp(b)
d = tanh(whole)
e = relu(d)
z = add(e, whole)
output y: f32[n,4] = fetch(z) perm=(0, 1)
"""


def test_what_a_loop_gathers_goes_out_after_it() -> None:
    after = """
    input x: f32[n,4]
    whole: f32[n,4] = loop() body=3 yields=('c',) specs=(((1, 4), f32),)
      a: f32[1,4] = feed(x) perm=(0, 1) sample=True
      b: f32[1,4] = relu(a)
      c: f32[1,4] = exp(b)
    d = tanh(whole)
    page whole.page: f32[n,4] = page_out(whole)
    whole.back.started = page_start(whole.page)
    e = relu(d)
    whole.back = page_wait(whole.back.started, whole.page)
    z = add(e, whole.back)
    output y: f32[n,4] = fetch(z) perm=(0, 1)
    """
    same(parse(LOOPED), expect(LOOPED, after, {"whole": [6]}, ahead=3))
    assert cannot_page(parse(LOOPED), "b") == "it is of one sample, inside the loop"


def test_what_came_from_a_page_that_still_holds_it_does_not_go_out_again() -> None:
    before = """
    input x: f32[n,4]
    a = feed(x) perm=(0, 1)
    p = page_out(a)
    b = page_in(p)
    c = exp(b)
    d = tanh(c)
    e = add(d, b)
    output y: f32[n,4] = fetch(e) perm=(0, 1)
    """
    after = before.replace("e = add(d, b)", "b.back = page_in(p)\n    e = add(d, b.back)")
    same(parse(before), expect(before, after, {"b": [5]}, ahead=0))


def test_what_came_from_a_page_that_is_written_again_goes_to_one_of_its_own() -> None:
    before = """
    page param w: f32[4] = [1.0, 2.0, 3.0, 4.0]
    b = page_in(w)
    c = exp(b)
    w1 = page_write(w, c)
    d = tanh(c)
    e = add(d, b)
    output y: f32[4] = fetch(e) perm=(0,)
    """
    after = before.replace("c = exp(b)", "c = exp(b)\n    page b.page: f32[4] = page_out(b)")
    after = after.replace("e = add(d, b)", "b.back = page_in(b.page)\n    e = add(d, b.back)")
    expect(before, after, {"b": [4]}, ahead=0)


def test_no_more_than_a_few_pages_are_on_their_way() -> None:
    lines = ["input x: f32[n,4]", "a0 = feed(x) perm=(0, 1)"]
    lines += [f"a{i} = relu(a{i - 1})" for i in range(1, 9)]
    lines += ["s9 = exp(a8)"] + [f"s{i} = add(s{i + 1}, a{i})" for i in range(8, -1, -1)]
    lines += ["output y: f32[n,4] = fetch(s0) perm=(0, 1)"]
    before = parse("\n".join(lines))
    gaps = {f"a{i}": [9 + 9 - i] for i in range(9)}
    after = page(before, gaps, ahead=7)
    check(after, "page")
    same(before, after)
    pending = most = 0
    for node in after.nodes:
        pending += (node.op == "page_start") - (node.op == "page_wait")
        most = max(most, pending)
    assert most == MOST_STARTED
    assert sum(node.op == "page_out" for node in after.nodes) == 9


def test_state_comes_before_its_first_reader_and_goes_back_after_its_last_update() -> None:
    before = """
    input x: f32[n,3]
    param w: f32[2,3]
    optim m: f32[2,3]
    setting lr: f32[]
    a = feed(x) perm=(0, 1)
    h = linear(a, w)
    param w1: f32[2,3], optim m1: f32[2,3] = linear_dw_momentum(h, a, w, m, lr) momentum=0.9 weight_decay=0.0 nesterov=False @update
    output y: f32[n,2] = fetch(h) perm=(0, 1)
    """  # noqa: E501
    after = """
    input x: f32[n,3]
    param w: f32[2,3]
    page optim m: f32[2,3]
    setting lr: f32[]
    a = feed(x) perm=(0, 1)
    m.here.started: f32[2,3] = page_start(m)
    h = linear(a, w)
    m.here: f32[2,3] = page_wait(m.here.started, m) @update
    param w1: f32[2,3], m1: f32[2,3] = linear_dw_momentum(h, a, w, m.here, lr) momentum=0.9 weight_decay=0.0 nesterov=False @update
    page optim m.page: f32[2,3] = page_write(m, m1) @update
    output y: f32[n,2] = fetch(h) perm=(0, 1)
    """  # noqa: E501
    graph = page_state({"train": parse(before)}, ["m"], ahead=1)["train"]
    check(graph, "page")
    assert to_text(graph) == to_text(parse(after))
    with pytest.raises(Internal, match="not state"):
        page_state({"train": parse(before)}, ["missing"])
    with pytest.raises(Internal, match="not state in RAM"):
        page_state({"train": graph}, ["m"])


def test_a_parameter_is_brought_again_for_readers_that_are_far_apart() -> None:
    before = """
    input x: f32[n,3]
    param w: f32[3,3]
    setting lr: f32[]
    a = feed(x) perm=(0, 1)
    h = linear(a, w)
    i = tanh(h)
    j = sigmoid(i)
    d = linear_dx(j, w) @backward
    param w1: f32[3,3] = linear_dw_sgd(j, a, w, lr) weight_decay=0.0 @update
    output y: f32[n,3] = fetch(d) perm=(0, 1)
    """
    after = """
    input x: f32[n,3]
    page param w: f32[3,3]
    setting lr: f32[]
    a = feed(x) perm=(0, 1)
    w.here: f32[3,3] = page_in(w)
    h = linear(a, w.here)
    i = tanh(h)
    j = sigmoid(i)
    w.here.2: f32[3,3] = page_in(w) @backward
    d = linear_dx(j, w.here.2) @backward
    w1: f32[3,3] = linear_dw_sgd(j, a, w.here.2, lr) weight_decay=0.0 @update
    page param w.page: f32[3,3] = page_write(w, w1) @update
    output y: f32[n,3] = fetch(d) perm=(0, 1)
    """
    graph = page_state({"train": parse(before)}, ["w"], ahead=0, apart=2)["train"]
    check(graph, "page")
    assert to_text(graph) == to_text(parse(after))
    assert [times_read(parse(before), ["w"], apart)["w"] for apart in (0, 1, 2, 3)] == [3, 2, 2, 1]


@pytest.mark.parametrize(
    ("name", "why"),
    [("x", "not a value"), ("v", "a view"), ("m", "writes over it"), ("p", "not a value"), ("b", "on its way")],
)
def test_what_cannot_be_paged_says_why(name: str, why: str) -> None:
    graph = parse(
        """
        input x: f32[n,4]
        a = feed(x) perm=(0, 1)
        v = reshape(a) shape=(n, 2, 2)
        p = page_out(a)
        b = page_start(p)
        c = page_wait(b, p)
        m = fill() shape=(n, 4) value=1.0
        m1 = accumulate(m, c)
        output y: f32[n,4] = fetch(m1) perm=(0, 1)
        """
    )
    assert why in cannot_page(graph, name)
    with pytest.raises(Internal, match="cannot be paged"):
        page(graph, {name: [8]})


def test_a_position_without_a_reader_is_refused() -> None:
    with pytest.raises(Internal, match="nobody reads 'h' from node 7 on"):
        page(parse(CHAIN), {"h": [7]})


# -- the checker -------------------------------------------------------------------------------------------------------

GOOD = """
input x: f32[n,4]
a = feed(x) perm=(0, 1)
p = page_out(a)
q = page_out(a)
b = page_start(p)
c = relu(a)
d = page_wait(b, p)
e = add(c, d)
output y: f32[n,4] = fetch(e) perm=(0, 1)
"""


@pytest.mark.parametrize(
    ("line", "instead", "why"),
    [
        ("c = relu(a)", "c = relu(b)", "'b' is read before anybody waited for its page"),
        ("c = relu(a)", "c = relu(p)", "'p' is in PAGE"),
        ("d = page_wait(b, p)", "d = page_wait(b, q)", "'b' is not being read from 'q'"),
        ("d = page_wait(b, p)", "d = relu(a)", "nobody waits for 'b'"),
        ("p = page_out(a)", "p: f32[n,4] = page_out(a)", "'p' is not declared to be in PAGE"),
        ("c = relu(a)", "page c: f32[n,4] = relu(a)", "'c' is declared to be in PAGE"),
        ("q = page_out(a)", "q = page_in(a)", "'a' is not in PAGE"),
        ("c = relu(a)", "q1 = page_write(p, a)\nc = relu(a)", "the page 'p' is written while"),
        ("e = add(c, d)", "f = page_wait(b, p)\ne = add(c, f)", "'b' is read after an update overwrote it"),
    ],
)
def test_the_checker_refuses(line: str, instead: str, why: str) -> None:
    check(parse(GOOD), "writing")
    with pytest.raises(Internal, match=why):
        check(parse(GOOD.replace(line, instead)), "a mistake")


def test_the_checker_refuses_a_page_inside_a_loop() -> None:
    broken = LOOPED.replace("b: f32[1,4] = relu(a)", "page b: f32[1,4] = page_out(a)").replace("exp(b)", "page_in(b)")
    with pytest.raises(Internal, match="a page inside a loop"):
        check(parse(broken), "a mistake")
