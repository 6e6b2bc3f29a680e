"""A program in memory: its machine, its state, the plan in use. Runs the entry points of a step; a Job checks what the
caller gives, and the modules of train, reports and boards work with this."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..errors import BadCheckpoint, BadData, BadOption, RunFailed, SmidgenError
from ..ir import Array
from ..program.arrays import rows
from ..program.buffer import Buffer
from ..program.loss import LossFacts
from ..program.program import Program
from ..program.rungs import Rung, entry_at
from ..runtime.library import Fault, release_freed
from ..runtime.machine import Machine
from .kernel_choice import allowed, limits_of, rungs
from .state import PAGE_HELP, State
from .validate import classes_of, described, meant, replay_of

if TYPE_CHECKING:
    from .history import Run
    from .paged_undo import Undo
    from .snapshots import Kept

T = TypeVar("T")


class Engine:
    """Whoever changes or reads the state in several steps holds `machine.lock` meanwhile."""

    def __init__(
        self, program: Program, path: Path | None, kernels: str | None, threads: int,
        page_to: str | os.PathLike[str] | None,
    ) -> None:  # fmt: skip
        self.program = program
        facts, self._loss_facts, self.optimizer = described(program)
        with meant(program):
            work = allowed(program, kernels, threads)
        self.machine = Machine(
            program.to_bytes() if path is None else path, kernels=work.kernels, threads=work.threads, page_to=page_to
        )
        self.work_bytes = self.machine.mapped_bytes - program.state_bytes - program.arena_bytes
        self.state = State(self.machine.state, facts, self.machine, program.const)
        self._files = page_to, path
        self._keeps_in_files = bool(program.page_bytes or limits_of(program.figures))
        self._undo: Undo | None = None
        if page_to is not None and program.page_bytes:
            from .paged_undo import Undo

            self._undo = Undo(page_to, program)
        self.classes = classes_of(program, self.state)
        self.replay = replay_of(program, self.machine, self.state)
        self.kernels = work.kernels
        self._rung = 0
        self._touched: int | None = None  # the rung whose arena is in memory
        if entry_at("train", 1) in program.entries:  # who begins on a lower rung does not hold the largest arena
            self.machine.trim(0)
        self.last_run: Run | None = None  # of `fit`, for checkpoints
        self.resumed: Run | None = None  # to be continued by the next `fit`

    @property
    def loss(self) -> LossFacts:
        """A label is valid if its class is in use."""
        return self._loss_facts if self.classes is None else replace(self._loss_facts, in_use=self.classes.count)

    # -- a step --------------------------------------------------------------------------------------------

    @functools.cached_property
    def sample_buffers(self) -> list[Buffer]:
        """What a step is given: the model's inputs, and the target."""
        if self.replay is not None:
            return self.replay.buffers
        return [b for b in self.program.entry_buffers("train") if b.direction == "input"]

    def train(self, inputs: Sequence[Array], n: int, *, keep: bool = True) -> float:
        """One step on n samples; with replay, on old ones beside them, and these are kept unless they were before."""
        with self.machine.lock:
            self.state.check_whole()
            return self._train(inputs, n) if self.replay is None else self.replay.train(self._train, inputs, n, keep)

    def _train(self, inputs: Sequence[Array], n: int) -> float:
        return self._changing(lambda: self._train_once(inputs, n))

    def run_step(self, entry: str, inputs: Sequence[Array], outputs: Sequence[Array], n: int) -> None:
        """An entry point that changes the state, and is whole in itself."""
        self._changing(lambda: self.machine.run(entry, inputs, outputs, n, n))

    def _changing(self, run: Callable[[], T]) -> T:
        with self.machine.lock:
            self.state.check_whole()
            return run() if self._undo is None else self._paged(self._undo, run)

    def _train_once(self, inputs: Sequence[Array], n: int) -> float:
        if n > self.program.batch:
            return self._train_in_micro_batches(inputs, n)
        loss = np.zeros((), np.float32)
        self._touched = self._rung
        self.machine.run(entry_at("train", self._rung), inputs, [loss], n, n)
        return float(loss)

    def _paged(self, undo: Undo, run: Callable[[], T]) -> T:
        """A disk can fail between two updates of one step: the state is whole again afterwards, or known not to be."""
        self.machine.stopped = None  # so that it is of this step
        try:
            undo.keep(self.machine.state)
        except OSError as error:
            why = error.strerror or str(error)
            raise RunFailed("the state before this step cannot be kept", why=why, help=PAGE_HELP) from error
        try:
            return run()
        except SmidgenError as error:
            self.state.is_partial = self._wrote_pages() or self.found_damage() or not self._brought_back(undo)
            if not isinstance(error, RunFailed) or error.help:
                raise
            back = "" if self.state.is_partial else "the job is in the state before this step; "
            raise RunFailed(error.what, at=error.at, why=error.why, help=back + PAGE_HELP) from error

    def _brought_back(self, undo: Undo) -> bool:
        try:
            undo.bring_back(self.machine.state)
        except OSError:
            return False
        return True

    def _wrote_pages(self) -> bool:
        """Had the step that stopped written, or begun to write, any state in PAGE?"""
        if self.state.pages is None or self.machine.stopped is None:
            return False
        from .paged_undo import writes_page_state

        entry, at, _ = self.machine.stopped
        before = [entry_at("grad", self._rung), entry] if entry == "apply" else [entry]  # a batch in micro-batches
        return any(
            i <= at or name != entry
            for name in before
            for i, step in enumerate(self.program.entry_code(name))
            if writes_page_state(self.program, step)
        )

    def found_damage(self) -> bool:
        """Did the last step stop because state in PAGE is not what was written there?"""
        stopped = self.machine.stopped
        if stopped is None or stopped.fault is not Fault.PAGE_DAMAGED:
            return False
        from .paged_undo import reads_page_state

        return reads_page_state(self.program, self.program.entry_code(stopped.entry)[stopped.at])

    def _train_in_micro_batches(self, inputs: Sequence[Array], n: int) -> float:
        if "grad" not in self.program.entries:
            raise BadData(
                f"{n} samples given, the program takes at most {self.program.batch} at a time",
                help=f"give up to {self.program.batch} samples, or compile with Memory(accumulate=True)",
            )
        inputs, n = self.without_ignored(inputs, n)
        if n <= self.program.batch:
            return self._train_once(inputs, n)
        self._touched = self._rung
        entry = entry_at("grad", self._rung)
        buffers = [b for b in self.program.entry_buffers(entry) if b.direction == "input"]
        if buffers[-1].per_sample != 1:
            from .sample_rows import check_rows

            check_rows(self.program, self.machine.run, inputs, buffers, n)
        self.machine.run("zero", [], [], 1, 1)
        loss = np.zeros((), np.float32)  # of all parts so far
        for first in range(0, n, self.program.batch):
            count = min(self.program.batch, n - first)
            part = [rows(a, b, first, count) for a, b in zip(inputs, buffers, strict=True)]
            self.machine.run(entry, part, [loss], count, n, first)
        self.machine.run("apply", [], [], 1, 1)
        return float(loss)

    def without_ignored(self, inputs: Sequence[Array], n: int) -> tuple[Sequence[Array], int]:
        """Samples whose label is ignored count for nothing, but a part of a batch cannot know how many there are."""
        facts, labels = self.loss, inputs[-1]
        if not facts.mean or not facts.alone:
            return inputs, n
        counts = labels != facts.ignore
        if not counts.any():  # a gradient of zero, as any part of them has
            buffers = [b for b in self.program.entry_buffers("train") if b.direction == "input"]
            most = self.program.batch
            return [rows(a, b, 0, most) for a, b in zip(inputs, buffers, strict=True)], most
        if counts.all() or labels.shape != (n,):
            return inputs, n
        return [a[counts] for a in inputs], int(counts.sum())

    def run_whole(self, *call: Any) -> None:
        """A run that only reads the state."""
        with self.machine.lock:
            self.state.check_whole()
            self.machine.run(*call)

    # -- rungs ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """The plans of the program, the largest first."""
        with meant(self.program):
            found = rungs(self.program, self.work_bytes)
        release_freed()  # as after `load`
        return found

    @property
    def rung(self) -> int:
        """The plan that the next step follows. Going down gives memory back to the system at once."""
        return self._rung

    @rung.setter
    def rung(self, number: int) -> None:
        if type(number) is not int or not 0 <= number < len(self.rungs):
            most = len(self.rungs) - 1
            why = f"it has rungs 0 to {most}" if most > 0 else "it has one plan"
            raise BadOption(f"the program has no rung {number!r}", why=why, help="compile with Memory(ladder=['64MB'])")
        with self.machine.lock:
            self._rung = number
            self._touched = None if self._touched is None else max(self._touched, number)
            self.machine.trim(self.rungs[number].arena_bytes)

    @property
    def held_bytes(self) -> int:
        """RAM of this job that is in memory: of the arena only what has been touched since it was given back."""
        touched = 0 if self._touched is None else self.rungs[self._touched].arena_bytes
        return self.rungs[0].ram_bytes - self.rungs[0].arena_bytes + touched

    # -- copies of the state -------------------------------------------------------------------------------

    def whole(self) -> memoryview:
        return self.kept().data()

    def kept(self, beside: Path | None = None, given: bytes | memoryview | None = None) -> Kept:
        """A copy of the state as it is, or as given; in a file, if RAM is limited, beside this one or another that is
        known."""
        from .snapshots import InFile, InRam, folders

        count = self.program.saved_bytes
        kept = InFile(folders(beside, *self._files), count) if self._keeps_in_files else InRam(count)
        if given is None:
            with self.machine.lock:
                kept.keep(self.state)
        else:
            kept.take(given)
        return kept

    def set_all(self, state: bytes | memoryview) -> None:
        """Where a run stood is forgotten, also if a disk fails in between."""
        self.check_replay(state)
        with self.machine.lock:
            self.resumed = self.last_run = None
            self.state.set_all(state)

    def check_replay(self, state: bytes | memoryview) -> None:
        """Of a copy of all state: a good checksum does not say that its samples make sense."""
        if self.replay is not None and (wrong := self.replay.wrong(state)):
            raise BadCheckpoint("the saved replay buffer is damaged", why=wrong, help="an older one may still be good")

    @functools.cached_property
    def fingerprint(self) -> str:
        from . import checkpoint

        return checkpoint.fingerprint(self.program)


__all__ = ["Engine"]
