"""Constant weights that are multiples of a scale go into flash as int8: a quarter of the bytes, the same bits in every
result. A weight whose outputs are not exactly q·scale in f32, or that an op reads which cannot, stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ... import ops
from ...ir import Array, DType, Graph, Node, Quant, Role, Tensor
from ...program.arrays import INT8, SCALE
from .stored import reading

LEAST_BYTES: Final = 256  # of a weight in f32: below, scales eat what is saved


def narrow(graphs: Mapping[str, Graph]) -> tuple[dict[str, Graph], int]:
    """The same graphs with int8 weights where that loses nothing, and the bytes of flash that it saves."""
    weights: dict[str, Array] = {}
    refused: set[str] = set()
    for graph in graphs.values():
        for node in graph.nodes:
            for i, name in enumerate(node.ins):
                tensor = graph[name]
                if tensor.role is not Role.CONST or tensor.dtype is not DType.F32:
                    continue
                if _takes_int8(node) == i and node.ins.count(name) == 1 and tensor.bytes(1) >= LEAST_BYTES:
                    weights[name] = graph.data[name]
                else:
                    refused.add(name)
    found = {name: parts for name, value in weights.items() if name not in refused and (parts := int8_rows(value))}
    saved = sum(_saved(value) for name, value in weights.items() if name in found)
    return {name: _narrowed(graph, found) for name, graph in graphs.items()}, saved


def _saved(weight: Array) -> int:
    """Bytes in f32, less those of int8 and scales."""
    return weight.size * (DType.F32.bytes - DType.I8.bytes) - len(weight) * DType.F32.bytes


def _takes_int8(node: Node) -> int | None:
    """The input that may be int8."""
    stored = ops.get(node.op).stored
    return stored.input if stored and stored.int8 else None


def int8_rows(weight: Array) -> tuple[Array, Array] | None:
    """q in int8 and a scale for each output: q·scale, rounded to f32, is exactly `weight`. None if there is none."""
    rows = np.asarray(weight, np.float32).reshape(len(weight), -1)
    largest = np.abs(rows).max(axis=1).astype(np.float64)
    if not np.isfinite(largest).all():
        return None
    q = np.zeros(rows.shape, np.int8)
    scale = np.ones(len(rows), np.float32)
    left = np.flatnonzero(largest > 0)
    for top in range(128, 0, -1):  # the largest number of an output is `top` times its scale
        if not len(left):
            break
        guess = (largest[left] / top).astype(np.float32)
        for step in (0, 1, -1):  # the quotient is rounded: its neighbours too
            s = guess if step == 0 else np.nextafter(guess, np.float32(np.inf * step), dtype=np.float32)
            numbers = np.rint(rows[left] / s[:, None])
            same = (numbers.astype(np.float32) * s[:, None] == rows[left]).all(axis=1)
            same &= (numbers >= -128).all(axis=1) & (numbers <= 127).all(axis=1)
            q[left[same]] = numbers[same].astype(np.int8)
            scale[left[same]] = s[same]
            left, guess = left[~same], guess[~same]
            if not len(left):
                break
    return None if len(left) else (q.reshape(np.shape(weight)), scale)


def _narrowed(graph: Graph, found: Mapping[str, tuple[Array, Array]]) -> Graph:
    tensors, data = dict(graph.tensors), dict(graph.data)
    nodes: list[Node] = []
    for node in graph.nodes:
        stored = ops.get(node.op).stored
        w = node.ins[stored.input] if stored and stored.int8 else ""
        if w in found:
            q, scale = found[w]
            made = {f"{w}{INT8}": q, f"{w}{SCALE}": scale.astype(np.float64)}
            node, constants = reading(graph, node, str(stored and stored.int8), tuple(made))
            for name, value in (made | constants).items():
                quant = Quant(tuple(scale.tolist()), (0,) * len(scale), axis=0) if value is q else None
                tensors[name] = Tensor(name, value.shape, DType.of_numpy(value.dtype), Role.CONST, quant=quant)
                data[name] = value
        nodes.append(node)
    used = {name for node in nodes for name in (*node.ins, *node.outs)}
    gone = {name for name in found if name not in used}
    return graph.with_(
        nodes=tuple(nodes),
        tensors={name: t for name, t in tensors.items() if name not in gone},
        data={name: v for name, v in data.items() if name not in gone},
    )
