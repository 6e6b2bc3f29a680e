"""check: sound graphs pass; each planted fault is refused, with the pass and the node in the message."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen.compiler.graph.check import check
from smidgen.compiler.graph.text import parse
from smidgen.errors import Internal
from smidgen.ir import Batch, DType, Graph, Role, Tensor

GIVEN = """
input x: f32[n,4]
input t: f32[n,4]
param w: f32[4,4]
param b: f32[4]
stat mean: f32[4]
stat var: f32[4]
setting lr: f32[]
setting counter: i32[2]
const c: f32[4,4]
accum acc: f32[4,4]
"""

TRAIN = f"""{GIVEN}
xf = feed(x) perm=(0, 1)
m, v = batch_stats(xf)
h = batch_norm_batch(xf, b, b) eps=0.001
h2 = dropout(h, counter) p=0.5 key=7
y = linear(h2, w)
z = add(y, b)
output out = fetch(z) perm=(0, 1)
mean', var' = running_stats(mean, var, m, v) momentum=0.1 count=n @update
dh2 = linear_dx(z, w) @backward
dh = dropout(dh2, counter) p=0.5 key=7 @backward
w' = linear_dw_sgd(z, h2, w, lr) weight_decay=0.0 @update
db = bias_dw(dh) @backward
b' = sgd(b, db, lr) weight_decay=0.0 @update
acc' = accumulate(acc, c) @update
counter' = count_step(counter) @update
"""

LOOP = """
input x: f32[n,4]
const w: f32[4,4]
param v: f32[4]
s: f32[4] = exp(v)
h: f32[n,4] = loop() body=4 yields=("h1",) specs=(((1, 4), f32),)
  x1: f32[1,4] = feed(x) perm=(0, 1) sample=True
  h0: f32[1,4] = linear(x1, w)
  h1: f32[1,4] = add(h0, s)
  output all: f32[n,4] = fetch(h0) perm=(0, 1) sample=True
y = relu(h)
output out = fetch(y) perm=(0, 1)
"""


@pytest.mark.parametrize("text", [TRAIN, LOOP, GIVEN], ids=["train", "loop", "given"])
def test_sound_graphs_pass(text: str) -> None:
    check(parse(text), "test")


def test_a_recomputed_copy_is_sound() -> None:
    """The same value computed again from recomputed inputs, dropout included."""
    copy = "h.2 = batch_norm_batch(xf, b, b) eps=0.001\nh2.2 = dropout(h.2, counter) p=0.5 key=7\n"
    check(
        parse(TRAIN.replace("dh2 =", copy + "dh2 =").replace("linear_dw_sgd(z, h2,", "linear_dw_sgd(z, h2.2,")), "test"
    )


def test_shared_statistics_may_take_in_two_batches() -> None:
    """A norm layer used at two places: torch updates its statistics twice, from different values."""
    second = (
        "m2, v2 = batch_stats(z)\nmean'', var'' = running_stats(mean', var', m2, v2) momentum=0.1 count=n @update\n"
    )
    check(parse(TRAIN.replace("dh2 =", second + "dh2 =")), "test")


def test_the_message_names_the_pass_and_the_node() -> None:
    with pytest.raises(Internal) as caught:
        check(parse(GIVEN + "y: f32[4,4] = nonsense(w)  # features.3"), "simplify")
    assert str(caught.value) == (
        "error[E901]: after pass 'simplify': no op named 'nonsense'\n  at   node 0 of 1: y = nonsense(w)  # features.3"
    )


# Fault: the graph, what is changed in it, what the message says.
FAULTS: dict[str, tuple[str, dict[str, str], str]] = {
    "assigned twice": (
        TRAIN,
        {"z = add(y, b)": "z = add(y, b)\nz = add(y, b)"},
        "'z' is assigned twice",
    ),
    "read before assigned": (
        TRAIN,
        {"y = linear(h2, w)": "y: f32[n,4] = linear(h3, w)\nh3 = relu(h2)"},
        "'h3' is read before",
    ),
    "wrong shape": (
        TRAIN,
        {"acc' = accumulate": "accum acc': f32[4,5] = accumulate"},
        r"acc': f32\[4,5\] is declared.*f32\[4,4\]",
    ),
    "wrong dtype": (
        TRAIN,
        {"acc' = accumulate": "accum acc': i32[4,4] = accumulate"},
        r"acc': i32\[4,4\] is declared",
    ),
    "refused by the rule": (
        TRAIN,
        {"y = linear(h2, w)": "y: f32[n,4] = linear(h2, b)"},
        "the rule of 'linear' refuses",
    ),
    "missing attribute": (
        TRAIN,
        {"h2 = dropout(h, counter) p=0.5": "h2: f32[n,4] = dropout(h, counter)"},
        "refuses",
    ),
    "too few results": (
        TRAIN,
        {"m, v = batch_stats(xf)": "m: f32[4] = batch_stats(xf)\nv = exp(m)"},
        "has 2 results, not 1",
    ),
    "unknown op": (
        TRAIN,
        {"z = add": "z: f32[n,4] = plus"},
        "no op named 'plus'",
    ),
    "reader after update": (
        TRAIN,
        {"db = bias_dw": "late = exp(w)\ndb = bias_dw"},
        "'w' is read after an update overwrote it",
    ),
    "reader after update through a view": (
        TRAIN,
        {
            "w' = linear_dw_sgd(z, h2, w, lr) weight_decay=0.0 @update": "view = reshape(w) shape=(16,)\n"
            "w' = linear_dw_sgd(z, h2, w, lr) weight_decay=0.0 @update\n"
            "late = exp(view)"
        },
        "'w', seen through 'view', is read after",
    ),
    "update of a view takes the memory too": (
        TRAIN,
        {
            "db = bias_dw(dh)": "view = reshape(b) shape=(4,)\n"
            "b2 = sgd(view, view, lr) weight_decay=0.0\n"
            "db = bias_dw(dh)"
        },
        "'b' is read after",
    ),
    "view taken after update": (
        TRAIN,
        {"db = bias_dw": "late = reshape(w) shape=(16,)\ndb = bias_dw"},
        "'w' is read after",
    ),
    "two updates of one version": (
        TRAIN,
        {"db = bias_dw": "w'' = sgd(w, c, lr) weight_decay=0.0 @update\ndb = bias_dw"},
        "'w' is read after an update",
    ),
    "update of a constant": (
        TRAIN,
        {"db = bias_dw(": "value c' = sgd(c, c, lr) weight_decay=0.0 @update\ndb = bias_dw("},
        "const 'c' is overwritten",
    ),
    "state written by an ordinary op": (
        TRAIN,
        {"z = add(y, b)": "param z = add(y, b)"},
        "param 'z' is written by something",
    ),
    "constant written": (
        TRAIN,
        {"z = add(y, b)": "const z = add(y, b)"},
        "const 'z' is written",
    ),
    "statistics recomputed": (
        TRAIN,
        {
            "dh2 =": "m2, v2 = batch_stats(xf)\n"
            "mean'', var'' = running_stats(mean', var', m2, v2) momentum=0.1 count=n @update\n"
            "dh2 ="
        },
        "running statistics 'mean' are updated again, as by node 7",
    ),
    "one key for two draws": (
        TRAIN,
        {"y = linear(h2": "h3 = dropout(xf, counter) p=0.5 key=7\ny = linear(h2"},
        "key 7 also belongs",
    ),
    "gradient without draw": (
        TRAIN,
        {"dh = dropout(dh2, counter) p=0.5 key=7": "dh = dropout(dh2, counter) p=0.5 key=8"},
        "no forward node draws with key 8",
    ),
    "gradient with another mask": (
        TRAIN,
        {"dh = dropout(dh2, counter) p=0.5": "dh = dropout(dh2, counter) p=0.4"},
        "differently",
    ),
    "gradient with a later counter": (
        TRAIN,
        {
            "dh = dropout(dh2, counter)": "c1 = count_step(counter)\ndh = dropout(dh2, c1)",
            "counter' = count_step(counter) @update\n": "",
        },
        "key 7 is drawn differently",
    ),
    "input read by another op": (
        TRAIN,
        {"z = add(y, b)": "z = add(y, x)"},
        "input 'x' is read by something else than feed",
    ),
    "output written by another op": (
        TRAIN,
        {"z = add(y, b)": "output z = add(y, b)"},
        "'z' is written by add",
    ),
    "value written by fetch": (
        TRAIN,
        {"output out = fetch": "value out = fetch"},
        "'out' is written by fetch",
    ),
    "output read": (
        TRAIN,
        {"dh2 = linear_dx(z, w)": "dh2 = linear_dx(out, w)"},
        "output 'out' is read",
    ),
    "output never written": (
        TRAIN,
        {"output out = fetch(z) perm=(0, 1)": "output out: f32[n,4]"},
        "output 'out' is never written",
    ),
    "output written twice": (
        TRAIN,
        {"output out = fetch(z) perm=(0, 1)": "output out = fetch(z) perm=(0, 1)\noutput out = fetch(z) perm=(0, 1)"},
        "'out' is assigned twice",
    ),
    "loop longer than the list": (
        LOOP,
        {"body=4": "body=9"},
        "a loop over the next 9 nodes",
    ),
    "loop without body": (
        LOOP,
        {"body=4": "body=0"},
        "a loop over the next 0 nodes",
    ),
    "loop without yields": (
        LOOP,
        {'yields=("h1",) ': ""},
        "a loop without 'yields'",
    ),
    "yield of something else": (
        LOOP,
        {'yields=("h1",)': 'yields=("s",)'},
        "yields 's', which its body does not compute",
    ),
    "yield of another type": (
        LOOP,
        {"specs=(((1, 4), f32),)": "specs=(((1, 5), f32),)"},
        r"yields h1: f32\[1,4\] as f32\[1,5\]",
    ),
    "fewer yields than results": (
        LOOP,
        {'yields=("h1",) specs=(((1, 4), f32),)': "yields=() specs=()"},
        "0 yields, 0 types and 1",
    ),
    "gathered in another type": (
        LOOP,
        {"h: f32[n,4] = loop": "h: f32[n,3] = loop"},
        r"h: f32\[n,3\] is declared",
    ),
    "body reads the whole batch": (
        LOOP,
        {"h: f32[n,4] = loop": "xs = feed(x) perm=(0, 1)\nh: f32[n,4] = loop", "add(h0, s)": "add(h0, xs)"},
        "the loop reads 'xs', which holds all samples",
    ),
    "body reads what the loop gathers": (
        LOOP,
        {"h1: f32[1,4] = add(h0, s)": "h1: f32[1,4] = add(h0, h)"},
        "the loop reads 'h'",
    ),
    "body holds the whole batch": (
        LOOP,
        {"perm=(0, 1) sample=True\n  h0: f32[1,4]": "perm=(0, 1)\n  h0: f32[1,4]"},
        "refuses|is declared|holds all samples",
    ),
    "update in the body": (
        LOOP,
        {"h1: f32[1,4] = add(h0, s)": "h1: f32[1,4] = zero(h0)"},
        "updates 'h0' inside a loop",
    ),
    "samples mixed in the body": (
        LOOP,
        {"h1: f32[1,4] = add(h0, s)": "h1: f32[1,4] = batch_sum(h0) axes=(0,) keepdim=True"},
        "mixes samples",
    ),
    "loop in a loop": (
        LOOP,
        {"h0: f32[1,4] = linear(x1, w)": "h0: f32[1,4] = loop() body=1 yields=() specs=()"},
        "a loop inside",
    ),
    "value of one sample read outside": (
        LOOP,
        {"y = relu(h)": "u = relu(h1)\ny = relu(h)"},
        "'h1' exists inside the loop at node 1",
    ),
    "one sample outside of a loop": (
        LOOP,
        {"y = relu(h)": "x2 = feed(x) perm=(0, 1) sample=True\ny = relu(h)"},
        "outside of a loop",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_refused(fault: str) -> None:
    text, changes, message = FAULTS[fault]
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    with pytest.raises(Internal, match=message) as caught:
        check(parse(text), "some_pass")
    assert "after pass 'some_pass'" in str(caught.value)


def refused(graph: Graph, message: str) -> None:
    with pytest.raises(Internal, match=message):
        check(graph, "test")


def test_faults_that_text_cannot_express() -> None:
    graph = parse(TRAIN)
    without = {name: t for name, t in graph.tensors.items() if name != "y"}
    refused(graph.with_(tensors=without), "tensor 'y' is not declared")
    refused(graph.with_(tensors={**without, "y": Tensor("elsewhere", (4,))}), "'elsewhere' is filed under 'y'")
    refused(graph.with_(inputs=("x",)), "the inputs are")
    refused(graph.with_(outputs=("out", "out")), "the outputs are")
    refused(graph.with_(data={"w": np.zeros((4, 5))}), r"the value of w: f32\[4,4\] has shape \[4, 5\]")
    square = Tensor("sq", (Batch(), Batch()), DType.F32, Role.VALUE)
    refused(graph.with_(tensors={**graph.tensors, "sq": square}), "more than one axis")


def test_a_quantization_that_does_not_fit_is_refused() -> None:
    check(parse("input x: i8[4] quant=((0.5,), (3,))"), "test")
    with pytest.raises(Internal, match=r"x: i8\[4\] is not quantized so") as caught:
        check(parse("input x: i8[4] quant=((0.5, 0.5), (3, 3), 0)"), "test")
    assert caught.value.why == "2 scales, 4 needed"
