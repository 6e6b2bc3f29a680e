"""A Job: a program with its memory, ready to train and to predict. Needs numpy and the C runtime only.

What a first step does not need is imported where it is used: a device may start a process for every step.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadCheckpoint, BadData, BadOption, BadProgram, RunFailed, SmidgenError
from ..files import checked_path, opened
from ..ir import Array
from ..program.arrays import (
    as_dtype,
    check_layout,
    check_mapping,
    check_number_of_arrays,
    listed,
    number_of_samples,
    rows,
    to_numpy,
)
from ..program.loss import LossFacts, check_labels
from ..program.program import Buffer, Program
from ..program.rungs import Rung, entry_at
from ..runtime.library import Fault, release_freed
from ..runtime.machine import Machine, Paged
from .kernel_choice import allowed, limits_of, rungs
from .state import State
from .validate import classes_of, described, meant, run_of

if TYPE_CHECKING:
    from ..program.plan import Plan
    from .history import Epoch, History
    from .loop import Run
    from .paged_undo import Undo
    from .snapshots import Kept


PAGE_HELP = 'page_to="page.bin" on a disk that works'


@dataclass(slots=True)
class _Call:
    """Inputs of an entry point; shapes and dtypes that were found to fit last time, with the number of samples."""

    buffers: list[Buffer]
    known: tuple[list[Any], int] = ([], 0)


class Job:
    """Made by `smidgen.compile` or `smidgen.load`. State (weights, optimizer, step) lives in the runtime's memory."""

    def __init__(
        self,
        program: Program,
        path: Path | None = None,
        *,
        kernels: str | None = None,
        threads: int = 1,
        page_to: str | os.PathLike[str] | None = None,
    ) -> None:
        """`path` is the file that `program` was read from, if there is one: its constants are then used in place.
        `page_to` is the file for a program that pages."""
        self.program = program
        facts, self._loss_facts, self._optimizer = described(program)
        with meant(program):
            work = allowed(program, kernels, threads)
        self._machine = Machine(
            program.to_bytes() if path is None else path, kernels=work.kernels, threads=work.threads, page_to=page_to
        )
        self._work_bytes = self._machine.mapped_bytes - program.state_bytes - program.arena_bytes
        self._state = State(self._machine.state, facts, self._machine)
        self._files = page_to, path
        self._keeps_in_files = bool(program.page_bytes or limits_of(program.figures))
        self._undo: Undo | None = None
        if page_to is not None and program.page_bytes:
            from .paged_undo import Undo

            self._undo = Undo(page_to, program)
        self._classes = classes_of(program, self._state)
        self._kernels = work.kernels
        self._rung = 0
        self._touched: int | None = None  # the rung whose arena is in memory
        if entry_at("train", 1) in program.entries:  # who begins on a lower rung does not hold the largest arena
            self._machine.trim(0)
        self._calls: dict[str, _Call] = {}
        self._last_run: Run | None = None  # of `fit`, for checkpoints
        self._resumed: Run | None = None  # to be continued by the next `fit`
        self._counted: dict[int, tuple[int, int]] = {}  # id of a batch counter → what load_into wrote, at which step

    @functools.cached_property
    def plan(self) -> Plan:
        """What the program costs and why."""
        from ..program.plan import Plan

        with meant(self.program):
            return replace(Plan.from_json(self.program.meta["plan"]), work_bytes=self._work_bytes)

    # -- running -------------------------------------------------------------------------------------------

    def train_step(self, x: Any, y: Any) -> float:
        """Learn from one batch; returns its loss before the update. More samples than the plan's batch are
        taken in parts if the program was compiled with accumulate=True. As in PyTorch, a mean over labels that are all
        ignored is NaN, and the step is done with a gradient of zero; `fit` stops there instead (NotFinite).

        A step that an error stops (a label that is no class, for instance) updates no parameter and no optimizer state,
        and is not counted; but with bn="batch", running statistics of layers before the error may have moved already.
        Of a program that pages, the state before each step is kept, and is back after any error (a disk that fails).
        Only if some of the state itself is in pages, and the step had begun to write it, that cannot be: the job then
        refuses everything that needs a state until it is given a whole one, by `resume` or `restore`.
        """
        inputs, n = self._inputs("train", [*listed(x), y])
        if self._classes is not None:  # the kernel refuses what is no class, but knows spare ones
            target = [b for b in self.program.entry_buffers("train") if b.direction == "input"][-1]
            check_labels(inputs[-1], target, self._loss)
        return self._train(inputs, n)

    def _train(self, inputs: Sequence[Array], n: int) -> float:
        with self._machine.alone:
            self._state.check_whole()
            if self._undo is not None:
                return self._train_paged(self._undo, inputs, n)
            return self._train_once(inputs, n)

    def _train_once(self, inputs: Sequence[Array], n: int) -> float:
        if n > self.program.batch:
            return self._train_in_parts(inputs, n)
        loss = np.zeros((), np.float32)
        self._touched = self._rung
        self._machine.run(entry_at("train", self._rung), inputs, [loss], n, n)
        return float(loss)

    def _train_paged(self, undo: Undo, inputs: Sequence[Array], n: int) -> float:
        """A disk can fail between two updates of one step: the state is whole again afterwards, or known not to be."""
        self._machine.stopped = None  # so that it is of this step
        try:
            undo.keep(self._machine.state)
        except OSError as error:
            why = error.strerror or str(error)
            raise RunFailed("the state before this step cannot be kept", why=why, help=PAGE_HELP) from error
        try:
            return self._train_once(inputs, n)
        except SmidgenError as error:
            self._state.is_partial = self._wrote_pages() or self._found_damage() or not self._brought_back(undo)
            if not isinstance(error, RunFailed) or error.help:
                raise
            back = "" if self._state.is_partial else "the job is in the state before this step; "
            raise RunFailed(error.what, at=error.at, why=error.why, help=back + PAGE_HELP) from error

    def _brought_back(self, undo: Undo) -> bool:
        try:
            undo.bring_back(self._machine.state)
        except OSError:
            return False
        return True

    def _wrote_pages(self) -> bool:
        """Had the step that stopped written, or begun to write, any state in PAGE?"""
        if self._state.pages is None or self._machine.stopped is None:
            return False
        from .paged_undo import writes_page_state

        entry, at, _ = self._machine.stopped
        before = [entry_at("grad", self._rung), entry] if entry == "apply" else [entry]  # a batch in parts
        return any(
            i <= at or name != entry
            for name in before
            for i, step in enumerate(self.program.entry_code(name))
            if writes_page_state(self.program, step)
        )

    def _found_damage(self) -> bool:
        """Did the last step stop because state in PAGE is not what was written there?"""
        stopped = self._machine.stopped
        if stopped is None or stopped.fault is not Fault.PAGE_DAMAGED:
            return False
        from .paged_undo import reads_page_state

        return reads_page_state(self.program, self.program.entry_code(stopped.entry)[stopped.at])

    def _train_in_parts(self, inputs: Sequence[Array], n: int) -> float:
        if "grad" not in self.program.entries:
            raise BadData(
                f"{n} samples given, the program takes at most {self.program.batch} at a time",
                help=f"give up to {self.program.batch} samples, or compile with accumulate=True",
            )
        inputs, n = self._without_ignored(inputs, n)
        if n <= self.program.batch:
            return self._train_once(inputs, n)
        self._touched = self._rung
        entry = entry_at("grad", self._rung)
        buffers = [b for b in self.program.entry_buffers(entry) if b.direction == "input"]
        if buffers[-1].per_sample != 1:
            from .sample_rows import check_rows

            check_rows(self.program, self._machine.run, inputs, buffers, n)
        self._machine.run("zero", [], [], 1, 1)
        loss = np.zeros((), np.float32)  # of all parts so far
        for first in range(0, n, self.program.batch):
            count = min(self.program.batch, n - first)
            part = [rows(a, b, first, count) for a, b in zip(inputs, buffers, strict=True)]
            self._machine.run(entry, part, [loss], count, n, first)
        self._machine.run("apply", [], [], 1, 1)
        return float(loss)

    def _without_ignored(self, inputs: Sequence[Array], n: int) -> tuple[Sequence[Array], int]:
        """Samples whose label is ignored count for nothing, but a part of a batch cannot know how many there are."""
        facts, labels = self._loss, inputs[-1]
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

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        eval: Any = None,
        patience: int | None = None,
        schedule: str | Callable[[float], float] | None = None,
        warmup: float = 0.0,
        shuffle: bool = True,
        seed: int | None = None,
        batch: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int | None = None,
        progress: bool | None = None,
        on_epoch: Callable[[Epoch], object] | None = None,
        follow_memory: bool | Callable[[], float] = False,
    ) -> History:
        """Learn from data for some epochs.

        `x`, `y`: arrays (numpy or torch; a tuple of them for several inputs), all checked before the first step; or
        `fit(batches)`: any iterable of pairs (x, y), in its own order. `eval`: a pair or an iterable as well, measured
        after each epoch. `patience`: stop when the eval loss (without `eval` the training loss) has not fallen for so
        many epochs; the job then ends in the state after its best epoch. `schedule`: constant, linear, cosine, or a
        function from progress (0 to 1) to the share of job.lr; `warmup`: the share of the run in which the rate first
        rises. `seed`: of the order of samples, by default the program's. `batch`: samples of a step, by default the
        plan's; more need accumulate=True. `checkpoint`: a file, written after each epoch or every `checkpoint_every`
        steps, at the end and when interrupted. `progress`: True prints a line per epoch, False not even the bar that a
        terminal shows. `on_epoch` is called with the record of each epoch. `follow_memory`: before each step, switch to
        the rung (`job.rungs`) that free memory allows, down at once, up after some batches; or that a function allows,
        which returns how many bytes the job may take. The History lists the switches; what is learned does not depend
        on them.

        Ctrl-C ends the run after the step at hand, with `stopped="interrupted"` in the History; again, at once. A loss
        that is not finite raises NotFinite, with the job back in the state from which the last finite loss was
        computed. Two more copies of the state are kept for that, and one more with `patience`: in the memory of the
        Python process, or, if the program has a limit (budget, ladder, a Linux device) or pages, in files without a
        name, beside `checkpoint`, the pages or the program, or where TMPDIR says (default /var/tmp).
        """
        from .loop import fit

        return fit(
            self, x, y, epochs=epochs, eval=eval, patience=patience, schedule=schedule, warmup=warmup,
            shuffle=shuffle, seed=seed, batch=batch, checkpoint=checkpoint, checkpoint_every=checkpoint_every,
            progress=progress, on_epoch=on_epoch, follow_memory=follow_memory,
        )  # fmt: skip

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Loss, accuracy (where it means something) and number of samples, in evaluation mode; nothing changes.

        Data as for `fit`. The loss is the mean over batches, weighted by their samples.
        """
        from .evaluate import evaluate
        from .loop import eval_data

        found = evaluate(self.program, self._run_whole, eval_data(self, x, y), self._loss, lambda: True)
        assert found is not None
        return found

    def _run_whole(self, *call: Any) -> None:
        """A run that only reads the state."""
        with self._machine.alone:
            self._state.check_whole()
            self._machine.run(*call)

    def predict(self, x: Any) -> Any:
        """The model's output for any number of samples; a tuple if the model has several outputs.

        More samples than the plan's batch are taken in parts, so an output that is one for all samples is refused then.
        """
        inputs, n = self._inputs("infer", listed(x))
        outs = [b for b in self.program.entry_buffers("infer") if b.direction == "output"]
        results = [np.empty(b.shape(n), b.dtype.numpy) for b in outs]
        with self._machine.alone:  # all parts of one state
            self._state.check_whole()
            if n <= self.program.batch:
                self._machine.run("infer", inputs, results, n, n)
            else:
                from .predict import predict_in_parts

                predict_in_parts(self._machine.run, inputs, outs, results, n, self.program.batch)
        if self._classes is not None:
            results = [r[..., : self._classes.count] if b.name in self._classes.outputs else r
                       for b, r in zip(outs, results, strict=True)]  # fmt: skip
        return results[0] if len(results) == 1 else tuple(results)

    def _inputs(self, entry: str, given: Sequence[Any]) -> tuple[list[Array], int]:
        call = self._calls.get(entry)
        if call is None:
            buffers = [b for b in self.program.entry_buffers(entry) if b.direction == "input"]
            call = self._calls[entry] = _Call(buffers)
        check_number_of_arrays(given, call.buffers)
        arrays = [to_numpy(value, buffer.name) for value, buffer in zip(given, call.buffers, strict=True)]
        layout = [(array.shape, array.dtype) for array in arrays]
        fits, n = call.known
        if layout != fits:  # a step may take less time than looking at its arrays in detail
            for array, buffer in zip(arrays, call.buffers, strict=True):
                check_layout(array, buffer)
            n = number_of_samples(arrays, call.buffers)
            call.known = layout, n
        return [as_dtype(array, buffer) for array, buffer in zip(arrays, call.buffers, strict=True)], n

    # -- classes -------------------------------------------------------------------------------------------

    @property
    def classes(self) -> list[str]:
        """Names of the classes in use, in the order of their labels; empty if the program does not keep them."""
        return [] if self._classes is None else self._classes.names()

    def add_class(self, name: str) -> int:
        """Take a spare class into use; the label to train it with. The others keep their numbers and weights."""
        if self._classes is None:
            raise BadOption("the program has no spare classes", help="smidgen.compile(…, spare_classes=4)")
        return self._classes.add(name)

    @property
    def _loss(self) -> LossFacts:
        """A label is valid if its class is in use."""
        return self._loss_facts if self._classes is None else replace(self._loss_facts, in_use=self._classes.count)

    # -- rungs ---------------------------------------------------------------------------------------------

    @functools.cached_property
    def rungs(self) -> tuple[Rung, ...]:
        """Plans of this program, the largest first; more than one if it was compiled with `ladder`."""
        with meant(self.program):
            found = rungs(self.program, self._work_bytes)
        release_freed()  # as after `load`
        return found

    @property
    def rung(self) -> int:
        """The number of the plan that the next step follows; 0 is the largest. Weights do not depend on it. Going down
        gives memory back to the system at once."""
        return self._rung

    @rung.setter
    def rung(self, number: int) -> None:
        if type(number) is not int or not 0 <= number < len(self.rungs):
            most = len(self.rungs) - 1
            why = f"it has rungs 0 to {most}" if most > 0 else "it has one plan"
            raise BadOption(f"the program has no rung {number!r}", why=why, help="smidgen.compile(…, ladder=['64MB'])")
        with self._machine.alone:
            self._rung = number
            self._touched = None if self._touched is None else max(self._touched, number)
            self._machine.trim(self.rungs[number].arena_bytes)

    @property
    def _held_bytes(self) -> int:
        """RAM of this job that is in memory: of the arena only what has been touched since it was given back."""
        touched = 0 if self._touched is None else self.rungs[self._touched].arena_bytes
        return self.rungs[0].ram_bytes - self.rungs[0].arena_bytes + touched

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """The learning rate; a schedule multiplies it, but does not change it."""
        return self._state.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._state.lr = value

    @property
    def step(self) -> int:
        """Updates done so far."""
        return self._state.step

    def state_dict(self) -> dict[str, Array]:
        """What was learned (and running statistics that changed), under the model's own names and layout."""
        with self._machine.alone:
            self._state.check_whole()
            learned = self._state.learned()
        return learned if self._classes is None else self._classes.without_spare(learned)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Set learned parameters and statistics; names that this program does not learn are ignored, but not all of
        them. Nothing is set unless everything fits."""
        self._set_learned(values)

    def _set_learned(self, values: Mapping[str, Any]) -> None:
        check_mapping(values, "load_state_dict", "job.load_state_dict(model.state_dict())")
        with self._machine.alone:
            self._state.set_learned(values if self._classes is None else self._classes.with_spare(values))

    def optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Per parameter: the optimizer's tensors (momentum; exp_avg, exp_avg_sq) in the model's own layout."""
        with self._machine.alone:
            self._state.check_whole()
            return self._state.optimizer()

    def load_optimizer_state(self, values: Mapping[str, Mapping[str, Any]], step: int) -> None:
        """Set the optimizer's tensors, as `optimizer_state` gives them, and the number of updates done. Parameters
        that are not given keep theirs. Nothing is set unless everything fits."""
        with self._machine.alone:
            self._state.set_optimizer(values, step)

    def load_into(self, model: Any) -> None:
        """Copy what was learned into the PyTorch module; everything else in it is left as it is. A model that lacks
        one of the names, or has it in another shape, is refused before anything is copied.

        `num_batches_tracked` of layers whose running statistics the program updates grows by the steps done (since
        the last call, if there was one for this model).
        """
        from .to_torch import load_into

        statistics = [k for n, f in self._state.facts.items() if f["role"] == "stat" for k in (n, *f["aliases"])]
        load_into(model, self.state_dict(), statistics, self.step, self._counted)

    @property
    def mapped_bytes(self) -> int:
        """What the runtime mapped for state and arena."""
        return self._machine.mapped_bytes

    @property
    def paged(self) -> Paged:
        """Bytes read from pages and written to them so far."""
        return self._machine.paged

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program with its present state; the file appears complete or not at all."""
        place = checked_path(path, 'job.save("model.smg")')
        self.program.with_state(self._whole()).save(place)

    def _whole(self) -> memoryview:
        return self._kept().data()

    def _kept(self, beside: Path | None = None, given: bytes | memoryview | None = None) -> Kept:
        """A copy of the state as it is, or as given; in a file, if RAM is limited, beside this one or another that is
        known."""
        from .snapshots import InFile, InRam, folders

        count = self.program.saved_bytes
        kept = InFile(folders(beside, *self._files), count) if self._keeps_in_files else InRam(count)
        if given is None:
            with self._machine.alone:
                kept.keep(self._state)
        else:
            kept.take(given)
        return kept

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the state, and where the last run of `fit` stands; an older file is replaced when the new one is whole.

        `resume` continues from there, with the same bits as if nothing had happened.
        """
        place = checked_path(path, 'job.checkpoint("run.ckpt")')
        run, best = None, None
        with self._machine.alone:
            state, step = self._whole(), self.step
            if self._last_run is not None and self._last_run.step == step:  # no steps of the caller's since
                position = self._last_run.position
                run = {"settings": self._last_run.settings, "position": position.to_json()}
                best = None if position.best is None else position.best.state
        from . import checkpoint

        checkpoint.write(place, checkpoint.Checkpoint(self._fingerprint, step, state, run, best))

    def resume(self, path: str | os.PathLike[str], *, position: bool = True) -> None:
        """Take the state from a checkpoint of this program. If `fit` wrote it, the next call of `fit`, with the same
        arguments, continues that run at its next step (one that had ended returns its History at once); with
        `position=False` it begins a new run. Nothing is set unless everything fits."""
        from . import checkpoint

        found = checkpoint.read(checked_path(path, 'job.resume("run.ckpt")'))
        if found.program != self._fingerprint or len(found.state) != self.program.saved_bytes:
            raise BadCheckpoint(
                "the checkpoint is of another program", at=str(path),
                help="load the program that wrote it; the same model, options and versions compile to the same program",
            )  # fmt: skip
        run = run_of(found, str(path)) if position else None
        if run is not None and run.position.best is not None and found.best is not None:
            best = replace(run.position.best, state=self._kept(given=found.best).data())
            run = replace(run, position=replace(run.position, best=best))
        self._set_all(found.state)
        self._resumed = self._last_run = run

    def _set_all(self, state: bytes | memoryview) -> None:
        """Where a run stood is forgotten, also if a disk fails in between."""
        with self._machine.alone:
            self._resumed = self._last_run = None
            self._state.set_all(state)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the state that a device saved with this program: the file of a runner, or an image of both slots."""
        from ..files import mapped
        from . import flash_slots

        place = checked_path(path, 'job.restore("state.bin")')
        try:
            data = mapped(place)
        except OSError as error:
            raise BadCheckpoint(f"cannot read '{place}'", why=error.strerror or str(error)) from error
        self._set_all(flash_slots.newest_state(data, self.program))

    def export_weights(self, path: str | os.PathLike[str]) -> None:
        """Write what was learned, and statistics that changed, as safetensors under the model's own names."""
        place = checked_path(path, 'job.export_weights("w.safetensors")')
        from . import weights

        weights.export(place, self.state_dict(), method=self.plan.method, step=self.step)

    def import_weights(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Set what this program learns from a safetensors file. Its names must be exactly those; with `strict=False`
        others may be in it, and some may be missing. Nothing is set unless everything fits."""
        place = checked_path(path, 'job.import_weights("w.safetensors")')
        from . import weights

        self._set_learned(weights.read(place, self._state.facts, strict))

    @functools.cached_property
    def _fingerprint(self) -> str:
        from . import checkpoint

        return checkpoint.fingerprint(self.program)


def load(
    path: str | os.PathLike[str],
    *,
    kernels: str | None = None,
    threads: int = 1,
    page_to: str | os.PathLike[str] | None = None,
) -> Job:
    """A job from a program file; torch is not needed. Constants stay in the file, which is mapped: it may be replaced
    (as `save` does) while the job lives, but not written into.

    `kernels="fast"`, the default where the runtime was built with them, uses this machine's vectors and `threads`,
    takes some work memory (plan.work_bytes), and gives the same bits for any number of threads on the same kind of
    machine; "exact" gives the same bits on every machine. The variable SMIDGEN_KERNELS changes the default.
    `page_to` is the file for a program that pages: all of it is reserved here, and it may be deleted afterwards.
    """
    place = checked_path(path, 'smidgen.load("model.smg")')
    try:
        before = _version(place)
        job = Job(Program.open(place), place, kernels=kernels, threads=threads, page_to=page_to)
        changed = _version(place) != before
        if changed:
            raise BadProgram("the file changed while it was read", help="load it again")
    except OSError as error:
        raise BadProgram(f"cannot read '{place}'", why=error.strerror or str(error)) from error
    except BadProgram as error:
        raise BadProgram(error.what, at=error.at or str(place), why=error.why, help=error.help) from error
    release_freed()  # reading the description took several times its size
    return job


def _version(path: Path) -> tuple[int, ...]:
    with opened(path) as file:
        facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
