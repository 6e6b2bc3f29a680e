"""A Flower ClientApp of programs: what a device does when the server asks for a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..ir import Array
from .client import Client
from .records import BASES, LABELS, METRICS, WHOLE, config_of, reply_of, unpacked
from .several import evaluate_bases, train_bases

KNOWN: Final = {
    "version": "version", "server-round": "round", "epochs": "epochs", "batch": "batch", "lr": "lr", "seed": "seed",
    "proximal-mu": "proximal_mu", WHOLE: "whole",
}  # fmt: skip
"""What a server may ask for → the argument of Client.train."""


def client_app(make: Callable[[Context], Client]) -> ClientApp:
    """`make` is called for each message and returns this device's Client, from what Flower knows of the device
    (`context.node_config`) and of the run (`context.run_config`)."""
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        client = make(context)
        config = config_of(message.content)
        asked = {KNOWN[key]: value for key, value in config.items() if key in KNOWN}
        values, bases = _values(message, client), config.get(BASES)
        reply = client.train(values, **asked) if bases is None else train_bases(client, values, bases, **asked)
        labels = client.labels() if config.get(LABELS) else None
        return Message(reply_of(reply, client.name, labels), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        client = make(context)
        config, values = config_of(message.content), _values(message, client)
        if BASES in config:
            counters = evaluate_bases(client, values, config[BASES])
        else:
            counters = client.evaluate(values, **{k: v for k, v in config.items() if k in ("version", WHOLE)})
        return Message(RecordDict({METRICS: MetricRecord(dict(counters))}), reply_to=message)

    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({METRICS: MetricRecord(dict(make(context).about()))}), reply_to=message)

    app.train()(train)
    app.query()(query)
    app.evaluate()(evaluate)
    return app


def _values(message: Message, client: Client) -> dict[str, Any]:
    found: dict[str, Array] = {}
    for record in message.content.array_records.values():
        found |= unpacked(record, client=client.name)
    return found


__all__ = ["client_app"]
