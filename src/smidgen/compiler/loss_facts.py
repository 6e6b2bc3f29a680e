"""What a program notes about its training beside its plan: facts of the loss (program/loss.py) and of the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import ops
from ..ir import Graph, Node, Role
from ..ops.traits import Target
from ..program.loss import LABELS, YES_OR_NO

OPTIMIZER = ("momentum", "nesterov", "beta1", "beta2", "epsilon", "weight_decay", "decoupled")


def run_facts(graphs: Mapping[str, Graph]) -> dict[str, Any]:
    """What a program notes about its training beside its plan."""
    train, learn = graphs.get("train"), graphs.get("learn")
    stream = {} if learn is None else {"stream": {"target": "sample" if _takes_sample(learn) else "label"}}
    return {} if train is None else {"loss": loss_facts(train), "optimizer": optimizer_facts(train), **stream}


def _takes_sample(learn: Graph) -> bool:
    """Can its one input be its target, too?"""
    return len(learn.inputs) == 2 and len({(learn[name].shape, learn[name].dtype) for name in learn.inputs}) == 1


def loss_facts(graph: Graph) -> dict[str, Any]:
    """What the last input of the `train` entry, the target, is compared with. Followed through whatever only moves or
    converts it, so that it holds for any loss function."""
    same = {graph.inputs[-1]} if graph.inputs else set()
    found: list[dict[str, Any]] = []
    for node in graph.nodes:
        record = ops.get(node.op)
        if record.border == "in" or record.rearranges or record.converts or record.is_view:
            same.update(node.outs if node.ins and node.ins[0] in same else ())
        elif record.loss is not None and node.ins[1] in same:
            found += _facts(graph, node, record.loss.target)
    if len({f["kind"] for f in found}) != 1:
        return {"kind": "other"}
    return min(found, key=lambda f: int(f.get("classes", 0)))  # with two heads, a label must be a class of both


def _facts(graph: Graph, node: Node, target: Target) -> list[dict[str, Any]]:
    if target == "yes_no":
        return [{"kind": YES_OR_NO}]
    if target != "classes":
        return []
    facts = {
        "kind": LABELS,
        "classes": graph[node.ins[0]].shape[-1],
        "ignore": node.attrs["ignore_index"],
        "mean": node.attrs["reduction"] == "mean",
    }
    return [{**facts, "alone": True} if _loss(graph) in node.outs else facts]


def _loss(graph: Graph) -> str:
    """The value that is given to the caller as the loss."""
    producer, name = graph.producer(), graph.outputs[0] if graph.outputs else ""
    while name in producer and (ops.border(producer[name]) == "out" or ops.get(producer[name].op).is_view):
        name = producer[name].ins[0]
    return name


def optimizer_facts(graph: Graph) -> dict[str, Any]:
    """The numbers of the optimizer, from the `train` entry."""
    producer = graph.producer()
    for node in graph.nodes:
        if any(graph[out].role is Role.PARAM for out in node.outs):
            # A parameter in PAGE is replaced by the copy that was updated.
            update = producer[node.ins[1]] if ops.get(node.op).page == "write" else node
            return {k: update.attrs[k] for k in OPTIMIZER if k in update.attrs}
    return {}
