"""The layers of a network, as schemes count them: every use of a weight in execution order, from 0."""

from __future__ import annotations

from dataclasses import dataclass

from .. import ops
from ..ir import Graph, Role
from ..ops.build import typed
from .contract import Context
from .uses import uses


@dataclass(frozen=True, slots=True)
class Layer:
    position: int  # of its node
    weight: str
    bias: str | None  # its own, or what is added next: another bias, or the shift of a norm
    axis: int | None  # of the channels it reads, in the user's layout; None: there is no such axis
    channels: int  # along it


def layers(graph: Graph, context: Context) -> list[Layer]:
    """Projections on skips are layers too; a layer that is called twice counts twice."""
    found = uses(graph)
    biases = {u.position: u.param for u in found if u.role in ("bias", "shift")}
    made: list[Layer] = []
    for use in found:
        if use.role == "weight":
            axis, channels = _inputs(graph, context, use.position, use.param)
            made.append(Layer(use.position, use.param, _bias(graph, biases, use.position), axis, channels))
    return made


def _inputs(graph: Graph, context: Context, position: int, param: str) -> tuple[int | None, int]:
    node = graph.nodes[position]
    record = ops.get(node.op)
    if record.channels is None or param not in node.ins:
        return None, 0
    stored = record.channels(typed(graph, node)).inputs
    if stored is None:
        return None, 0
    return context.axis(param, stored), int(graph[param].shape[stored])  # type: ignore[arg-type]


def _bias(graph: Graph, biases: dict[int, str], position: int) -> str | None:
    """Looks through views, and no further than one op that may add."""
    readers = graph.readers()
    while position not in biases:
        after = readers.get(graph.nodes[position].outs[0], [])
        if len(after) != 1:
            return None
        position = after[0]
        if ops.get(graph.nodes[position].op).is_view:
            continue
        return biases.get(position)
    return biases[position]


def is_image(graph: Graph, name: str) -> bool:
    """A value [samples, height, width, channels]."""
    tensor = graph[name]
    return tensor.role is Role.VALUE and len(tensor.shape) == 4


__all__ = ["Layer", "is_image", "layers"]
