"""May a batch be taken in parts? Only if the loss is a linear combination of sums and means over samples."""

from __future__ import annotations

from ... import ops
from ...errors import NotAdditive
from ...ir import Graph, Node, Role, batch_axis

# What may follow a reduction over samples: f(a + b) = f(a) + f(b).
LINEAR = frozenset({"add", "sub", "neg", "scale", "reshape", "permute", "expand", "sum", "mean", "slice", "detach"})
TIMES = frozenset({"mul", "div"})  # linear in one operand, the other must not depend on the samples
# Batch statistics differ between a part and the whole: whoever asks for parts gets those of parts, and is told.
STATISTICS = frozenset({"batch_stats", "batch_norm_batch", "running_stats"})
WEIGHTED = frozenset({"cross_entropy", "nll_loss"})  # a mean with class weights divides by a sum over the whole batch


def takes_statistics(graph: Graph) -> bool:
    """Does a norm take the statistics of the samples at hand? In parts, these are others."""
    return any(node.op in STATISTICS for node in graph.nodes)


def check_additive(graph: Graph, loss: str) -> None:
    """Raise unless adding up the loss over the parts of a batch gives the loss of the batch."""
    samples = {t.name for t in graph.of_role(Role.INPUT)}  # depends on samples, has an axis of them
    totals: set[str] = set()  # a sum over the samples at hand
    for node in graph.nodes:
        if node.stage == "backward" or node.op in STATISTICS or node.op == "fetch":
            samples |= {o for o in node.outs if node.op == "batch_norm_batch"}
            continue
        if any(i in totals for i in node.ins):
            _check(graph, node, totals, samples)
            totals.update(node.outs)
        elif any(i in samples for i in node.ins):
            if node.op in WEIGHTED and len(node.ins) > 2 and node.attrs["reduction"] == "mean":
                raise _refusal(node, "a mean with class weights divides by the weights of the whole batch")
            batched = all(batch_axis(graph[o].shape) is not None for o in node.outs)
            (samples if batched else totals).update(node.outs)
    if loss not in totals:
        raise NotAdditive("the loss is not a sum or mean over samples", help="compile without accumulate=True")


def _check(graph: Graph, node: Node, totals: set[str], samples: set[str]) -> None:
    others = [i for i in node.ins if i not in totals]
    if any(i in samples for i in others):
        raise _refusal(node, "it mixes a sum over samples with single samples")
    if node.op in TIMES and node.ins[0] in totals and len(others) == 1:
        return
    if node.op == "mul" and len(others) == 1:
        return
    if node.op not in LINEAR and not ops.get(node.op).is_view:
        raise _refusal(node, f"'{node.op}' of a sum is not the sum of '{node.op}'")
    if others:
        raise _refusal(node, "a term that does not depend on the samples would count once for every part")


def _refusal(node: Node, why: str) -> NotAdditive:
    return NotAdditive(
        "this loss cannot be computed in parts", at=node.src, why=why,
        help="compile without accumulate=True and give at most `batch` samples a step",
    )  # fmt: skip
