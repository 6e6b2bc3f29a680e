"""Parts of a backward pass in tiles of channels: the gradients inside of a block of layers, from one that makes a wide
map of a narrow one to those that make narrow ones of it again, exist for some channels at a time.

Every inner node is there once for each tile, and reads that part of what is whole (slices of weights, bits, saved
maps). Updates write that part of a weight which belongs to the tile; what adds up over channels is added tile by tile,
in blocks as long as those in which its kernel adds, so that the bits are those of the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ... import ops
from ...ir import DType, Graph, Node, Role, Shape, Tensor, ceil_div
from ...ops.build import typed
from ...ops.optim import FIRST, FUSED, Fused
from ...ops.traits import Taken
from ..graph.alias import regions

BLOCK: Final = 64
"""Channels that kernels add before they enter them into a sum: a tile has a multiple of them."""
NARROW: Final = 4  # so many times smaller is what a chain may begin with, if it is no weight


@dataclass(frozen=True, slots=True)
class Chain:
    """Nodes of a graph, in order, and the maps between them, which nobody else reads."""

    nodes: tuple[int, ...]
    inner: frozenset[str]
    channels: int
    bytes: int  # of the largest map, for one sample


@dataclass(frozen=True, slots=True)
class _Part:
    """How one node does with a tile: `how` says which axes of its inputs are the channels."""

    kind: str  # makes an inner map, updates state, adds up
    how: Taken
    fused: Fused | None = None


def chains(graph: Graph) -> list[Chain]:
    """What may be in tiles, in the order of the graph. No node is in two of them: larger maps come first."""
    finder = _Finder(graph)
    begins = [i for i, node in enumerate(graph.nodes) if node.stage == "backward" and finder.may_begin(i)]
    found = [chain for chain in map(finder.chain, begins) if chain is not None]
    kept, taken = list[Chain](), set[int]()
    for chain in sorted(found, key=lambda c: (-c.bytes, -len(c.nodes), c.nodes)):
        if not taken.intersection(chain.nodes):
            kept.append(chain)
            taken.update(chain.nodes)
    return sorted(kept, key=lambda c: c.nodes)


class _Finder:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.readers = graph, graph.readers()
        self.maker = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
        self.bound = {i for region in regions(graph) for i in region}
        yielded = {name for node in graph.nodes for name in node.attrs.get("yields", ())}
        self.kept = {*graph.outputs, *yielded}

    def may_begin(self, i: int) -> bool:
        """Does it make a wide map of weights and what is narrow?"""
        node, channels = self.graph.nodes[i], self._channels(i)
        if i in self.bound or channels <= BLOCK:
            return False
        how = tiling(self.graph, node, BLOCK)
        if how is None:
            return False
        wide = self.graph[node.outs[0]].bytes(1)
        own = [self.graph[node.ins[k]] for k, _ in how.inputs]
        return all(t.role is not Role.VALUE or NARROW * t.bytes(1) <= wide for t in own)

    def chain(self, first: int) -> Chain | None:
        channels, graph = self._channels(first), self.graph
        inner, nodes, todo = {graph.nodes[first].outs[0]}, {first}, [graph.nodes[first].outs[0]]
        while todo:
            name = todo.pop()
            if name in self.kept:
                return None
            for i in self.readers.get(name, ()):
                if i in nodes:
                    continue
                part = part_of(graph, graph.nodes[i], {name}, BLOCK) if i not in self.bound else None
                if part is None or graph.nodes[i].stage == "forward":
                    return None
                nodes.add(i)
                if part.kind == "makes":
                    if self._channels(i) != channels:
                        return None
                    inner.add(graph.nodes[i].outs[0])
                    todo.append(graph.nodes[i].outs[0])
        order = tuple(sorted(nodes))
        parts = [part_of(graph, graph.nodes[i], inner, BLOCK) for i in order]
        whole = {o for i, part in zip(order, parts, strict=True) if part and part.kind == "adds"
                 for o in graph.nodes[i].outs}  # fmt: skip
        if None in parts or not whole or self._depends(order, whole):
            return None
        found = Chain(order, frozenset(inner), channels, max(graph[name].bytes(1) for name in inner))
        return found if arranged(graph, found) is not None else None

    def _channels(self, i: int) -> int:
        outs = self.graph.nodes[i].outs
        shape = self.graph[outs[0]].shape if len(outs) == 1 and self.graph[outs[0]].role is Role.VALUE else ()
        return shape[-1] if len(shape) > 1 and isinstance(shape[-1], int) else 0

    def _depends(self, order: Sequence[int], whole: Collection[str]) -> bool:
        """Does anything in it need what is there only when all tiles are done?"""
        late, inside = set(whole), set(order)
        for i in range(order[0], order[-1] + 1):
            node = self.graph.nodes[i]
            if late.intersection(node.ins):
                if i in inside:
                    return True
                late.update(node.outs)
        return False


def tiling(graph: Graph, node: Node, count: int) -> Taken | None:
    """How it makes some channels of its result."""
    record, call = ops.get(node.op), typed(graph, node)
    if len(node.outs) != 1 or (record.shares and not record.is_view):
        return None
    if record.tiled is not None:
        return record.tiled(call, count)
    shape = call.outs[0].shape
    if not record.pointwise or not shape or any(len(t.shape) > len(shape) for t in call.ins):
        return None
    return Taken(tuple((k, len(t.shape) - 1) for k, t in enumerate(call.ins) if t.shape[-1:] == shape[-1:]))


def part_of(graph: Graph, node: Node, inner: Collection[str], count: int) -> _Part | None:
    """None: it needs an inner map as a whole."""
    record, fused = ops.get(node.op), FUSED.get(node.op)
    if fused is not None and record.in_part and FIRST not in node.attrs:
        own = len(node.ins) - fused.states - len(fused.settings)
        op = fused.gradient
        ins = tuple(graph[name] for name in node.ins[:own])
        call = ops.Call(ins, (graph[node.outs[0]],), node.attrs)
        how = op.taken(call, count).get(0) if op.taken is not None else None
        return _Part("updates", how, fused) if how and _covers(graph, node, how, inner) else None
    begins = not any(name in inner for name in node.ins)
    how = record.adds_tiles(typed(graph, node)) if record.adds_tiles is not None and not begins else None
    if how is not None and _covers(graph, node, how, inner):
        return _Part("adds", how)
    how = tiling(graph, node, count)
    return _Part("makes", how) if how is not None and _covers(graph, node, how, inner) else None


def _is_product(graph: Graph, node: Node) -> bool:
    """Of a matrix and a weight: it has tiles of its own, without a copy of any."""
    record = ops.get(node.op)
    return bool(record.tiles) and record.adds_tiles is not None and record.adds_tiles(typed(graph, node)) is not None


def _covers(graph: Graph, node: Node, how: Taken, inner: Collection[str]) -> bool:
    """Are its inner maps all read along their channels?"""
    own = {k for k, axis in how.inputs if axis == len(graph[node.ins[k]].shape) - 1}
    return all(k in own for k, name in enumerate(node.ins) if name in inner)


def arranged(graph: Graph, chain: Chain) -> tuple[list[int], list[int]] | None:
    """Nodes between those of the chain: what goes in front of all of it, and what behind. None where that would read
    what has been overwritten."""
    first, last = chain.nodes[0], chain.nodes[-1]
    between = [i for i in range(first, last + 1) if i not in chain.nodes]
    needed, before = {name for i in chain.nodes for name in graph.nodes[i].ins}, list[int]()
    for i in reversed(between):
        if needed.intersection(graph.nodes[i].outs):
            before.insert(0, i)
            needed.update(graph.nodes[i].ins)
    behind = [i for i in between if i not in before]
    overwritten: set[str] = set()
    for i in (*before, *chain.nodes, *behind):
        node = graph.nodes[i]
        if overwritten.intersection(node.ins):
            return None
        record = ops.get(node.op)
        if record.is_view and {node.ins[k] for k in record.shares.values()} & overwritten:
            return None
        overwritten |= set() if record.is_view else {node.ins[k] for k in record.shares.values()}
    return before, behind


def tile_spans(channels: int, most: int) -> list[range]:
    """At most so many tiles."""
    width = ceil_div(ceil_div(channels, BLOCK), most) * BLOCK
    return [range(at, min(at + width, channels)) for at in range(0, channels, width)]


def in_tiles(graph: Graph, chain: Chain, most: int) -> Graph:
    """The graph with this chain in at most so many tiles."""
    found = arranged(graph, chain)
    assert found is not None
    before, behind = found
    nodes = graph.nodes
    writer = _Writer(graph, chain)
    made = list(writer.written(tile_spans(chain.channels, most)))
    first, last = chain.nodes[0], chain.nodes[-1]
    rest = [nodes[i] for i in before], [nodes[i] for i in behind]
    order = (*nodes[:first], *rest[0], *made, *rest[1], *nodes[last + 1 :])
    used = {name for node in order for name in (*node.ins, *node.outs)}
    tensors = {k: t for k, t in writer.tensors.items() if k in used or k not in chain.inner}
    return graph.with_(nodes=order, tensors=tensors)


class _Writer:
    def __init__(self, graph: Graph, chain: Chain) -> None:
        self.graph, self.chain = graph, chain
        self.tensors = dict(graph.tensors)
        self.now: dict[str, str] = {}  # state, and sums → what they are by now
        self.done: list[Node] = []

    def written(self, spans: Sequence[range]) -> Iterator[Node]:
        for k, span in enumerate(spans):
            names: dict[str, str] = {}  # inner map → the tile of it
            slices: dict[tuple[str, int], str] = {}
            for i in self.chain.nodes:
                self._node(self.graph.nodes[i], span, k, k == len(spans) - 1, names, slices)
        yield from self.done

    def _node(
        self, node: Node, span: range, k: int, is_last: bool, names: dict[str, str], slices: dict[tuple[str, int], str]
    ) -> None:  # fmt: skip
        part = part_of(self.graph, node, self.chain.inner, len(span))
        assert part is not None
        if _is_product(self.graph, node):
            self._tile(node, part, span, k, is_last, names)
            return
        ins = [names.get(name) or self.now.get(name, name) for name in node.ins]
        for i, axis in part.how.inputs:
            if node.ins[i] not in names:
                ins[i] = self._slice(node, ins[i], axis, span, slices)
        for i in part.how.packed:
            ins[i] = self._bits(node, ins[i], span, slices)
        attrs = {**node.attrs, **part.how.attrs}
        if part.fused is not None:
            self._update(node, part.fused, ins, attrs, span, is_last, slices)
            return
        names[node.outs[0]] = self._called(node.with_(ins=tuple(ins), attrs=attrs), k)

    def _called(self, node: Node, k: int, out: str = "") -> str:
        """Its result: `out`, or a new tensor."""
        [(shape, dtype)] = ops.get(node.op).infer([self.tensors[name] for name in node.ins], node.attrs)
        name = out or self._new(node.outs[0], shape, dtype, k)
        self.done.append(node.with_(outs=(name,)))
        return name

    def _tile(self, node: Node, part: _Part, span: range, k: int, is_last: bool, names: dict[str, str]) -> None:
        """A product with a tile of the weight: some inputs, or some outputs, whose results add up."""
        alone, added = ops.get(node.op).tiles
        out, adds = node.outs[0], part.kind == "adds"
        weights = [self.now.get(name, name) for name in node.ins[1:]]
        ins = (names.get(node.ins[0], node.ins[0]), *weights)
        at = (span.start, 0) if adds else (0, span.start)
        attrs = {"at": at, "inputs": self.graph[out].shape[-1] if adds else len(span)}
        attrs |= {"axis": node.attrs["axis"]} if "axis" in node.attrs else {}
        if not adds:
            names[out] = self._called(node.with_(op=alone, ins=ins, attrs=attrs), k)
            return
        before = (self.now[out],) if out in self.now else ()
        called = node.with_(op=added if before else alone, ins=(*ins, *before), attrs=attrs)
        self.now[out] = self._called(called, k, out if is_last else "")

    def _update(
        self, node: Node, fused: Fused, ins: list[str], attrs: dict[str, object], span: range, is_last: bool,
        slices: dict[tuple[str, int], str],
    ) -> None:  # fmt: skip
        settings = len(node.ins) - len(fused.settings)
        for i, setting in enumerate(fused.settings, settings):
            if setting in fused.each:
                ins[i] = self._slice(node, ins[i], len(self.graph[node.ins[i]].shape) - 1, span, slices)
        states = node.ins[settings - fused.states : settings]
        outs = []
        for state, out in zip(states, node.outs, strict=True):
            tensor = self.graph[out]
            new = out if is_last else self._new(out, tensor.shape, tensor.dtype, span.start)
            self.now[state] = new
            outs.append(new)
        self.done.append(node.with_(ins=tuple(ins), outs=tuple(outs), attrs={**attrs, FIRST: span.start}))

    def _slice(self, node: Node, name: str, axis: int, span: range, slices: dict[tuple[str, int], str]) -> str:
        """These indices of an axis, for this tile."""
        if (name, axis) not in slices:
            tensor = self.tensors[name]
            shape = (*tensor.shape[:axis], len(span), *tensor.shape[axis + 1 :])
            out = self._new(name, shape, tensor.dtype, span.start)
            attrs = {"axis": axis, "start": span.start, "stop": span.stop, "step": 1}
            self.done.append(Node("slice", (name,), (out,), attrs, node.stage, node.src))
            slices[name, axis] = out
        return slices[name, axis]

    def _bits(self, node: Node, name: str, span: range, slices: dict[tuple[str, int], str]) -> str:
        """Bits of these channels, of which eight are a byte."""
        bits, whole = self.tensors[name], self.graph[node.outs[0]].shape
        seen = self._viewed(name, (*whole[:-1], self.chain.channels // 8))
        part = self._slice(node, seen, len(whole) - 1, range(span.start // 8, span.stop // 8), slices)
        row = bits.shape[1] * len(span) // self.chain.channels
        return self._viewed(part, (bits.shape[0], row))

    def _viewed(self, name: str, shape: Shape) -> str:
        out = self._new(name, shape, self.tensors[name].dtype, 0)
        self.done.append(Node("reshape", (name,), (out,), {"shape": shape}, "backward"))
        return out

    def _new(self, name: str, shape: Shape, dtype: DType, k: int) -> str:
        out = f"{name}/{k}"
        while out in self.tensors:
            out += "'"
        self.tensors[out] = Tensor(out, tuple(shape), dtype)
        return out


__all__ = ["BLOCK", "Chain", "chains", "in_tiles", "tile_spans"]
