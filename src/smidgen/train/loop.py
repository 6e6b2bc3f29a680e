"""`job.fit`: epochs over data. Same program, data, arguments and seed give the same bits, also over checkpoint and
resume in the middle of an epoch: what a step does depends on STATE and on the Position of the run, nothing else.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import files
from ..errors import BadCheckpoint, BadOption, BadProgram, NotFinite
from ..ir import LR, Array
from ..program.arguments import checked_seed
from ..runtime.library import KernelFlag, kernel_flags
from . import divergence
from .batches import Arrays, Data, Stream, located, order
from .evaluate import NO_ENTRY, evaluate
from .history import Best, Epoch, History, Position, Run, Switch
from .interrupt import Interruption
from .progress import Show
from .sample_rows import check_rows
from .settings import Schedule, Settings, checked_batch, checked_schedule, checked_watch, flag, positive

if TYPE_CHECKING:
    from .job import Job
    from .memory_watch import Watch


def fit(
    job: Job,
    x: Any,
    y: Any,
    *,
    epochs: Any,
    eval: Any,
    patience: Any,
    schedule: Any,
    warmup: Any,
    shuffle: Any,
    seed: Any,
    batch: Any,
    checkpoint: Any,
    checkpoint_every: Any,
    progress: Any,
    on_epoch: Any,
    follow_memory: Any = False,
) -> History:
    """Documented at `Job.fit`."""
    if "train" not in job.program.entries:
        raise BadProgram("the program has no entry point 'train'", help="compile the model again")
    job.engine.state.check_whole()
    epochs = positive("epochs", epochs, "epochs=3")
    patience = None if patience is None else positive("patience", patience, "patience=2, or None")
    every = None if checkpoint_every is None else positive("checkpoint_every", checkpoint_every, "checkpoint_every=100")
    path = None if checkpoint is None else files.checked_path(checkpoint, 'checkpoint="run.ckpt"')
    if every and path is None:
        raise BadOption("checkpoint_every without a path", help='checkpoint="run.ckpt"')
    if on_epoch is not None and not callable(on_epoch):
        raise BadOption(f"on_epoch={on_epoch!r} is not a function", help="on_epoch=print")
    batch, schedule = new_samples(job, batch), checked_schedule(schedule, warmup)
    shuffle, progress = flag("shuffle", shuffle), None if progress is None else flag("progress", progress)
    watch = checked_watch(follow_memory, job.rungs) if follow_memory is not False else None
    data = training_data(job, x, y, epochs, batch)
    if isinstance(data, Arrays):
        for most in (batch, *([0] if shuffle else [])):
            check_rows(job.program, job.engine.machine.run, data.taken(slice(0, 2)), data.buffers, data.samples, most)
    held_out = None if eval is None else located(lambda: eval_data(job, *_pair(eval), epochs), "eval")
    if not schedule.is_constant and data.steps is None:
        raise BadOption("a schedule needs to know how many batches there are", help="give a list, or arrays x and y")
    settings = Settings(
        epochs, batch, job.engine.state.seed if seed is None else checked_seed(seed), shuffle, schedule.name,
        schedule.warmup, patience, data.samples, data.checksum, None if held_out is None else held_out.samples,
        0 if held_out is None else held_out.checksum, job.engine.kernels,
    )  # fmt: skip
    position = _resumed(job, settings)
    if position.stopped:
        return position.history(position.stopped)
    if path is not None:
        files.check(path)
    show = Show(progress, epochs, data.steps)
    return _Fit(job, settings, data, held_out, schedule, position, path, every, show, on_epoch, watch).run()


def new_samples(job: Job, batch: Any = None) -> int:
    """Of a step: with replay, those beside the old ones."""
    if batch is None and job.engine.replay is not None:
        return job.engine.replay.shape.fresh
    return checked_batch(batch, job.program)


def training_data(job: Job, x: Any, y: Any, epochs: int, batch: int) -> Data:
    buffers = job.engine.sample_buffers
    if y is not None:
        return Arrays(x, y, buffers, job.engine.loss, batch)
    most = None if "grad" in job.program.entries else job.program.batch
    return Stream(x, buffers, job.engine.loss, epochs, most)


def eval_data(job: Job, x: Any, y: Any, epochs: int = 1) -> Data:
    entry = "train" if "train" in job.program.entries else "evaluate"
    if entry not in job.program.entries:
        raise BadProgram("the program has no entry point 'evaluate'", why=NO_ENTRY)
    buffers = [b for b in job.program.entry_buffers(entry) if b.direction == "input"]
    if entry == "train":
        buffers = job.engine.sample_buffers
    if y is not None:
        return Arrays(x, y, buffers, job.engine.loss, checked_batch(None, job.program))
    return Stream(x, buffers, job.engine.loss, epochs, None)


def _resumed(job: Job, settings: Settings) -> Position:
    """Where the checkpoint stands that the job was resumed from; the start if there is none."""
    if job.engine.resumed is None or job.engine.resumed.step != job.step:  # steps of the caller's own came in between
        job.engine.resumed = None
        return Position()
    differences = settings.differences(job.engine.resumed.settings)
    position = job.engine.resumed.position
    if differences and not position.stopped:
        raise BadCheckpoint(
            "the checkpoint was written by another run of fit", why="; ".join(differences),
            help="call fit as then; or job.resume(path, position=False), to begin a new run from that state",
        )  # fmt: skip
    job.engine.resumed = None
    return Position() if differences else position


def _pair(eval: Any) -> tuple[Any, Any]:
    """`eval` is a pair of arrays, or an iterable of batches."""
    return (eval[0], eval[1]) if isinstance(eval, tuple) and len(eval) == 2 else (eval, None)


class _Fit:
    """One call of `fit`."""

    def __init__(
        self, job: Job, settings: Settings, data: Data, held_out: Data | None, schedule: Schedule, position: Position,
        path: Path | None, every: int | None, show: Show, on_epoch: Callable[[Epoch], object] | None,
        watch: Watch | None,
    ) -> None:  # fmt: skip
        self.job, self.engine, self.state = job, job.engine, job.engine.state
        self.settings, self.data, self.held_out = settings, data, held_out
        self.schedule, self.position, self.path, self.every = schedule, position, path, every
        self.show, self.on_epoch, self.watch, self.said_missing = show, on_epoch, watch, False
        # STATE before the step at hand and before the last one, whose loss was finite; swapped after each step.
        self.before, self.good = job.engine.kept(path), job.engine.kept(path)
        self.last: tuple[Position, Sequence[Array], int] | None = None  # where `good` stands, and what came next
        self.not_finite_at_start = set(divergence.not_finite(self.state))
        self.start = self.state.step - position.steps  # of the job, when the run began

    def run(self) -> History:
        self._try_small_batches()
        with Interruption() as interruption, self.show:
            self.interruption = interruption
            try:
                stopped = self._epochs()
                if stopped != "interrupted":
                    self._finish(stopped)
                self._save()
            finally:
                self._publish()
                if not self.position.stopped and self.state.step != self.start + self.position.steps:
                    self.engine.last_run = None  # a second Ctrl-C came between a step and its position
        return self.position.history(stopped)

    def _epochs(self) -> str:
        while len(self.position.epochs) < self.settings.epochs:
            if self._out_of_patience():
                return "patience"
            if not self._epoch():
                return "interrupted"
        return "patience" if self._out_of_patience() else "done"

    def _out_of_patience(self) -> bool:
        best, patience = self.position.best, self.settings.patience
        return best is not None and patience is not None and len(self.position.epochs) - best.epoch >= patience

    def _epoch(self) -> bool:
        """The rest of the epoch; False if it was interrupted."""
        number = len(self.position.epochs)
        which = None
        if self.settings.shuffle and isinstance(self.data, Arrays):
            which = order(self.settings.seed, number, self.data.samples)
        self.show.epoch(number + 1, self.position.step)
        self.tick = time.monotonic()
        for inputs, n in self.data.epoch(which, self.position.step):
            self._follow_memory()
            with self.engine.machine.lock:
                self._step(inputs, n)
            if self.every and self.position.steps % self.every == 0:
                self._save()
            if self.interruption.asked:
                return False
        measured, held_out, run = None, self.held_out, self.engine.machine.run
        if held_out is not None:
            measured = located(lambda: evaluate(self.job.program, run, held_out, self.engine.loss, self._go_on), "eval")
        if self.interruption.asked:
            return False
        self._close_epoch(measured)
        return True

    def _go_on(self) -> bool:
        self.show.measuring()
        return not self.interruption.asked

    # -- one step ----------------------------------------------------------------------------------------------

    def _step(self, inputs: Sequence[Array], n: int) -> None:
        self.before.keep(self.state)
        lr = self._lr()
        try:
            loss = self._train(inputs, n, lr)
        except BaseException:
            self._undo()
            raise
        if not math.isfinite(loss):
            raise self._loss_not_finite(loss, inputs, n)
        self.before, self.good = self.good, self.before
        at = self.position
        self.last = at, inputs, n
        now = time.monotonic()
        self.position = replace(
            at, step=at.step + 1, steps=at.steps + 1, samples=at.samples + n, epoch_samples=at.epoch_samples + n,
            loss_sum=at.loss_sum + loss * n, seconds=at.seconds + now - self.tick, lr=lr,
        )  # fmt: skip
        self.tick = now
        self._check_weights()
        self.show.step(self.position)

    def _undo(self) -> None:
        self.before.bring_back(self.state)
        self.state.is_partial = self.engine.found_damage()  # the copy has it, too

    def _train(self, inputs: Sequence[Array], n: int, lr: float) -> float:
        """A step with this learning rate. Between steps, job.lr is what the schedule starts from."""
        if self.schedule.is_constant:
            return self._learn(inputs, n)
        view = self.state.view(LR)
        start = view.copy()
        view[...] = lr
        try:
            return self._learn(inputs, n)
        finally:
            view[...] = start

    def _learn(self, inputs: Sequence[Array], n: int) -> float:
        """With replay, samples of the first epoch are new."""
        if self.engine.replay is None or not self.position.epochs:
            return self.engine.train(inputs, n)
        return self.engine.train(inputs, n, keep=False)

    def _follow_memory(self) -> None:
        """To the rung that memory allows now; without a reading the job stays where it is."""
        if self.watch is None:
            return
        rung, why = self.watch.next_rung(self.job.rung, self.engine.held_bytes)
        if self.watch.missing and not self.said_missing:
            self.said_missing = True
            self.show.note(f"memory is not followed: {self.watch.missing}")
        if rung != self.job.rung:
            self.job.rung = rung
            switch = Switch(self.position.steps, rung, self.job.rungs[rung].ram_bytes, why)
            self.position = replace(self.position, switches=(*self.position.switches, switch))

    def _lr(self) -> float:
        if self.schedule.is_constant:
            return self.state.lr
        assert self.data.steps is not None
        total = max(1, self.settings.epochs * self.data.steps)  # what an iterable says of its length may be wrong
        share: float = self.schedule.share(min(self.position.steps, total - 1), total)
        return self.state.lr * share

    def _try_small_batches(self) -> None:
        """Batch statistics refuse a single value per channel: said now, not at the end of the first epoch."""
        takes = any(kernel_flags(kernel) & KernelFlag.STATISTICS for kernel in self.job.program.kernels)
        if not isinstance(self.data, Arrays) or not takes:
            return
        most = self.job.program.batch
        for size in sorted(self.data.sizes()):
            if size % most == 1 or most == 1:
                self._follow_memory()
                with self.engine.machine.lock:
                    self.before.keep(self.state)
                    try:
                        self.engine.train(self.data.taken(slice(0, size)), size)
                    finally:
                        self._undo()

    # -- the end of an epoch, and of the run ---------------------------------------------------------------------

    def _close_epoch(self, measured: Mapping[str, float] | None) -> None:
        at = self.position
        number = len(at.epochs) + 1
        record = Epoch(number, at.loss_sum / at.epoch_samples, measured, at.lr, at.seconds, at.epoch_samples)
        watched = record.loss
        if measured is not None:  # a program without the entry `evaluate` knows the accuracy only
            watched = measured["loss"] if "loss" in measured else 1 - measured["accuracy"]
        watched = watched if math.isfinite(watched) else math.inf
        best = at.best
        if best is None or watched < best.loss:
            kept = None if self.settings.patience is None else self.engine.kept(self.path).data()
            best = Best(number, watched, kept)
        self.position = replace(
            at, step=0, epoch_samples=0, loss_sum=0.0, seconds=0.0, epochs=(*at.epochs, record), best=best
        )
        if not self.every:
            self._save()
        self.show.closed(record)
        if self.on_epoch is not None:
            self._publish()
            self.on_epoch(record)

    def _finish(self, stopped: str) -> None:
        """With patience, the job ends in its best state."""
        best, restored = self.position.best, False
        if best is not None and best.state is not None:
            restored = best.epoch != len(self.position.epochs)
            if restored:
                with self.engine.machine.lock:
                    self.state.set_all(best.state)
            best = replace(best, state=None)
        self.position = replace(self.position, best=best, stopped=stopped, restored=restored)

    def _publish(self) -> None:
        """So that job.checkpoint knows where the run stands."""
        self.engine.last_run = Run(asdict(self.settings), self.position, self.state.step)

    def _save(self) -> None:
        if self.path is not None:
            self._publish()
            self.job.checkpoint(self.path)

    # -- numbers that are none -----------------------------------------------------------------------------------

    def _check_weights(self) -> None:
        """A row of a table may be broken long before the loss meets it again: so that what is kept is good."""
        if divergence.all_finite(self.state):
            return
        new = [name for name in divergence.not_finite(self.state) if name not in self.not_finite_at_start]
        if new and self.last is not None:
            at, inputs, n = self.last
            what = f"step {self._place(at)} made '{new[0]}' NaN or infinite"
            raise self._back(what, "the gradients of that step", inputs, n)

    def _loss_not_finite(self, loss: float, inputs: Sequence[Array], n: int) -> NotFinite:
        what = f"the loss is {'NaN' if math.isnan(loss) else 'infinite'} in step {self._place(self.position)}"
        if divergence.nothing_counts(inputs[-1], self.engine.loss):
            self.before.bring_back(self.state)
            why = "all labels of this batch are ignored, and a mean over none of them is not a number"
            return NotFinite(what, why=why, help="leave out samples without a label, or use larger batches")
        if self.last is not None:
            return self._back(what, "the gradients of the step before", *self.last[1:])
        self.before.bring_back(self.state)
        if self.not_finite_at_start:
            why = f"'{min(self.not_finite_at_start)}' holds NaN or infinity, and did so before"
            return NotFinite(what, why=why, help="load finite weights: job.load_state_dict, job.import_weights")
        self.last = self.position, inputs, n
        self.good.keep(self.state)
        return self._back(what, "its gradients", inputs, n)

    def _back(self, what: str, whose: str, inputs: Sequence[Array], n: int) -> NotFinite:
        """To the state from which the last finite loss was computed."""
        assert self.last is not None
        self.position = self.last[0]
        self.good.bring_back(self.state)
        lr = self.state.lr
        found = divergence.gradients(
            self.state, self.good.data(), lambda: self.engine.train(inputs, n), self.engine.optimizer
        )
        return NotFinite(
            what, why=f"{whose} are as large as {divergence.largest_text(found)}",
            help=f"the job is back before step {self._place(self.position)}; go on with job.lr = {lr / 10:.3g}, "
            "or compile with clip_norm=1.0",
        )  # fmt: skip

    def _place(self, position: Position) -> str:
        return f"{position.steps + 1} (epoch {len(position.epochs) + 1})"


__all__ = ["Run", "eval_data", "fit"]
