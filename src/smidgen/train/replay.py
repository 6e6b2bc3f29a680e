"""Replay in a job: each step learns from new samples and from some that were learned before. The buffer is part of
STATE, so it survives whatever STATE survives: `save`, checkpoints, slots on a device; runtime/replay.c works on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadData, BadOption, RunFailed, SmidgenError
from ..ir import REPLAY, REPLAY_ROWS, Array
from ..program.arguments import is_integer
from ..program.arrays import as_buffer, check_number_of_arrays, check_numbers, listed, number_of_samples, rows
from ..program.buffer import Buffer
from ..program.loss import check_labels
from ..program.program import Program
from ..runtime import replay as native
from ..runtime.machine import Machine
from ..runtime.replay import Added, Shape
from .sample_rows import check_rows
from .state import PAGE_HELP

if TYPE_CHECKING:
    from .engine import Engine
    from .state import State

Facts = Mapping[str, Mapping[str, Any]]


def shape_of(program: Program, facts: Facts) -> Shape | None:
    """None for a program without a buffer. ValueError and the like if what it says makes no sense."""
    said = program.meta.get("replay")
    if said is None:
        return None
    shape = Shape.from_json(said)
    places = [(facts[REPLAY], shape.at, shape.bytes, "state")]
    if shape.is_outside:
        places.append((facts[REPLAY_ROWS], shape.page, shape.page_bytes, "page"))
    for place, at, count, region in places:
        found = place["offset"], list(place["stored"]), place.get("region", "state")
        if found != (at, [count], region) or at % 4:
            raise ValueError("its replay buffer is not that of its state")
    inputs = [b for b in program.entry_buffers("train") if b.direction == "input"]
    if [(b.shape(1), b.dtype) for b in inputs] != [(part.shape, part.dtype) for part in shape.parts]:
        raise ValueError("its replay buffer does not hold what it trains on")
    if said["of"] not in ("features", "inputs") or (said["of"] == "features") != ("features" in program.entries):
        raise ValueError("its replay buffer holds what it cannot compute")
    return shape


def sample_buffers(program: Program) -> list[Buffer]:
    """What a step is given: the model's inputs and the target."""
    inputs = [b for b in program.entry_buffers("train") if b.direction == "input"]
    if "features" not in program.entries:
        return inputs
    return [*(b for b in program.entry_buffers("features") if b.direction == "input"), inputs[-1]]


def c_initializer(shape: Shape) -> str:
    """What `SmgReplay` of runtime/replay.h is initialised with."""
    parts = ", ".join(f"{{{part.elements}, {int(part.kind)}}}" for part in shape.parts)
    numbers = ("INT32_MIN" if number == native.NO_LABEL else str(number) for number in shape.numbers)
    return f"{{{', '.join(numbers)}, {{{parts}}}}}"


def calls_of(program: Program, shape: Shape, steps: Sequence[int], new: int) -> list[int]:
    """How many entry points each of these steps runs on a board, the first `new` of them with new samples."""
    found, held, most = [], 0, program.batch
    for i, n in enumerate(steps):
        k = n * (shape.step - shape.fresh) // shape.fresh
        k = min(k if "grad" in program.entries else min(k, max(shape.step - n, 0)), held)
        found.append((-(-n // most) if "features" in program.entries else 0)
                     + (1 if n + k <= most else -(-(n + k) // most) + 2))  # fmt: skip
        held = min(shape.samples, held + n) if i < new else held
    return found


class Replaying:
    """The buffer of an open program, and steps with it. Whoever calls holds the machine's lock."""

    def __init__(self, program: Program, machine: Machine, state: State, shape: Shape) -> None:
        self.program, self.machine, self.shape, self._state = program, machine, shape, state
        pager = machine.pager if shape.is_outside else None
        self.buffer = native.Buffer(shape, state.memory[shape.at : shape.at + shape.bytes], pager)
        self.of = "features" if "features" in program.entries else "inputs"
        self._checked_rows = False

    def wrong(self, state: bytes | memoryview | None = None) -> str:
        """Why the buffer, or that in a copy of all state, makes no sense; empty if it does."""
        if state is None:
            return self.buffer.wrong()
        kept = np.frombuffer(state, np.uint8, self.shape.bytes, self.shape.at).copy()
        pages = np.frombuffer(state, np.uint8)[self.program.state_bytes :]
        return native.Buffer(self.shape, kept, native.ArrayPager(pages) if self.shape.is_outside else None).wrong()

    @property
    def buffers(self) -> list[Buffer]:
        return sample_buffers(self.program)

    def kept_form(self, inputs: Sequence[Array], n: int) -> list[Array]:
        """Samples as the buffer takes them, and `train` does: features in place of inputs."""
        self._check_rows(inputs, n)
        if self.of == "inputs":
            return list(inputs)
        buffers = self.buffers[:-1]
        outs = [part.rows(n) for part in self.shape.parts[:-1]]
        for first in range(0, n, self.program.batch):
            count = min(self.program.batch, n - first)
            given = [rows(a, b, first, count) for a, b in zip(inputs[:-1], buffers, strict=True)]
            made = [
                out[first * p.shape[0] : (first + count) * p.shape[0]]
                for out, p in zip(outs, self.shape.parts, strict=False)
            ]
            self.machine.run("features", given, made, count, count)
        return [*outs, inputs[-1]]

    def _check_rows(self, inputs: Sequence[Array], n: int) -> None:
        """A sample is kept alone: its rows must stand together."""
        if self._checked_rows or n == 1 or self.shape.parts[-1].shape[0] == 1:
            return
        check_rows(self.program, self.machine.run, inputs, self.buffers, n, 0)
        self._checked_rows = True

    def train(
        self, step: Callable[[Sequence[Array], int], float], inputs: Sequence[Array], n: int, keep: bool
    ) -> float:  # fmt: skip
        """One step on n new samples and their share of old ones; then the new ones are offered to the buffer."""
        new = self.kept_form(inputs, n)
        before = self.buffer.counters.copy()
        k = self.buffer.share(n, "grad" in self.program.entries)
        both = new
        if k:
            both = [np.concatenate([a, b]) for a, b in zip(new, self.draw(k), strict=True)]
        try:
            loss = step(both, n + k)
        except SmidgenError:
            self.buffer.counters[:] = before  # the step is not counted
            raise
        if keep:
            self.offer(new, n)
        return loss

    def draw(self, k: int) -> list[Array]:
        try:
            return self.buffer.draw(k)
        except OSError as error:
            help = 'job.resume("run.ckpt"), or job.replay.clear() to begin with an empty buffer'
            raise RunFailed("samples to replay cannot be read from their pages", why=str(error), help=help) from error

    def offer(self, new: Sequence[Array], n: int) -> int:
        """How many were kept."""
        found = self.buffer.add(new, n)
        if Added.NOT_WRITTEN in found:
            self._state.is_partial = True  # what was at its place may be damaged
            raise RunFailed("a sample to replay cannot be written to its page", help=PAGE_HELP)
        if Added.DAMAGED in found:
            raise RunFailed("the replay buffer is damaged", why=self.wrong(), help="job.replay.clear(), or job.resume")
        return found.count(Added.KEPT)


class ReplayBuffer:
    """`job.replay`: samples that the job has learned from, and learns again beside new ones."""

    def __init__(self, engine: Engine) -> None:
        assert engine.replay is not None
        self._engine, self._replay = engine, engine.replay

    def __len__(self) -> int:
        """Samples that it holds."""
        return self._replay.buffer.held

    def __repr__(self) -> str:
        held = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        paged = f" and {self.page_bytes:,} in pages" if self.page_bytes else ""
        parts = f"{len(self)} of {self.samples} samples, {self.of}, {self.bytes:,} bytes{paged}"
        return f"<replay: {parts}{f'; {held}' if held else ''}>"

    @property
    def samples(self) -> int:
        """Samples that it has room for."""
        return self._replay.shape.samples

    @property
    def bytes(self) -> int:
        """Of RAM; they are part of plan.state_bytes."""
        return self._replay.shape.bytes

    @property
    def page_bytes(self) -> int:
        """Outside RAM, where Replay(where="page") keeps the samples; they are part of plan.page_bytes."""
        return self._replay.shape.page_bytes

    @property
    def of(self) -> str:
        """What it holds of a sample: "features" or "inputs"."""
        return self._replay.of

    @property
    def fresh(self) -> int:
        """New samples of a step as planned; the others are old ones."""
        return self._replay.shape.fresh

    @property
    def counts(self) -> dict[str, int]:
        """Class in use → samples of it in the buffer; empty if targets are no classes."""
        names = self._names()
        return {name: self._replay.buffer.held_of(i) for i, name in enumerate(names)}

    @property
    def seen(self) -> dict[str, int]:
        """Class in use → samples of it that were offered; empty if targets are no classes."""
        names = self._names()
        return {name: self._replay.buffer.seen_of(i) for i, name in enumerate(names)}

    def _names(self) -> list[str]:
        classes = self._engine.classes
        return [str(i) for i in range(self._replay.shape.classes)] if classes is None else classes.names()

    def add(self, x: Any, y: Any) -> int:
        """Offer samples without learning from them, one after the other; how many were kept. Samples whose label is
        ignored are left out."""
        buffers, engine = self._replay.buffers, self._engine
        given = [*listed(x), y]
        check_number_of_arrays(given, buffers)
        arrays = [as_buffer(value, buffer) for value, buffer in zip(given, buffers, strict=True)]
        n = number_of_samples(arrays, buffers)
        for array, buffer in zip(arrays, buffers, strict=True):
            check_numbers(array, buffer)
        check_labels(arrays[-1], buffers[-1], engine.loss)
        with engine.machine.lock:
            engine.state.check_whole()
            return self._replay.offer(self._replay.kept_form(arrays, n), n)

    def draw(self, k: int) -> tuple[Any, Array]:
        """`k` samples at random, none twice unless there are fewer: what is kept of them, an array or a tuple of
        several, and their targets. Each draw is another one; the next step's, too."""
        if not is_integer(k) or k < 1:
            raise BadOption(f"{k!r:.60} is not a number of samples", help="job.replay.draw(8)")
        with self._engine.machine.lock:
            self._engine.state.check_whole()
            if not len(self):
                raise BadData("the replay buffer is empty", help="job.replay.add(x, y), or job.train_step(x, y)")
            *parts, target = self._replay.draw(int(k))
        return (parts[0] if len(parts) == 1 else tuple(parts)), target

    def clear(self) -> None:
        """Forget all samples, and start counting anew."""
        with self._engine.machine.lock:
            self._replay.buffer.clear()


__all__ = ["ReplayBuffer", "Replaying", "c_initializer", "calls_of", "sample_buffers", "shape_of"]
