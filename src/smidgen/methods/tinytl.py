"""TinyTL (Cai et al. 2020): biases and the classifier learn, and beside each block of a convolutional network a small
module that sees the image at half its size: pool, grouped convolution, 1x1 convolution, enlarge. Frozen layers keep no
activation; modules keep small ones.

The last scale of a module is zero, so that the network starts as the function that it was. Group norms stand in for the
original's batch-norms: they do not depend on the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from ..errors import BadOption
from ..ir import Array, Graph, Role
from ..ops.build import Builder
from .blocks import Block, blocks, size_of
from .contract import Context, Method, Update
from .last import last
from .registry import register
from .uses import uses

PREFIX = "lite"
KERNEL = 5  # smaller where the image is
GROUPS = 2  # of the first convolution
NORM_CHANNELS = 8  # at least, in each group of a norm
EPS = 1e-5


@register
@dataclass(frozen=True)
class TinyTL(Method):
    name: ClassVar[str] = "tinytl"
    doc: ClassVar[str] = "biases, lite residual modules beside each block, the classifier; tinytl:bias, tinytl:residual"
    keeps: ClassVar[str] = "images of half the size, in the modules"
    costs: ClassVar[str] = "the modules, and gradients back to the first bias"
    after: ClassVar[str] = "Cai et al. 2020 (TinyTL)"
    argument: ClassVar[str] = "part"
    late: ClassVar[int] = 1  # its modules are no layers to adapt

    part: str = ""

    def __post_init__(self) -> None:
        if self.part not in ("", "bias", "residual"):
            raise BadOption(f"TinyTL({self.part!r}) is no part", help="TinyTL(), TinyTL('bias'), TinyTL('residual')")

    @classmethod
    def of(cls, argument: str) -> Self:
        if argument not in ("", "bias", "residual"):
            raise ValueError(argument)
        return cls(argument)

    def adapt(self, graph: Graph) -> Graph:
        if self.part == "bias":
            return graph
        now: dict[str, str] = {}  # what blocks make, with their modules
        for number, block in enumerate(blocks(graph)):
            graph, now[block.end] = with_module(graph, replace(block, start=now.get(block.start, block.start)), number)
        return graph

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        found = uses(graph)
        modules = [Update(u.param) for u in found if u.param.startswith(f"{PREFIX}.")]
        biases = [Update(u.param) for u in found if u.role in ("bias", "shift") and self.part != "residual"]
        return [*modules, *biases, *last(context.before(graph), 1)]

    def __str__(self) -> str:
        return f"{self.name}:{self.part}" if self.part else self.name


def with_module(graph: Graph, block: Block, number: int) -> tuple[Graph, str]:
    """The block's result plus that of a module which reads what the block reads; and its name."""
    made_at = {out: i for i, node in enumerate(graph.nodes) for out in node.outs}
    at = made_at[block.end]
    b = Builder(graph)
    before, b.nodes = b.nodes[: at + 1], []
    b.src = f"{PREFIX}.{number}"
    added = b.add("add", block.end, _module(b, graph, block, number), name=f"{block.end}.with_lite")
    after = [n.with_(ins=tuple(added if i == block.end else i for i in n.ins)) for n in graph.nodes[at + 1 :]]
    b.nodes = [*before, *b.nodes, *after]
    return b.graph(), added


def _module(b: Builder, graph: Graph, block: Block, number: int) -> str:
    (height, width), out_hw = size_of(graph, block.start), size_of(graph, block.end)
    inputs, outputs = int(graph[block.start].shape[3]), int(graph[block.end].shape[3])  # type: ignore[arg-type]
    half = (height // 2, width // 2) if min(height, width) >= 4 else (1, 1)
    kernel = tuple(min(KERNEL, length - (length + 1) % 2) for length in half)  # odd, and no larger than the image
    stride = tuple(max(1, round(a / max(o, 1))) for a, o in zip((height, width), out_hw, strict=True))
    groups = GROUPS if inputs % GROUPS == 0 else 1
    rng = np.random.default_rng(number)
    pooled = b.add("adaptive_avg_pool2d", block.start, out_hw=half)

    def stored(name: str, value: Array) -> str:
        return b.stored(f"{PREFIX}.{number}.{name}", value, Role.PARAM)

    def normal(*shape: int) -> Array:
        return rng.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))

    def norm(x: str, name: str, channels: int, scale: float) -> str:
        gamma, beta = stored(f"{name}.weight", np.full(channels, scale)), stored(f"{name}.bias", np.zeros(channels))
        return b.add("group_norm", x, gamma, beta, groups=_norm_groups(channels), eps=EPS)

    padding = tuple((k // 2, k // 2) for k in kernel)
    w1 = stored("conv1.weight", normal(inputs, *kernel, inputs // groups))
    h = b.add("conv2d", pooled, w1, stride=stride, padding=padding, groups=groups)
    h = b.add("relu", norm(h, "norm1", inputs, 1.0))
    h = b.add("conv2d", h, stored("conv2.weight", normal(outputs, 1, 1, inputs)))
    h = norm(h, "norm2", outputs, 0.0)
    return b.add("upsample_bilinear2d", h, out_hw=out_hw, align_corners=False)


def _norm_groups(channels: int) -> int:
    """The most groups with at least so many channels each."""
    return next((g for g in range(channels // NORM_CHANNELS, 0, -1) if channels % g == 0), 1)


__all__ = ["TinyTL", "with_module"]
