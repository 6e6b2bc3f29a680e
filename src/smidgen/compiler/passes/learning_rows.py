"""Parts of a step that learns run row by row (graph/rows.py), in a graph for one sample at a time.

A part of the forward pass streams as it is, and what the backward pass reads is there as a whole. A part of the
backward pass streams together with the results of the forward pass that it needs and nobody has kept: they are made
again, row by row, and so is the gradient that meets them, so that neither exists as a whole. Gradients of weights add
up while rows go by; the updates come after the stream.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ... import ops
from ...ir import Graph, Node, Tensor
from ...ops.optim import unfused
from ..graph.rows import Body, Stream, of_one, renamed


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes first..end of a graph as a stream: what is made again, what runs row by row, and what follows, as it was.
    `tensors` are new."""

    first: int
    end: int
    again: tuple[Node, ...]
    rows: tuple[Node, ...]
    after: tuple[Node, ...]
    tensors: tuple[Tensor, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.again, *self.rows)

    def body(self, graph: Graph) -> Body:
        """As one sample sees it."""
        span = range(self.first, self.end)
        elsewhere = {name for i, node in enumerate(graph.nodes) if i not in span for name in node.ins}
        elsewhere |= {name for node in self.after for name in node.ins}
        known = {t.name: t for t in self.tensors}
        named = {name for node in self.nodes for name in (*node.ins, *node.outs)}
        tensors = {name: known.get(name) or graph[name] for name in named}
        one = of_one(graph.with_(nodes=self.nodes, tensors=tensors, data={}, inputs=(), outputs=()))
        return Body(one, range(len(self.nodes)), elsewhere)


def part_of(graph: Graph, span: range, again: Sequence[int] = ()) -> Part:
    """These nodes as a part, with results of nodes `again` made anew."""
    tensors: dict[str, Tensor] = {}

    def copy(name: str) -> str:
        new = _fresh(f"{name}~2", graph.tensors)
        tensors[new] = replace(graph[name], name=new)
        return new

    newest: dict[str, str] = {}
    repeated = []
    for i in again:
        node = graph.nodes[i]
        ins = tuple(newest.get(name, name) for name in node.ins)
        newest |= {out: copy(out) for out in node.outs}
        repeated.append(node.with_(ins=ins, outs=tuple(newest[out] for out in node.outs)))
    rows: list[Node] = []
    after: list[Node] = []
    made, late = set(newest.values()), set[str]()  # row by row; after the stream
    for i in span:
        node = graph.nodes[i].with_(ins=tuple(newest.get(name, name) for name in graph.nodes[i].ins))
        gradient = f"{node.outs[0]}:gradient" if node.outs else ""
        both = unfused(node, gradient)
        summed = both[0] if both else node
        record = ops.get(summed.op)
        if record.row_sums and made.intersection(summed.ins) and not late.intersection(summed.ins):
            rows.append(summed)
            late.update(summed.outs)
            if both:
                [(shape, dtype)] = record.infer([tensors.get(n) or graph[n] for n in summed.ins], summed.attrs)
                tensors[gradient] = Tensor(gradient, shape, dtype)
                after.append(both[1])
                late.update(both[1].outs)
        elif both or record.row_sums or late.intersection(node.ins) or _updates(node):
            after.append(node)
            late.update(node.outs)
        else:
            rows.append(node)
            made.update(node.outs)
    return Part(span.start, span.stop, tuple(repeated), tuple(rows), tuple(after), tuple(tensors.values()))


def _updates(node: Node) -> bool:
    record = ops.get(node.op)
    return not record.is_view and bool(record.shares)


def with_parts(graph: Graph, parts: Iterable[tuple[Part, Stream]]) -> Graph:
    """The graph with these parts, which do not overlap, as streams."""
    by_first = {part.first: (part, stream) for part, stream in parts}
    tensors, nodes = dict(graph.tensors), list[Node]()
    i = 0
    while i < len(graph.nodes):
        if i not in by_first:
            nodes.append(graph.nodes[i])
            i += 1
            continue
        part, stream = by_first[i]
        names = {t.name: _fresh(t.name, tensors) for t in part.tensors}
        tensors |= {names[t.name]: replace(t, name=names[t.name]) for t in part.tensors}
        attrs = renamed({"body": len(part.nodes), "rows": stream.plain}, names)
        nodes.append(Node("by_rows", (), (), attrs, part.nodes[-1].stage))
        nodes += [_called(node, names) for node in (*part.nodes, *part.after)]
        i = part.end
    return graph.with_(nodes=tuple(nodes), tensors=tensors)


def _called(node: Node, names: Mapping[str, str]) -> Node:
    ins, outs = (tuple(names.get(name, name) for name in some) for some in (node.ins, node.outs))
    return node.with_(ins=ins, outs=outs)


def _fresh(name: str, taken: Collection[str]) -> str:
    """A copy of what is called name~k; parts that were made of one graph may both have one."""
    stem, k = name.rpartition("~")[::2]
    while name in taken:
        k = str(int(k) + 1)
        name = f"{stem}~{k}"
    return name
