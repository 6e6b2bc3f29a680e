"""What every program means: runs a Graph node by node with each op's numpy definition, in float64 by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import ops
from ...ir import Array, DType, Graph, Node, at

Watch = Callable[[Node, Mapping[str, Array]], None]


def run(
    graph: Graph,
    values: Mapping[str, Array],
    *,
    n: int,
    total: int | None = None,
    dtype: Any = np.float64,
    watch: Watch | None = None,
) -> dict[str, Array]:
    """Execute; `values` override `graph.data` for inputs, constants and state. Returns every tensor computed.

    State after the step is found under the names that update nodes yield.
    """
    env: dict[str, Array] = {}
    for source in (graph.data, values):
        for name, value in source.items():
            if name in graph.tensors:
                kind = dtype if graph[name].dtype is DType.F32 else graph[name].dtype.numpy
                env[name] = np.asarray(value, dtype=kind)
    whole = n if total is None else total
    position = 0
    while position < len(graph.nodes):
        node = graph.nodes[position]
        if ops.is_loop(node):
            body = graph.nodes[position + 1 : position + 1 + node.attrs["body"]]
            _run_loop(graph, node, body, env, n, whole, watch)
            position += len(body)
        else:
            _run_node(graph, node, env, ops.Run(n, whole, 0), n, watch)
        position += 1
    return env


def _run_loop(
    graph: Graph, loop: Node, body: tuple[Node, ...], env: dict[str, Array], n: int, total: int, watch: Watch | None
) -> None:
    parts: dict[str, list[Array]] = {}
    for index in range(n):
        for node in body:
            # Sizes inside the body are those of one sample; a feed still sees the caller's whole buffer.
            _run_node(graph, node, env, ops.Run(n, total, index), 1, watch)
            if ops.border(node) == "out":
                parts.setdefault(node.outs[0], []).append(env[node.outs[0]])
        for gathered, piece in zip(loop.outs, loop.attrs["yields"], strict=True):
            parts.setdefault(gathered, []).append(env[piece])
    for name, pieces in parts.items():
        env[name] = np.concatenate(pieces, axis=0)


def _run_node(graph: Graph, node: Node, env: dict[str, Array], run: ops.Run, n: int, watch: Watch | None) -> None:
    op = ops.get(node.op)
    attrs = at(dict(node.attrs), n)
    if op.needs_run:
        attrs["run"] = run
    results = op.ref(*[env[i] for i in node.ins], **attrs)
    for name, value in zip(node.outs, results, strict=True):
        env[name] = np.asarray(value)
    if watch:
        watch(node, env)


def advance(
    graph: Graph, state: Mapping[str, Array], inputs: Mapping[str, Array], *, n: int, total: int | None = None
) -> tuple[dict[str, Array], dict[str, Array]]:
    """One execution in float64: the caller's outputs, and the state afterwards under its original names."""
    env = run(graph, {**state, **inputs}, n=n, total=total)
    after = dict(state)
    first = {name: name for name in graph.data}  # any version → the name it started with
    for node in graph.nodes:
        record = ops.get(node.op)
        for out, source in record.shares.items():
            if not record.is_view and node.ins[source] in first:
                first[node.outs[out]] = first[node.ins[source]]
                after[first[node.outs[out]]] = env[node.outs[out]]
    return {name: env[name] for name in graph.outputs}, after


def initial_state(graph: Graph) -> dict[str, Array]:
    """The values that state tensors start with."""
    return {t.name: graph.data[t.name] for t in graph.tensors.values() if t.role.is_state and t.name in graph.data}
