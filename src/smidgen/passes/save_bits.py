"""Keep one bit an element where a gradient only asks on which side of a threshold a value was."""

from __future__ import annotations

from .. import ops
from ..ir import Dim, Graph, Node, Role, Shape, Tensor, batch_axis, size


def save_bits(graph: Graph) -> Graph:
    """Replace the value that a threshold gradient (relu, clamp, …) keeps by bits taken in the forward pass.

    Only if nothing else in the backward pass reads that value: one that is kept anyway costs nothing more.
    """
    producer_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
    tensors = dict(graph.tensors)
    replaced: dict[int, Node] = {}
    inserted: dict[int, list[Node]] = {}
    for position, node in enumerate(graph.nodes):
        rule = ops.get(node.op).bits
        if rule is None or node.stage != "backward":
            continue
        bits = rule(node.attrs)
        kept = node.ins[bits.input]
        root = _root(graph, kept, producer_at)
        if root not in producer_at or graph[root].role is not Role.VALUE or not _only_kept_for(graph, root, position):
            continue
        mask = f"{kept}.bits"
        while mask in tensors:
            mask += "'"
        attrs = {"lo": bits.lo, "hi": bits.hi, "closed": bits.closed, "rows": _rows(tensors[kept].shape)}
        [(shape, dtype)] = ops.get("range_bits").infer([tensors[kept]], attrs)
        tensors[mask] = Tensor(mask, shape, dtype)
        forward = Node("range_bits", (kept,), (mask,), attrs, "forward", node.src)
        inserted.setdefault(producer_at[kept], []).append(forward)
        dy = next(name for i, name in enumerate(node.ins) if i != bits.input)
        attrs = {"inside": bits.inside, "outside": bits.outside}
        replaced[position] = Node("bits_dx", (dy, mask), node.outs, attrs, node.stage, node.src)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        nodes.append(replaced.get(position, node))
        nodes.extend(inserted.get(position, ()))
    return graph.with_(nodes=tuple(nodes), tensors=tensors)


def _rows(shape: Shape) -> Dim:
    """Rows of packed bits: each sample starts on a whole byte, so that the size is a multiple of the batch."""
    axis = batch_axis(shape)
    return size(shape[: axis + 1]) if axis is not None else 1


def _root(graph: Graph, name: str, producer_at: dict[str, int]) -> str:
    """The tensor whose memory this is."""
    while name in producer_at:
        node = graph.nodes[producer_at[name]]
        if not ops.get(node.op).is_view or node.op == "loop":
            break
        name = node.ins[0]
    return name


def _only_kept_for(graph: Graph, root: str, position: int) -> bool:
    """Does the backward pass read this memory, under any name, at `position` only?"""
    family = {root}
    for i, node in enumerate(graph.nodes):
        if node.ins and ops.get(node.op).is_view and node.ins[0] in family:
            family.add(node.outs[0])
        elif i != position and node.stage == "backward" and any(x in family for x in node.ins):
            return False
    return True
