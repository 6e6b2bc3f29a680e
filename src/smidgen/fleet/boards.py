"""Boards as clients of a fleet: a gateway speaks for them, and has their samples, orders and seeds. What a board
returns is, bit for bit, what `Client(…, kernels="exact")` returns for the same samples on this machine."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from ..errors import BadOption, BoardSilent, NotFinite, SmidgenError, WrongVersion
from ..ir import Array
from ..train.batches import Arrays, order
from ..train.job import Job
from ..train.loop import new_samples, training_data
from ..train.sample_rows import check_rows
from .board import Board, Facts, Restarted
from .client import Client, Counters, Near, Reply, counters_of, round_seed
from .rows import Rows
from .share import share

SAVES: Final = 4
RESTARTS: Final = 20
CRC_AT: Final = 12  # of a program file
LOG: Final = logging.getLogger("smidgen.gateway")


class BoardClient(Client):
    """`board` has firmware of `program` (`smidgen build … --firmware fw --fleet`), or room for it. Its state is saved
    about `saves` times a round, if it has slots: after a reset it goes on from there."""

    def __init__(
        self, program: str | os.PathLike[str], x: Any, y: Any, *, board: Board, saves: int = SAVES, **options: Any
    ) -> None:
        super().__init__(program, x, y, **{"name": board.address, **options, "kernels": "exact"})
        self.board, self.saves = board, saves

    def train(
        self,
        values: Mapping[str, Array],
        *,
        version: str | None = None,
        round: int = 1,
        epochs: int = 1,
        batch: int | None = None,
        lr: float | None = None,
        seed: int = 0,
        proximal_mu: float = 0.0,
        whole: bool = False,
    ) -> Reply:
        """As Client.train, on the board."""
        job, terms = self._given(values, version, whole)
        check_board_program(job)
        values = terms.values_of(job)
        if lr is not None:
            job.lr = lr
        own = round_seed(seed, round, self.part)
        job.engine.state.restart(own)
        data = training_data(job, self.x, self.y, epochs, new_samples(job, batch))
        if not isinstance(data, Arrays):
            raise BadOption("a board's samples are arrays x and y", at=self.name, help="BoardClient(program, x, y, …)")
        check_rows(job.program, job.engine.machine.run, data.taken(slice(0, 2)), data.buffers, data.samples)
        near = Near(job, terms, values, proximal_mu, (self.x, self.y), batch, own) if proximal_mu else None
        began = time.perf_counter()
        with contextlib.closing(self.board):
            losses = _Round(self, job, data, epochs, own, near).run()
        last = losses[-data.steps :]
        sizes = [min(data.batch, data.samples - i * data.batch) for i in range(data.steps)]
        loss = sum(float(each) * n for each, n in zip(last, sizes, strict=True)) / data.samples
        counters = counters_of(job, data.samples, data.samples * epochs, len(losses), loss, time.perf_counter() - began)
        return Reply(terms, terms.values_of(job), counters)

    def predict(self) -> tuple[Array, ...]:
        """The model's outputs for the samples, computed on the board from the state that it has."""
        job = self.open()
        check_board_program(job)
        data = training_data(job, self.x, self.y, 1, new_samples(job))
        assert isinstance(data, Arrays)
        outputs = [b for b in job.program.entry_buffers("infer") if b.direction == "output"]
        with contextlib.closing(self.board):
            rows = Rows(self.board, greeted(self.board, job), data.buffers, True)
            return rows.infer(data.taken(slice(None)), data.samples, outputs)


class _Round:
    """The steps of a round on a board that may start anew at any time."""

    def __init__(
        self, client: BoardClient, job: Job, data: Arrays, epochs: int, seed: int, near: Near | None
    ) -> None:  # fmt: skip
        self.client, self.board, self.job, self.data, self.near = client, client.board, job, data, near
        self.seed, self.steps = seed, epochs * data.steps
        # Near what was sent, the state of each step is on this machine anyway.
        self.every = -(-self.steps // client.saves) if client.saves > 0 and near is None else 0
        self.losses: list[np.float32] = []
        self.at = 0  # the next step of the board
        self.known = 0, job.engine.state.copy().tobytes()  # a step, and the state before it
        self.saved: tuple[int, int] | None = None  # a step, and the checksum of the state in the board's slot

    def run(self) -> list[np.float32]:
        """The job then has the board's state."""
        for _ in range(RESTARTS):
            try:
                self._go_on()
                self.job.engine.state.set_all(self.board.state())
            except Restarted:
                LOG.warning("%s has started anew, at step %d of %d", self.board.address, self.at, self.steps)
            else:
                return self.losses
        raise BoardSilent(
            f"the board has started anew {RESTARTS} times in a round", at=self.board.address,
            help="look at its power; one gateway at a time can speak to it",
        )  # fmt: skip

    def _go_on(self) -> None:
        facts = greeted(self.board, self.job)
        if self.saved is not None and facts.is_whole and facts.state_crc == self.saved[1]:
            self.at = self.saved[0]
        else:
            self.at = self.known[0]
            self.board.set_state(self.known[1])
        del self.losses[self.at :]
        rows = Rows(self.board, facts, self.data.buffers, "grad" in self.job.program.entries)
        while self.at < self.steps:
            self._step(rows)
            if self.every and facts.has_slots and self.at % self.every == 0 and self.at < self.steps:
                self.saved = self.at, self.board.save()

    def _step(self, rows: Rows) -> None:
        epoch, number = divmod(self.at, self.data.steps)
        which = order(self.seed, epoch, self.data.samples)
        arrays, n = self.data.taken(part := which[number * self.data.batch :][: self.data.batch]), len(part)
        given: Sequence[Array] = arrays
        if n > self.job.program.batch:
            given, n = self.job.engine.without_ignored(arrays, n)
        loss = rows.train(given, n)
        if not math.isfinite(loss):
            raise NotFinite(f"the loss is {loss}", at=f"{self.client.name}, step {self.at + 1} of {self.steps}",
                            help="a lower learning rate: train_config(lr=0.001)")  # fmt: skip
        self.losses.append(loss)
        self.at += 1
        if self.near is not None:
            before = self.near.terms.values_of(self.job)
            self.job.engine.state.set_all(self.board.state())
            self.near.pull(before)
            self.known = self.at, self.job.engine.state.copy().tobytes()
            self.board.set_state(self.known[1])


class Gateway(Client):
    """Several boards as one client: their mean, weighted by samples, as FedAvg weighs clients. A board that fails is
    left out of the round and named in the log of `smidgen.gateway`; if all do, the client fails."""

    def __init__(self, clients: Sequence[BoardClient], *, name: str = "") -> None:
        if not clients:
            raise BadOption("a gateway without boards", help="--boards /dev/ttyACM0")
        first = clients[0]
        super().__init__(first.program, first.x, first.y, part=first.part, name=name, kernels="exact")
        self.clients = clients

    def train(self, values: Mapping[str, Array], **asked: Any) -> Reply:
        replies = self._all(lambda client: client.train(values, **asked))
        weights = [reply.counters["num-examples"] for reply in replies]
        found = {
            name: np.average([reply.values[name] for reply in replies], axis=0, weights=weights).astype(np.float32)
            for name in replies[0].values
        }
        return Reply(replies[0].terms, found, _together([reply.counters for reply in replies]))

    def evaluate(self, values: Mapping[str, Array], **asked: Any) -> Counters:
        return _together([client.evaluate(values, **asked) for client in self.clients])

    def labels(self) -> list[int]:
        return sorted({label for client in self.clients for label in client.labels()})

    def _all(self, ask: Any) -> list[Reply]:
        """At the same time; in the order of the boards."""
        replies, errors = [], []
        with ThreadPoolExecutor(len(self.clients)) as pool:
            for client, future in [(client, pool.submit(ask, client)) for client in self.clients]:
                try:
                    replies.append(future.result())
                except SmidgenError as error:
                    errors.append(error)
                    LOG.warning("this round goes on without %s: %s", client.name, error)
        if not replies:
            raise errors[0]
        return replies


def _together(counters: Sequence[Counters]) -> Counters:
    """Samples, steps and joules add up; of the rest a mean over samples, but RAM and seconds: those of the largest."""
    n = [c["num-examples"] for c in counters]
    found = {name: float(np.average([c[name] for c in counters], weights=n)) for name in counters[0]}
    for name in found:
        if name in ("num-examples", "steps", "joules"):
            found[name] = sum(c[name] for c in counters)
        elif name in ("ram-bytes", "mapped-bytes", "seconds", "device-seconds"):
            found[name] = max(c[name] for c in counters)
    return found


def gateway(
    program: str | os.PathLike[str], data: str | os.PathLike[str], boards: Sequence[str] | str, *, by: str = "",
    part: int = 0, of: int = 1, name: str = "", held_out: float = 0.2,
) -> Client:  # fmt: skip
    """A client for boards at these addresses (or one text of them, with commas), which share the samples of a file as
    devices do. One board: it is the client. `part` and `of` count gateways."""
    listed = [text.strip() for text in boards.split(",")] if isinstance(boards, str) else list(boards)
    clients = []
    for i, address in enumerate(listed):
        number = part * len(listed) + i
        own = share(data, by, part=number if by else 0, of=of * len(listed) if by else 1, held_out=held_out)
        board = Board(address)
        clients.append(BoardClient(program, own.x, own.y, eval=own.eval, part=number, board=board))
    if len(clients) == 1:
        clients[0].name = name or clients[0].name
        return clients[0]
    return Gateway(clients, name=name)


def check_board_program(job: Job) -> None:
    if job.program.page_bytes or job.engine.replay is not None:
        what = "pages" if job.program.page_bytes else "replays"
        raise BadOption(f"a board of a gateway cannot run a program that {what}", help="compile without it")


def greeted(board: Board, job: Job) -> Facts:
    """Begins a session with a board that runs the job's program, which it is given if it has room for it."""
    facts = board.hello()
    bare = job.program.bare_bytes()
    if facts.program_crc == int.from_bytes(bare[CRC_AT : CRC_AT + 4], "little"):
        return facts
    if facts.recipe_bytes >= len(bare):
        return board.use_recipe(bare)
    room = f"it has room for another one of {facts.recipe_bytes:,} bytes, this one has {len(bare):,}"
    raise WrongVersion(
        f"the board runs another program, with checksum {facts.program_crc:08x}", at=board.address,
        why=room if facts.has_recipes else "it has no room for another one",
        help="give the gateway the program that the firmware was made of",
    )  # fmt: skip


__all__ = ["BoardClient", "Gateway", "check_board_program", "gateway", "greeted"]
