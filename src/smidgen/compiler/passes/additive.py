"""Which losses allow micro-batches: only if the loss is a linear combination of sums and means over samples."""

from __future__ import annotations

from ... import ops
from ...errors import NotAdditive
from ...ir import Graph, Node, Role, batch_axis


def takes_statistics(graph: Graph) -> bool:
    """Does a norm take the statistics of the samples at hand? In micro-batches, these are others."""
    return any(ops.get(node.op).statistics for node in graph.nodes)


def counts_labels(node: Node) -> bool:
    """Does it divide by the weight of the labels that count, in the whole batch?"""
    loss = ops.get(node.op).loss
    return loss is not None and loss.target == "classes" and bool(node.attrs["reduction"] == "mean")


def check_additive(graph: Graph, loss: str) -> None:
    """Raise unless adding up the loss over the parts of a batch gives the loss of the batch."""
    samples = {t.name for t in graph.of_role(Role.INPUT)}  # depends on samples, has an axis of them
    totals: set[str] = set()  # a sum over the samples at hand
    for node in graph.nodes:
        record = ops.get(node.op)
        if node.stage == "backward" or record.statistics or record.border == "out":
            # Statistics of a micro-batch are not the batch's: whoever asks for micro-batches gets those, and is told.
            samples |= {o for o in node.outs if record.statistics and batch_axis(graph[o].shape) is not None}
            continue
        if any(i in totals for i in node.ins):
            _check(graph, node, totals, samples)
            totals.update(node.outs)
        elif any(i in samples for i in node.ins):
            if counts_labels(node) and len(node.ins) > 2:
                raise _refusal(node, "a mean with class weights divides by the weights of the whole batch")
            batched = all(batch_axis(graph[o].shape) is not None for o in node.outs)
            (samples if batched else totals).update(node.outs)
    if loss not in totals:
        raise NotAdditive("the loss is not a sum or mean over samples", help="compile without Memory(accumulate=True)")


def _check(graph: Graph, node: Node, totals: set[str], samples: set[str]) -> None:
    if any(i in samples for i in node.ins if i not in totals):
        raise _refusal(node, "it mixes a sum over samples with single samples")
    summed = {k for k, i in enumerate(node.ins) if i in totals}
    groups = [set(group) for group in ops.get(node.op).linear_in]
    if not any(summed <= group for group in groups):
        raise _refusal(node, f"'{node.op}' of a sum is not the sum of '{node.op}'")
    if summed not in groups:
        raise _refusal(node, "a term that does not depend on the samples would count once for every micro-batch")


def _refusal(node: Node, why: str) -> NotAdditive:
    return NotAdditive(
        "this loss cannot be split into micro-batches", at=node.src, why=why,
        help="compile without Memory(accumulate=True) and give at most `batch` samples a step",
    )  # fmt: skip
