"""Gradients between layers in integers as int16 mantissas (decision 0024).

Comes after the gradients, and before what joins them with updates: nodes of the backward pass whose records say how
(`int16`) take mantissas and the exponent beside them. A gradient in f32 becomes mantissas where a layer in integers is
behind it; what has no such form reads f32 again, and the report says so. Each input gradient of a layer keeps in STATE
how its exponent relates to the one of what it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from ... import ops
from ...ir import DType, Graph, Node, Role
from ...ops.build import Builder, typed
from ...ops.traits import Int16
from .quantize import Report

GAIN: Final = ":gain:"
UNKNOWN: Final = np.zeros((), np.int32)


def int16_gradients(graph: Graph, grads: Mapping[str, str], report: Report | None) -> tuple[Graph, dict[str, str]]:
    """The graph and its gradients, those of parameters in f32 as before; as it is where none shall be int16."""
    if report is None or report.backs is None:
        return graph, dict(grads)
    made = _Rewrite(graph, report.backs)
    for node in graph.nodes:
        made.add(node)
    found = {name: made.real(grad) for name, grad in grads.items()}
    return made.b.graph(), found


class _Rewrite:
    def __init__(self, graph: Graph, backs: dict[str, None]) -> None:
        self.graph, self.backs = graph, backs
        self.b = Builder(graph)
        self.b.nodes.clear()
        self.exponents: dict[str, str] = {}  # of what is mantissas, under its own name
        self.halves: dict[str, tuple[str, str]] = {}  # gradient in f32 → its mantissas and their exponent
        self.reals: dict[str, str] = {}
        self.asked = _asked(graph)

    def add(self, node: Node) -> None:
        form = ops.get(node.op).int16 if node.stage == "backward" else None
        born = [i for i in form.inputs if node.ins[i] in self.exponents] if form else []
        self.b.stage, self.b.src = node.stage, node.src
        if form is not None and (born or node.outs[0] in self.asked or form.starts) and self._written(node, form):
            return
        if self.exponents.keys() & set(node.ins):
            self.backs[node.op] = None
        self.b.append(node.with_(ins=tuple(map(self.real, node.ins))))

    def real(self, name: str) -> str:
        if name not in self.exponents:
            return name
        if name not in self.reals:
            self.reals[name] = self.b.add("dequantize16", name, self.exponents[name], name=f"{name}.real")
        return self.reals[name]

    def _mantissas(self, name: str) -> tuple[str, str]:
        if name in self.exponents:
            return name, self.exponents[name]
        if name not in self.halves:
            q, exponent = self.b.add_many("quantize16", name, name=f"{name}.int16")
            self.halves[name] = q, exponent
        return self.halves[name]

    def _written(self, node: Node, form: Int16) -> bool:
        attrs, constants, b = dict(node.attrs), dict[int, str](), self.b
        if len({self.graph[node.ins[i]].shape for i in form.inputs}) > 1:
            return False
        if form.write is not None:
            small = self.real(node.ins[0])
            self._forget(node)
            q, exponent = form.write(b, node, small)
            self.exponents[q] = exponent
            return True
        if form.constant is not None:
            given = self.graph.data.get(node.ins[form.constant_at])
            found = None if given is None else form.constant(typed(self.graph, node), given)
            if found is None:
                return False
            value, more = found
            attrs |= more
            constants[form.constant_at] = b.constant(f"{node.ins[form.constant_at]}:16", value)
        ins: list[str] = []
        for i, name in enumerate(node.ins):
            if i in form.inputs:
                ins += self._mantissas(name) if form.op else self._mantissas(name)[:1]
            else:
                ins.append(constants.get(i, self.real(name)))
        out = node.outs[0]
        if form.delayed:
            gain = b.fresh(f"{GAIN}{node.ins[1]}")
            ins.append(b.stored(gain, UNKNOWN, Role.SETTING))
        self._forget(node)
        outs = b.add_many(form.op or node.op, *ins, **attrs, name=out)
        assert outs[0] == out
        if b[out].dtype is DType.I16:
            self.exponents[out] = outs[1] if form.op else self._mantissas(node.ins[form.inputs[0]])[1]
        if form.delayed:
            b.stage = "update"
            b.add("gain16", ins[-1], outs[1], name=f"{ins[-1]}'")
        return True

    def _forget(self, node: Node) -> None:
        """Its results are made again, under their names."""
        for out in node.outs:
            del self.b.tensors[out]


def _asked(graph: Graph) -> set[str]:
    """Gradients that lead to a layer which takes mantissas."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        form = ops.get(node.op).int16 if node.stage == "backward" else None
        if form is not None and form.write is None and (form.starts or node.outs[0] in found):
            found.update(node.ins[i] for i in form.inputs)
    return found
