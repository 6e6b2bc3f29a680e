"""What must hold between any two passes: types, single assignment, and the hazards of memory that is written in place.

The checker knows nothing of the pass it follows; it rereads the list of nodes in execution order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

from ... import ops
from ...errors import Internal
from ...ir import Graph, Node, Role, batch_axis
from ...ops.traits import PAGE_READERS, PAGE_WRITERS
from ..effort import NODE, spend
from .rows import marked


def check(graph: Graph, after: str) -> None:
    """Raise `Internal`, naming the pass `after` and the node, unless the graph is sound."""
    spend(NODE * len(graph.nodes))
    _Walk(graph, after).run()


class _Walk:
    """One walk in execution order. A `root` is the tensor whose memory a view shares."""

    def __init__(self, graph: Graph, after: str) -> None:
        self.graph = graph
        self.after = after
        computed = {out for node in graph.nodes for out in node.outs}
        given = (Role.INPUT, Role.CONST, Role.ACCUM)
        self.assigned = {
            t.name for t in graph.tensors.values() if t.name not in computed and (t.role in given or t.role.is_state)
        }
        self.root: dict[str, str] = {}
        self.overwritten: dict[str, int] = {}  # root → position of the update that took its memory
        self.origin: dict[str, str] = {}  # version of a state tensor → the tensor before any update
        self.in_loop: dict[str, int] = {}  # value of one sample → position of its loop
        self.started: dict[str, tuple[str, int]] = {}  # buffer that is being filled → its page, position of the start
        # Equal numbers: the same computation, as in an original and its recomputed copy. Counted if anybody asks.
        self.counts = any(map(_is_once, graph.nodes))
        self.number: dict[str, int] = {}
        self.numbers: dict[Hashable, int] = {}
        self.position = 0

    def run(self) -> None:
        self.declarations()
        while self.position < len(self.graph.nodes):
            node = self.graph.nodes[self.position]
            if ops.is_loop(node):
                self.loop(node)
            else:
                if ops.is_stream(node):
                    self.stream(node)
                self.node(node)
                self.assign(node)
            self.position += 1
        for name, (_, position) in self.started.items():
            raise self.wrong(f"nobody waits for '{name}'", position)
        self.outputs()
        self.randomness()
        self.statistics()

    def wrong(self, what: str, position: int | None = None, why: str = "") -> Internal:
        at = ""
        if position is not None:
            node = self.graph.nodes[position]
            at = (
                f"node {position} of {len(self.graph.nodes)}: {', '.join(node.outs)} = {node.op}({', '.join(node.ins)})"
            )
            at += f"  # {node.src}" if node.src else ""
        return Internal(f"after pass '{self.after}': {what}", at=at, why=why)

    def here(self, what: str, why: str = "") -> Internal:
        return self.wrong(what, self.position, why)

    # Declarations.

    def declarations(self) -> None:
        graph = self.graph
        for key, tensor in graph.tensors.items():
            if key != tensor.name:
                raise self.wrong(f"tensor '{tensor.name}' is filed under '{key}'")
            if sum(not isinstance(d, (int, np.integer)) for d in tensor.shape) > 1:
                raise self.wrong(f"{tensor} grows with the batch along more than one axis")
            if tensor.quant is not None and (why := tensor.quant.wrong(tensor.shape, tensor.dtype)):
                raise self.wrong(f"{tensor} is not quantized so", why=why)
        for kind, listed, role in (("input", graph.inputs, Role.INPUT), ("output", graph.outputs, Role.OUTPUT)):
            of_role = {t.name for t in graph.of_role(role)}
            if len(set(listed)) != len(listed) or set(listed) != of_role:
                raise self.wrong(f"the {kind}s are {sorted(of_role)}, but {list(listed)} is declared")
        for name, value in graph.data.items():
            if name in graph.tensors and np.shape(value) != graph[name].shape:
                raise self.wrong(f"the value of {graph[name]} has shape {list(np.shape(value))}")

    def outputs(self) -> None:
        missing = [name for name in self.graph.outputs if name not in self.assigned]
        if missing:
            raise self.wrong(f"output '{missing[0]}' is never written")

    # Nodes.

    def node(self, node: Node, loop: int | None = None) -> None:
        """All rules about one node but the assignment of its results."""
        for name in (*node.ins, *node.outs):
            if name not in self.graph.tensors:
                raise self.here(f"tensor '{name}' is not declared")
        if ops.find(node.op) is None:
            raise self.here(f"no op named '{node.op}'")
        for name in node.ins:
            self.read(node, name)
        self.types(node)
        self.roles(node)
        self.pages(node, loop)
        self.overwrites(node)
        self.count(node)
        if loop is None and node.attrs.get("sample"):
            raise self.here("one sample is taken outside of a loop")

    def read(self, node: Node, name: str) -> None:
        if name in self.in_loop:
            raise self.here(f"'{name}' exists inside the loop at node {self.in_loop[name]} only")
        if name not in self.assigned:
            raise self.here(f"'{name}' is read before it is assigned")
        role = self.graph[name].role
        if role is Role.INPUT and ops.border(node) != "in":
            raise self.here(f"input '{name}' is read by something else than feed")
        if role is Role.OUTPUT:
            raise self.here(f"output '{name}' is read")
        root = self.root.get(name, name)
        if root in self.overwritten:
            view = f", seen through '{name}'," if name != root else ""
            raise self.here(
                f"'{root}'{view} is read after an update overwrote it",
                why=f"node {self.overwritten[root]} ({self.graph.nodes[self.overwritten[root]].op}) took its memory",
            )

    def types(self, node: Node) -> None:
        try:
            specs = ops.get(node.op).infer([self.graph[i] for i in node.ins], node.attrs)
        except Exception as error:  # whatever a rule trips over, it is the node that is wrong
            raise self.here(
                f"the rule of '{node.op}' refuses this node", why=f"{type(error).__name__}: {error}"
            ) from None
        if len(specs) != len(node.outs):
            raise self.here(f"'{node.op}' has {len(specs)} results, not {len(node.outs)}")
        for name, (shape, dtype) in zip(node.outs, specs, strict=True):
            tensor = self.graph[name]
            if (tensor.shape, tensor.dtype) != (tuple(shape), dtype):
                wanted = f"{dtype.value}[{','.join(map(str, shape))}]"
                raise self.here(f"{tensor} is declared, but '{node.op}' yields {wanted}")

    def roles(self, node: Node) -> None:
        """Only fetch writes outputs, only updates write state, nothing writes inputs and constants."""
        shares = _updates(node)
        for k, name in enumerate(node.outs):
            role = self.graph[name].role
            if (ops.border(node) == "out") != (role is Role.OUTPUT):
                raise self.here(
                    f"'{name}' is written by {node.op}", why="outputs, and only outputs, are written by fetch"
                )
            if role in (Role.INPUT, Role.CONST):
                raise self.here(f"{role.value} '{name}' is written")
            if role.is_state and k not in shares:
                raise self.here(f"{role.value} '{name}' is written by something that is not an update")

    def pages(self, node: Node, loop: int | None) -> None:
        """Only page ops touch what is in PAGE; what is on its way from there is touched by nobody but its wait."""
        page = ops.get(node.op).page
        where = PAGE_READERS.get(page)
        for k, name in enumerate(node.ins):
            root = self.root.get(name, name)
            if self.graph[name].paged != (k == where):
                raise self.here(f"'{name}' is {'' if self.graph[name].paged else 'not '}in PAGE")
            if root in self.started and page != "wait":
                raise self.here(f"'{root}' is read before anybody waited for its page")
        for name in node.outs:
            if self.graph[name].paged != (page in PAGE_WRITERS):
                raise self.here(f"'{name}' is {'' if self.graph[name].paged else 'not '}declared to be in PAGE")
        if page and loop is not None:
            raise self.here("a page inside a loop")
        if page == "write":
            for name, (source, _) in self.started.items():
                if source == node.ins[0]:
                    raise self.here(f"the page '{source}' is written while '{name}' is being read from it")
        if page == "start":
            self.started[node.outs[0]] = (node.ins[0], self.position)
        if page == "wait" and self.started.pop(node.ins[0], ("", 0))[0] != node.ins[1]:
            raise self.here(f"'{node.ins[0]}' is not being read from '{node.ins[1]}'")

    def overwrites(self, node: Node) -> None:
        for out, source in _updates(node).items():
            name = node.ins[source]
            root = self.root.get(name, name)
            if self.graph[root].role in (Role.INPUT, Role.CONST):
                raise self.here(f"{self.graph[root].role.value} '{root}' is overwritten by an update")
            if self.overwritten.get(root) == self.position:
                raise self.here(f"'{root}' is updated twice by one node")
            self.overwritten[root] = self.position
            self.origin[node.outs[out]] = self.origin.get(root, root)

    def assign(self, node: Node) -> None:
        record = ops.get(node.op)
        for k, name in enumerate(node.outs):
            if name in self.assigned or name in self.in_loop:
                raise self.here(f"'{name}' is assigned twice")
            self.assigned.add(name)
            if record.is_view and k in record.shares:
                source = node.ins[record.shares[k]]
                self.root[name] = self.root.get(source, source)

    def count(self, node: Node) -> None:
        if not self.counts:
            return
        page = ops.get(node.op).page
        if page:  # the same value somewhere else
            (self.number[node.outs[0]],) = self.numbers_of(node.ins[-1:])
            return
        key = (node.op, repr(sorted(node.attrs.items())), self.numbers_of(node.ins))
        for k, name in enumerate(node.outs):
            self.number[name] = self.numbers.setdefault((k, key), len(self.numbers))

    def numbers_of(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(self.number.setdefault(n, self.numbers.setdefault(n, len(self.numbers))) for n in names)

    # Loops.

    def loop(self, node: Node) -> None:
        start, attrs = self.position, node.attrs
        missing = [key for key in ("body", "yields", "specs") if key not in attrs]
        if missing:
            raise self.here(f"a loop without '{missing[0]}'")
        if not 0 < attrs["body"] <= len(self.graph.nodes) - start - 1:
            raise self.here(f"a loop over the next {attrs['body']} nodes", why="there are not that many")
        body = self.graph.nodes[start + 1 : start + 1 + attrs["body"]]
        undeclared = [name for name in node.outs if name not in self.graph.tensors]
        if undeclared:
            raise self.here(f"tensor '{undeclared[0]}' is not declared")
        self.yields(node, body)
        inside: set[str] = set()
        for self.position, inner in enumerate(body, start + 1):
            self.body_node(inner, inside)
            self.node(inner, loop=start)
            self.assign(inner)
            inside.update(inner.outs)
        end, self.position = self.position, start
        self.types(node)
        self.roles(node)
        for name, piece in zip(node.outs, attrs["yields"], strict=True) if self.counts else ():
            self.number[name] = self.numbers.setdefault(("loop", self.number[piece]), len(self.numbers))
        self.assign(node)
        self.in_loop |= {name: start for name in inside if self.graph[name].role is not Role.OUTPUT}
        self.position = end

    def yields(self, node: Node, body: Sequence[Node]) -> None:
        made = {out for inner in body for out in inner.outs}
        pieces, specs = node.attrs["yields"], node.attrs["specs"]
        if not len(pieces) == len(specs) == len(node.outs):
            raise self.here(f"a loop with {len(pieces)} yields, {len(specs)} types and {len(node.outs)} results")
        for piece, (shape, dtype) in zip(pieces, specs, strict=True):
            if piece not in made:
                raise self.here(f"the loop yields '{piece}', which its body does not compute")
            tensor = self.graph.tensors.get(piece)
            if tensor is None or (tensor.shape, tensor.dtype) != (tuple(shape), dtype):
                raise self.here(f"the loop yields {tensor or piece} as {dtype.value}[{','.join(map(str, shape))}]")

    def body_node(self, node: Node, inside: set[str]) -> None:
        if ops.is_loop(node):
            raise self.here("a loop inside a loop")
        if ops.find(node.op) is not None and _updates(node):
            raise self.here(f"'{node.op}' updates '{node.ins[0]}' inside a loop, once a sample")
        if ops.find(node.op) is not None and ops.get(node.op).batchwise:
            raise self.here(f"'{node.op}' mixes samples and cannot run sample by sample")
        for name in node.ins:
            batched = name in self.graph.tensors and batch_axis(self.graph[name].shape) is not None
            if batched and name not in inside and self.graph[name].role is not Role.INPUT:
                raise self.here(f"the loop reads '{name}', which holds all samples and was computed outside")
        for name in node.outs:
            batched = name in self.graph.tensors and batch_axis(self.graph[name].shape) is not None
            if batched and not node.attrs.get("sample"):
                raise self.here(f"'{name}' holds all samples inside a loop over single ones")

    def stream(self, node: Node) -> None:
        """Its nodes make values by rows, or sum over them, and what others read of it is there as a whole."""
        rows, start = node.attrs.get("rows"), self.position + 1
        if rows is None or "body" not in node.attrs:
            raise self.here("a stream without 'rows' or 'body'")
        end = start + node.attrs["body"]
        if not start < end <= len(self.graph.nodes) or rows[:2] != (0, end - start):
            raise self.here(f"a stream of the next {node.attrs['body']} nodes", why="there are not that many")
        body = self.graph.nodes[start:end]
        made = [out for inner in body for out in inner.outs]
        if [name for name, *_ in rows[3]] != made:
            raise self.here("a stream with other values than its nodes make")
        if wrong := [n.op for n in body if ops.find(n.op) is None or ops.is_loop(n) or ops.is_stream(n) or _updates(n)]:
            raise self.here(f"'{wrong[0]}' is in a stream")
        read = {name for k, n in enumerate(self.graph.nodes) if not start <= k < end for name in n.ins}
        if unknown := [name for n in body for name in (*n.ins, *n.outs) if name not in self.graph.tensors]:
            raise self.here(f"tensor '{unknown[0]}' is not declared")
        (mark,) = [m for m in marked(self.graph) if m.nodes.start == start]
        for name, held in mark.stream.values.items():
            if name in read and held.row_bytes and held.most < held.count:
                raise self.here(f"'{name}' is read outside of its stream", why=f"{held.most} rows of it are there")

    # Rules about several nodes.

    def randomness(self) -> None:
        """A mask is f(counter, key, index): a key belongs to one draw, and to its gradient and recomputed copies."""
        drawn: dict[int, tuple[int, Hashable]] = {}

        def facts(node: Node, skip: int) -> Hashable:
            return node.op, repr(sorted(node.attrs.items())), self.numbers_of(node.ins[skip:])

        random = [(i, node) for i, node in enumerate(self.graph.nodes) if "key" in node.attrs]
        for i, node in random:
            if node.stage != "forward":
                continue
            first, known = drawn.setdefault(node.attrs["key"], (i, facts(node, 0)))
            if known != facts(node, 0):
                raise self.wrong(
                    f"key {node.attrs['key']} also belongs to node {first}, which draws for another value", i
                )
        for i, node in random:
            if node.stage == "forward":
                continue
            if node.attrs["key"] not in drawn:
                raise self.wrong(f"no forward node draws with key {node.attrs['key']}", i)
            first, _ = drawn[node.attrs["key"]]
            if facts(node, 1) != facts(self.graph.nodes[first], 1):
                raise self.wrong(f"key {node.attrs['key']} is drawn differently in the forward pass, node {first}", i)

    def statistics(self) -> None:
        """Each set of batch statistics enters the running ones once, whatever is recomputed."""
        entered: dict[Hashable, int] = {}
        for i, node in enumerate(self.graph.nodes):
            if ops.get(node.op).statistics != "keeps":
                continue
            for source in _updates(node).values():
                name = self.root.get(node.ins[source], node.ins[source])
                measured = self.numbers_of(n for k, n in enumerate(node.ins) if k not in _updates(node).values())
                fact = (self.origin.get(name, name), measured, node.attrs.get("use", 0))
                if fact in entered:
                    raise self.wrong(f"running statistics '{fact[0]}' are updated again, as by node {entered[fact]}", i)
                entered[fact] = i


def _updates(node: Node) -> Mapping[int, int]:
    """Result → input whose memory it takes, for ops that write there."""
    record = ops.get(node.op)
    return {} if record.is_view else record.shares


def _is_once(node: Node) -> bool:
    """Is it one of those of which the checker asks whether they are the same computation?"""
    record = ops.find(node.op)
    return "key" in node.attrs or (record is not None and record.statistics == "keeps")
