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
from ..errors import BadData, DoesNotFit
from ..ir import Array
from ..methods import SparseUpdate, Update
from ..methods.layers import layers
from ..methods.sparse_update import Scheme, updates_of, weight_update
from ..methods.uses import uses
from ..program.arrays import to_numpy
from .evolve import Part, best_parts
from .gains import Gains, Told, Trial

SHARES: Final = (Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(1))
MEASURED: Final = (Fraction(1, 4), Fraction(1))  # gains of the others lie between
FINALISTS: Final = 3  # learn for real, and longer
BIASES: Final = 8  # numbers of layers that are tried


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
    known: MutableMapping[str, float] | None = None,
    keep: Callable[[], None] = lambda: None,
    trial: Trial | None = None,
) -> Found:
    """`known` holds accuracies that an interrupted search has found; `keep` is called after each new one."""
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
    known: MutableMapping[str, float]
    told: Told
    keep: Callable[[], None]

    def run(self) -> Found:
        context = self.lowering.context(self.options)
        train = self.lowering.forward(self.gains.options)["train"]
        self.layers, self.uses = layers(train, context), uses(train)
        if not self.layers:
            raise BadData("the network has no layer whose weights could learn")
        self.memory, self.trainable = context.memory, frozenset(context.trainable)
        self.rows: list[Row] = []
        head = self._scheme(Scheme())
        self._plan(Scheme())  # where not even the classifier fits, this says what is needed
        room = max(0, self.limit.ram_bytes - self.memory(head))
        self.done, self.total = 0, 5 + BIASES + len(MEASURED) * (len(self.layers) - 1) + FINALISTS
        rate = self.known.get("rate") or self.gains.best_rate(head, self._first(head))
        self.known["rate"] = rate
        self.gains.trial = replace(self.gains.trial, rate=rate)
        self._step(4, "learning rate")
        self.before = self._accuracy("head", head)
        genes = [self._biases(room), *self._weights(room)]
        finalists = list(self._planned(best_parts(genes, room)))
        best = max(finalists, key=lambda one: (one["accuracy"], -one["ram_bytes"]))
        return Found(best["scheme"], best["ram_bytes"], best["accuracy"], self.before, rate, tuple(self.rows),
                     tuple(finalists))  # fmt: skip

    # -- parts alone -----------------------------------------------------------------------------------------------

    def _biases(self, room: int) -> list[Part]:
        most = len(self.layers) - 1
        found, before = [Part("", 0.0, 0)], self._scheme(Scheme())
        head_bytes = self.memory(before)
        for count in sorted({max(1, round(most * i / BIASES)) for i in range(1, BIASES + 1)} if most else ()):
            updates = self._scheme(Scheme(count))
            if {*updates} <= {*before}:  # the layers have no biases, or these do not learn
                continue
            cost, before = self.memory(updates) - head_bytes, updates
            if cost > room:
                break
            found.append(self._row(f"b{count}", updates, cost))
        return found

    def _weights(self, room: int) -> Iterator[list[Part]]:
        """From the last layer to the first: what comes before is computed once for all that follows."""
        head = self._scheme(Scheme())
        head_bytes = self.memory(head)
        for number in reversed(range(len(self.layers) - 1)):
            layer = self.layers[number]
            if not self._is_new(number):
                continue
            shares = SHARES if layer.axis is not None else (Fraction(1),)
            costs = self._costs(number, shares, head, head_bytes)
            measured: dict[Fraction, float] = {}
            for share in shares:
                if share in (*MEASURED, shares[-1]) and costs[share] <= room:
                    updates = [*head, weight_update(number, share, self.layers)]
                    measured[share] = self._row(f"{number}:{share}", updates, costs[share]).gain
            fitting = [share for share in shares if costs[share] <= room]
            parts = [Part(f"{number}:{s}", _between(s, measured), costs[s]) for s in fitting if measured]
            yield [Part("", 0.0, 0), *parts]

    def _is_new(self, number: int) -> bool:
        """May the weight of this layer learn, and is it neither the classifier's nor one of a layer before?"""
        weight = self.layers[number].weight
        others = {layer.weight for layer in (*self.layers[:number], self.layers[-1])}
        return weight in self.trainable and weight not in others

    def _costs(self, number: int, shares: Sequence[Fraction], head: list[Update], base: int) -> dict[Fraction, int]:
        """The first and the last are planned, the others lie on the line between them."""
        ends = {s: self.memory([*head, weight_update(number, s, self.layers)]) - base for s in {shares[0], shares[-1]}}
        low, high = shares[0], shares[-1]
        if low == high:
            return ends
        return {s: round(ends[low] + (ends[high] - ends[low]) * float((s - low) / (high - low))) for s in shares}

    def _row(self, name: str, updates: list[Update], cost: int) -> Part:
        row = Row(name, self._accuracy(name, updates) - self.before, cost)
        self.rows.append(row)
        return Part(name, row.gain, row.bytes)

    def _accuracy(self, name: str, updates: list[Update]) -> float:
        if name not in self.known:
            self.known[name] = self.gains.of(updates, self._first(updates))
            self.keep()
        self._step(1, name)
        return self.known[name]

    def _step(self, count: int, what: str) -> None:
        self.done += count
        self.told(min(self.done, self.total), self.total, what)

    def _scheme(self, scheme: Scheme) -> list[Update]:
        """What of it may learn; where nothing may, the planner says so."""
        return [update for update in updates_of(scheme, self.layers) if update.param in self.trainable]

    def _first(self, updates: Sequence[Update]) -> int:
        """The position from which on something learns."""
        names = {update.param for update in updates}
        own = [layer.position for layer in self.layers if {layer.weight, layer.bias} & names]
        return min([*own, *(use.position for use in self.uses if use.param in names)])

    # -- together --------------------------------------------------------------------------------------------------

    def _plan(self, scheme: Scheme) -> Candidate:
        asked = replace(self.options, method=(SparseUpdate(str(scheme)),))
        return best_for(self.limit, self.lowering, asked, self.goal, Search(0.0))

    def _planned(self, choices: Sequence[Sequence[Part]]) -> Iterator[dict[str, Any]]:
        """Those that really fit, trained longer."""
        left = FINALISTS
        for parts in choices:
            scheme = _scheme_of([p.name for p in parts if p.name])
            try:
                made = self._plan(scheme)
            except DoesNotFit:
                continue
            updates = self._scheme(scheme)
            name = f"scheme {scheme}"
            if name not in self.known:
                longer = replace(self.gains.trial, epochs=2 * self.gains.trial.epochs)
                self.known[name] = self.gains.of(updates, self._first(updates), longer)
                self.keep()
            self._step(1, str(scheme))
            yield {"scheme": str(scheme), "ram_bytes": made.need.ram_bytes, "accuracy": self.known[name]}
            left -= 1
            if not left:
                return


def _scheme_of(names: Sequence[str]) -> Scheme:
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
