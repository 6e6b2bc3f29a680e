"""Sparse update (Lin et al. 2022, "On-device training under 256KB memory"): biases of the last layers, and of some
layers the weights of the first input channels. The last layer, the classifier, always learns.

A scheme is text: `b22 w21:1,24:1,36:1/8` are the biases of the last 22 layers before the classifier, all weights of
layers 21 and 24, and an eighth of the input channels of layer 36 (of a depthwise layer: of its channels).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Self

from ..errors import BadScheme, CannotUpdate
from ..ir import Graph
from .contract import Context, Method, Update
from .layers import Layer, layers
from .registry import register

EXAMPLE = "b22 w21:1,24:1,36:1/8"
_BIASES = re.compile(r"b(\d{1,6})")
_WEIGHT = re.compile(r"(\d{1,6}):(\d{1,6}(?:/\d{1,6}|\.\d{1,9})?)")


@dataclass(frozen=True, slots=True)
class Scheme:
    biases: int = 0  # of the last layers before the classifier
    weights: tuple[tuple[int, Fraction], ...] = ()  # layer → share of its input channels

    @staticmethod
    def of(text: str) -> Scheme:
        """ValueError if it is none; why, for people."""
        biases, weights = 0, dict[int, Fraction]()
        words = text.split()
        if not words:
            raise ValueError("it is empty")
        for kind in "bw":
            if sum(word.startswith(kind) for word in words) > 1:
                raise ValueError(f"it has more than one part that begins with {kind}")
        for word in words:
            if found := _BIASES.fullmatch(word):
                biases = int(found[1])
            elif word.startswith("w"):
                for item in word[1:].split(","):
                    layer, share = _weight(item)
                    if layer in weights:
                        raise ValueError(f"layer {layer} is named twice")
                    weights[layer] = share
            else:
                raise ValueError(f"'{word}' is neither b and a number nor w and layers")
        return Scheme(biases, tuple(sorted(weights.items())))

    def __str__(self) -> str:
        listed = ",".join(f"{layer}:{share}" for layer, share in self.weights)
        return " ".join([f"b{self.biases}", *([f"w{listed}"] if listed else [])])


def _weight(item: str) -> tuple[int, Fraction]:
    found = _WEIGHT.fullmatch(item)
    if found is None:
        raise ValueError(f"'{item}' is not a layer with its share, as 36:1/8")
    try:
        share = Fraction(found[2])
    except ZeroDivisionError:
        share = Fraction(0)
    if not 0 < share <= 1:
        raise ValueError(f"the share {found[2]} of layer {found[1]} is not above 0 and at most 1")
    return int(found[1]), share


@register
@dataclass(frozen=True)
class SparseUpdate(Method):
    name: ClassVar[str] = "sparse_update"
    doc: ClassVar[str] = f"biases of the last layers, input channels of some weights, the classifier: {EXAMPLE}"
    keeps: ClassVar[str] = "those channels of the inputs of those layers"
    costs: ClassVar[str] = "gradients back to the first of them; of weights only what learns"
    after: ClassVar[str] = "Lin et al. 2022 (tiny training engine)"
    argument: ClassVar[str] = "scheme"

    scheme: str = ""  # empty: the one that a search finds

    def __post_init__(self) -> None:
        if self.scheme == "":
            return
        try:
            parsed = Scheme.of(self.scheme)
        except (ValueError, AttributeError) as error:
            raise BadScheme(
                f"'{self.scheme}' is not a scheme of sparse updates", why=str(error),
                help=f"SparseUpdate('{EXAMPLE}'): biases of the last 22 layers, weights of layers with their shares",
            ) from None  # fmt: skip
        object.__setattr__(self, "scheme", str(parsed))

    @classmethod
    def of(cls, argument: str) -> Self:
        return cls(argument)

    @property
    def is_open(self) -> bool:
        """Is its scheme still to be found?"""
        return not self.scheme

    def choose(self, graph: Graph, context: Context) -> Sequence[Update]:
        if not self.scheme:
            raise BadScheme(
                "sparse_update has no scheme", why="a search for one needs samples with labels, and a limit of RAM",
                help=f"data=(x, y) and budget='256KB', or method='sparse_update:{EXAMPLE}'",
            )  # fmt: skip
        found = layers(context.before(graph), context)
        return [] if not found else updates_of(Scheme.of(self.scheme), found)

    def __str__(self) -> str:
        return f"{self.name}:{self.scheme}" if self.scheme else self.name


def updates_of(scheme: Scheme, found: Sequence[Layer]) -> list[Update]:
    """What learns of a network with these layers, the last of which is the classifier."""
    *before, head = found
    if scheme.biases > len(before):
        raise CannotUpdate(
            f"b{scheme.biases} asks for the biases of more layers than there are",
            why=f"the network has {len(before)} layers before the classifier", help=f"b{len(before)}",
        )  # fmt: skip
    biases = [layer.bias for layer in (*before[len(before) - scheme.biases :], head) if layer.bias is not None]
    weights = [weight_update(number, share, found) for number, share in scheme.weights]
    return [*map(Update, dict.fromkeys(biases)), *weights, Update(head.weight)]


def weight_update(number: int, share: Fraction, found: Sequence[Layer]) -> Update:
    if number >= len(found):
        raise CannotUpdate(
            f"the network has no layer {number}", why="layers count from 0 in execution order, the stem included",
            help=f"layers 0 to {len(found) - 1}",
        )  # fmt: skip
    layer = found[number]
    if share == 1:
        return Update(layer.weight)
    if layer.axis is None:
        raise CannotUpdate(
            f"layer {number}, '{layer.weight}', has no axis of input channels",
            why="its channels are in groups, or its weight is used in another shape", help=f"w{number}:1",
        )  # fmt: skip
    if layer.weight == found[-1].weight:
        what = "is" if number == len(found) - 1 else "has the weight of"
        raise CannotUpdate(f"layer {number} {what} the classifier, which learns whole", help=f"leave w{number} out")
    return Update(layer.weight, layer.axis, tuple(range(max(1, int(layer.channels * share)))))


__all__ = ["Scheme", "SparseUpdate", "updates_of", "weight_update"]
