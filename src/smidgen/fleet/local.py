"""A fleet in this process, for tests and small studies: one client after another, no network, no Ray."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

FAILED = 2  # Flower's code of a client that raised something


class LocalGrid(Grid):
    """`nodes` has the configuration of each node, as `flower-supernode --node-config` gives it; a number stands for so
    many simulated ones. A client that raises is a reply with an error, as over a network."""

    def __init__(
        self,
        app: ClientApp,
        nodes: int | Sequence[Mapping[str, Any]],
        run_config: Mapping[str, Any] | None = None,
    ) -> None:
        count = nodes if isinstance(nodes, int) else len(nodes)
        given: Sequence[Mapping[str, Any]] = [{}] * count if isinstance(nodes, int) else nodes
        self.app = app
        self.contexts = {
            i + 2: Context(
                run_id=1, node_id=i + 2, state=RecordDict(), run_config=dict(run_config or {}),
                node_config={"partition-id": i, "num-partitions": count, **one},
            )
            for i, one in enumerate(given)
        }  # fmt: skip
        self.replies: dict[str, Message] = {}
        self.seconds = 0.0  # of clients
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower sets them in its processes

    def set_run(self, run: Any) -> None:
        raise NotImplementedError("a LocalGrid is one run")

    @property
    def run(self) -> Any:
        raise NotImplementedError("a LocalGrid is one run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            names.append(f"{len(self.replies)}")
            self.replies[names[-1]] = self._answered(message)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._answered(message) for message in messages]

    def _answered(self, message: Message) -> Message:
        began = time.perf_counter()
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(FAILED, f"{type(error).__name__}: {error}"), reply_to=message)
        finally:
            self.seconds += time.perf_counter() - began


__all__ = ["LocalGrid"]
