"""What is known now is computed now: frozen tensors become constants, norms move into the weights before them.

All of it in float64; values are rounded once, when they are encoded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ... import ops
from ...ir import Array, DType, Graph, Node, Role, Tensor, batch_axis
from ...ops.build import named_by_content
from ...ops.traits import OperandRole

_GROWTH = 4  # a folded result may be this many times larger than what it is computed from


def freeze(graph: Graph, learn: Collection[str], updated: Collection[str] = frozenset()) -> Graph:
    """Parameters that do not learn, and statistics that no node of any graph updates, become constants."""

    def role(tensor: Tensor) -> Role:
        frozen = (tensor.role is Role.PARAM and tensor.name not in learn) or (
            tensor.role is Role.STAT and tensor.name not in updated
        )
        return Role.CONST if frozen and tensor.name not in computed else tensor.role

    computed = {out for node in graph.nodes for out in node.outs}
    return graph.with_(tensors={k: replace(t, role=role(t)) for k, t in graph.tensors.items()})


def frozen(graphs: Mapping[str, Graph], learn: set[str], folds: Folds) -> dict[str, Graph]:
    """What neither learns nor is measured becomes constant; norms over constants are folded into their layer."""
    keeping = [node for g in graphs.values() for node in g.nodes if ops.get(node.op).statistics == "keeps"]
    measured = {i for node in keeping for i in node.ins}
    return {name: fold_batch_norm(freeze(g, learn, measured), folds) for name, g in graphs.items()}


def fold_constants(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """Compute nodes that read constants only. A reshape of a constant that is read elsewhere too stays a view of it."""
    known = {t.name: np.asarray(graph.data[t.name]) for t in graph.of_role(Role.CONST) if t.name in graph.data}
    stored = set(known)
    found: dict[int, Node] = {}
    for i, node in enumerate(graph.nodes):
        if all(name in known for name in node.ins) and _worth_it(graph, node):
            results = ops.get(node.op).ref(*[known[name] for name in node.ins], **node.attrs)
            known |= {out: _stored(graph[out], y) for out, y in zip(node.outs, results, strict=True)}
            found[i] = node
    readers = graph.readers()
    for i, node in list(found.items()):
        others = [r for r in readers[node.ins[0]] if r != i and (r not in found or ops.get(found[r].op).is_view)]
        if (ops.get(node.op).is_view and node.ins[0] in stored and others) or any(out in keep for out in node.outs):
            del found[i]
    new = {out: named_by_content(out, known[out]) for node in found.values() for out in node.outs}
    tensors = {name: t for name, t in graph.tensors.items() if name not in new}
    tensors |= {name: replace(graph[out], name=name, role=Role.CONST) for out, name in new.items()}
    data = {**graph.data, **{name: known[out] for out, name in new.items()}}
    nodes = tuple(
        node.with_(ins=tuple(new.get(i, i) for i in node.ins))
        for position, node in enumerate(graph.nodes)
        if position not in found
    )
    merged = graph.merged.union(name for node in found.values() for name in node.ins if name in stored)
    return _tidy(graph.with_(nodes=nodes, tensors=tensors, data=data, merged=merged)) if found else graph


def _worth_it(graph: Graph, node: Node) -> bool:
    """Pure, of a size known now, and not much larger than its inputs."""
    record = ops.get(node.op)
    outs = [graph[out] for out in node.outs]
    fixed = all(t.role is Role.VALUE and batch_axis(t.shape) is None for t in outs)
    if not node.ins or not fixed or record.needs_run or (record.shares and not record.is_view):
        return False
    return sum(t.bytes(1) for t in outs) <= _GROWTH * sum(graph[name].bytes(1) for name in set(node.ins))


def _stored(tensor: Tensor, value: Array) -> Array:
    kind = np.float64 if tensor.dtype is DType.F32 else tensor.dtype.numpy
    return np.ascontiguousarray(value, dtype=kind).reshape(tensor.shape)


def _tidy(graph: Graph) -> Graph:
    """Without constants that only what is gone has read."""
    read = {name for node in graph.nodes for name in node.ins}
    tensors = {name: t for name, t in graph.tensors.items() if t.role is not Role.CONST or name in read}
    layouts = {name: steps for name, steps in graph.layouts.items() if name in tensors}
    return graph.with_(tensors=tensors, data={k: v for k, v in graph.data.items() if k in tensors}, layouts=layouts)


# Batch-norm after a layer that is linear: y = a·(Wx + b - mean) + beta with a = gamma / sqrt(var + eps) per channel.


@dataclass(frozen=True, slots=True)
class Folds:
    """Weights and biases with a norm in them, by the arrays that they are made of: entry points share them, and so do
    methods, so each is made once."""

    known: dict[tuple[Any, ...], tuple[list[Array], list[tuple[str, Array]]]] = field(default_factory=dict)

    def get(self, key: tuple[Any, ...], arrays: list[Array]) -> list[tuple[str, Array]] | None:
        found = self.known.get((*key, *map(id, arrays)))
        return None if found is None else found[1]

    def put(self, key: tuple[Any, ...], arrays: list[Array], made: list[tuple[str, Array]]) -> None:
        """The arrays are kept, so that no other one gets their identity."""
        self.known[(*key, *map(id, arrays))] = arrays, made


def fold_batch_norm(graph: Graph, folds: Folds | None = None) -> Graph:
    """Move norms with constant gamma and statistics into the layer before them, if its weight is constant.

    A constant beta becomes part of the bias; one that learns is added afterwards.
    """
    folding = _Folding(graph, Folds() if folds is None else folds)
    for position, node in enumerate(graph.nodes):
        if _has_given_statistics(node):
            folding.fold(position)
    return folding.graph()


def _has_given_statistics(node: Node) -> bool:
    record = ops.get(node.op)
    return record.norm == "batch" and record.operand("mean") is not None


def _operands(norm: Node, *roles: OperandRole) -> list[str]:
    found = {role: norm.ins[i] for i, role in ops.get(norm.op).operands.items()}
    return [found[role] for role in roles]


def _is_reshape(node: Node) -> bool:
    record = ops.get(node.op)
    return record.is_view and record.rearranges is not None


class _Folding:
    """A graph whose norms go, one after the other."""

    def __init__(self, graph: Graph, folds: Folds) -> None:
        self._before = graph
        self._folds = folds
        self._nodes: list[Node | None] = list(graph.nodes)
        self._made_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
        self._readers = graph.readers()
        self._tensors, self._data = dict(graph.tensors), dict(graph.data)
        self._folded = False
        self._merged: set[str] = set()

    def graph(self) -> Graph:
        if not self._folded:
            return self._before
        nodes = tuple(node for node in self._nodes if node is not None)
        merged = self._before.merged | self._merged
        return _tidy(self._before.with_(nodes=nodes, tensors=self._tensors, data=self._data, merged=merged))

    def fold(self, position: int) -> None:
        """The norm at this position into the layer before it, if there is one for it."""
        norm = self._nodes[position]
        assert norm is not None
        at = self._layer_before(norm)
        layer = None if at is None else self._nodes[at]
        if at is None or layer is None:
            return
        self._folded = True
        self._nodes[at] = self._scaled(norm, layer)
        [beta] = _operands(norm, "shift")
        if not self._is_known(beta):
            self._nodes[position] = norm.with_(op="add", ins=(norm.ins[0], beta), attrs={})
            return
        self._nodes[position] = None
        gone, source = norm.outs[0], norm.ins[0]
        after = self._readers.pop(gone, [])
        for i in set(after):
            node = self._nodes[i]
            assert node is not None
            self._nodes[i] = node.with_(ins=tuple(source if name == gone else name for name in node.ins))
        self._readers[source] = after
        del self._tensors[gone]

    def _is_known(self, name: str) -> bool:
        return self._tensors[name].role is Role.CONST and name in self._data

    def _maker(self, name: str) -> Node | None:
        return self._nodes[self._made_at[name]] if name in self._made_at else None

    def _layer_before(self, norm: Node) -> int | None:
        """The layer whose result nothing but this norm reads, reshapes that leave channels alone in between."""
        x = norm.ins[0]
        if not all(self._is_known(name) for name in _operands(norm, "scale", "mean", "variance")):
            return None
        while (maker := self._maker(x)) is not None and len(self._readers[x]) == 1 and _is_reshape(maker):
            x = maker.ins[0]
            shape = self._tensors[x].shape
            if not shape or shape[-1] != self._tensors[norm.ins[0]].shape[-1]:
                return None
        if maker is None or ops.get(maker.op).scaled_weight is None or len(self._readers[x]) != 1:
            return None
        return self._made_at[x] if all(self._is_known(name) for name in maker.ins[1:]) else None

    def _scaled(self, norm: Node, layer: Node) -> Node:
        """The layer with the norm in its weight and bias."""
        [beta] = _operands(norm, "shift")
        added = [beta] if self._is_known(beta) else []
        names = [*_operands(norm, "scale", "mean", "variance"), *layer.ins[1:], *added]
        self._merged.update(names)
        arrays = [self._data[name] for name in names]
        key = layer.op, layer.ins[1], len(added), norm.attrs["eps"], repr(sorted(layer.attrs.items()))
        made = self._folds.get(key, arrays)
        if made is None:
            made = _folded(norm, layer, [np.asarray(array, np.float64) for array in arrays], bool(added))
            self._folds.put(key, arrays, made)
        for name, value in made:
            self._tensors[name] = Tensor(name, value.shape, DType.F32, Role.CONST)
            self._data[name] = value
        return layer.with_(ins=(layer.ins[0], *(name for name, _ in made)))


def _folded(norm: Node, layer: Node, arrays: list[Array], with_beta: bool) -> list[tuple[str, Array]]:
    """Weight and bias by name; `arrays` are gamma, mean, variance, weight, perhaps bias, perhaps beta."""
    gamma, mean, var, weight, *rest = arrays
    beta = rest.pop() if with_beta else None
    scaled_weight = ops.get(layer.op).scaled_weight
    assert scaled_weight is not None
    a = gamma / np.sqrt(var + norm.attrs["eps"])
    shift = (sum(rest) - mean) * a
    if beta is not None:
        shift = shift + beta
    hint = layer.ins[1]
    parts = (hint, scaled_weight(weight, a, layer.attrs)), (f"{hint}.bias", shift)
    return [(named_by_content(f"{name}.folded", value), value) for name, value in parts]
