"""Entry points of a network that learns while it infers, from its graphs of inference and evaluation.

    train      the loss in evaluation mode: what is frozen runs as in inference
    learn      the same with the model's outputs, as they were before the update
    judge      with replay, before `train`: as learn, but nothing is learned
    observe    enters samples without labels into the statistics
    detect     how unusual each sample is
    drift      how far the stream has moved, and what scores are usual
    restart    the next samples make the reference

A score is the mean squared error of a model that reconstructs its input; of others the mean square of the learning
layer's input, in deviations of the reference. The statistics of a step move when nothing reads them any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ... import ops
from ...errors import CannotStream
from ...ir import Batch, Graph, Node, Role, batch_axis
from ...ops.build import Builder, feed, fetch
from ...ops.moments import EPS, start

SCORE, SCORE_SEEN = ":score", ":score_seen"
"""Settings: statistics of the scores. No name in a torch module starts with a colon."""
SAMPLES, DRIFT, USUAL = "samples", "drift", "usual"  # buffers
SCORE_LIMIT: Final = 10.0  # deviations: one channel alone, dead until now, makes no anomaly of a sample
WINDOW, RATE = 1 << 20, 1 / 32  # of the learning layer's input: rows that count, share of a row in what is recent
SCORE_WINDOW: Final = 256


def streams(forward: Mapping[str, Graph], loss: str) -> dict[str, Graph]:
    """All forward graphs, as above. `loss` is what its scalar is called in `train` and `learn`."""
    infer, evaluate = forward["infer"], forward.get("evaluate")
    if evaluate is None:
        raise CannotStream(
            "this model cannot learn while it infers", why="the loss does not take what it returns in evaluation mode",
            help="return the same in both modes, or give a loss that takes both",
        )  # fmt: skip
    learn = with_loss(evaluate, loss)
    tracked = next((n for n in infer.nodes if ops.get(n.op).tracker), None)
    if tracked is None:
        raise CannotStream("no layer of this model standardises its input", why="a stream is known by its statistics")
    make = _Entries(infer, tracked, _reconstructs(learn))
    return {
        "infer": infer, "train": without_outputs(learn), "evaluate": evaluate,
        "learn": make.scored(learn, learn.inputs[-1]), "judge": make.scored(learn, learn.inputs[-1]),
        "observe": track(without_outputs(make.scored(infer, infer.inputs[0]))),
        "detect": make.detect(), "drift": make.drift(), "restart": make.restart(),
    }  # fmt: skip


def track(graph: Graph) -> Graph:
    """What standardises has its statistics moved at the end."""
    b = Builder(graph)
    for node in graph.nodes:
        tracker = ops.get(node.op).tracker
        if tracker and not node.attrs.get("reference"):
            b.src = node.src
            b.add_many(tracker, *node.ins[1:], node.ins[0], window=WINDOW, rate=RATE, name=f"{node.ins[1]}'")
    return b.graph()


def without_outputs(graph: Graph) -> Graph:
    nodes = tuple(node for node in graph.nodes if ops.border(node) != "out")
    tensors = {name: t for name, t in graph.tensors.items() if t.role is not Role.OUTPUT}
    return graph.with_(nodes=nodes, tensors=tensors, outputs=())


def with_loss(evaluate: Graph, loss: str) -> Graph:
    """`evaluate`, its loss called as in `train`."""
    given = next(n for n in evaluate.nodes if ops.border(n) == "out" and batch_axis(evaluate[n.outs[0]].shape) is None)
    old = given.ins[0]
    if old == loss:
        return evaluate
    names = {old: loss} | ({loss: f"{loss}.other"} if loss in evaluate.tensors else {})

    def one(node: Node) -> Node:
        ins, outs = (tuple(names.get(i, i) for i in side) for side in (node.ins, node.outs))
        return node.with_(ins=ins, outs=outs)

    tensors = {names.get(k, k): replace(t, name=names.get(k, k)) for k, t in evaluate.tensors.items()}
    return evaluate.with_(nodes=tuple(map(one, evaluate.nodes)), tensors=tensors)


def _results(graph: Graph) -> list[Node]:
    """Nodes that hand out something for each sample: the model's outputs."""
    return [n for n in graph.nodes if ops.border(n) == "out" and batch_axis(graph[n.outs[0]].shape) is not None]


def _reconstructs(learn: Graph) -> bool:
    """Is the output compared with the input, as numbers?"""
    alike = {(learn[name].shape, learn[name].dtype) for name in (*learn.inputs, _results(learn)[0].outs[0])}
    losses = [record.loss for n in learn.nodes if (record := ops.get(n.op)).loss]
    return len(learn.inputs) == 2 and len(alike) == 1 and all(loss.target == "values" for loss in losses if loss)


def _moved(b: Builder, x: str, perm: tuple[int, ...]) -> str:
    return x if perm == tuple(range(len(perm))) else b.add("permute", x, perm=perm)


@dataclass(frozen=True, slots=True)
class _Entries:
    """Graphs around the node that standardises, and around a score."""

    infer: Graph
    tracked: Node
    reconstructs: bool

    @property
    def rows(self) -> int:
        """Of one sample, in the input of the node."""
        return math.prod(d.times if isinstance(d, Batch) else d for d in self.infer[self.tracked.ins[0]].shape[:-1])

    @property
    def usual(self) -> int:
        """Samples that make the reference."""
        return int(self.infer.data[self.tracked.ins[2]][1]) // self.rows

    def scored(self, graph: Graph, target: str) -> Graph:
        """With the scores of the samples entered into their statistics."""
        b = _builder(graph)
        score = self._score(b, graph, target)
        if not self.reconstructs:  # before the standardised input is there, which is kept for the backward pass
            own = b.nodes[len(graph.nodes) :]
            at = next(i for i, node in enumerate(graph.nodes) if ops.get(node.op).tracker)
            b.nodes = [*graph.nodes[:at], *own, *graph.nodes[at:]]
        column = b.add("reshape", score, shape=(*b[score].shape, 1))
        moments, seen = self._of_scores(b)
        b.add_many("track_moments", moments, seen, column, window=SCORE_WINDOW, rate=RATE, name=f"{moments}'")
        return b.graph()

    def detect(self) -> Graph:
        b = _builder(self.infer)
        score = self._score(b, self.infer, self.infer.inputs[0])
        b = _builder(without_outputs(b.graph()))
        fetch(b, score, "score")
        return b.graph()

    def drift(self) -> Graph:
        b = _builder()
        own = [b.stored(name, self.infer.data[name], self.infer[name].role) for name in self.tracked.ins[1:]]
        fetch(b, b.add("report_moments", *own, eps=EPS), DRIFT)
        fetch(b, b.add("report_moments", *self._of_scores(b), eps=EPS), USUAL)
        return b.graph()

    def restart(self) -> Graph:
        b = _builder()
        name = self.tracked.ins[2]
        own = b.stored(name, self.infer.data[name], self.infer[name].role)
        samples = feed(b, SAMPLES, (1,))
        for seen, skip in ((own, False), (self._of_scores(b)[1], True)):
            b.add("restart_moments", seen, samples, rows=self.rows, usual=self.usual, skip=skip, name=f"{seen}'")
        return b.graph()

    def _of_scores(self, b: Builder) -> tuple[str, str]:
        moments, seen = start(1, skip=self.usual)
        return b.stored(SCORE, moments, Role.SETTING), b.stored(SCORE_SEEN, seen, Role.SETTING)

    def _score(self, b: Builder, graph: Graph, target: str) -> str:
        """[samples]: of each, how unusual it is."""
        if self.reconstructs:
            fetched = _results(graph)[0]
            fed = next(n for n in graph.nodes if ops.border(n) == "in" and n.ins[0] == target)
            y = _moved(b, fetched.ins[0], tuple(fetched.attrs["perm"]))
            x = _moved(b, fed.outs[0], tuple(int(i) for i in np.argsort(fed.attrs["perm"])))
            away = b.add("sub", y, x)
        else:
            node = next(n for n in graph.nodes if ops.get(n.op).tracker)
            away = b.add("standardise", *node.ins, **{**node.attrs, "reference": True, "limit": SCORE_LIMIT})
        square = b.add("mul", away, away)
        shape = b[square].shape
        axes = tuple(i for i in range(len(shape)) if i != batch_axis(shape))
        return b.add("mean", square, axes=axes, keepdim=False) if axes else square


def _builder(graph: Graph | None = None) -> Builder:
    b = Builder(graph)
    b.src = "stream"
    return b


__all__ = ["streams", "track", "with_loss", "without_outputs"]
