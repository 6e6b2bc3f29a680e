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
from ..errors import BadOption, NothingToTrain
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
        if not added:
            raise self._too_high(graph)
        return [*map(Update, dict.fromkeys(added)), *last(context.before(graph), 1)]

    def _too_high(self, graph: Graph) -> NothingToTrain:
        """No layer has an adapter."""
        found = [u for u in uses(graph) if u.role == "weight"]
        sides = {u.param: s for u in found if u.param != found[-1].param and (s := _sides(graph, u)) is not None}
        what = f"no layer of this model can have an adapter of rank {self.rank}"
        most = {name: (a * b - 1) // (a + b) for name, (_, _, a, b) in sides.items()}
        name = max(most, key=most.__getitem__, default="")
        if not name or not most[name]:
            why = "before the classifier there is no linear layer and no 1x1 convolution that is wide enough"
            help = 'method="last_layer" trains the classifier alone'
            return NothingToTrain(what, at="method lora", why=why, help=help)
        _, _, outputs, inputs = sides[name]
        return NothingToTrain(
            what, at="method lora",
            why=f"two matrices would be no smaller than the weight: the largest, '{name}', is {outputs} by {inputs}",
            help=f"lora:{most[name]} is the highest that any of its layers can have; lora:4 is usual",
        )  # fmt: skip

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
    """The layer plus the product of two thin matrices; as it is, if its weight is no matrix or they are no smaller.

    The thin ones run first, so that going back the layer itself does: its result's gradient is then gone before the
    thin ones make another one of the size of the input.
    """
    node, found = graph.nodes[use.position], _sides(graph, use)
    if found is None:
        return graph
    out_axis, in_axis, outputs, inputs = found
    if rank * (outputs + inputs) >= outputs * inputs:
        return graph
    shape = [int(d) for d in graph[use.param].shape]  # type: ignore[arg-type]
    down, up = list(shape), list(shape)
    down[out_axis] = up[in_axis] = rank
    b = Builder(graph)
    before, b.nodes, b.src = b.nodes[: use.position], [], node.src
    names = f"{use.param}{DOWN}", f"{use.param}{UP}"
    if names[0] not in b.tensors:  # a weight that is used twice has one adapter
        rng = np.random.default_rng(sum(map(ord, use.param)))
        b.stored(names[0], rng.standard_normal(down) / math.sqrt(inputs), Role.PARAM)
        b.stored(names[1], np.zeros(up), Role.PARAM)
    thin = b.add(node.op, node.ins[0], names[0], **node.attrs)
    y = node.outs[0]
    size = {k: v for k, v in node.attrs.items() if k == "out_hw"}  # of a transposed convolution
    wide = b.add(node.op, thin, names[1], **size)
    b.nodes.append(node)
    added = b.add("add", y, wide, name=f"{y}.with_lora")
    after = [n.with_(ins=tuple(added if i == y else i for i in n.ins)) for n in graph.nodes[use.position + 1 :]]
    b.nodes = [*before, *b.nodes, *after]
    return b.graph()


def _sides(graph: Graph, use: Use) -> tuple[int, int, int, int] | None:
    """Axes of outputs and inputs, and how many there are; None for a weight that is no matrix."""
    node = graph.nodes[use.position]
    record = ops.get(node.op)
    if record.channels is None or use.param not in node.ins:
        return None
    axes, shape = record.channels(typed(graph, node)), [int(d) for d in graph[use.param].shape]  # type: ignore[arg-type]
    if axes.outputs is None or axes.inputs is None or axes.outputs == axes.inputs:
        return None
    outputs, inputs = shape[axes.outputs], shape[axes.inputs]
    return (axes.outputs, axes.inputs, outputs, inputs) if math.prod(shape) == outputs * inputs else None


__all__ = ["DOWN", "UP", "Lora", "with_adapter"]
