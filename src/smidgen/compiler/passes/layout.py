"""Sweep a graph once, holding back every permute and reshape as a `View`, and copy only where an op must see it.

A value v of the old graph is known as a rearrangement of a tensor that the new graph has. Ops that work in any order of
axes run on that tensor as it lies and hand the rearrangement on, until it meets its inverse, the border or an op that
insists. So permutes compose, cancel and merge without being looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ... import ops
from ...errors import Internal
from ...ir import Batch, Dim, Graph, Node, Role, Shape, at, batch_axis, size
from ..graph.build import Builder

Perm = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """Axis i is the merge, in that order, of the axes groups[i] of `name` seen with sizes `dims`.

    `dims` has no axis of size one; it may split axes of the tensor. An axis of size one is an empty group.
    """

    name: str
    dims: Shape
    groups: tuple[Perm, ...]

    @property
    def order(self) -> Perm:
        return tuple(a for group in self.groups for a in group)

    @property
    def natural(self) -> bool:
        """The elements lie in memory in this view's own order: no copy is needed, a reshape will do."""
        return self.order == tuple(range(len(self.dims)))

    @property
    def shape(self) -> Shape:
        return tuple(size(self.dims[a] for a in group) for group in self.groups)

    def permuted(self, perm: Sequence[int]) -> View:
        return View(self.name, self.dims, tuple(self.groups[p] for p in perm))

    def reshaped(self, shape: Sequence[Dim]) -> View | None:
        """The same elements under another shape, axes split where needed; None if they do not split evenly."""
        if 0 in shape:
            return None
        waiting = list(self.order)
        parts: list[list[Dim]] = [[] for _ in self.dims]
        groups: list[list[tuple[int, int]]] = []
        atom = -1
        left: Dim = 1
        for want in shape:
            group = []
            while want != 1:
                if left == 1:
                    if not waiting:
                        return None
                    atom = waiting.pop(0)
                    left = self.dims[atom]
                take = left if _divides(left, want) else want
                if not _divides(take, left):
                    return None
                want, left = _over(want, take), _over(left, take)
                group.append((atom, len(parts[atom])))
                parts[atom].append(take)
            groups.append(group)
        if left != 1 or waiting:
            return None
        first = [sum(len(p) for p in parts[:a]) for a in range(len(parts))]
        dims = tuple(part for p in parts for part in p)
        return View(self.name, dims, tuple(tuple(first[a] + k for a, k in group) for group in groups))

    def joined(self) -> View:
        """With axes that are neighbours in memory and in one group made one. Samples keep an axis of their own."""
        dims: list[Dim] = []
        new: dict[int, int] = {}
        samples = batch_axis(self.dims)
        pairs = [pair for group in self.groups for pair in pairwise(group)]
        follows = {b for a, b in pairs if b == a + 1 and samples not in (a, b)}
        for a, dim in enumerate(self.dims):
            if a in follows:
                dims[-1] = size((dims[-1], dim))
            else:
                new[a] = len(dims)
                dims.append(dim)
        return View(self.name, tuple(dims), tuple(tuple(new[a] for a in g if a not in follows) for g in self.groups))


def inverse(perm: Sequence[int]) -> Perm:
    return tuple(sorted(range(len(perm)), key=lambda i: perm[i]))


def _divides(a: Dim, b: Dim) -> bool:
    if isinstance(b, Batch):
        return b.times % (a.times if isinstance(a, Batch) else a) == 0
    return not isinstance(a, Batch) and b % a == 0


def _over(a: Dim, b: Dim) -> Dim:
    return a // b  # type: ignore[operator]


def price(shape: Shape) -> float:
    """Of a copy: its elements for one sample, and a little for being one more instruction."""
    return 16.0 + float(at(size(shape), 1))


def moves(node: Node) -> bool:
    """Does the node only copy its input into another order?"""
    record = ops.get(node.op)
    return record.rearranges is not None and not record.is_view


def _key(op: str, ins: Sequence[str], attrs: Mapping[str, Any]) -> object:
    return op, tuple(ins), repr(sorted(attrs.items()))


@dataclass(frozen=True)
class Choice:
    """What a sweep cannot decide by looking back: the order in which inputs are fed, and values laid out as written."""

    feeds: Mapping[str, Perm]
    as_written: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Swept:
    graph: Graph
    cost: float  # of all permutes
    copied: tuple[str, ...]  # values that had to be copied
    held: frozenset[str]  # values that lie in another order than written
    relaid: frozenset[str]  # weights that were rearranged so that their input need not be


Rule = Callable[["Sweep", Node], bool]
"""Returns whether it dealt with the node; if not, the node is written as it was, on copies where needed."""


class Sweep:
    """`exclusive` names stored tensors with one reader: a permute of these can be absorbed into their layout."""

    def __init__(
        self, graph: Graph, rule: Rule, keep: Collection[str], exclusive: Collection[str], choice: Choice
    ) -> None:
        self.graph, self.rule, self.keep, self.exclusive, self.choice = graph, rule, keep, exclusive, choice
        computed = {out for node in graph.nodes for out in node.outs}
        given = {name: t for name, t in graph.tensors.items() if name not in computed}
        self.b = Builder(graph.with_(tensors=given, nodes=()))
        self.views: dict[str, View] = {name: self.as_is(name) for name in given}
        self.before_expand: dict[str, View] = {}
        self.memo: dict[object, tuple[str, ...]] = {}
        self.root: dict[str, str] = {}  # result of a reshape → what it views
        self.overwritten = _overwritten(graph)
        self.copied: list[str] = []
        self.relaid: set[str] = set()

    def run(self) -> Swept:
        for node in self.graph.nodes:
            self.b.stage, self.b.src = node.stage, node.src
            # Memory that an update overwrites is read exactly where it was.
            if any(i in self.overwritten for i in node.ins) or not self.rule(self, node):
                self.verbatim(node)
            for out in node.outs:
                if out in self.choice.as_written and out in self.views:
                    self.views[out] = self.as_is(self.copy(self.views[out], out))
                if out in self.keep and out not in self.b.tensors:
                    name = self.copy(self.views[out], out)
                    if name != out:
                        self.emit("reshape", [name], {"shape": self.graph[out].shape}, [out])
        held = frozenset(name for name, view in self.views.items() if not view.natural)
        graph = without_dead(self.b.graph(), self.keep)
        cost = sum(
            price(graph[node.outs[0]].shape)
            for node in graph.nodes
            if moves(node) and self.root.get(node.ins[0], node.ins[0]) not in self.exclusive
        )
        return Swept(graph, cost, tuple(dict.fromkeys(self.copied)), held, frozenset(self.relaid))

    # Writing nodes.

    def emit(self, op: str, ins: Sequence[str], attrs: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
        """Append a node; `names` are those its results should have, which may be taken."""
        key = _key(op, ins, attrs)
        record = ops.get(op)
        once = record.layout is not None and record.layout.once
        if once and key in self.memo and not any(name in self.keep for name in names):
            return self.memo[key]
        outs = []
        for k, (shape, dtype) in enumerate(record.infer([self.b[i] for i in ins], attrs)):
            role = Role.VALUE
            if k in record.shares and not record.is_view:
                role = self.b[ins[record.shares[k]]].role
            outs.append(self.b.tensor(names[k], tuple(shape), dtype, role))
        stage = "forward" if once and self.b.stage == "io" else self.b.stage
        self.b.append(Node(op, tuple(ins), tuple(outs), dict(attrs), stage, self.b.src))
        if record.rearranges and record.is_view:
            self.root[outs[0]] = self.root.get(ins[0], ins[0])
        self.memo.setdefault(key, tuple(outs))
        return tuple(outs)

    def new_name(self, hint: str) -> str:
        """A name that neither graph has."""
        k = 2
        name = hint
        while name in self.b.tensors or name in self.graph.tensors:
            name, k = f"{hint}.{k}", k + 1
        return name

    def own_name(self, name: str) -> str:
        """The name itself unless a value in another layout already took it."""
        return self.new_name(name) if name in self.b.tensors else name

    def names(self, node: Node) -> list[str]:
        """For results in another layout; the name of a value to keep is for that value as written."""
        return [self.own_name(f"{out}.laid" if out in self.keep else out) for out in node.outs]

    def verbatim(self, node: Node) -> None:
        ins = [self.copy(self.views[i], i) for i in node.ins]
        self.results(node, self.emit(node.op, ins, node.attrs, [self.own_name(o) for o in node.outs]))

    def results(self, node: Node, names: Sequence[str]) -> None:
        for out, name in zip(node.outs, names, strict=True):
            self.views[out] = self.as_is(name)

    def reshape(self, name: str, shape: Shape, hint: str) -> str:
        name = self.root.get(name, name) if name not in self.overwritten else name
        if self.b[name].shape == shape:
            return name
        return self.emit("reshape", [name], {"shape": shape}, [hint])[0]

    def copy(self, view: View, of: str, laid: bool = False) -> str:
        """A tensor that is this view of value `of`, or of that `laid` out anew; copied only if it must be."""
        name = self.new_name(f"{of}.laid") if laid else self.own_name(of)
        if view.natural:
            return self.reshape(view.name, view.shape, name)
        self.copied.append(of)
        perm = self.plain(view)
        if perm is not None:
            return self.emit("permute", [view.name], {"perm": perm}, [name])[0]
        flat = View(view.name, view.dims, (view.order,)).joined()
        split = self.reshape(view.name, flat.dims, self.new_name(f"{of}.split"))
        moved = self.emit("permute", [split], {"perm": flat.order}, [self.new_name(f"{of}.moved")])[0]
        return self.reshape(moved, view.shape, name)

    # Views.

    def as_is(self, name: str) -> View:
        tensor = self.b[name]
        return self.over(name, [(i,) for i in range(len(tensor.shape))])

    def over(self, name: str, places: Iterable[Iterable[int]]) -> View:
        """The view whose axes are merges of the tensor's own axes at `places`."""
        shape = self.b[name].shape
        index = {p: k for k, p in enumerate(p for p, dim in enumerate(shape) if dim != 1)}
        groups = tuple(tuple(index[p] for p in group if p in index) for group in places)
        return View(name, tuple(dim for dim in shape if dim != 1), groups)

    def plain(self, view: View) -> Perm | None:
        """The permutation of the tensor's own axes that the view is, if it is one."""
        shape = self.b[view.name].shape
        solid = [i for i, dim in enumerate(shape) if dim != 1]
        flat = [i for i, dim in enumerate(shape) if dim == 1]
        empty = sum(not group for group in view.groups)
        if tuple(shape[i] for i in solid) != view.dims or any(len(g) > 1 for g in view.groups) or empty != len(flat):
            return None
        return tuple(solid[group[0]] if group else flat.pop(0) for group in view.groups)

    def frame(self, view: View) -> tuple[Shape, Perm]:
        """The shape in which an op sees the tensor below a view, and the place of each of `view.dims` in it."""
        shape = self.b[view.name].shape
        solid = tuple(i for i, dim in enumerate(shape) if dim != 1)
        same = tuple(shape[i] for i in solid) == view.dims
        return (shape, solid) if same else (view.dims, tuple(range(len(view.dims))))

    def relay(self, view: View, lead: View, vary: int | None = None) -> View | None:
        """`view`, broadcast to the lead's rank, arranged as the lead's tensor; axis `vary` keeps its own size."""
        shape, places = self.frame(lead)
        own = (1,) * (len(lead.groups) - len(view.groups)) + view.shape
        sizes: list[Dim] = []
        for axis, group in enumerate(lead.groups):
            if axis == vary:
                sizes.append(own[axis])
            else:
                sizes += [1 if own[axis] == 1 else lead.dims[a] for a in group]
        split = view.reshaped(sizes)
        if split is None:
            return None
        laid = split.permuted(inverse(lead.order))
        full: list[Dim] = [1] * len(shape)
        for place, dim in zip(places, laid.shape, strict=True):
            full[place] = dim
        return laid.reshaped(full)

    def whole(self, lead: View) -> View:
        """The tensor below a view, in its frame."""
        shape, places = self.frame(lead)
        return View(lead.name, lead.dims, tuple((places.index(p),) if p in places else () for p in range(len(shape))))

    def price(self, view: View) -> float:
        """Elements to copy."""
        perm = self.plain(view)
        if view.natural or (perm and _key("permute", [view.name], {"perm": perm}) in self.memo):
            return 0.0
        stored = self.b[self.root.get(view.name, view.name)].role is not Role.VALUE
        return price(view.dims) / (1000 if stored else 1)

    def arranged(
        self, views: Sequence[View], shape: Shape, vary: int | None = None, joined: bool = False
    ) -> tuple[View, list[View]] | None:
        """The operands arranged alike at the lowest price, led by one of them; None to take them as written."""
        best: tuple[float, View, list[View]] | None = None
        for lead in views:
            if lead.natural or (vary is None and lead.shape != shape):
                continue
            lead = lead.joined() if joined else lead
            if vary is not None and len(lead.groups[vary]) != 1:
                continue
            laid = [self.relay(view, lead, vary) for view in views]
            found = [view for view in laid if view is not None]
            price = sum(map(self.price, found))
            if len(found) == len(laid) and (best is None or price < best[0]):
                best = price, lead, found
        if best is None or sum(map(self.price, views)) < best[0]:
            return None
        return best[1:]

    def operand(self, view: View, of: str) -> str:
        """A tensor that broadcasts as the view of value `of` does."""
        shape = self.b[view.name].shape
        if view.natural and (1,) * (len(view.groups) - len(shape)) + shape == view.shape:
            return view.name
        return self.copy(view, of, laid=True)

    def framed(
        self, node: Node, lead: View, laid: Sequence[View], attrs: Mapping[str, Any], rest: Sequence[str] = (),
        groups: Sequence[Perm] | None = None,
    ) -> bool:  # fmt: skip
        """Emit the node in the lead's frame. Its results have the lead's `groups`, here as places in their shape."""
        ins = [self.operand(view, name) for view, name in zip(laid, node.ins, strict=False)]
        _, places = self.frame(lead)
        if groups is None:
            groups = [tuple(places[a] for a in group) for group in lead.groups]
        for out, name in zip(node.outs, self.emit(node.op, [*ins, *rest], attrs, self.names(node)), strict=True):
            self.views[out] = self.over(name, groups)
            if self.views[out].shape != self.graph[out].shape:
                raise Internal(f"layout of '{node.op}' went wrong: {self.views[out].shape}", at=node.src)
        return True


def without_dead(graph: Graph, keep: Collection[str] = frozenset()) -> Graph:
    """`ir.dead_removed`, but `keep` counts as used."""
    used = set(keep)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if any(out in used or graph[out].role is not Role.VALUE for out in node.outs):
            nodes.append(node)
            used.update(node.ins)
    named = {t for node in nodes for t in (*node.ins, *node.outs)} | {*graph.inputs, *graph.outputs} | set(keep)
    return graph.with_(
        nodes=tuple(reversed(nodes)),
        tensors={name: t for name, t in graph.tensors.items() if name in named},
        data={name: value for name, value in graph.data.items() if name in named},
        layouts={name: steps for name, steps in graph.layouts.items() if name in named},
    )


def _overwritten(graph: Graph) -> set[str]:
    """Tensors whose memory an update takes, under all their names."""
    family: dict[str, str] = {}
    roots: set[str] = set()
    for node in graph.nodes:
        record = ops.get(node.op)
        for out, source in record.shares.items():
            root = family.get(node.ins[source], node.ins[source])
            if record.is_view:
                family[node.outs[out]] = root
            else:
                roots.add(root)
    return roots | {name for name, root in family.items() if root in roots}
