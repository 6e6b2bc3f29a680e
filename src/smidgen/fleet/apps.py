"""A Flower ClientApp of programs: what a device does when the server asks for a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..ir import Array
from .client import Client
from .records import METRICS, config_of, reply_of, unpacked

KNOWN: Final = {
    "version": "version", "server-round": "round", "epochs": "epochs", "batch": "batch", "lr": "lr", "seed": "seed",
    "proximal-mu": "proximal_mu",
}  # fmt: skip
"""What a server may ask for → the argument of Client.train."""


def client_app(make: Callable[[Context], Client]) -> ClientApp:
    """`make` is called for each message and returns this device's Client, from what Flower knows of the device
    (`context.node_config`) and of the run (`context.run_config`)."""
    app = ClientApp()

    def train(message: Message, context: Context) -> Message:
        client = make(context)
        asked = {KNOWN[key]: value for key, value in config_of(message.content).items() if key in KNOWN}
        reply = client.train(_values(message, client), **asked)
        return Message(reply_of(reply, client.name), reply_to=message)

    def evaluate(message: Message, context: Context) -> Message:
        client = make(context)
        version = config_of(message.content).get("version")
        counters = client.evaluate(_values(message, client), version=None if version is None else str(version))
        return Message(RecordDict({METRICS: MetricRecord(dict(counters))}), reply_to=message)

    app.train()(train)
    app.evaluate()(evaluate)
    return app


def _values(message: Message, client: Client) -> dict[str, Any]:
    found: dict[str, Array] = {}
    for record in message.content.array_records.values():
        found |= unpacked(record, client=client.name)
    return found


__all__ = ["client_app"]
