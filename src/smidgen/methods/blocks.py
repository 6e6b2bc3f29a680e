"""The blocks of a convolutional network, found from its graph: a block ends at a residual addition, else where the
resolution changes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

from .. import ops
from ..ir import Graph, Node
from .cuts import cuts
from .layers import is_image


@dataclass(frozen=True, slots=True)
class Block:
    start: str  # the image that it reads
    end: str  # the image that it makes


def blocks(graph: Graph) -> list[Block]:
    """In execution order, each with a layer in it. The first layer, which reads the input, belongs to none."""
    weighted = [i for i, node in enumerate(graph.nodes) if ops.get(node.op).operand("weight") is not None]
    found = [(i, name) for i, name in cuts(graph) if is_image(graph, name) and weighted and i >= weighted[0]]
    images = [name for _, name in found]
    between = [graph.nodes[a + 1 : b + 1] for (a, _), (b, _) in pairwise(found)]
    residual = {k for k, nodes in enumerate(between, 1) if any(_adds_two_images(graph, node) for node in nodes)}
    return [
        Block(images[a], images[b])
        for a, b in _spans(graph, images, residual)
        if any(found[a][0] < i <= found[b][0] for i in weighted)  # not where nothing but pooling is
    ]


def _adds_two_images(graph: Graph, node: Node) -> bool:
    together = any(set(range(len(node.ins))) <= set(group) for group in ops.get(node.op).linear_in)
    return together and len(node.ins) == 2 and all(is_image(graph, name) for name in node.ins)


def _spans(graph: Graph, images: Sequence[str], residual: set[int]) -> Iterator[tuple[int, int]]:
    """Pairs of them. Between residual blocks, a span reaches from one change of the resolution to the next."""
    start = 0
    for i in range(1, len(images)):
        if i in residual:
            yield from _changes(graph, images, start, i - 1)
            yield i - 1, i
            start = i
    yield from _changes(graph, images, start, len(images) - 1)


def _changes(graph: Graph, images: Sequence[str], start: int, end: int) -> Iterator[tuple[int, int]]:
    changes = [i for i in range(start + 1, end + 1) if size_of(graph, images[i]) != size_of(graph, images[i - 1])]
    for after in [*changes[1:], end + 1][: len(changes)]:
        yield start, after - 1
        start = after - 1


def size_of(graph: Graph, name: str) -> tuple[int, int]:
    """Height and width of an image."""
    return cast(tuple[int, int], tuple(graph[name].shape[1:3]))


__all__ = ["Block", "blocks", "size_of"]
