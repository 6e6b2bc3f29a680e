"""Cut the frozen part off: an entry that computes features of samples once, and a step that starts from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ... import ops
from ...ir import Graph, Node, Role, Tensor, dead_removed, unnamed_removed
from .sample_loop import split, works

FEATURES = "features"


def cut_features(graph: Graph, learns: Collection[str]) -> tuple[Graph, Graph] | None:
    """The graph in two: what depends on nothing that learns, and the rest, which gets what it reads of the first from
    its caller; None if nothing is frozen. Both together compute what the graph does, in the same order.

    The cut is where the frozen part ends, so that nothing of it runs again for a sample that is kept. Each tensor that
    crosses is one part of the features, also an input that the rest reads itself. What differs from step to step
    (dropout), mixes samples (batch statistics), or reads the target stays in the rest, with all that depends on it.
    """
    target = graph.inputs[-1]
    varies = {target, *(t.name for t in graph.of_role(Role.SETTING))}
    before, inside = split(graph, set(learns), varies)
    if not any(works(graph.nodes[i]) for i in inside):
        return None
    inside |= {i for i, node in enumerate(graph.nodes) if ops.border(node) == "in" and node.ins[0] != target}
    frozen = [graph.nodes[i] for i in sorted(inside)]
    rest = [node for i, node in enumerate(graph.nodes) if i not in inside]
    needed = {name for node in rest for name in node.ins}
    again: list[Node] = []  # views cost nothing: what they show crosses
    for node in reversed(frozen):
        if node.outs[0] in needed and ops.get(node.op).is_view:
            again.insert(0, node)
            needed = (needed - set(node.outs)) | set(node.ins)
    crossing = [name for node in frozen for name in node.outs if name in needed]
    if not crossing:
        return None
    names = {name: _named(graph, i) for i, name in enumerate(crossing)}
    first = [node for i, node in enumerate(graph.nodes) if i in before or i in inside]
    features = graph.with_(
        nodes=(*first, *(_moved("fetch", graph[name], name, names[name]) for name in crossing)),
        tensors={**graph.tensors, **_outside(graph, names, Role.OUTPUT)},
        inputs=graph.inputs[:-1], outputs=tuple(names.values()),
    )  # fmt: skip
    train = graph.with_(
        nodes=(*(_moved("feed", graph[name], names[name], name) for name in crossing), *again, *rest),
        tensors={**graph.tensors, **_outside(graph, names, Role.INPUT)},
        inputs=(*names.values(), target),
    )  # fmt: skip
    return unnamed_removed(train), dead_removed(features)


def _named(graph: Graph, number: int) -> str:
    name = FEATURES if number == 0 else f"{FEATURES}.{number + 1}"
    while name in graph.tensors:
        name = f"{name}'"
    return name


def _outside(graph: Graph, names: Mapping[str, str], role: Role) -> dict[str, Tensor]:
    return {outside: Tensor(outside, graph[name].shape, graph[name].dtype, role) for name, outside in names.items()}


def _moved(op: str, tensor: Tensor, source: str, to: str) -> Node:
    return Node(op, (source,), (to,), {"perm": tuple(range(len(tensor.shape)))}, "io", "")


__all__ = ["cut_features"]
