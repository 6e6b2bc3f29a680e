"""Accumulators of micro-batches. They give the bits of the whole batch only if every sum over samples goes on where the
last micro-batch ended: so the sums are kept, not gradients that are made from several of them (a weight used twice) or
from one by further nodes (an embedding of positions); `apply` makes those when the sums are whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ... import ops
from ...ir import Graph, Node, Role, batch_axis
from .running_loss import RunningLoss, running_loss


@dataclass(frozen=True, slots=True)
class Totals:
    """`accumulators`: tensor in which samples have been summed → where its sum over all parts is; `later`: the nodes
    that make gradients of them, from parameters and constants besides; `loss`: how the loss is added up."""

    accumulators: Mapping[str, str]
    later: tuple[Node, ...]
    loss: RunningLoss


def accumulator(name: str) -> str:
    return f"{name}:acc"


def totals(graph: Graph, grads: Mapping[str, str]) -> Totals:
    walk = _Walk(graph)
    kept: dict[str, str] = {}
    later: set[int] = set()
    for param, grad in grads.items():
        sums, nodes = walk.back(grad) or ([grad], set())
        later |= nodes
        for name in sums:
            kept.setdefault(name, accumulator(param if name == grad else name))
    made = tuple(node for i, node in enumerate(graph.nodes) if i in later)
    return Totals(kept, made, running_loss(graph, walk.sampled))


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.made_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
        self.sampled = {t.name for t in graph.of_role(Role.INPUT)}  # depends on samples
        for node in graph.nodes:
            if self.sampled.intersection(node.ins):
                self.sampled.update(node.outs)

    def back(self, grad: str) -> tuple[list[str], set[int]] | None:
        """The sums over samples that the gradient is made of, and the nodes that make it; None if some of those are
        not linear in the sums, as with statistics of a batch."""
        sums: dict[str, None] = {}
        later: set[int] = set()
        left = [grad]
        while left:
            name = left.pop()
            at = self.made_at.get(name)
            if at is None or at in later:
                continue
            node = self.graph.nodes[at]
            varying = [i for i in node.ins if i in self.sampled]
            if any(batch_axis(self.graph[i].shape) is not None for i in varying):
                if node.stage != "backward":
                    return None
                sums[name] = None
                continue
            joined = tuple(k for k, i in enumerate(node.ins) if i in self.sampled)
            if len(varying) > 1 and joined not in ops.get(node.op).linear_in:
                return None
            later.add(at)
            left += node.ins
        return list(sums), later


def without(graph: Graph, later: tuple[Node, ...]) -> Graph:
    """The graph without those of the nodes that nobody else needs."""
    extra = {node.outs for node in later}
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node.outs not in extra or needed.intersection(node.outs):
            kept.append(node)
            needed.update(node.ins)
    return graph.with_(nodes=tuple(reversed(kept)))


__all__ = ["Totals", "accumulator", "totals", "without"]
