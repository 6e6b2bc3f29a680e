"""LoRA (Hu et al. 2021): beside the weight of each linear layer, 1x1 convolution and attention projection learns a
product of two thin matrices, y = Wx + B(Ax). B starts at zero, so that the network starts as it was; W stays constant.
The classifier learns whole, with its bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from .. import ops
from ..errors import BadOption
from ..ir import Graph, Role
from ..ops.build import Builder, typed
from .contract import Context, Merge, Method, Update, count_of
from .last import last
from .registry import register
from .uses import Use, uses

DOWN, UP = ".lora_down", ".lora_up"


@register
@dataclass(frozen=True)
class Lora(Method):
    name: ClassVar[str] = "lora"
    doc: ClassVar[str] = "low-rank adapters of linear layers and 1x1 convolutions, as in lora:4; the classifier"
    keeps: ClassVar[str] = "inputs of the adapted layers, and r numbers for each of their results"
    costs: ClassVar[str] = "two thin products beside each layer; none when merged"
    after: ClassVar[str] = "Hu et al. 2021 (LoRA)"
    argument: ClassVar[str] = "rank"

    rank: int = 4

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise BadOption(f"Lora({self.rank!r}) is not a rank", help="Lora(4)")

    @classmethod
    def of(cls, argument: str) -> Self:
        return cls(count_of(argument, 4))

    def adapt(self, graph: Graph) -> Graph:
        found = [u for u in uses(graph) if u.role == "weight"]
        head = {u.param for u in found[-1:]}
        for use in reversed([u for u in found if u.param not in head]):
            graph = with_adapter(graph, use, self.rank)
        return graph

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        added = [u.param for u in uses(graph) if u.param.endswith((DOWN, UP))]
        return [*map(Update, dict.fromkeys(added)), *last(context.before(graph), 1)]

    def merges(self, graph: Graph) -> Sequence[Merge]:
        names = [t.name.removesuffix(DOWN) for t in graph.of_role(Role.PARAM) if t.name.endswith(DOWN)]
        return [_merge(graph, name) for name in names]

    def __str__(self) -> str:
        return f"{self.name}:{self.rank}"


def _merge(graph: Graph, name: str) -> Merge:
    """The thin matrix with the rank behind goes left."""
    down, up = f"{name}{DOWN}", f"{name}{UP}"
    rows_first = graph[up].shape[0] == graph[name].shape[0]
    return Merge(name, up, down) if rows_first else Merge(name, down, up)


def with_adapter(graph: Graph, use: Use, rank: int) -> Graph:
    """The layer plus the product of two thin matrices; as it is, if its weight is no matrix or they are no smaller."""
    node = graph.nodes[use.position]
    record = ops.get(node.op)
    if record.channels is None or use.param not in node.ins:
        return graph
    axes, shape = record.channels(typed(graph, node)), [int(d) for d in graph[use.param].shape]  # type: ignore[arg-type]
    if axes.outputs is None or axes.inputs is None or axes.outputs == axes.inputs:
        return graph
    outputs, inputs = shape[axes.outputs], shape[axes.inputs]
    if math.prod(shape) != outputs * inputs or rank * (outputs + inputs) >= outputs * inputs:
        return graph
    down, up = list(shape), list(shape)
    down[axes.outputs] = up[axes.inputs] = rank
    b = Builder(graph)
    before, b.nodes, b.src = b.nodes[: use.position + 1], [], node.src
    names = f"{use.param}{DOWN}", f"{use.param}{UP}"
    if names[0] not in b.tensors:  # a weight that is used twice has one adapter
        rng = np.random.default_rng(sum(map(ord, use.param)))
        b.stored(names[0], rng.standard_normal(down) / math.sqrt(inputs), Role.PARAM)
        b.stored(names[1], np.zeros(up), Role.PARAM)
    thin = b.add(node.op, node.ins[0], names[0], **node.attrs)
    y = node.outs[0]
    size = {k: v for k, v in node.attrs.items() if k == "out_hw"}  # of a transposed convolution
    added = b.add("add", y, b.add(node.op, thin, names[1], **size), name=f"{y}.with_lora")
    after = [n.with_(ins=tuple(added if i == y else i for i in n.ins)) for n in graph.nodes[use.position + 1 :]]
    b.nodes = [*before, *b.nodes, *after]
    return b.graph()


__all__ = ["DOWN", "UP", "Lora", "with_adapter"]
