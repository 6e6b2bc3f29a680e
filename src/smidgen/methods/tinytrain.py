"""TinyTrain (Kwon et al. 2024): what learns is chosen from a user's few samples. One scored backward pass tells how
much the loss depends on each channel; layers with much of it for their size and work learn, in their best channels.

    s_i = P_i / ((|W_i| / max |W|) · (M_i / max M))    P_i the sum of the scores of layer i, |W_i| its parameters, M_i
                                                       its multiply-accumulates

The program has entry points for the scores (compiler/passes/scores.py). Until something was chosen, the last bias
learns: what costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from ..errors import BadOption
from ..ir import Graph
from .contract import Context, Method, Update
from .registry import register
from .scored import Scored, scored_layers
from .uses import uses

COMPUTE = 0.15  # as in the paper: of the multiply-accumulates of a whole backward pass


@dataclass(frozen=True, slots=True)
class Choice:
    """A layer that learns: the `indices` of its outputs, all of them if None, and why."""

    weight: str
    bias: str | None
    axis: int | None
    indices: tuple[int, ...] | None
    channels: int
    score: float

    @property
    def updates(self) -> list[Update]:
        if self.indices is None or self.axis is None:
            return [Update(name) for name in (self.weight, self.bias) if name is not None]
        both = [(self.weight, self.axis)] + ([] if self.bias is None else [(self.bias, 0)])
        return [Update(name, axis, self.indices) for name, axis in both]

    def __str__(self) -> str:
        count = self.channels if self.indices is None else len(self.indices)
        return f"{self.weight}: {count} of {self.channels} channels, score {self.score:.3g}"


@register
@dataclass(frozen=True)
class TinyTrain(Method):
    name: ClassVar[str] = "tinytrain"
    doc: ClassVar[str] = "layers and channels that matter for the user's samples: job.select(x, y) chooses"
    keeps: ClassVar[str] = "inputs of the chosen layers"
    costs: ClassVar[str] = "gradients back to the first chosen layer; of weights only what learns"
    after: ClassVar[str] = "Kwon et al. 2024 (TinyTrain)"

    compute: float = COMPUTE
    layers: int | None = None  # so many of the last are scored; None: all that the limit of RAM allows
    chosen: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        number = isinstance(self.compute, (int, float)) and not isinstance(self.compute, bool)
        if not number or not 0 < self.compute <= 1:
            raise BadOption(
                f"TinyTrain(compute={self.compute!r}) is not a share",
                why="it is of the multiply-accumulates of a backward pass in which everything learns",
                help="TinyTrain(compute=0.15)",
            )
        if self.layers is not None and (type(self.layers) is not int or self.layers < 1):
            raise BadOption(f"TinyTrain(layers={self.layers!r}) is not a number of layers", help="TinyTrain(layers=12)")

    @classmethod
    def of(cls, argument: str) -> Self:
        if argument:
            raise ValueError(argument)
        return cls()

    @property
    def is_open(self) -> bool:
        return not self.chosen

    def scored(self, graph: Graph, context: Context) -> Sequence[Scored]:
        found = scored_layers(graph, context)
        return found if self.layers is None else found[-self.layers :]

    def notes(self) -> Sequence[str]:
        if not self.chosen:
            return ["nothing is chosen yet: job.select(x, y) chooses what learns"]
        return [str(choice) for choice in self.chosen]

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        if not self.chosen:
            return smallest(graph, context)
        return [update for choice in self.chosen for update in choice.updates]


def smallest(graph: Graph, context: Context) -> list[Update]:
    """The last bias that may learn; without one, the last weight."""
    found = [use for use in uses(graph) if use.param in context.trainable]
    biases = [use.param for use in found if use.role in ("bias", "shift")]
    return [Update(name) for name in (biases or [use.param for use in found])[-1:]]


__all__ = ["Choice", "TinyTrain", "smallest"]
