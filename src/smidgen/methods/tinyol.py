"""TinyOL (Ren et al. 2021): the network is frozen and runs as in inference; one layer learns from each sample as it
comes, on an input that is standardised with running statistics.

The layer is a new one, of zeros, and its result is added: `tinyol` puts it beside the last layer, on the same input;
`tinyol:attach` behind the network, on its output. So the first prediction is that of the pretrained network to the bit,
whatever the statistics are and however they move, and a pretrained weight never has to be refitted to an input of
another scale: it stays constant, in flash. Together, last layer and new one are the last layer with other weights,
which `merges` says. Until the statistics have a reference (of the first `samples` samples, or job.calibrate) the
standardised input is 0: only the bias learns from those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from .. import ops
from ..errors import BadOption, CannotStream
from ..ir import Batch, DType, Graph, Node, Role, batch_axis
from ..ops.build import Builder, typed
from ..ops.moments import EPS, start
from .contract import Beside, Context, Method, Update
from .registry import register
from .uses import Use, uses

PREFIX = "tinyol"
WEIGHT, BIAS, MOMENTS, SEEN = (f"{PREFIX}.{part}" for part in ("weight", "bias", "moments", "seen"))
LIMIT = 10.0  # standard deviations: what is further away counts as this far
SAMPLES = 32  # that the reference is of


@register
@dataclass(frozen=True)
class TinyOL(Method):
    name: ClassVar[str] = "tinyol"
    doc: ClassVar[str] = (
        "one layer on a standardised input: beside the last layer, or behind the network: tinyol:attach"
    )
    keeps: ClassVar[str] = "the input of that layer"
    costs: ClassVar[str] = "one layer, and five numbers for each of its inputs"
    after: ClassVar[str] = "Ren et al. 2021 (TinyOL)"
    argument: ClassVar[str] = "part"
    late: ClassVar[int] = 2  # beside or behind everything else
    streams: ClassVar[bool] = True

    part: str = ""
    samples: int = SAMPLES

    def __post_init__(self) -> None:
        if self.part not in ("", "attach"):
            raise BadOption(f"TinyOL({self.part!r}) is no part", help="TinyOL(), TinyOL('attach')")
        if type(self.samples) is not int or not 2 <= self.samples <= 1 << 16:
            raise BadOption(f"TinyOL(samples={self.samples!r}) is not a number of samples", help="TinyOL(samples=32)")

    @classmethod
    def of(cls, argument: str) -> Self:
        if argument not in ("", "attach"):
            raise ValueError(argument)
        return cls(argument)

    def adapt(self, graph: Graph) -> Graph:
        return behind(graph, self.samples) if self.part else beside(graph, self.samples)

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        return [Update(name) for name in self.rows(graph)]

    def rows(self, graph: Graph) -> Sequence[str]:
        return [name for name in (WEIGHT, BIAS) if name in graph.tensors]

    def merges(self, graph: Graph) -> Sequence[Beside]:
        layer = None if self.part else _last(graph)
        found = None if layer is None else _merge(graph, *layer)
        return [] if found is None else [found]

    def __str__(self) -> str:
        return f"{self.name}:{self.part}" if self.part else self.name


def _last(graph: Graph) -> tuple[Node, Use] | None:
    """The last layer of the user's model, whose input is its first operand."""
    found = [u for u in uses(graph) if u.role == "weight" and u.param != WEIGHT]
    node = graph.nodes[found[-1].position] if found else None
    if node is None or graph[node.ins[0]].role is not Role.VALUE or batch_axis(graph[node.ins[0]].shape) is None:
        return None
    return node, found[-1]


def beside(graph: Graph, samples: int) -> Graph:
    """With a layer of zeros beside the last one."""
    found = _last(graph)
    if found is None or isinstance(graph[found[0].ins[0]].shape[-1], Batch):
        why = "no layer of it has a weight" if found is None else "its last axis is that of the samples"
        raise CannotStream("this model has no last layer that could be learned beside", why=why,
                           help='method="tinyol:attach" learns a layer behind the network')  # fmt: skip
    node, _ = found
    at = graph.nodes.index(node)
    b = _Insert(graph, at, node.src)
    bias = ops.get(node.op).operand("bias")
    shape = graph[node.ins[1]].shape
    ins = [_standardised(b, node.ins[0], samples), b.stored(WEIGHT, np.zeros(shape), Role.PARAM)]
    channels = int(graph[node.outs[0]].shape[-1])  # type: ignore[arg-type]
    own = b.stored(BIAS, np.zeros(channels), Role.PARAM)
    y = b.add(node.op, *ins, *([own] if bias is not None else []), **node.attrs)
    if bias is None:
        y = b.add("add", y, own)
    return b.instead(node.outs[0], b.add("add", node.outs[0], y, name=f"{node.outs[0]}.with_tinyol"))


def behind(graph: Graph, samples: int) -> Graph:
    """With a layer of zeros behind the first output: of its channels, whatever the other axes are."""
    fetch = next(n for n in graph.nodes if ops.border(n) == "out" and batch_axis(graph[n.outs[0]].shape) is not None)
    made = graph.producer()
    y = fetch.ins[0]
    while y in made and any(graph[i].role is Role.SETTING for i in made[y].ins):  # spare classes are masked last
        y = made[y].ins[0]
    value, perm = graph[y], fetch.attrs["perm"]
    if value.dtype is not DType.F32 or y not in made:
        raise CannotStream("the output of this model is not a result in floats", why=f"it is {value}")
    b = _Insert(graph, graph.nodes.index(made[y]), PREFIX)
    rank = len(value.shape)
    # As the user has it, and the channels of an image last.
    order = tuple(perm) if rank < 4 else (perm[0], *perm[2:], perm[1])
    x = b.add("permute", y, perm=order) if order != tuple(range(rank)) else y
    if isinstance(b[x].shape[-1], Batch):
        x = b.add("reshape", x, shape=(*b[x].shape, 1))
    c = int(b[x].shape[-1])  # type: ignore[arg-type]
    z = _standardised(b, x, samples)
    weight, bias = b.stored(WEIGHT, np.zeros((c, c)), Role.PARAM), b.stored(BIAS, np.zeros(c), Role.PARAM)
    added = b.add("add", x, b.add("linear", z, weight, bias))
    if len(b[x].shape) > rank:
        added = b.add("reshape", added, shape=b[x].shape[:-1])
    if order != tuple(range(rank)):
        added = b.add("permute", added, perm=tuple(order.index(i) for i in range(rank)))
    return b.instead(y, added)


class _Insert(Builder):
    """Writes nodes behind the one at a position."""

    def __init__(self, graph: Graph, position: int, src: str) -> None:
        super().__init__(graph)
        self._before, self._after = graph.nodes[: position + 1], graph.nodes[position + 1 :]
        self.nodes, self.src = [], src

    def instead(self, old: str, new: str) -> Graph:
        """The graph, in which everything behind reads `new` where it read `old`."""
        after = [n.with_(ins=tuple(new if i == old else i for i in n.ins)) for n in self._after]
        self.nodes = [*self._before, *self.nodes, *after]
        return self.graph()


def _standardised(b: Builder, x: str, samples: int) -> str:
    shape = b[x].shape
    rows = math.prod(d.times if isinstance(d, Batch) else d for d in shape[:-1])
    moments, seen = start(int(shape[-1]), rows=samples * rows)  # type: ignore[arg-type]
    stats = b.stored(MOMENTS, moments, Role.STAT), b.stored(SEEN, seen, Role.STAT)
    return b.add("standardise", x, *stats, limit=LIMIT, reference=False, eps=EPS)


def _merge(graph: Graph, node: Node, use: Use) -> Beside | None:
    """None where no weight of that layer alone does the same: at the border of a padded image, or in groups."""
    record = ops.get(node.op)
    if record.channels is None or use.param not in node.ins:
        return None
    axes = record.channels(typed(graph, node))
    padded = any(p for side in node.attrs.get("padding", ()) for p in side)
    if axes.outputs != 0 or axes.inputs is None or padded or graph[use.param].role is not Role.PARAM:
        return None
    if graph[use.param].shape[axes.inputs] != graph[node.ins[0]].shape[-1]:
        return None
    at = record.operand("bias")
    bias = node.ins[at] if at is not None and at < len(node.ins) else None
    named = bias if bias is not None and graph[bias].role is Role.PARAM else None
    return Beside(use.param, named, axes.inputs, WEIGHT, BIAS, MOMENTS, SEEN, EPS, graph.layouts.get(use.param, ()))


__all__ = ["TinyOL", "behind", "beside"]
