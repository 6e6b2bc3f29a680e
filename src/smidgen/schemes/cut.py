"""A network cut in two: what comes before computes features once, what comes after learns from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from ..compiler.imported import Imported
from ..ir import Graph, Node, Role, Tensor, dead_removed, unnamed_removed

FEATURES = "features"


def after(graph: Graph, cut: str, loss: str) -> Graph:
    """The graph that gets the value from its caller."""
    tensor = graph[cut]
    given = Tensor(FEATURES, tensor.shape, tensor.dtype, Role.INPUT)
    feed = Node("feed", (FEATURES,), (cut,), {"perm": tuple(range(len(tensor.shape)))}, "io", "")
    nodes = (feed, *(n for n in graph.nodes if cut not in n.outs))
    nodes = _needed(nodes, {loss, *graph.outputs})
    read = {name for node in nodes for name in node.ins}
    inputs = (FEATURES, *(name for name in graph.inputs if name in read))
    return unnamed_removed(graph.with_(nodes=nodes, tensors={**graph.tensors, FEATURES: given}, inputs=inputs))


def before(graph: Graph, cut: str) -> Graph:
    """The graph that gives the value to its caller, and nothing else."""
    tensor = graph[cut]
    given = Tensor(FEATURES, tensor.shape, tensor.dtype, Role.OUTPUT)
    fetch = Node("fetch", (cut,), (FEATURES,), {"perm": tuple(range(len(tensor.shape)))}, "io", "")
    position = next(i for i, n in enumerate(graph.nodes) if cut in n.outs)
    tensors = {**graph.tensors, FEATURES: given}
    made = graph.with_(nodes=(*graph.nodes[: position + 1], fetch), tensors=tensors, outputs=(FEATURES,))
    return dead_removed(made)


def _needed(nodes: Sequence[Node], wanted: Set[str]) -> tuple[Node, ...]:
    """Those that the wanted values are computed by."""
    used, kept = set(wanted), list[Node]()
    for node in reversed(nodes):
        if used & set(node.outs):
            kept.append(node)
            used |= set(node.ins)
    return tuple(reversed(kept))


def cut_at(imported: Imported, forward: Mapping[str, Graph], cut: str) -> Imported | None:
    """A model whose inference computes features, and whose training and evaluation start from them; None if its graphs
    do not have the cut in common."""
    if any(cut not in graph.tensors for graph in forward.values()) or "evaluate" not in forward:
        return None
    infer = before(forward["infer"], cut)
    train, evaluate = (after(forward[name], cut, imported.loss) for name in ("train", "evaluate"))
    return replace(imported, train=train, infer=infer, evaluate=evaluate)


def last_before(found: Sequence[tuple[int, str]], position: int) -> str | None:
    """The last cut above the node at this position."""
    return next((name for i, name in reversed(found) if i < position), None)


__all__ = ["after", "before", "cut_at", "last_before"]
