"""What a value is, whatever graph it is in: the same op on the same values with the same weights is the same value.

Entry points of one network, and what methods make of it, have most values in common, under any names. A layer is known
by its weight, and what is joined with it (a norm, an added bias) belongs to it whether it was folded or not; what only
draws random numbers changes nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from ... import ops
from ...ir import Graph, Node, Role
from ...program.arrays import FROZEN

FOLDED = ".folded."


@dataclass(frozen=True, slots=True)
class Chain:
    """A layer with what is joined with it: a norm with given statistics, vectors that are added to its outputs, and
    bounds at which the result is cut off. `members` are the positions behind the layer."""

    layer: Node
    norm: Node | None
    added: tuple[str, ...]  # stored vectors
    sum: str  # the result before the bounds
    bounded: Node | None
    members: tuple[int, ...]

    @property
    def end(self) -> str:
        return self.bounded.outs[0] if self.bounded is not None else self.sum


def chains(graph: Graph) -> dict[int, Chain]:
    """Position of each layer → what is joined with it."""
    readers = graph.readers()
    for name in graph.outputs:
        readers.setdefault(name, [])

    def next_of(name: str) -> tuple[int, Node] | None:
        found = readers.get(name, [])
        return (found[0], graph.nodes[found[0]]) if len(found) == 1 else None

    made = {}
    for position, layer in enumerate(graph.nodes):
        form = ops.get(layer.op).integer
        if form is None or form.kind != "layer":
            continue
        end, norm, added, members = layer.outs[0], None, list[str](), list[int]()
        while (after := next_of(end)) is not None:
            at, node = after
            if norm is None and not added and _is_norm(graph, node, end):
                norm = node
            elif (vector := _added(graph, node, end)) is not None:
                added.append(vector)
            else:
                break
            members.append(at)
            end = node.outs[0]
        after = next_of(end)
        bounded = after[1] if after is not None and ops.get(after[1].op).bounds is not None else None
        if bounded is not None and after is not None:
            members.append(after[0])
        made[position] = Chain(layer, norm, tuple(added), end, bounded, tuple(members))
    return made


def _is_stored(graph: Graph, name: str) -> bool:
    return graph[name].role in (Role.CONST, Role.PARAM, Role.STAT)


def _is_norm(graph: Graph, node: Node, x: str) -> bool:
    """Over the channels of x, with statistics that are given."""
    record = ops.get(node.op)
    if record.norm != "batch" or record.operand("mean") is None or node.ins[0] != x:
        return False
    return all(_is_stored(graph, name) for name in node.ins[1:])


def _added(graph: Graph, node: Node, x: str) -> str | None:
    """The vector with a number for each output that the node adds to x."""
    record = ops.get(node.op)
    if not record.pointwise or set(record.operands.values()) != {"bias"} or len(node.ins) != 2 or x not in node.ins:
        return None
    other = node.ins[1] if node.ins[0] == x else node.ins[0]
    shape = graph[other].shape
    whole = bool(shape) and shape[-1] == graph[x].shape[-1] and all(dim == 1 for dim in shape[:-1])
    return other if other != x and whole and _is_stored(graph, other) and len(graph[x].shape) >= len(shape) else None


class Identity:
    """Numbers values, equal ones alike, over any number of graphs."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))

    def of(self, graph: Graph) -> dict[str, int]:
        """Of all values."""
        linked, made = chains(graph), graph.producer()
        inner = {p for chain in linked.values() for p in chain.members}
        inner -= {chain.members[-1] for chain in linked.values() if chain.bounded is not None}
        found: dict[str, int] = {}
        uses: dict[Hashable, int] = {}

        def known(name: str) -> int:
            if name in found:
                return found[name]
            return self._number(("stored", graph[name].role is Role.INPUT, _base(name)))

        for position, node in enumerate(graph.nodes):
            if position in linked:
                chain = linked[position]
                weight = _weight(made, node)
                layer = ("layer", node.op, _plain(node.attrs), known(node.ins[0]), _base(weight))
                use = uses[layer] = uses.get(layer, -1) + 1  # a weight may be used again, with another bias
                for k, at in enumerate((position, *chain.members)):  # what is inside depends on what was folded
                    name = graph.nodes[at].outs[0]
                    found[name] = self._number((layer, use, "inside", k, weight))
                found[chain.sum] = self._number((layer, use))
                if chain.bounded is not None:
                    found.pop(chain.bounded.outs[0])
            elif ops.get(node.op).slices == "put" and _is_stored(graph, node.ins[0]):
                found[node.outs[0]] = known(node.ins[1])
            elif any(graph[name].role is Role.SETTING for name in node.ins):
                found[node.outs[0]] = known(node.ins[0])
            elif position not in inner:
                key = (node.op, _plain(node.attrs), *map(known, node.ins))
                found |= {out: self._number((k, key)) for k, out in enumerate(node.outs)}
        return found


def _weight(made: Mapping[str, Node], layer: Node) -> str:
    """The stored tensor that the weight is, or is made of."""
    name = layer.ins[1]
    maker = made.get(name)
    return maker.ins[1] if maker is not None and ops.get(maker.op).slices == "put" else name


def _base(name: str) -> str:
    return name.partition(FOLDED)[0].removesuffix(FROZEN)


def _plain(attrs: Mapping[str, object]) -> Sequence[str]:
    return tuple(f"{key}={value!r}" for key, value in sorted(attrs.items()))


__all__ = ["Chain", "Identity", "chains"]
