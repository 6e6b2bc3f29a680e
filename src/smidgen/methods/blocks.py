"""The blocks of a convolutional network, found from its graph: a block ends at a residual addition, else where the
resolution changes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from .. import ops
from ..ir import Graph
from .layers import is_image


@dataclass(frozen=True, slots=True)
class Block:
    start: str  # the image that it reads
    end: str  # the image that it makes
    position: int  # of the node that makes it


def blocks(graph: Graph) -> list[Block]:
    """In execution order, each with a layer in it. The first layer, which reads the input, belongs to none."""
    cuts = _cuts(graph)
    made_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
    residual = {i for i, name in enumerate(cuts) if i and _adds_two_paths(graph, made_at[name], cuts[i - 1])}
    weighted = [i for i, node in enumerate(graph.nodes) if ops.get(node.op).operand("weight") is not None]
    return [
        Block(cuts[a], cuts[b], made_at[cuts[b]])
        for a, b in _spans(graph, cuts, residual)
        if any(made_at[cuts[a]] < i <= made_at[cuts[b]] for i in weighted)  # not where nothing but pooling is
    ]


def _cuts(graph: Graph) -> list[str]:
    """Images through which everything later goes: nothing else that was computed before is read after them."""
    last_read: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        last_read |= dict.fromkeys(node.ins, i)
    from_input = {out for node in graph.nodes if ops.border(node) == "in" for out in node.outs}
    depends = set(from_input)
    alive: set[str] = set()
    seen_weight, found = False, list[str]()
    for i, node in enumerate(graph.nodes):
        weighted = ops.get(node.op).operand("weight") is not None
        if depends & set(node.ins):
            depends |= set(node.outs)
            alive |= {out for out in node.outs if last_read.get(out, -1) > i}
            seen_weight |= weighted
        alive = {name for name in alive if last_read[name] > i}
        if seen_weight and len(alive) == 1 and is_image(graph, next(iter(alive))):
            (name,) = alive
            if not found or found[-1] != name:
                found.append(name)
    return found


def _adds_two_paths(graph: Graph, position: int, before: str) -> bool:
    """Does the node, or one between it and the image before, add two images of its shape?"""
    made_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
    first = made_at.get(before, -1) + 1
    for node in graph.nodes[first : position + 1]:
        record = ops.get(node.op)
        images = [name for name in node.ins if is_image(graph, name)]
        if len(images) == 2 and any(set(range(len(node.ins))) <= set(group) for group in record.linear_in):
            return True
    return False


def _spans(graph: Graph, cuts: Sequence[str], residual: set[int]) -> Iterator[tuple[int, int]]:
    """Pairs of cuts. Between residual blocks, a span reaches from one change of the resolution to the next."""
    start = 0
    for i in range(1, len(cuts)):
        if i in residual:
            yield from _changes(graph, cuts, start, i - 1)
            yield i - 1, i
            start = i
    yield from _changes(graph, cuts, start, len(cuts) - 1)


def _changes(graph: Graph, cuts: Sequence[str], start: int, end: int) -> Iterator[tuple[int, int]]:
    changes = [i for i in range(start + 1, end + 1) if size_of(graph, cuts[i]) != size_of(graph, cuts[i - 1])]
    for after in [*changes[1:], end + 1][: len(changes)]:
        yield start, after - 1
        start = after - 1


def size_of(graph: Graph, name: str) -> tuple[int, int]:
    """Height and width of an image."""
    return cast(tuple[int, int], tuple(graph[name].shape[1:3]))


__all__ = ["Block", "blocks", "size_of"]
