"""Strategies for devices that differ, on Flower's FedAvg: each element is averaged over those who hold it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from ..errors import BadOption
from ..ir import Array
from .parts import Where, mean_of, place
from .records import FLEET, LABELS, SLICE, WEIGHT, WHOLE, packed, unpacked
from .terms import Held


class Elementwise(FedAvg):
    """Devices whose programs learn other parts of one model: other tensors, other slices, or a narrower network. The
    server has whole tensors; each element is the mean over the devices that hold it, weighted by their samples unless
    `weighted` is False, and stays as it was if nobody does.

    `head` are the tensors whose first axis is the classes: a device's rows count for the classes only that it has
    samples of, which it then tells the server.
    """

    differ = True

    def __init__(self, *, weighted: bool = True, head: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self.weighted, self.head = weighted, tuple(head)
        self._whole: dict[str, Array] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._whole = unpacked(arrays)
        if missing := [name for name in self.head if name not in self._whole]:
            raise BadOption(f"the head '{missing[0]}' does not learn", help=f"head={sorted(self._whole)[-2:]}")
        config[WHOLE] = True
        config[LABELS] = bool(self.head)
        return list(super().configure_train(server_round, arrays, config, grid))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config[WHOLE] = True
        return list(super().configure_evaluate(server_round, arrays, config, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        valid, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        contents = [message.content for message in valid]
        if not contents:
            return None, None
        parts = [(self._share(content), self._held(content)) for content in contents]
        metrics: MetricRecord = self.train_metrics_aggr_fn(contents, self.weighted_by_key)
        return packed(mean_of(self._whole, parts)), metrics

    def _share(self, content: RecordDict) -> float:
        return float(next(iter(content.metric_records.values()))[WEIGHT]) if self.weighted else 1.0

    def _held(self, content: RecordDict) -> dict[str, tuple[Where, Array]]:
        said = content.config_records.get(FLEET, {})
        found: dict[str, tuple[Where, Array]] = {}
        for name, value in unpacked(next(iter(content.array_records.values()))).items():
            where = place(name, Held(self._whole[name].shape), value.shape, said.get(f"{SLICE}{name}"))
            if name in self.head and LABELS in said:
                rows = np.asarray(said[LABELS], np.intp)
                where, value = (rows, *where[1:]), value[rows]
            found[name] = where, value
        return found


class HeteroFL(Elementwise):
    """HeteroFL (Diao et al. 2021): a device trains the first channels of every layer, as many as its budget holds; each
    element is the unweighted mean over the devices that hold it. `head`, the tensors of the classifier, are averaged
    over the devices that have samples of a class, as the paper does."""

    def __init__(self, *, head: Sequence[str] = (), **options: Any) -> None:
        super().__init__(weighted=False, head=head, **options)


__all__ = ["Elementwise", "HeteroFL"]
