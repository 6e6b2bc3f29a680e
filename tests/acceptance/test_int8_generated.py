"""Random convolutional networks in int8: the interpreter's integers in C to the bit, exact and fast, under streams too;
a step of training as the interpreter says; and learning that follows that in f32."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

import smidgen
from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.graph import interp
from smidgen.ir import Array, DType, Graph, Role
from smidgen.ops.build import Builder, fetch
from smidgen.runtime.machine import Machine
from smidgen.train.job import Job
from tests.support.encoded import encoded
from tests.support.int8_nets import Int8Net

COUNT = int(os.environ.get("SMIDGEN_INT8_NETWORKS", "36"))
BATCH = 6


def method_of(net: Int8Net, seed: int) -> Any:
    """All of it, its end, biases, or slices of outputs and of inputs."""
    names = [name for name, value in net.named_parameters() if value.dim() == 4]
    rng = np.random.default_rng(seed)
    if seed % 6 == 4 and names:
        name = names[seed // 6 % len(names)]
        shape = dict(net.named_parameters())[name].shape
        axis = 1 if seed % 12 == 4 and shape[1] > 1 else 0
        some = sorted(rng.permutation(shape[axis])[: max(1, shape[axis] // 2)].tolist())
        return [smidgen.Update(name, axis, tuple(some)), "head.weight", "head.bias"]
    return ["full", "last_layer", "bias", ["full"], "full", "last:2"][seed % 6]


def data(net: Int8Net, seed: int, count: int = BATCH) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, *net.shape)).astype(np.float32), rng.integers(0, net.classes, count)


def options_of(net: Int8Net, seed: int, precision: Any) -> dict[str, Any]:
    optimizers = (smidgen.SGD(0.02, momentum=0), smidgen.SGD(0.02, momentum=0.9), smidgen.Adam(0.003))
    return {
        "precision": precision, "method": method_of(net, seed), "optimizer": optimizers[seed % 3], "batch": BATCH,
        "data": None if precision == "f32" else data(net, seed + 1000, 32)[0],
    }  # fmt: skip


def with_all_integers(graph: Graph) -> Graph:
    b = Builder(graph)
    loops = {out for node in graph.nodes if node.op == "loop" for out in node.outs}
    for node in graph.nodes:
        for out in node.outs:
            if graph[out].dtype is DType.I8 and graph[out].role is Role.VALUE and out not in loops:
                fetch(b, out, f"seen:{out}")
    return b.graph()


GRADIENTS = ("f32", "int16")


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("seed", range(COUNT))
def test_random_networks_in_int8(seed: int, gradients: str) -> None:
    net = Int8Net(seed)
    precision = smidgen.Int8(head="int8" if seed % 5 == 3 else "f32", gradients=gradients)
    entries = api.build(net, torch.zeros(BATCH, *net.shape), **options_of(net, seed, precision))
    if gradients == "f32":
        inference(entries.forward["infer"], net, seed)
    step(entries, net, seed)


def inference(graph: Graph, net: Int8Net, seed: int) -> None:
    """Every integer that inference makes."""
    graph = with_all_integers(graph)
    x, _ = data(net, seed + 1)
    want = interp.run(graph, {graph.inputs[0]: x}, n=BATCH)
    program = encoded({"infer": graph}, BATCH).to_bytes()
    seen = [name for name in graph.outputs if name.startswith("seen:")]
    assert seen
    for kernels in ("exact", "fast"):
        got = [np.empty(want[name].shape, graph[name].dtype.numpy) for name in graph.outputs]
        Machine(program, kernels=kernels).run("infer", [x], got, BATCH)
        floats = any(node.op == "quantize" and graph[node.ins[0]].dtype is DType.F32 for node in graph.nodes[2:])
        for name, value in zip(graph.outputs, got, strict=True):
            if name in seen and not floats:  # behind what computes in f32, a number may be rounded to its neighbour
                np.testing.assert_array_equal(value, want[name], err_msg=f"{name}, {kernels}")
            elif name in seen:
                assert np.abs(value.astype(int) - want[name]).max() <= 2
            else:
                np.testing.assert_allclose(value, want[name], rtol=1e-4, atol=1e-5 if not floats else 0.05)


def step(entries: Any, net: Int8Net, seed: int) -> None:
    """Where gradients differ in their last bits, a change may be rounded to the neighbour, rarely."""
    train = entries.graphs["train"]
    jobs = [Job(encode(entries), kernels=kernels) for kernels in ("exact", "fast")]
    x, y = data(net, seed + 2)
    before = interp.initial_state(train)
    outputs, after = interp.advance(train, before, dict(zip(train.inputs, [x, y.astype(np.int32)], strict=True)),
                                    n=BATCH)  # fmt: skip
    for job in jobs:
        assert job.train_step(x, y) == pytest.approx(float(outputs["loss"]), rel=1e-3, abs=1e-4)
        for name, fact in job.program.meta["state"].items():
            if fact["role"] != "param":
                continue
            got, want = job.engine.state.view(name), after[name]
            if want.dtype == np.float64:
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
            else:
                away = np.abs(got.astype(np.int64) - want)
                assert (away > np.maximum(1, 1e-3 * np.abs(want.astype(np.int64) - before[name]))).mean() < 0.01, name
                assert got.dtype == np.int32 or (away > 0).mean() < 0.05, name


@pytest.mark.parametrize("gradients", GRADIENTS)
@pytest.mark.parametrize("seed", range(0, COUNT, 3))
def test_what_int8_learns_follows_f32(seed: int, gradients: str) -> None:
    """A few samples are learned by heart."""
    net = Int8Net(seed)
    x, y = data(net, seed + 3)
    drops = []
    for precision in ("f32", "int8"):
        given = options_of(net, seed, precision)
        if precision == "int8":
            given["data"] = np.concatenate([given["data"], x])
            given["precision"] = smidgen.Int8(gradients=gradients)
        job = smidgen.compile(net, torch.zeros(BATCH, *net.shape), **given)
        losses = [float(job.train_step(x, y)) for _ in range(25)]
        drops.append(losses[0] - float(np.mean(losses[-3:])))
    f32, int8 = drops
    assert int8 > 0.5 * f32 - 0.05, drops
