"""Entry points that score channels on a user's samples (methods/scored.py), one sample at a time.

    clear_scores   before the first sample
    score          forward, and backward to the first scored layer without any weight gradient; of every channel o of
                   each layer it adds ½ (Σ_d a g)² to the scores: a the layer's output, g its gradient, d positions
    scores         hands them out: their sum over the samples

Scores are accumulators in the arena: they cost nothing while others run, and are lost when others run. The network
runs as in evaluation. Sizes are those of one sample, so that no memory depends on the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ... import ops
from ...ir import Graph, Node, Role, at, dead_removed, unnamed_removed
from ...methods.scored import Scored, with_places
from ...ops.build import Builder, fetch
from .autodiff import autodiff
from .drop_unread import lean
from .feed_late import feed_late
from .few_axes import few_axes
from .sample_loop import sample_loop
from .save_bits import save_bits
from .slices import slice_gradients
from .stored import read_slices
from .stream import with_loss, without_outputs

SCORE, CLEAR, REPORT = "score", "clear_scores", "scores"
TOTAL: Final = ":scores"  # the accumulator


def watched(evaluate: Graph, loss: str, layers: Sequence[Scored]) -> tuple[Graph, frozenset[str]]:
    """The graph to score with, in which outputs of layers have names of their own, and those names."""
    graph = dead_removed(_ending_in(without_outputs(with_loss(evaluate, loss)), loss))
    names: dict[str, str] = {}
    for number, layer in enumerate(layers):
        for call, (end, made) in enumerate(zip(layer.outputs, layer.made, strict=True)):
            names.setdefault(made, _made(number, call))
            if end != made:
                names.setdefault(end, _end(number, call))

    def one(node: Node) -> Node:
        return node.with_(ins=tuple(names.get(i, i) for i in node.ins), outs=tuple(names.get(o, o) for o in node.outs))

    tensors = {names.get(k, k): replace(t, name=names.get(k, k)) for k, t in graph.tensors.items()}
    return graph.with_(nodes=tuple(map(one, graph.nodes)), tensors=tensors), frozenset(names.values())


def _ending_in(graph: Graph, loss: str) -> Graph:
    """Its loss is handed out, so that passes know what it is for."""
    b = Builder(graph)
    fetch(b, loss, "loss")
    return b.graph()


def _made(number: int, call: int) -> str:
    return f":made{number}.{call}"


def _end(number: int, call: int) -> str:
    return f":end{number}.{call}"


@dataclass(frozen=True, slots=True)
class Scoring:
    """Entry points of scoring, and the layers that they score, in the order of their places."""

    graphs: Mapping[str, Graph]
    layers: tuple[Scored, ...]


def score_entries(graph: Graph, loss: str, layers: Sequence[Scored], sliced: bool) -> Scoring:
    """From the graph of `watched`, folded and simplified. Layers that the loss does not depend on are left out.
    `sliced`: of some weights only slices learn."""
    ends = {
        (number, call): name
        for number, layer in enumerate(layers)
        for call in range(len(layer.outputs))
        for name in (_end(number, call), _made(number, call))[::-1]
        if name in graph.tensors
    }
    whole, grads = autodiff(graph, loss, list(ends.values()))
    whole = read_slices(slice_gradients(whole)) if sliced else whole
    reached = [number for number in range(len(layers)) if any(k == number and ends[k, c] in grads for k, c in ends)]
    places = {k: layer["at"] for k, layer in zip(reached, with_places([layers[k] for k in reached]), strict=True)}
    b = Builder(whole)
    b.stage = "backward"
    acc = total = b.tensor(TOTAL, (sum(layers[k].channels for k in reached),), role=Role.ACCUM)
    made_at = {out: i for i, node in enumerate(whole.nodes) for out in node.outs}
    after: dict[int, list[Node]] = {}
    b.nodes = []
    for position, number in sorted((max(made_at[grads[n]] for n in _of(ends, k) if n in grads), k) for k in reached):
        b.src = whole.nodes[made_at[_of(ends, number)[0]]].src
        dots = [b.add("channel_dots", grads[name], name) for name in _of(ends, number) if name in grads]
        joined = dots[0]
        for dot in dots[1:]:
            joined = b.add("add", joined, dot)
        acc = b.add("add_squares", acc, joined, at=places[number], by=0.5, name=f"{total}'")
        after.setdefault(position, []).extend(b.nodes)
        b.nodes = []
    nodes = [more for i, node in enumerate(whole.nodes) for more in (node, *after.get(i, ()))]
    scored = _lowered(b.graph().with_(nodes=tuple(nodes)), [name for name in ends.values() if name in grads])
    return Scoring({SCORE: scored, CLEAR: _clear(scored), REPORT: _report(scored)}, tuple(layers[k] for k in reached))


def _of(ends: Mapping[tuple[int, int], str], number: int) -> list[str]:
    return [name for (k, _), name in ends.items() if k == number]


def _lowered(graph: Graph, kept: Collection[str]) -> Graph:
    """As of other entries; what comes before the first scored layer in a loop over the one sample, so that it can run
    row by row."""
    graph = lean(dead_removed(save_bits(graph)))
    return _of_one_sample(unnamed_removed(feed_late(few_axes(sample_loop(graph, kept=kept)))))


def _of_one_sample(graph: Graph) -> Graph:
    def one(node: Node) -> Node:
        attrs = {k: at(v, 1) for k, v in node.attrs.items()}
        return node.with_(attrs=attrs | ({"once": True} if ops.is_loop(node) else {}))

    tensors = {name: replace(t, shape=at(t.shape, 1)) for name, t in graph.tensors.items()}
    return graph.with_(nodes=tuple(map(one, graph.nodes)), tensors=tensors)


def _clear(scored: Graph) -> Graph:
    b = Builder()
    b.stage = "update"
    b.add("zero", b.tensor(TOTAL, scored[TOTAL].shape, role=Role.ACCUM), name=f"{TOTAL}'")
    return b.graph()


def _report(scored: Graph) -> Graph:
    b = Builder()
    fetch(b, b.tensor(TOTAL, scored[TOTAL].shape, role=Role.ACCUM), REPORT)
    return b.graph()


__all__ = ["CLEAR", "REPORT", "SCORE", "Scoring", "score_entries", "watched"]
