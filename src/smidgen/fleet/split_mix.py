"""Split-Mix (Hong et al. 2022) as a strategy: base networks instead of one wide one, as many on a device as its budget
holds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from ..errors import BadOption
from .client import opened
from .records import BASES, CONFIG, packed
from .strategies import Elementwise
from .terms import Terms


class SplitMix(Elementwise):
    """`programs` are the base networks: one architecture, each with initial values of its own. A device is given as
    many of them a round as its budget holds: the first one from a shuffled list of all, so that all learn equally
    often, the others at random without repetition. Each is averaged by itself over the devices that had it.

    `capacity` says how many a node holds; without it, nodes are asked for their budget and what the program takes.
    """

    def __init__(
        self, programs: Sequence[str | os.PathLike[str]], *, seed: int = 0,
        capacity: Callable[[int], int] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        jobs = [opened(program) for program in programs]
        terms = [Terms.of(job) for job in jobs]
        if not jobs or len({t.version for t in terms}) > 1:
            what = "base networks are of one architecture" if jobs else "there are no base networks"
            raise BadOption(what, help="SplitMix(['0.smg', '1.smg', …]), the same model built with other seeds")
        self.bases = len(jobs)
        self.version = terms[0].version
        self.terms = Terms({f"{i}/{name}": held for i, t in enumerate(terms) for name, held in t.items()})
        self.chosen: dict[int, dict[int, list[int]]] = {}  # round → node → base networks
        self._initial = {f"{i}/{n}": v for i, (t, j) in enumerate(zip(terms, jobs, strict=True))
                         for n, v in t.values_of(j).items()}  # fmt: skip
        self._capacity = capacity
        self._rng = np.random.default_rng(seed)
        self._next: list[int] = []
        self._known: dict[int, int] = {}

    def initial_arrays(self) -> ArrayRecord:
        return packed(self._initial)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        own = self.chosen[server_round] = {}
        for message in messages:
            node = message.metadata.dst_node_id
            bases = own[node] = self._choose(self._holds(node, grid))
            part = ArrayRecord({n: a for n, a in arrays.items() if int(n.partition("/")[0]) in bases})
            said = ConfigRecord({**message.content[CONFIG], BASES: bases, "version": self.version})
            message.content = RecordDict({self.arrayrecord_key: part, self.configrecord_key: said})
        return messages

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config[BASES] = list(range(self.bases))
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _choose(self, count: int) -> list[int]:
        if not self._next:
            self._next = [int(i) for i in self._rng.permutation(self.bases)]
        first = self._next.pop(0)
        others = [i for i in range(self.bases) if i != first]
        return [first, *(int(i) for i in self._rng.choice(others, count - 1, replace=False))]

    def _holds(self, node: int, grid: Grid) -> int:
        if node not in self._known:
            asked = self._capacity(node) if self._capacity is not None else self._asked(node, grid)
            self._known[node] = min(max(1, asked), self.bases)
        return self._known[node]

    def _asked(self, node: int, grid: Grid) -> int:
        replies = list(grid.send_and_receive([Message(RecordDict(), node, "query")], timeout=60))
        if not replies or replies[0].has_error():
            return 1
        said = next(iter(replies[0].content.metric_records.values()))
        budget, ram = float(said["budget-bytes"]), float(said["ram-bytes"])
        return self.bases if budget <= 0 else int(budget // ram)


__all__ = ["SplitMix"]
