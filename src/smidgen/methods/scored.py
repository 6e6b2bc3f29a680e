"""The layers of a network whose channels can be scored: weight, bias, and the output before anything bends it.

The output of a layer is what its own bias, or one that is added next, and a batch-norm right behind it leave: that is
what a network has whose norms were folded, so folding changes no score. Other norms mix channels and are not its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import ops
from ..ir import Graph, at, batch_axis
from ..ops.build import typed
from .contract import Context
from .uses import Use, uses


@dataclass(frozen=True, slots=True)
class Scored:
    """A layer. One that is called several times is one layer, and its channels are scored for all calls together."""

    weight: str
    bias: str | None
    axis: int | None  # of the outputs in the weight, in the user's layout; None: it learns whole or not at all
    channels: int
    parameters: int
    macs: int  # of one sample
    outputs: tuple[str, ...]  # of each call, as they are and before a norm: `made` is nearest to the layer
    made: tuple[str, ...]

    def to_json(self, first: int) -> dict[str, Any]:
        """`first`: the place of its channels among all scores."""
        kept = ("weight", "bias", "axis", "channels", "parameters", "macs")
        return {"at": first, **{k: v for k, v in asdict(self).items() if k in kept}}


def scored_layers(graph: Graph, context: Context) -> list[Scored]:
    """In execution order, by their last calls; only those whose weights may learn."""
    found = uses(graph)
    calls: dict[tuple[str, int], list[Use]] = {}
    for use in found:
        if use.role == "weight" and use.param in context.trainable and _has_channels(graph, use):
            alone = 0 if use.param in graph.nodes[use.position].ins else use.position
            calls.setdefault((use.param, alone), []).append(use)
    added = {(u.position, u.param) for u in found if u.role in ("bias", "shift")}
    made = [_layer(graph, context, some, added) for some in calls.values()]
    order = {name: i for i, node in enumerate(graph.nodes) for name in node.outs}
    return sorted(made, key=lambda layer: order[layer.made[-1]])


def _has_channels(graph: Graph, use: Use) -> bool:
    """Is its result floats for each sample, with an axis of channels?"""
    tensor = graph[graph.nodes[use.position].outs[0]]
    return batch_axis(tensor.shape) not in (None, len(tensor.shape) - 1)


def _layer(graph: Graph, context: Context, calls: Sequence[Use], added: set[tuple[int, str]]) -> Scored:
    nodes = [graph.nodes[use.position] for use in calls]
    param, first = calls[0].param, nodes[0]
    ends = [_end(graph, use.position, added) for use in calls]
    channels = {int(graph[node.outs[0]].shape[-1]) for node in nodes}  # type: ignore[arg-type]
    bias = next((bias for _, bias in ends if bias is not None), None)
    axis = None
    record = ops.get(first.op)
    if param in first.ins and record.channels is not None and len(channels) == 1:
        stored = record.channels(typed(graph, first)).outputs
        if stored is not None and graph[param].shape[stored] == next(iter(channels)):
            axis = context.axis(param, stored)
    own = graph[bias].size if bias is not None else 0
    return Scored(
        param, bias, axis, max(channels), int(graph[param].size) + int(own),  # type: ignore[arg-type]
        sum(int(at(ops.get(node.op).macs(typed(graph, node)), 1)) for node in nodes),
        tuple(name for name, _ in ends), tuple(node.outs[0] for node in nodes),
    )  # fmt: skip


def _end(graph: Graph, position: int, added: set[tuple[int, str]]) -> tuple[str, str | None]:
    """The output of the layer at this position, and its bias."""
    readers = graph.readers()
    node = graph.nodes[position]
    name = node.outs[0]
    bias = next((i for i in node.ins if (position, i) in added), None)
    channels = graph[name].shape[-1]
    while len(after := readers.get(name, [])) == 1:
        node = graph.nodes[after[0]]
        shift = next((i for i in node.ins if (after[0], i) in added), None)
        record = ops.get(node.op)
        is_norm = record.norm == "batch" and record.operand("mean") is not None
        is_bias = shift is not None and bias is None and not record.norm
        if not (is_norm or is_bias) or node.ins[0] != name or graph[node.outs[0]].shape[-1] != channels:
            break
        name, bias = node.outs[0], bias or shift
        if is_norm:
            break
    return name, bias


def with_places(layers: Sequence[Scored]) -> list[dict[str, Any]]:
    """As a program keeps them: the channels of each follow those of the one before."""
    found: list[dict[str, Any]] = []
    first = 0
    for layer in layers:
        found.append(layer.to_json(first))
        first += layer.channels
    return found


def places(layers: Sequence[Mapping[str, Any]]) -> int:
    """How many scores there are."""
    return sum(int(layer["channels"]) for layer in layers)


__all__ = ["Scored", "places", "scored_layers", "with_places"]
