"""Where updates go, what is fused, and what the loop over samples takes in."""

from __future__ import annotations

import pytest

from smidgen.compiler.graph import check
from smidgen.compiler.graph.text import parse, to_text
from smidgen.compiler.optimizers import SGD, Adam
from smidgen.compiler.passes.accumulators import totals
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.passes.sample_loop import sample_loop
from smidgen.compiler.passes.train_graph import lowered
from smidgen.compiler.passes.update import grad_entry, train_entry
from smidgen.errors import Internal
from tests.support import small


def test_weight_gradients_are_consumed_by_the_update() -> None:
    graph = small.entries().graphs["train"]
    ops = [node.op for node in graph.nodes if node.stage == "update"]
    assert sorted(ops) == ["bias_dw_momentum"] * 3 + ["conv2d_dw_momentum"] * 2 + ["count_step", "linear_dw_momentum"]


def test_clipping_needs_all_gradients_at_once() -> None:
    graph = small.entries(optimizer=SGD(0.1, clip_norm=1.0)).graphs["train"]
    ops = [node.op for node in graph.nodes]
    assert ops.count("sgd") == 6
    assert ops.count("clip_factor") == 1
    assert max(i for i, op in enumerate(ops) if op.endswith("_dw")) < ops.index("clip_factor")


def test_an_update_waits_for_the_last_reader_of_the_weight() -> None:
    graph = small.entries().graphs["train"]
    readers = [i for i, node in enumerate(graph.nodes) if "w2" in node.ins]
    assert graph.nodes[readers[-1]].op == "conv2d_dw_momentum"
    assert [graph.nodes[i].op for i in readers] == ["conv2d", "conv2d_dx", "conv2d_dw_momentum"]


def test_the_checker_refuses_a_reader_after_the_update() -> None:
    graph = small.entries().graphs["train"]
    nodes = list(graph.nodes)
    at = next(i for i, node in enumerate(nodes) if node.op == "conv2d_dx")
    nodes.insert(len(nodes) - 1, nodes.pop(at).with_(outs=("late",)))
    tensors = {**graph.tensors, "late": graph.tensors[graph.nodes[at].outs[0]]}
    with pytest.raises(Internal, match="E901"):
        check.check(graph.with_(nodes=tuple(nodes), tensors=tensors), "test")


def test_accumulators_take_the_place_of_the_update() -> None:
    train, _, loss = small.forward()
    whole, grads = autodiff(train, loss, small.ALL)
    ops = [node.op for node in grad_entry(whole, totals(whole, grads)).nodes if node.stage == "update"]
    assert sorted(ops) == ["bias_dw_acc"] * 3 + ["conv2d_dw_acc"] * 2 + ["linear_dw_acc"]


def test_adam_reads_the_counter_and_the_counter_moves_last() -> None:
    train, _, loss = small.forward()
    whole, grads = autodiff(train, loss, ["w3"])
    graph = train_entry(whole, grads, Adam(1e-3))
    assert graph.nodes[-1].op == "count_step"
    update = next(node for node in graph.nodes if node.op == "linear_dw_adam")
    assert update.ins[-1] == ":counter"


def test_a_frozen_prefix_moves_into_a_loop() -> None:
    before = parse("""
        input x: f32[n,4]
        const w: f32[3,4]
        param v: f32[2,3]
        output y: f32[n,2]
        x.fed: f32[n,4] = feed(x) perm=(0, 1)
        h: f32[n,3] = linear(x.fed, w)
        r: f32[n,3] = relu(h)
        o: f32[n,2] = linear(r, v)
        y: f32[n,2] = fetch(o) perm=(0, 1)
        v': f32[2,3] = linear_dw_sgd(o, r, v, l) weight_decay=0.0
    """.replace("v': f32[2,3] = linear_dw_sgd(o, r, v, l) weight_decay=0.0",
                "param v': f32[2,3] = linear_dw_sgd(o, r, v, l) weight_decay=0.0 @update")
       .replace("param v: f32[2,3]", "param v: f32[2,3]\n        setting l: f32[]")
       .replace("        output y: f32[n,2]\n", "")
       .replace("y: f32[n,2] = fetch", "output y: f32[n,2] = fetch"))  # fmt: skip
    text = to_text(sample_loop(before))
    lines = [line.strip() for line in text.splitlines() if "=" in line and not line.startswith(("param v:", "const"))]
    assert lines[0].startswith("r: f32[n,3] = loop() body=3")
    assert [line.split(":")[0] for line in lines[1:4]] == ["x.fed@1", "h@1", "r@1"]
    assert lines[4].startswith("o: f32[n,2] = linear(r, v)")


def test_inference_is_one_loop() -> None:
    nodes = lowered(small.forward()[1]).nodes
    assert nodes[0].op == "loop"
    assert nodes[0].attrs["body"] == len(nodes) - 1
