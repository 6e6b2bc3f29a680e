"""What learns, chosen from scores of channels (methods/tinytrain.py): layers from the best down, as long as the work of
the backward pass and the memory allow, and of each its best channels; the choice is then planned for real."""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

import numpy as np

from .. import ops
from ..compiler.assemble import Asked, encode
from ..compiler.fit.candidate import candidate, room_for
from ..compiler.fit.micro_batch import for_caches
from ..compiler.fit.search import in_time
from ..compiler.fit.squeeze import squeezed
from ..compiler.options import Options
from ..compiler.passes.scores import SCORE
from ..compiler.pipeline import Lowering
from ..compiler.place.arena import lower_bound
from ..compiler.planner.goal import QUICK, Goal
from ..compiler.planner.streams import streamed
from ..compiler.planner.within import within
from ..devices.room import Limit
from ..errors import CannotSelect, Internal
from ..ir import Array, Graph, at
from ..methods import Choice, Method, TinyTrain, methods_of
from ..methods.scored import scored_layers
from ..methods.tinytrain import smallest
from ..ops.build import typed
from ..program.program import Program
from ..train.scoring import LayerScores

SHARES: Final = (Fraction(1), Fraction(1, 2), Fraction(1, 4), Fraction(1, 8))  # of the channels of a layer
SCORING: Final = 0.75  # of the room for an arena that scoring may take: what is chosen then needs some of it
PLANS: Final = 8  # choices that are planned for real until one fits


def tiny_part(options: Options, names: Sequence[str]) -> tuple[int, TinyTrain] | None:
    """The part of the method that chooses by scores, and its number."""
    parts = methods_of(options.method, names)
    return next(((i, part) for i, part in enumerate(parts) if isinstance(part, TinyTrain)), None)


def with_part(options: Options, number: int, part: Method) -> Options:
    parts = [options.method] if isinstance(options.method, str) else list(options.method)
    return replace(options, method=(*parts[:number], part, *parts[number + 1 :]))


def scoring_within(lowering: Lowering, options: Options, limit: Limit | None, names: Sequence[str]) -> Options:
    """With as many layers scored as the limit allows."""
    found = tiny_part(options, names)
    if found is None or limit is None or found[1].layers is not None:
        return options
    number, part = found
    forward = lowering.forward(options)
    layers = scored_layers(forward.get("evaluate", forward["train"]), lowering.context(options))

    def asked(count: int) -> Options:
        return with_part(options, number, replace(part, layers=count))

    def is_small(count: int) -> bool:
        entries = lowering.entries(replace(asked(count), stream=None))
        room = int(SCORING * max(0, room_for(limit, entries)))
        graph, stream = entries.plain[SCORE], options.stream
        if stream is not None:
            graph = streamed(graph, 1, stream.kernels, stream.whole_inputs, least=True)
        return lower_bound(within(graph, 1, room, limit.align, Goal(), QUICK)[0], 1, limit.align) <= room

    low, high = 1, len(layers)
    if not layers or is_small(high):
        return options
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_small(middle) else (low, middle)
    return asked(low)


# -- the choice --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ranked:
    scores: LayerScores
    score: float


def ranked(layers: Sequence[LayerScores]) -> list[Ranked]:
    """The best first."""
    size, work = max(layer.parameters for layer in layers), max(layer.macs for layer in layers)
    scores = [one.potential / ((one.parameters / size) * (max(one.macs, 1) / max(work, 1))) for one in layers]
    return sorted(map(Ranked, layers, scores), key=lambda one: -one.score)


def best_channels(scores: Array, count: int) -> tuple[int, ...]:
    """Of equal ones, those with the lower number."""
    order = np.argsort(-scores.astype(np.float64), kind="stable")
    return tuple(sorted(int(i) for i in order[:count]))


class BackwardWork:
    """Multiply-accumulates of backward passes of one sample, from the forward graph: the gradient of each operand takes
    what the node takes, that of a slice of a weight as much less as it is smaller, that of a bias next to nothing."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = [
            (node, ops.get(node.op), int(at(ops.get(node.op).macs(typed(graph, node)), 1)))
            for node in graph.nodes
            if not ops.border(node)
        ]

    def of(self, shares: Mapping[str, float]) -> float:
        """`shares`: parameter → what of it learns."""
        learns, depends, total = dict(shares), set[str](), 0.0
        for node, record, macs in self._nodes:
            own = {i: learns[name] for i, name in enumerate(node.ins) if name in learns}
            through = [name for name in node.ins if name in depends]
            if own and not through and (record.is_view or record.rearranges is not None):
                learns |= dict.fromkeys(node.outs, max(own.values()))
            elif own or through:
                weights = (share for i, share in own.items() if record.operands.get(i) == "weight")
                total += macs * (len(through) + sum(weights))
                depends.update(node.outs)
        return total


@dataclass
class Selector:
    """Of one model and its options. Prices are found once: those of other samples are the same."""

    lowering: Lowering
    options: Options
    limit: Limit | None
    goal: Goal
    names: Sequence[str]
    prices: MutableMapping[tuple[str, Fraction], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = tiny_part(self.options, self.names)
        if found is None:
            raise Internal("nothing of this method is chosen by scores")
        self._number, self.part = found
        self._forward = self.lowering.forward(self.options)["train"]
        self._context = self.lowering.context(self.options)
        self._plain = self.lowering.context(replace(self.options, stream=None))  # differences need no streams

    def choices(self, layers: Sequence[LayerScores]) -> list[Choice]:
        """From the best layer down, as many of its channels as still fit the work and, by prices that add up, the
        memory."""
        work = BackwardWork(self._forward)
        names = [name for one in layers for name in (one.weight, one.bias) if name is not None]
        most = self.part.compute * work.of(dict.fromkeys(names, 1.0))
        room = math.inf if self.limit is None else self.limit.ram_bytes - self._floor()
        chosen: list[Choice] = []
        shares: dict[str, float] = {}
        for one in ranked(layers):
            for share in SHARES if one.scores.axis is not None else SHARES[:1]:
                choice = _choice(one, share)
                more = shares | {update.param: float(share) for update in choice.updates}
                if work.of(more) > most or (price := self._price(choice, share)) > room:
                    continue
                chosen.append(choice)
                shares, room = more, room - price
                break
        if not chosen:
            raise self._nothing(f"of {len(layers)} layers none takes so little, not with one channel of eight")
        return chosen

    def _floor(self) -> int:
        """Bytes of the smallest step."""
        key = "", Fraction(0)
        if key not in self.prices:
            self.prices[key] = self._context.memory(smallest(self._forward, self._context))
        return self.prices[key]

    def _price(self, choice: Choice, share: Fraction) -> float:
        """Bytes that it adds to the smallest step."""
        if self.limit is None:
            return 0
        key = choice.weight, share
        if key not in self.prices:
            least = self._plain.memory(smallest(self._forward, self._plain))
            self.prices[key] = max(0, self._plain.memory(choice.updates) - least)
        return self.prices[key]

    def _nothing(self, why: str) -> CannotSelect:
        limits = [f"compute={self.part.compute:g}"]
        limits += [] if self.limit is None else [f"{self.limit.ram_bytes:,} bytes of RAM"]
        wider = f"TinyTrain(compute={min(1.0, 2 * self.part.compute):g})"
        return CannotSelect(
            f"no choice of layers meets {' and '.join(limits)}", why=why,
            help=f"{wider}{'' if self.limit is None else ', or a larger budget'}; nothing has changed",
        )  # fmt: skip

    def program(self, layers: Sequence[LayerScores], asked: Asked | None) -> Program:
        """Of the best choice that fits when it is planned for real: without its last layer while it does not."""
        chosen = self.choices(layers)
        for _ in range(PLANS):
            options = with_part(self.options, self._number, replace(self.part, chosen=tuple(chosen)))
            if (made := self._planned(options, asked)) is not None:
                return made
            chosen = chosen[:-1]
            if not chosen:
                break
        raise self._nothing("no choice that meets them by an estimate does so when it is planned")

    def _planned(self, options: Options, asked: Asked | None) -> Program | None:
        """Without a search for the best way to fit: None if nothing quick does."""
        if self.limit is None:
            entries, known = for_caches(self.lowering, options, in_time(self.lowering, options, self.goal), self.goal)
            return encode(entries, sized=known)
        for one in dict.fromkeys((options, options.least)):
            entries = self.lowering.entries(one)
            found = candidate(self.limit, entries, self.goal)
            if not found.fits(self.limit):
                found = squeezed(self.limit, entries, self.goal, first=found)
            if found.fits(self.limit) and not self.goal.is_late(found.step):
                return found.program(asked)
        return None


def _choice(one: Ranked, share: Fraction) -> Choice:
    layer = one.scores
    count = len(layer.channels)
    kept = max(1, int(count * share))
    indices = None if share == 1 else best_channels(layer.channels, kept)
    return Choice(layer.weight, layer.bias, layer.axis, indices, count, one.score)


__all__ = ["BackwardWork", "Ranked", "Selector", "best_channels", "ranked", "scoring_within", "tiny_part", "with_part"]
