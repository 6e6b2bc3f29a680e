"""The loss of a step in micro-batches, added up by the program itself: every sum over samples that the loss is made of
goes on where the micro-batch before ended, so that after the last one the loss has the bits of the whole batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ... import ops
from ...ir import Graph, Node, Role, Shape, batch_axis
from ...ops.build import Builder


@dataclass(frozen=True, slots=True)
class RunningLoss:
    """`sums`: result of a sum over samples → shape of what it carries to the next micro-batch; `after`: what is made of
    them, up to the loss. `is_read`: the gradient needs what a micro-batch alone gives (a factor learns)."""

    sums: Mapping[str, Shape] = field(default_factory=dict)
    after: frozenset[str] = frozenset()
    is_read: bool = False


def carries(name: str) -> str:
    return f"{name}:sum"


def running_loss(graph: Graph, sampled: Iterable[str]) -> RunningLoss:
    """What the caller is given as the loss, followed back to the sums over samples. `sampled` depends on samples."""
    made, known = graph.producer(), set(sampled)
    left = [name for node in graph.nodes if ops.border(node) == "out" for name in node.ins]
    sums: dict[str, Node] = {}
    after: set[str] = set()
    while left:
        name = left.pop()
        node = made.get(name)
        if node is None or name not in known or name in sums or name in after:
            continue
        if any(batch_axis(graph[i].shape) is not None for i in node.ins):
            sums[name] = node
        else:
            after.add(name)
            left += node.ins
    both = {*sums, *after}
    is_read = any(
        both.intersection(node.ins) and ops.border(node) != "out" and not after.intersection(node.outs)
        for node in graph.nodes
    )
    return RunningLoss({name: _carried(graph, node, is_read) for name, node in sums.items()}, frozenset(after), is_read)


def _carried(graph: Graph, node: Node, is_read: bool) -> Shape:
    shape, rule = graph[node.outs[0]].shape, ops.get(node.op).running
    return shape if rule is None or is_read else rule.carried(shape)


def with_running_loss(b: Builder, loss: RunningLoss) -> None:
    """Rewrite the nodes of `b`: the caller gets the loss of all micro-batches so far."""
    nodes, so_far = list(b.nodes), dict[str, str]()
    b.nodes.clear()
    for node in nodes:
        if node.outs and node.outs[0] in loss.sums:
            _go_on(b, node, loss, so_far)
        elif loss.after.intersection(node.outs):
            if loss.is_read:
                b.append(node)
            _repeat(b, node, so_far, loss.is_read)
        elif ops.border(node) == "out":
            b.append(node.with_(ins=tuple(so_far.get(i, i) for i in node.ins)))
        else:
            b.append(node)


def _go_on(b: Builder, node: Node, loss: RunningLoss, so_far: dict[str, str]) -> None:
    """One op that goes on, if there is one and nobody needs what this micro-batch alone gives; else that is added."""
    name, rule = node.outs[0], ops.get(node.op).running
    sums = b.tensor(carries(name), loss.sums[name], role=Role.ACCUM)
    after = b.tensor(f"{sums}'", loss.sums[name], role=Role.ACCUM)
    if rule is not None and not loss.is_read:
        b.append(node.with_(op=rule.op, ins=(sums, *node.ins), outs=(name, after)))
        return
    b.append(node)
    so_far[name] = b.tensor(f"{name}:so_far", b[name].shape)
    b.append(Node("running_sum", (sums, name), (so_far[name], after), {}, node.stage, node.src))


def _repeat(b: Builder, node: Node, so_far: dict[str, str], copied: bool) -> None:
    """The node with sums so far in place of this micro-batch's."""
    outs = node.outs
    if copied:
        outs = tuple(b.tensor(f"{out}:so_far", b[out].shape, b[out].dtype) for out in node.outs)
        so_far.update(zip(node.outs, outs, strict=True))
    b.append(node.with_(ins=tuple(so_far.get(i, i) for i in node.ins), outs=outs))


__all__ = ["RunningLoss", "carries", "running_loss", "with_running_loss"]
