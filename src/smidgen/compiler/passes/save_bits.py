"""Keep one bit an element where a gradient only asks on which side of a threshold a value was."""

from __future__ import annotations

from ... import ops
from ...ir import Dim, Graph, Node, Role, Shape, Tensor, at, batch_axis, size
from ..graph.rows import row_axis


def save_bits(graph: Graph) -> Graph:
    """Replace the value that a threshold gradient (relu, clamp, …) keeps by bits taken in the forward pass.

    Only if nothing else in the backward pass reads that value: one that is kept anyway costs nothing more.
    """
    producer_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
    shows, kept_for = _kept_for(graph)
    tensors = dict(graph.tensors)
    replaced: dict[int, Node] = {}
    inserted: dict[int, list[Node]] = {}
    for position, node in enumerate(graph.nodes):
        rule = ops.get(node.op).bits
        if rule is None or node.stage != "backward":
            continue
        bits = rule(node.attrs)
        kept = node.ins[bits.input]
        root = shows.get(kept, kept)
        if root not in producer_at or graph[root].role is not Role.VALUE or kept_for[root] != {position}:
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
    """Rows of packed bits: each sample starts on a whole byte, so that the size is a multiple of the batch; and each
    row of an image, where that takes no bit more, so that it can be made row by row."""
    axis = batch_axis(shape)
    if axis is None:
        return 1
    row = row_axis(at(shape, 1)) + 1
    by_row = row < len(shape) and int(at(size(shape[row:]), 1)) % 8 == 0
    return size(shape[: max(row, axis + 1) if by_row else axis + 1])


def _kept_for(graph: Graph) -> tuple[dict[str, str], dict[str, set[int]]]:
    """View → the tensor whose memory it shows; tensor → nodes of the backward pass that read it under any name."""
    shows: dict[str, str] = {}
    readers: dict[str, set[int]] = {}
    for i, node in enumerate(graph.nodes):
        if node.ins and ops.get(node.op).is_view:
            shows[node.outs[0]] = shows.get(node.ins[0], node.ins[0])
        elif node.stage == "backward":
            for name in node.ins:
                readers.setdefault(shows.get(name, name), set()).add(i)
    return shows, readers
