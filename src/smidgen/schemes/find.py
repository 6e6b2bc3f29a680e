"""A scheme of sparse updates for a network, samples and a budget (after Lin et al. 2022): what each part gains alone,
what it costs by the planner, the best parts that fit together; then the winner is planned for real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from ..compiler.fit.candidate import Candidate
from ..compiler.fit.search import best_for
from ..compiler.options import Options
from ..compiler.pipeline import Lowering
from ..compiler.planner.goal import Goal, Search
from ..devices.room import Limit
from ..errors import BadData, DoesNotFit, SmidgenError
from ..ir import Array, ceil_div
from ..methods import SparseUpdate, Update
from ..methods.layers import layers
from ..methods.sparse_update import Scheme, updates_of, weight_update
from ..methods.uses import uses
from ..program.arrays import to_numpy
from .evolve import Part, best_parts
from .gains import RATES, Gains, Told, Trial

SHARES: Final = (Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(1))
MEASURED: Final = (Fraction(1, 4), Fraction(1))  # gains of the others lie between
FINALISTS: Final = 3  # learn for real, and longer
BIASES: Final = 8  # numbers of layers that are tried
ROUNDS: Final = 4  # of asking for more, as parts take less together than one by one


@dataclass(frozen=True, slots=True)
class Row:
    """One part alone, beside the classifier."""

    part: str  # b5: biases of the last five layers; 36:1/8
    gain: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Found:
    scheme: str
    ram_bytes: int
    accuracy: float  # on the samples to judge by
    before: float  # with the classifier alone
    rate: float
    rows: tuple[Row, ...]
    tried: tuple[Mapping[str, Any], ...] = field(default_factory=tuple)  # finalists

    def to_json(self) -> dict[str, Any]:
        """Plain types, as `smidgen search --json` prints them."""
        return {"scheme": self.scheme, "ram_bytes": self.ram_bytes, "accuracy": self.accuracy, "before": self.before,
                "rate": self.rate, "tried": list(self.tried), "rows": [asdict(row) for row in self.rows]}  # fmt: skip


def checked_data(data: Any) -> tuple[Array, Array]:
    """Samples and labels."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise BadData("a search needs samples and labels", help="data=(x, y)")
    x, y = (to_numpy(part, name) for part, name in zip(data, ("samples", "labels"), strict=True))
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise BadData("a search needs one class a sample", why=f"labels are {y.dtype} of shape {y.shape}")
    if len(x) != len(y) or len(y) < 2:
        raise BadData(f"{len(x)} samples and {len(y)} labels", why="a search needs one label a sample, and two samples")
    return x, y


def found_scheme(
    lowering: Lowering,
    options: Options,
    limit: Limit,
    goal: Goal,
    data: Any,
    *,
    told: Told = lambda done, total, what: None,
    known: MutableMapping[str, Sequence[float]] | None = None,
    keep: Callable[[], None] = lambda: None,
    trial: Trial | None = None,
) -> Found:
    """`known` holds accuracies and rates that an interrupted search has found; `keep` is called after each new one."""
    x, y = checked_data(data)
    learned = replace(options, spare_classes=0, class_names=())  # nothing learns of classes that nobody added
    gains = Gains(lowering, learned, x, y, trial or Trial())
    return _Searching(lowering, options, limit, goal, gains, {} if known is None else known, told, keep).run()


@dataclass
class _Searching:
    lowering: Lowering
    options: Options
    limit: Limit
    goal: Goal
    gains: Gains
    known: MutableMapping[str, Sequence[float]]
    told: Told
    keep: Callable[[], None]

    def run(self) -> Found:
        context = self.lowering.context(self.options)
        train = self.lowering.forward(self.gains.options)["train"]
        self.layers, self.uses = layers(train, context), uses(train)
        if not self.layers:
            raise BadData("the network has no layer whose weights could learn")
        self.trainable = frozenset(context.trainable)
        self.rows: list[Row] = []
        head = self._scheme(Scheme())
        self._plan(Scheme())  # where not even the classifier fits, this says what is needed
        self.memory, self.passing = self._memory(head)
        room = max(0, self.limit.ram_bytes - self.memory(head))
        self.done, self.total = 0, 1 + BIASES + len(MEASURED) * (len(self.layers) - 1) + FINALISTS
        self.gains.trial = replace(self.gains.trial, rate=RATES[0])
        self.before, rate = self._learned("head", head)
        self.gains.trial = replace(self.gains.trial, rate=rate)
        genes = [self._biases(room), *self._weights(room)]
        finalists = list(self._planned(self._chosen(genes, room)))
        best = max(finalists, key=lambda one: (one["accuracy"], -one["ram_bytes"]))
        return Found(best["scheme"], best["ram_bytes"], best["accuracy"], self.before, best["rate"], tuple(self.rows),
                     tuple(finalists))  # fmt: skip

    def _memory(self, head: list[Update]) -> tuple[Callable[[Sequence[Update]], int], list[Update]]:
        """What a step takes, in the largest micro-batches in which the first layers could learn too, and the updates
        that let gradients pass by all others."""
        samples = self.options.batch or self.lowering.imported.batch
        numbers = [number for number in range(len(self.layers) - 1) if self._is_new(number)]
        price = self.lowering.context(self.options).memory
        if not numbers:
            return price, head
        first = [*head, weight_update(numbers[0], SHARES[0], self.layers)]
        while price(first) > self.limit.ram_bytes and samples > 1 and self.goal.split:
            samples = ceil_div(samples, 2)
            smaller = self.lowering.context(replace(self.options, batch=samples, accumulate=True)).memory
            try:
                smaller(head)
            except SmidgenError:  # a loss that is no sum over samples
                break
            price = smaller
        return price, first

    # -- parts alone -----------------------------------------------------------------------------------------------

    def _biases(self, room: int) -> list[Part]:
        most = len(self.layers) - 1
        found, before = [Part("", 0.0, 0)], self._scheme(Scheme())
        head_bytes, passing_bytes = self.memory(before), self.memory(self.passing)
        for count in sorted({max(1, round(most * i / BIASES)) for i in range(1, BIASES + 1)} if most else ()):
            updates = self._scheme(Scheme(count))
            if {*updates} <= {*before}:  # the layers have no biases, or these do not learn
                continue
            cost, before = self.memory(updates) - head_bytes, updates
            if cost > room:
                break
            more = self.memory(_together(self.passing, updates)) - passing_bytes
            found.append(self._row(f"b{count}", updates, cost, more))
        return found

    def _weights(self, room: int) -> Iterator[list[Part]]:
        """From the last layer to the first: what comes before is computed once for all that follows."""
        head = self._scheme(Scheme())
        for number in reversed(range(len(self.layers) - 1)):
            layer = self.layers[number]
            if not self._is_new(number):
                continue
            shares = SHARES if layer.axis is not None else (Fraction(1),)
            costs, mores = self._costs(number, shares, head), self._costs(number, shares, self.passing)
            measured: dict[Fraction, float] = {}
            for share in shares:
                if share in (*MEASURED, shares[-1]) and costs[share] <= room:
                    updates = [*head, weight_update(number, share, self.layers)]
                    measured[share] = self._row(f"{number}:{share}", updates, costs[share], 0).gain
            fitting = [share for share in shares if costs[share] <= room]
            parts = [Part(f"{number}:{s}", _between(s, measured), costs[s], mores[s]) for s in fitting if measured]
            yield [Part("", 0.0, 0), *parts]

    def _is_new(self, number: int) -> bool:
        """May the weight of this layer learn, and is it neither the classifier's nor one of a layer before?"""
        weight = self.layers[number].weight
        others = {layer.weight for layer in (*self.layers[:number], self.layers[-1])}
        return weight in self.trainable and weight not in others

    def _costs(self, number: int, shares: Sequence[Fraction], beside: list[Update]) -> dict[Fraction, int]:
        """Bytes of a weight beside others. The first and the last are planned, the rest lies on the line between."""
        base = self.memory(beside)

        def cost(share: Fraction) -> int:
            return self.memory(_together(beside, [weight_update(number, share, self.layers)])) - base

        low, high = shares[0], shares[-1]
        ends = {share: cost(share) for share in {low, high}}
        if low == high:
            return ends
        return {s: round(ends[low] + (ends[high] - ends[low]) * float((s - low) / (high - low))) for s in shares}

    def _row(self, name: str, updates: list[Update], cost: int, more: int) -> Part:
        row = Row(name, self._learned(name, updates)[0] - self.before, cost)
        self.rows.append(row)
        return Part(name, row.gain, row.bytes, more)

    def _learned(self, name: str, updates: list[Update], times: int = 1) -> tuple[float, float]:
        """Accuracy and rate; what an interrupted search has found is not tried again."""
        if name not in self.known:
            trial = replace(self.gains.trial, epochs=times * self.gains.trial.epochs)
            self.known[name] = self.gains.best(updates, self._first(updates), trial)
            self.keep()
        self.done += 1
        self.told(min(self.done, self.total), self.total, name)
        accuracy, rate = self.known[name]
        return accuracy, rate

    def _scheme(self, scheme: Scheme) -> list[Update]:
        """What of it may learn; where nothing may, the planner says so."""
        return [update for update in updates_of(scheme, self.layers) if update.param in self.trainable]

    def _first(self, updates: Sequence[Update]) -> int:
        """The position from which on something learns."""
        names = {update.param for update in updates}
        own = [layer.position for layer in self.layers if {layer.weight, layer.bias} & names]
        return min([*own, *(use.position for use in self.uses if use.param in names)])

    # -- together --------------------------------------------------------------------------------------------------

    def _chosen(self, genes: Sequence[Sequence[Part]], room: int) -> list[list[Part]]:
        """The best choices first, the classifier alone last. Prices that are added may be more than all of them take:
        then more is asked for."""
        head_bytes = self.memory(self._scheme(Scheme()))
        asked, shared = room, self.memory(self.passing) - head_bytes
        for _ in range(ROUNDS):
            choices = best_parts(genes, asked, shared_bytes=shared)
            taken = self.memory(self._scheme(_scheme_of(choices[0]))) - head_bytes
            added = min(sum(p.bytes for p in choices[0]), shared + sum(p.beside for p in choices[0]))
            if taken <= 0 or added * room <= asked * taken:
                break
            asked = added * room // taken
        return [*choices, []]

    def _plan(self, scheme: Scheme) -> Candidate:
        asked = replace(self.options, method=(SparseUpdate(str(scheme)),))
        return best_for(self.limit, self.lowering, asked, self.goal, Search(0.0))

    def _planned(self, choices: Sequence[Sequence[Part]]) -> Iterator[dict[str, Any]]:
        """Those that really fit, trained longer."""
        left = FINALISTS
        for scheme in dict.fromkeys(map(_scheme_of, choices)):
            try:
                made = self._plan(scheme)
            except DoesNotFit:
                continue
            accuracy, rate = self._learned(f"scheme {scheme}", self._scheme(scheme), times=2)
            yield {"scheme": str(scheme), "ram_bytes": made.need.ram_bytes, "accuracy": accuracy, "rate": rate}
            left -= 1
            if not left:
                return


def _together(some: Sequence[Update], more: Sequence[Update]) -> list[Update]:
    """Of two slices of one weight the second."""
    names = {update.param for update in more}
    return [*(update for update in some if update.param not in names), *more]


def _scheme_of(parts: Sequence[Part]) -> Scheme:
    names = [part.name for part in parts if part.name]
    biases = [name for name in names if name.startswith("b")]
    weights = [name for name in names if not name.startswith("b")]
    return Scheme.of(" ".join([*(biases or ["b0"]), *([f"w{','.join(weights)}"] if weights else [])]))


def _between(share: Fraction, measured: Mapping[Fraction, float]) -> float:
    """By the measured ones around it; below the smallest, in proportion to it."""
    if share in measured:
        return measured[share]
    low = max((s for s in measured if s < share), default=None)
    high = min((s for s in measured if s > share), default=None)
    if low is None or high is None:
        near = high if low is None else low
        assert near is not None
        return measured[near] * float(min(share / near, Fraction(1)))
    weight = float((share - low) / (high - low))
    return (1 - weight) * measured[low] + weight * measured[high]


__all__ = ["Found", "Row", "checked_data", "found_scheme"]
