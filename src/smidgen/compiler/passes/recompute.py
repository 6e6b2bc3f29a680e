"""Compute values again, or page them, instead of keeping them: a later reader takes the copy, or what came back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ... import ops
from ...ir import Graph, Node, Role, Tensor, unnamed_removed
from ..graph.rows import renamed


@dataclass(frozen=True, slots=True)
class Out:
    """Write this tensor, as it is now, to PAGE."""

    tensor: str


@dataclass(frozen=True, slots=True)
class In:
    """Bring this tensor back from PAGE."""

    tensor: str


Doing = int | Out | In
"""The position of a node to repeat, of a stream with all of its nodes; or a page to write or to bring back."""


def recompute(graph: Graph, again: Mapping[int, Sequence[Doing]]) -> Graph:
    """`again`: position → what to do right before it, in that order.

    From there on everybody reads the newest copy, also through views. The bits do not change: a copy is the same kernel
    on the same values, and random numbers depend on the node of origin.
    """
    return _Rewrite(graph).run(again)


class _Rewrite:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.nodes: list[Node] = []
        self.newest: dict[str, str] = {}  # tensor → its last copy
        self.views = {n.outs[0]: n for n in graph.nodes if n.ins and not ops.is_loop(n) and ops.get(n.op).is_view}
        self.made = {out: n for n in graph.nodes for out in n.outs}
        self.pages: dict[str, str] = {}  # tensor → the page that holds it
        self.seen: dict[tuple[str, str], str] = {}  # (view, copy of what it shows) → copy of the view

    def run(self, again: Mapping[int, Sequence[Doing]]) -> Graph:
        for position, node in enumerate(self.graph.nodes):
            for what in again.get(position, ()):
                if isinstance(what, Out):
                    self._out(what.tensor)
                elif isinstance(what, In):
                    self._in(what.tensor)
                else:
                    self._repeat(what)
            if ops.is_stream(node):
                self._read_before(self._body(position))
            self.nodes.append(self._redirected(node))
        return unnamed_removed(self.graph.with_(nodes=tuple(self.nodes), tensors=self.tensors), state=False)

    def _body(self, position: int) -> Sequence[Node]:
        return self.graph.nodes[position + 1 : position + 1 + self.graph.nodes[position].attrs["body"]]

    def _read_before(self, body: Sequence[Node]) -> None:
        """Views that a stream reads are made in front of it."""
        made = {out for node in body for out in node.outs}
        for name in dict.fromkeys(name for node in body for name in node.ins if name not in made):
            self._read(name)

    def _repeat(self, position: int) -> None:
        node = self.graph.nodes[position]
        if not ops.is_stream(node):
            self._again(node)
            return
        body = self._body(position)
        self._read_before(body)
        at = len(self.nodes)
        for one in body:
            self._again(one)
        names = {old: new for one, copy in zip(body, self.nodes[at:], strict=True)
                 for old, new in zip(one.outs, copy.outs, strict=True)}  # fmt: skip
        self.nodes.insert(at, node.with_(attrs=renamed(node.attrs, names)))

    def _again(self, node: Node) -> None:
        node = self._redirected(node)
        outs = tuple(self._copy(name) for name in node.outs)
        self.nodes.append(node.with_(outs=outs))
        self.newest.update(zip(node.outs, outs, strict=True))

    def _out(self, name: str) -> None:
        shown = self._read(name)
        home = self.pages[name] = self._copy(name)
        self.tensors[home] = replace(self.tensors[home], paged=True)
        self.nodes.append(Node("page_out", (shown,), (home,), {}, self._stage(name), self.made[name].src))

    def _in(self, name: str) -> None:
        copy = self.newest[name] = self._copy(name)
        self.nodes.append(Node("page_in", (self.pages[name],), (copy,), {}, self._stage(name), self.made[name].src))

    def _stage(self, name: str) -> str:
        """Of the step that it happens in: what is brought back for the backward pass belongs there."""
        return self.nodes[-1].stage if self.nodes and self.nodes[-1].stage in ("forward", "backward") else "backward"

    def _redirected(self, node: Node) -> Node:
        return node.with_(ins=tuple(self._read(name) for name in node.ins))

    def _read(self, name: str) -> str:
        """The newest copy; a view of something that has one is made anew, once."""
        if name in self.newest or name not in self.views:
            return self.newest.get(name, name)
        view = self.views[name]
        shown = self._read(view.ins[0])
        if shown == view.ins[0]:
            return name
        if (name, shown) not in self.seen:
            self.seen[name, shown] = self._copy(name)
            self.nodes.append(view.with_(ins=(shown, *view.ins[1:]), outs=(self.seen[name, shown],)))
        return self.seen[name, shown]

    def _copy(self, name: str) -> str:
        k = 2
        while f"{name}~{k}" in self.tensors:
            k += 1
        self.tensors[f"{name}~{k}"] = replace(self.tensors[name], name=f"{name}~{k}", role=Role.VALUE, paged=False)
        return f"{name}~{k}"
