"""Reverse-mode differentiation of a flat graph, at compile time, only for what is asked."""

from __future__ import annotations

from collections.abc import Collection

from ... import ops
from ...errors import NotDifferentiable
from ...ir import Graph, Node
from ...ops.build import Builder


def autodiff(graph: Graph, loss: str, wanted: Collection[str]) -> tuple[Graph, dict[str, str]]:
    """Append the backward nodes of scalar `loss`; returns the graph and, per wanted tensor, its gradient's name.

    Gradients of a value used in several places are added as they arrive, so at most one sum is alive. A tensor in
    `wanted` that the loss does not depend on is absent from the result.
    """
    depends = _depending(graph, wanted)
    b = Builder(graph)
    b.want(depends)
    b.stage = "backward"
    grads: dict[str, str] = {}
    if loss in depends:
        grads[loss] = b.add("fill", shape=(), value=1.0, name=f"d:{loss}")
    for node in reversed(graph.nodes):
        dys = [grads.get(out) for out in node.outs]
        if not any(dys) or not any(i in depends for i in node.ins):
            continue
        b.src = node.src
        for name, grad in zip(node.ins, _vjp(b, node, dys, depends), strict=True):
            if grad is None or name not in depends or not b[name].has_gradient:
                continue
            grads[name] = b.add("add", grads[name], grad, name=f"d:{name}") if name in grads else grad
    return b.graph(), {name: grads[name] for name in wanted if name in grads}


def _depending(graph: Graph, wanted: Collection[str]) -> set[str]:
    """Everything computed from a wanted tensor."""
    found = set(wanted)
    for node in graph.nodes:
        if any(i in found for i in node.ins):
            found.update(node.outs)
    return found


def _vjp(b: Builder, node: Node, dys: list[str | None], depends: set[str]) -> list[str | None]:
    rule = ops.get(node.op).vjp
    if rule is ops.NOT_DIFFERENTIABLE:
        through = next(i for i in node.ins if i in depends)
        raise NotDifferentiable(
            f"'{node.op}' has no gradient, but the loss reaches '{through}' through it",
            at=node.src,
            help="detach its input in the model, or choose a method that trains only what comes after it",
        )
    return list(rule(b, node, dys))  # type: ignore[operator]
