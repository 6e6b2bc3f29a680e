"""Sweep a graph once, holding back every permute and reshape as a `View`, and copy only where an op must see it.

A value v of the old graph is known as a rearrangement of a tensor that the new graph has. Ops that work in any order of
axes run on that tensor as it lies and hand the rearrangement on, until it meets its inverse, the border or an op that
insists. So permutes compose, cancel and merge without being looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ... import ops
from ...errors import Internal
from ...ir import Dim, DType, Graph, Node, Role, Shape, Tensor, at, size
from .facts import Facts, Write
from .view import Perm, View, inverse, over, plain


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


@dataclass(frozen=True, slots=True)
class Emitted:
    """A node of the new graph."""

    node: Node
    price: float  # of a permute that no stored layout can absorb
    stays: bool  # even if no node reads it


@dataclass(frozen=True, slots=True)
class Step:
    """What one node of the old graph led to."""

    emitted: tuple[Emitted, ...]
    copied: tuple[str, ...]  # values that had to be copied
    relaid: tuple[str, ...]  # weights that were rearranged so that their input need not be
    writes: tuple[Write, ...]


Rule = Callable[["Sweep", Node], bool]
"""Returns whether it dealt with the node; if not, the node is written as it was, on copies where needed."""


class Sweep:
    """`exclusive` names stored tensors with one reader: a permute of these can be absorbed into their layout.

    All that the nodes before it leave to a node are `facts`.
    """

    def __init__(
        self, graph: Graph, rule: Rule, keep: Collection[str], exclusive: Collection[str], choice: Choice
    ) -> None:
        self.graph, self.rule, self.keep, self.exclusive, self.choice = graph, rule, keep, exclusive, choice
        computed = {out for node in graph.nodes for out in node.outs}
        self.given = {name: t for name, t in graph.tensors.items() if name not in computed}
        self.tensors: Facts[str, Tensor] = Facts(self.given)
        self.views: Facts[str, View] = Facts({name: self.as_is(name) for name in self.given})
        self.before_expand: Facts[str, View] = Facts({})
        self.memo: Facts[object, tuple[str, ...]] = Facts({})
        self.root: Facts[str, str] = Facts({})  # result of a reshape → what it views
        self.facts: tuple[Facts[Any, Any], ...] = self.tensors, self.views, self.before_expand, self.memo, self.root
        self.overwritten = _overwritten(graph)
        self._node = Node("", (), ())
        self._emitted: list[Emitted] = []
        self._copied: list[str] = []
        self._relaid: list[str] = []

    def step(self, position: int) -> Step:
        """What the node at `position` leads to, given what those before it led to."""
        self._node = node = self.graph.nodes[position]
        self._emitted, self._copied, self._relaid, writes = [], [], [], list[Write]()
        for facts in self.facts:
            facts.at, facts.writes = position, writes
        # Memory that an update overwrites is read exactly where it was.
        if any(i in self.overwritten for i in node.ins) or not self.rule(self, node):
            self.verbatim(node)
        for out in node.outs:
            if out in self.choice.as_written and out in self.views:
                self.views[out] = self.as_is(self.copy(self.views[out], out))
            if out in self.keep and out not in self.tensors:
                name = self.copy(self.views[out], out)
                if name != out:
                    self.emit("reshape", [name], {"shape": self.graph[out].shape}, [out])
        return Step(tuple(self._emitted), tuple(self._copied), tuple(self._relaid), tuple(writes))

    # Writing nodes.

    def emit(self, op: str, ins: Sequence[str], attrs: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
        """Append a node; `names` are those its results should have, which may be taken."""
        record = ops.get(op)
        once = record.layout is not None and record.layout.once
        key = _key(op, ins, attrs) if once else None
        if once and key in self.memo and not any(name in self.keep for name in names):
            return self.memo[key]
        outs = []
        for k, (shape, dtype) in enumerate(record.infer([self.tensors[i] for i in ins], attrs)):
            role = Role.VALUE
            if k in record.shares and not record.is_view:
                role = self.tensors[ins[record.shares[k]]].role
            outs.append(self._tensor(names[k], tuple(shape), dtype, role))
        stage = "forward" if once and self._node.stage == "io" else self._node.stage
        self.append(Node(op, tuple(ins), tuple(outs), dict(attrs), stage, self._node.src))
        if record.rearranges and record.is_view:
            self.root[outs[0]] = self.root.get(ins[0], ins[0])
        if once and key not in self.memo:
            self.memo[key] = tuple(outs)
        return tuple(outs)

    def append(self, node: Node) -> None:
        source = self.root.get(node.ins[0], node.ins[0]) if moves(node) else ""
        counts = source != "" and source not in self.exclusive
        cost = price(self.tensors[node.outs[0]].shape) if counts else 0.0
        stays = any(out in self.keep or self.tensors[out].role is not Role.VALUE for out in node.outs)
        self._emitted.append(Emitted(node, cost, stays))

    def relay_weight(self, name: str) -> None:
        """Note that a weight is rearranged so that its input need not be."""
        self._relaid.append(name)

    def _tensor(self, hint: str, shape: Shape, dtype: DType, role: Role) -> str:
        k = 2
        name = hint
        while name in self.tensors:
            name, k = f"{hint}.{k}", k + 1
        self.tensors[name] = Tensor(name, shape, dtype, role)
        return name

    def new_name(self, hint: str) -> str:
        """A name that neither graph has."""
        k = 2
        name = hint
        while name in self.tensors or name in self.graph.tensors:
            name, k = f"{hint}.{k}", k + 1
        return name

    def own_name(self, name: str) -> str:
        """The name itself unless a value in another layout already took it."""
        return self.new_name(name) if name in self.tensors else name

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
        if self.tensors[name].shape == shape:
            return name
        return self.emit("reshape", [name], {"shape": shape}, [hint])[0]

    def copy(self, view: View, of: str, laid: bool = False) -> str:
        """A tensor that is this view of value `of`, or of that `laid` out anew; copied only if it must be."""
        name = self.new_name(f"{of}.laid") if laid else self.own_name(of)
        if view.natural:
            return self.reshape(view.name, view.shape, name)
        self._copied.append(of)
        perm = self.plain(view)
        if perm is not None:
            return self.emit("permute", [view.name], {"perm": perm}, [name])[0]
        flat = View(view.name, view.dims, (view.order,)).joined()
        split = self.reshape(view.name, flat.dims, self.new_name(f"{of}.split"))
        moved = self.emit("permute", [split], {"perm": flat.order}, [self.new_name(f"{of}.moved")])[0]
        return self.reshape(moved, view.shape, name)

    # Views.

    def as_is(self, name: str) -> View:
        tensor = self.tensors[name]
        return self.over(name, [(i,) for i in range(len(tensor.shape))])

    def over(self, name: str, places: Iterable[Iterable[int]]) -> View:
        """The view whose axes are merges of the tensor's own axes at `places`."""
        return View(name, *over(self.tensors[name].shape, tuple(map(tuple, places))))

    def plain(self, view: View) -> Perm | None:
        """The permutation of the tensor's own axes that the view is, if it is one."""
        return plain(self.tensors[view.name].shape, view.dims, view.groups)

    def frame(self, view: View) -> tuple[Shape, Perm]:
        """The shape in which an op sees the tensor below a view, and the place of each of `view.dims` in it."""
        shape = self.tensors[view.name].shape
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
        stored = self.tensors[self.root.get(view.name, view.name)].role is not Role.VALUE
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
        shape = self.tensors[view.name].shape
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
