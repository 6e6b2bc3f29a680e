"""The last layers learn: the last k weighted operations, with their biases and the norms after the first of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from ..errors import BadOption
from ..ir import Graph
from .contract import Context, Method, Update, count_of
from .registry import register
from .uses import uses


def last(graph: Graph, k: int) -> Sequence[Update]:
    found = uses(graph)
    weighted = sorted({u.position for u in found if u.role == "weight"})
    if not weighted:
        return []
    start = weighted[-min(k, len(weighted))]
    return [Update(u.param) for u in found if u.position >= start]


@register
class LastLayer(Method):
    name, doc = "last_layer", "weight and bias of the last layer"
    keeps, costs = "the input of the last layer", "the gradient of one layer"

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return last(context.before(graph), 1)


@register
@dataclass(frozen=True)
class Last(Method):
    name: ClassVar[str] = "last"
    doc: ClassVar[str] = "the last k layers, as in last:3"
    keeps: ClassVar[str] = "inputs of the last k layers"
    costs: ClassVar[str] = "gradients of k layers"
    argument: ClassVar[str] = "k"

    k: int = 1

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise BadOption(f"Last({self.k!r}) is not a number of layers", help="Last(2)")

    @classmethod
    def of(cls, argument: str) -> Self:
        return cls(count_of(argument, 1))

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return last(context.before(graph), self.k)

    def __str__(self) -> str:
        return f"{self.name}:{self.k}"
