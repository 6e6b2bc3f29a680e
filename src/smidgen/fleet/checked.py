"""Any strategy of Flower, with updates refused that are not fit to be learned from. The client is named, and the round
goes on without it."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..errors import BadOption, BrokenUpdate, SmidgenError, UpdateTooLarge
from ..ir import Array
from .parts import place
from .records import FLEET, LABELS, SLICE, WEIGHT, unpacked
from .terms import MOST_TIMES, Held, Terms, check_norm, distance, norm_limit


@dataclass(frozen=True, slots=True)
class Refused:
    """A reply that nothing was learned from, or that the client could not give."""

    round: int
    client: str
    why: str
    code: str = ""  # of the error; empty if the client itself failed


@dataclass(frozen=True, slots=True)
class _Update:
    message: Message
    client: str
    norm: float


class Checked(Strategy):
    """`strategy`, which sees only updates that have the tensors of the fleet, in their shapes, all finite, from a
    program of the fleet's version, and not absurdly large: their distance from what was sent is at most `max_norm`, and
    at most `most_times` the median of their round (of fewer than three clients, the norm of what was sent). They are in
    an order that depends on the names of clients alone. `refused` lists the others.

    A reply without a version, of a client that is no program of smidgen, is judged by its tensors.
    """

    def __init__(
        self, strategy: Strategy, terms: Terms, *, max_norm: float | None = None, most_times: float = MOST_TIMES
    ) -> None:
        for name, limit in (("max_norm", max_norm), ("most_times", most_times)):
            if limit is not None and not 0 < limit < math.inf:
                raise BadOption(f"{name}={limit!r} is not a number above 0", help=f"{name}={MOST_TIMES:g}")
        self.strategy, self.terms = strategy, terms
        self.max_norm, self.most_times = max_norm, most_times
        self.refused: list[Refused] = []
        self._sent: dict[str, Array] = {}

    def summary(self) -> None:
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._sent = unpacked(arrays)
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found = self._each(server_round, replies, self._update)
        limit = norm_limit([u.norm for u in found], self._sent, self.most_times, self.max_norm)
        good = []
        for update in found:
            try:
                check_norm(update.norm, limit, update.client)
                good.append(update)
            except UpdateTooLarge as error:
                self._refuse(server_round, update.client, error)
        good.sort(key=lambda u: (u.client, u.message.metadata.src_node_id))
        return self.strategy.aggregate_train(server_round, self._alike(server_round, good))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        found = self._each(server_round, replies, self._evaluation)
        return self.strategy.aggregate_evaluate(server_round, self._alike(server_round, found))

    # -- one reply -------------------------------------------------------------------------------------------------

    def _each(self, round: int, replies: Iterable[Message], look: Callable[[Message, str], _Update]) -> list[_Update]:
        found = []
        for message in replies:
            client = _name(message)
            if message.has_error():
                self._refuse(round, client, message.error.reason)
                continue
            try:
                found.append(look(message, client))
            except SmidgenError as error:
                self._refuse(round, client, error)
        return found

    def _update(self, message: Message, client: str) -> _Update:
        arrays = list(message.content.array_records.values())
        if len(arrays) != 1:
            raise BrokenUpdate(f"{len(arrays)} records of arrays came, expected one", at=client)
        said = message.content.config_records.get(FLEET)
        if getattr(self.strategy, "differ", False):
            norm = self._part(arrays[0], {} if said is None else said, client)
        else:
            if said is not None:
                self.terms.check_version(str(said.get("version", "")), client)
            values = unpacked(arrays[0], self.terms, client)
            self.terms.check(values, client)
            norm = distance(values, self._sent)
        counters = _counters(message, client)
        if not all(math.isfinite(n) for v in counters.values() for n in (v if isinstance(v, list) else [v])):
            raise BrokenUpdate("a counter is not finite", at=client, why=f"{counters}"[:200])
        return _Update(message, client, norm)

    def _part(self, record: ArrayRecord, said: Mapping[str, Any], client: str) -> float:
        """Of a device that holds a part of the tensors; the norm is of that part."""
        if odd := sorted(set(record) - set(self.terms)):
            raise BrokenUpdate(f"'{odd[0]}' is no tensor of this fleet", at=client)
        if not record:
            raise BrokenUpdate("no tensors came", at=client)
        values = unpacked(record, client=client)
        places = {n: place(n, self.terms[n], v.shape, said.get(f"{SLICE}{n}"), client) for n, v in values.items()}
        Terms({name: Held(value.shape) for name, value in values.items()}).check(values, client)
        labels = said.get(LABELS, [])
        rows = min((values[name].shape[0] for name in getattr(self.strategy, "head", ()) if name in values), default=0)
        if not isinstance(labels, list) or any(type(i) is not int or not 0 <= i < rows for i in labels):
            raise BrokenUpdate(f"its classes are {labels!r:.80}, the model has {rows}", at=client)
        return distance(values, {name: self._sent[name][where] for name, where in places.items()})

    def _evaluation(self, message: Message, client: str) -> _Update:
        _counters(message, client)
        return _Update(message, client, 0.0)

    def _alike(self, round: int, found: list[_Update]) -> list[Message]:
        """Those whose counters have the names that most have: Flower's strategies end the run otherwise."""
        names = collections.Counter(frozenset(_counters(u.message, u.client)) for u in found)
        usual = names.most_common(1)[0][0] if names else frozenset()
        good = []
        for update in found:
            own = frozenset(_counters(update.message, update.client))
            if own == usual:
                good.append(update.message)
                continue
            what = f"its counters are {', '.join(sorted(own))}, expected {', '.join(sorted(usual))}"
            self._refuse(round, update.client, BrokenUpdate(what, at=update.client))
        return good

    def _refuse(self, round: int, client: str, error: SmidgenError | str) -> None:
        code = error.code if isinstance(error, SmidgenError) else ""
        self.refused.append(Refused(round, client, str(error), code))
        log(WARNING, "round %s goes on without %s: %s", round, client, error)


def _name(message: Message) -> str:
    """As it calls itself; else by its node."""
    node = f"node {message.metadata.src_node_id}"
    if message.has_error():
        return node
    said = message.content.config_records.get(FLEET)
    return node if said is None or "client" not in said else f"{str(said['client'])[:100]} ({node})"


def _counters(message: Message, client: str) -> Mapping[str, Any]:
    records = list(message.content.metric_records.values())
    if len(records) != 1:
        raise BrokenUpdate(f"{len(records)} records of counters came, expected one", at=client)
    weight = records[0].get(WEIGHT)
    if isinstance(weight, list) or weight is None or not 0 < weight < math.inf:
        raise BrokenUpdate(f"'{WEIGHT}' is {weight!r}, expected a number above 0", at=client)
    return records[0]


__all__ = ["Checked", "Refused"]
