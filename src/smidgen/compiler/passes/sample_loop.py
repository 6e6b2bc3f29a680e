"""Run what does not learn sample by sample: same bits, memory independent of the batch."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import accumulate

from ... import ops
from ...ir import Batch, Graph, Node, Role, Tensor, batch_axis


def sample_loop(graph: Graph, learns: Collection[str] = (), kept: Collection[str] = ()) -> Graph:
    """Move all nodes that depend on nothing learnable, and mix no samples, into one loop over the samples.

    In an inference entry that is the whole network. The loop gathers what the rest of the graph reads; it ends early
    where that is less. `learns` are parameters that count as learnable though no node of this entry changes them; what
    reads a value of `kept` stays outside.
    """
    before, inside = split(graph, set(learns), kept)
    inside = _to_the_narrowest(graph, inside)
    body = [graph.nodes[i] for i in sorted(inside)]
    if not any(works(node) for node in body):
        return graph
    first = [graph.nodes[i] for i in sorted(before)]
    rest = [node for i, node in enumerate(graph.nodes) if i not in before and i not in inside]
    needed = {i for node in rest for i in node.ins}
    # What costs nothing is done on both sides: feeds of an input (the caller has it anyway), and views.
    again: list[Node] = []
    for node in reversed(body):
        if node.outs[0] in needed and (ops.border(node) == "in" or ops.get(node.op).is_view):
            again.insert(0, node)
            needed = (needed - set(node.outs)) | set(node.ins)
    gathered = tuple(t for node in body for t in node.outs if t in needed)
    if not gathered and not any(ops.border(node) == "out" for node in body):
        return graph
    tensors = dict(graph.tensors)
    names = {t: _one_sample(graph[t], tensors) for node in body for t in node.outs if graph[t].role is Role.VALUE}
    specs = tuple((tensors[names[t]].shape, tensors[names[t]].dtype) for t in gathered)
    attrs = {"body": len(body), "yields": tuple(names[t] for t in gathered), "specs": specs}
    loop = Node("loop", (), gathered, attrs, "forward", "")
    nodes = (*first, loop, *(_in_loop(node, names) for node in body), *again, *rest)
    return graph.with_(nodes=nodes, tensors=tensors)


def works(node: Node) -> bool:
    """Does it compute anything that could not as well be done again?"""
    record = ops.get(node.op)
    return not record.border and not record.is_view and not record.converts


def split(graph: Graph, learns: set[str], varies: Collection[str] = ()) -> tuple[set[int], set[int]]:
    """Positions of the nodes that run once before the loop, and of those inside it.

    Both read only what no node of this entry changes, and nothing that `varies`. Inside are those with one axis of
    samples, the first.
    """
    changed = learns | {node.ins[i] for node in graph.nodes if not ops.get(node.op).is_view
                        for i in ops.get(node.op).shares.values()}  # fmt: skip
    fixed = {t.name for t in graph.tensors.values() if _given(t) and t.name not in changed}
    fixed |= {t.name for t in graph.of_role(Role.SETTING)}
    fixed -= set(varies)
    before: set[int] = set()
    inside: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if not all(name in fixed for name in node.ins) or ops.get(node.op).batchwise:
            continue
        outs = [graph[o] for o in node.outs]
        if any(t.role.is_state for t in outs):
            continue
        if all(_unbatched(graph[name]) for name in (*node.ins, *node.outs)):
            before.add(i)
        elif _by_sample(graph, node):
            inside.add(i)
        else:
            continue
        fixed.update(set(node.outs).difference(varies))
    inside = _without_stray_feeds(graph, inside)
    return _needed(graph, before, inside), inside


def _to_the_narrowest(graph: Graph, inside: set[int]) -> set[int]:
    """The loop without its last nodes, if it then gathers less: what it gathers lives beside all that it does.

    Nodes that leave it run with all samples at once, so only as many leave as need no more at a time than the first
    node behind the loop, for any number of samples.
    """
    order = sorted(inside)
    follows = [node for i, node in enumerate(graph.nodes) if order and i > order[-1]][:1]
    if not follows:
        return inside
    gathers, alive = [0] * (len(order) + 2), [0] * (len(order) + 2)  # bytes of a loop of so many nodes; at each node
    for name, (made, last) in _lives(graph, order).items():
        size = graph[name].bytes(1)
        _add(alive, made, last, size)
        if ops.border(graph.nodes[order[made]]) != "in":  # an input: the caller has it anyway
            _add(gathers, made + 1, last, size)
    gathers, alive = list(accumulate(gathers)), list(accumulate(alive))
    most = gathers[len(order)] + sum(graph[out].bytes(1) for out in follows[0].outs if graph[out].role is Role.VALUE)
    best = end = len(order)
    while end > 1 and alive[end - 1] <= most:
        end -= 1
        best = end if gathers[end] < gathers[best] else best
    return set(order[:best])


def _add(row: list[int], first: int, last: int, size: int) -> None:
    """To every place from `first` to `last`, once the row is accumulated."""
    row[first] += size
    row[last + 1] -= size


def _lives(graph: Graph, order: list[int]) -> dict[str, tuple[int, int]]:
    """Tensor made in the loop → places of its maker and of its last reader; the place behind the loop is the last."""
    place = {i: k for k, i in enumerate(order)}
    base: dict[str, str] = {}  # view → what it is of
    found: dict[str, tuple[int, int]] = {}
    for i, node in enumerate(graph.nodes):
        for name in {base.get(name, name) for name in node.ins} & found.keys():
            found[name] = found[name][0], max(found[name][1], place.get(i, len(order)))
        is_view = ops.get(node.op).is_view
        for out in node.outs:
            if is_view:
                base[out] = base.get(node.ins[0], node.ins[0])
            elif i in place and graph[out].role is Role.VALUE:
                found[out] = place[i], place[i]
    return found


def _needed(graph: Graph, before: set[int], inside: set[int]) -> set[int]:
    """Only what the loop reads has to come before it."""
    read = {name for i in inside for name in graph.nodes[i].ins}
    found: set[int] = set()
    for i in sorted(before, reverse=True):
        if any(out in read for out in graph.nodes[i].outs):
            found.add(i)
            read.update(graph.nodes[i].ins)
    return found


def _given(tensor: Tensor) -> bool:
    return tensor.role in (Role.INPUT, Role.CONST) or tensor.role.is_state


def _unbatched(tensor: Tensor) -> bool:
    return batch_axis(tensor.shape) is None


def _by_sample(graph: Graph, node: Node) -> bool:
    """All results have their samples along axis 0, and so have the operands that have samples at all."""
    perm = node.attrs.get("perm")
    return (
        all(batch_axis(graph[o].shape) == 0 for o in node.outs)
        and all(batch_axis(graph[i].shape) in (0, None) for i in node.ins)
        and (perm is None or perm[0] == 0)
    )


def _without_stray_feeds(graph: Graph, inside: set[int]) -> set[int]:
    """A feed that no node of the loop reads (labels) stays outside."""
    read = {name for i in inside for name in graph.nodes[i].ins}
    return {i for i in inside if ops.border(graph.nodes[i]) != "in" or graph.nodes[i].outs[0] in read}


def _one_sample(tensor: Tensor, tensors: dict[str, Tensor]) -> str:
    name = f"{tensor.name}@1"
    shape = tuple(d.times if isinstance(d, Batch) else d for d in tensor.shape)
    tensors[name] = replace(tensor, name=name, shape=shape)
    return name


def _in_loop(node: Node, names: dict[str, str]) -> Node:
    attrs = {k: _times(v) for k, v in node.attrs.items()}
    if ops.border(node):
        attrs["sample"] = True
    return node.with_(
        ins=tuple(names.get(i, i) for i in node.ins), outs=tuple(names.get(o, o) for o in node.outs), attrs=attrs
    )


def _times(value: object) -> object:
    """An attribute for one sample."""
    if isinstance(value, Batch):
        return value.times
    return tuple(_times(v) for v in value) if isinstance(value, tuple) else value
