"""text: what is printed is read back exactly; what is not a graph is refused with its line."""

from __future__ import annotations

import math

import numpy as np
import pytest

from smidgen.compiler.graph.text import BadText, canonical, parse, to_text
from smidgen.ir import Batch, DType, Graph, Node, Quant, Role, Tensor

EXAMPLE = """\
input x: f32[n,3,8,8]
param 0.weight: f32[16,3,3,3]
const scale: f32[2] = [0.5, inf]
const mask: u8[2,1] = [[1], [0]]
setting lr: f32[] = 0.01
layout 0.weight: permute(0, 2, 3, 1), reshape(16, 27)
x.fed: f32[n,8,8,3] = feed(x) perm=(0, 2, 3, 1)
h: f32[n,8,8,16] = conv2d(x.fed, 0.weight) stride=(1, 1) padding=((1, 1), (1, 1)) dilation=(1, 1) groups=1  # features.0
d:h: f32[64n,16] = reshape(h) shape=(64n, 16) @backward
param 0.weight': f32[16,3,3,3] = sgd(0.weight, 0.weight, lr) weight_decay=0.0 @update
output y: f32[n,16,8,8] = fetch(h) perm=(0, 3, 1, 2)  # a path with words
"""


def same(a: Graph, b: Graph) -> bool:
    """Equal in all but data."""
    return (dict(a.tensors), a.nodes, a.inputs, a.outputs, dict(a.layouts)) == (
        dict(b.tensors), b.nodes, b.inputs, b.outputs, dict(b.layouts),
    )  # fmt: skip


def test_text_is_read_back_exactly() -> None:
    assert to_text(parse(EXAMPLE)) == EXAMPLE


def test_a_parsed_graph_has_types_roles_stages_and_sources() -> None:
    graph = parse(EXAMPLE)
    assert graph["h"] == Tensor("h", (Batch(), 8, 8, 16))
    assert graph["d:h"].shape == (Batch(64), 16)
    assert graph["0.weight'"].role is Role.PARAM
    assert graph["mask"].dtype is DType.U8
    assert graph.inputs == ("x",)
    assert graph.outputs == ("y",)
    assert graph.layouts["0.weight"] == (("permute", (0, 2, 3, 1)), ("reshape", (16, 27)))
    conv, reshape, update, fetch = graph.nodes[1:]
    assert conv.attrs["padding"] == ((1, 1), (1, 1))
    assert conv.src == "features.0"
    assert reshape.attrs == {"shape": (Batch(64), 16)}
    assert [n.stage for n in (conv, reshape, update, fetch)] == ["forward", "backward", "update", "io"]
    np.testing.assert_array_equal(graph.data["scale"], [0.5, math.inf])
    np.testing.assert_array_equal(graph.data["mask"], np.array([[1], [0]], np.uint8))


def test_types_of_results_may_be_left_out() -> None:
    short = parse(
        """
        value x: f32[n,4]
        param w: f32[4]
        setting lr: f32[]
        y = relu(x)
        v, i = max_index(y) axis=1 keepdim=False
        w1 = sgd(w, w, lr) weight_decay=0.0 @update   # a remark
        output out = fetch(v) perm=(0,)
        """
    )
    assert short["y"] == Tensor("y", (Batch(), 4))
    assert short["i"] == Tensor("i", (Batch(),), DType.I32)
    assert short["w1"].role is Role.PARAM
    assert short["out"].role is Role.OUTPUT
    assert same(parse(to_text(short)), short)


ATTRIBUTES = [
    0, -3, 1.5, -0.0, 1e-5, 1e30, math.inf, -math.inf, True, False, None, "mean", "it's", 'a "b" # c', "", (), (1,),
    (1, 2), ((1, 2), (3,)), [1, (2.0, "x")], Batch(), Batch(49), (Batch(7), 3), DType.F32, (((3, 4), DType.U8),), "n",
]  # fmt: skip


@pytest.mark.parametrize("value", ATTRIBUTES, ids=repr)
def test_attributes_survive(value: object) -> None:
    node = Node("relu", ("x",), ("y",), {"a": value, "b": 1}, "forward", "")
    graph = Graph({n: Tensor(n, (2,)) for n in "xy"}, (node,))
    found = parse(to_text(graph)).nodes[0].attrs
    assert found == node.attrs
    assert type(found["a"]) is type(value)
    assert repr(found["a"]) == repr(value)  # -0.0 too


def test_a_nan_survives() -> None:
    graph = Graph({"x": Tensor("x", (2,))}, (Node("relu", ("x",), (), {"a": math.nan}),))
    assert math.isnan(parse(to_text(graph)).nodes[0].attrs["a"])


NAMES = [
    "0.weight",
    "w'",
    "d:loss",
    "x@1",
    "a b",
    "f(x)",
    "'quoted'",
    "ends:",
    "#",
    "param",
    "über",
    "a,b",
    "n",
    "=",
    "d:x'.2",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_survives(name: str) -> None:
    tensors = {n: Tensor(n, (Batch(), 2)) for n in (name, "other")}
    nodes = (Node("relu", ("other",), (name,), {}, "forward", name), Node("exp", (name, name), (), {}, "x", ""))
    graph = Graph(tensors, nodes)
    assert same(parse(to_text(graph)), graph)
    given = Graph(
        {name: Tensor(name, (), DType.I32, Role.PARAM)}, (), layouts={name: (("reshape", ()), ("permute", ()))}
    )
    assert same(parse(to_text(given)), given)


@pytest.mark.parametrize("src", ["a.b", "with words", " spaces ", "'", "two\nlines", "a # b", "'a' # 'b'"])
def test_any_source_survives(src: str) -> None:
    graph = Graph({"x": Tensor("x", (2,))}, (Node("relu", ("x",), (), {}, "forward", src),))
    assert parse(to_text(graph)).nodes[0].src == src


def test_loops_are_indented_and_need_no_results() -> None:
    text = """\
input x: f32[n,4]
h: f32[n,4] = loop() body=2 yields=('h@1',) specs=(((1, 4), f32),)
  x@1: f32[1,4] = feed(x) perm=(0, 1) sample=True
  h@1: f32[1,4] = exp(x@1)
loop() body=2 yields=() specs=()
  x@2: f32[1,4] = feed(x) perm=(0, 1) sample=True
  output z: f32[n,4] = fetch(x@2) perm=(0, 1) sample=True
output y: f32[n,4] = fetch(h) perm=(0, 1)
"""
    assert to_text(parse(text)) == text
    assert parse(text).nodes[0].attrs["specs"] == (((1, 4), DType.F32),)
    assert parse(text).outputs == ("z", "y")


def test_an_unusual_order_of_inputs_and_outputs_is_listed() -> None:
    text = EXAMPLE.replace("input x", "input a: f32[n]\ninput x")
    swapped = parse(text).with_(inputs=("x", "a"), outputs=())
    assert "inputs(x, a)\noutputs()\n" in to_text(swapped)
    assert same(parse(to_text(swapped)), swapped)


def test_values_are_printed_only_if_they_are_small() -> None:
    data = {"w": np.arange(3.0)}
    graph = Graph({"w": Tensor("w", (3,), role=Role.PARAM)}, (), data=data)
    assert to_text(graph) == "param w: f32[3] = [0.0, 1.0, 2.0]\n"
    assert to_text(graph, literals=2) == "param w: f32[3]\n"


def test_canonical_text_forgets_the_names_of_values_only() -> None:
    a = parse("value x: f32[2]\nfoo = relu(x)\nbar = exp(foo)\n")
    b = parse("value x: f32[2]\nu = relu(x)\nv = exp(u)\n")
    c = parse("value y: f32[2]\nu = relu(y)\nv = exp(u)\n")
    assert canonical(a) == canonical(b) == "value x: f32[2]\n%0: f32[2] = relu(x)\n%1: f32[2] = exp(%0)\n"
    assert canonical(b) != canonical(c)


def test_a_broken_graph_can_still_be_printed() -> None:
    assert "y: ? = relu(x)" in to_text(Graph({}, (Node("relu", ("x",), ("y",)),)))


MISTAKES = {
    "x": "expected a role and a type",
    "param w": "expected a role and a type",
    "w: f32[3]": "expected a role and a type",
    "param w: f64[3]": "expected a dtype",
    "param w: f32[3": "expected a size",
    "y = relu(x)": "expected a declaration of 'x' above",
    "value x: f32[2] extra": "expected the end of the line",
    "relu(x) by=": "expected a value",
    "relu(x) by=__import__": "expected a value",
    "relu(x) by 3": "expected '='",
    "param w: f32[3]\nparam w: f32[4]": "line 2: 'w' has two types",
    "= relu(x)": "expected a name",
    "param w: f32[3] = [1.0, 2.0]": "expected a value of this shape",
    "param w: f32[1], param v: f32[1] = 1.0": "expected one tensor before a value",
    "value x: f32[2]\na, b = relu(x)": "expected 1 results",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_what_is_not_a_graph_is_refused(text: str) -> None:
    with pytest.raises(BadText, match=MISTAKES[text]):
        parse(text)


def test_a_quantized_tensor_is_read_back_exactly() -> None:
    given = """
    input x: i8[n,2] quant=((0.5,), (3,))
    const w: i8[2,2] quant=((0.5, 0.25), (0, -128), 0) = [1, 2, 3, 4]
    param b: i32[2] quant=((0.5, 0.25), (0, 0), 0, (2.0, -1.0), (0.0, 0.125))
    h: i8[n,2] quant=((0.125,), (0,)) = feed(x)
    output y: i8[n,2] = fetch(h)
    """
    graph = parse(given)
    assert graph["x"].quant == Quant((0.5,), (3,))
    assert graph["w"].quant == Quant((0.5, 0.25), (0, -128), 0)
    assert graph["b"].quant == Quant((0.5, 0.25), (0, 0), 0, (2.0, -1.0), (0.0, 0.125))
    assert (graph["h"].quant, graph["y"].quant) == (Quant((0.125,), (0,)), None)
    assert parse(to_text(graph)).tensors == graph.tensors
    for wrong in ("quant=3", "quant=((1.0,),)", "quant=((1.0,), (0.5,))", "quant=((1.0,), (0,), 1, 2)"):
        with pytest.raises(BadText, match="expected scales, zero points and perhaps an axis"):
            parse(f"input x: i8[2] {wrong}")
