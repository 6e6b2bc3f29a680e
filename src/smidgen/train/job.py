"""A Job: a program with its memory, ready to train and to predict. Needs numpy and the C runtime only.

What a first step does not need is imported where it is used: a device may start a process for every step."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ..errors import BadOption, RunFailed
from ..files import checked_path
from ..ir import Array
from ..program.arrays import (
    as_dtype,
    check_layout,
    check_mapping,
    check_number_of_arrays,
    check_numbers,
    listed,
    number_of_samples,
    to_numpy,
)
from ..program.buffer import Buffer
from ..program.loss import check_labels
from ..program.program import Program
from ..program.rungs import Rung
from ..runtime.machine import Paged
from .engine import Engine
from .validate import meant

if TYPE_CHECKING:
    from ..program.plan import Plan
    from .history import Epoch, History
    from .learned import Learned
    from .replay import ReplayBuffer
    from .scoring import Chooser, LayerScores


class _Call:
    """Inputs of an entry point; shapes and dtypes that were found to fit last time, with the number of samples."""

    __slots__ = ("buffers", "known")

    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers
        self.known: tuple[list[Any], int] = ([], 0)


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
        choose: Chooser | None = None,
    ) -> None:
        """`path` is the file that `program` was read from, if there is one: its constants are then used in place.
        `page_to` is the file for a program that pages; `choose` is for `select`."""
        self._run_with = kernels, threads, page_to
        self._choose = choose
        self._take(program, path)

    def _take(self, program: Program, path: Path | None = None) -> None:
        self.program = program
        kernels, threads, page_to = self._run_with
        self.engine = Engine(program, path, kernels, threads, page_to)
        self._calls: dict[str, _Call] = {}
        self._counted: dict[int, tuple[int, int]] = {}  # id of a batch counter → what load_into wrote, at which step

    @functools.cached_property
    def plan(self) -> Plan:
        """What the program costs and why."""
        from ..program.plan import Plan

        with meant(self.program):
            return replace(Plan.from_json(self.program.meta["plan"]), work_bytes=self.engine.work_bytes)

    # -- running -------------------------------------------------------------------------------------------

    def train_step(self, x: Any, y: Any) -> float:
        """Learn from one batch; returns its loss before the update. More samples than the plan's batch are split into
        micro-batches if compiled with Memory(accumulate=True). With replay, samples that were learned before join the
        new ones, up to the plan's batch; the new ones are kept afterwards. As in PyTorch, a mean over ignored labels
        only is NaN, with a gradient of zero; `fit` stops there instead (NotFinite).

        A step that an error stops (NaN in a sample, a label that is no class) updates no parameter and no optimizer
        state, and is not counted; with bn="batch", running statistics of layers before the error may have moved. A
        program that pages keeps the state before each step, which is back after any error; only if the step had
        begun to write state that is in pages, the job refuses everything that needs a state until `resume` or
        `restore`."""
        inputs, n = self._inputs("train", [*listed(x), y])
        for array, buffer in zip(inputs, self._calls["train"].buffers, strict=True):
            check_numbers(array, buffer)
        labels = inputs[-1], self.engine.sample_buffers[-1], self.engine.loss
        if self.engine.classes is not None:  # the kernel refuses what is no class, but knows spare ones
            check_labels(*labels)
        try:
            return self.engine.train(inputs, n)
        except RunFailed:
            check_labels(*labels)  # which one it was
            raise

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
        plan's (with replay, the new ones of it; those of the first epoch are kept); more need Memory(accumulate=True).
        `checkpoint`: a file, written after each epoch or every `checkpoint_every` steps, at the end and when
        interrupted. `progress`: True prints a line per epoch, False not even the bar that a terminal shows. `on_epoch`
        is called with the record of each epoch. `follow_memory`: before each step, switch to the rung (`job.rungs`)
        that free memory allows, down at once, up after some batches; or that a function allows, which returns how many
        bytes the job may take. The History lists the switches; what is learned does not depend on them. Ctrl-C ends
        the run after the step at hand, with `stopped="interrupted"` in the History; again, at once. A loss that is not
        finite raises NotFinite, with the job back in the state from which the last finite loss was computed. Two more
        copies of the state are kept for that, and one more with `patience`: in the memory of the Python process, or,
        if the program has a limit (budget, ladder, a Linux device) or pages, in files without a name, beside
        `checkpoint`, the pages or the program, or where TMPDIR says (default /var/tmp)."""
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

        found = evaluate(self.program, self.engine.run_whole, eval_data(self, x, y), self.engine.loss, lambda: True)
        assert found is not None
        return found

    def predict(self, x: Any) -> Any:
        """The model's output for any number of samples; a tuple if the model has several outputs.

        More samples than the plan's batch take several runs, so an output that is one for all samples is refused then.
        """
        inputs, n = self._inputs("infer", listed(x))
        outs = [b for b in self.program.entry_buffers("infer") if b.direction == "output"]
        results = [np.empty(b.shape(n), b.dtype.numpy) for b in outs]
        with self.engine.machine.lock:  # all parts of one state
            self.engine.state.check_whole()
            if n <= self.program.batch:
                self.engine.machine.run("infer", inputs, results, n, n)
            else:
                from .predict import predict_in_parts

                predict_in_parts(self.engine.machine.run, inputs, outs, results, n, self.program.batch)
        if self.engine.classes is not None:
            results = [r[..., : self.engine.classes.count] if b.name in self.engine.classes.outputs else r
                       for b, r in zip(outs, results, strict=True)]  # fmt: skip
        return results[0] if len(results) == 1 else tuple(results)

    # -- a stream ------------------------------------------------------------------------------------------

    def learn(self, sample: Any, label: Any = None) -> Any:
        """Predict, then learn from one sample (or a few, with the batch axis); returns the prediction made before. A
        program whose target looks like its input takes the sample itself where no label is given. Needs "tinyol"."""
        from .learn import learn

        return learn(self, sample, label)

    def calibrate(self, samples: Any = None) -> None:
        """Let these samples be the reference: the statistics of the learning layer's input, and usual scores. They are
        gone through twice. Without samples, the next ones that are learned from are (32, unless compiled otherwise)."""
        from .learn import calibrate

        calibrate(self, samples)

    def detect(self, sample: Any) -> Any:
        """How unusual a sample is, compared with the reference; for several, one score each. Nothing changes."""
        from .learn import detect

        return detect(self, sample)

    @property
    def drift(self) -> float:
        """How far the learning layer's input has moved from the reference: the mean over its channels of the squared
        distance of the last samples' mean, in standard deviations. About 0.05 without drift; above 0.25 it has."""
        from .learn import report

        return report(self)[0]

    def threshold(self, deviations: float = 4.0) -> float:
        """Scores above this are unusual: the mean of those seen while learning, and so many standard deviations."""
        from .learn import threshold

        return threshold(self, deviations)

    # -- choosing what learns ------------------------------------------------------------------------------

    def scores(self, x: Any, y: Any) -> list[LayerScores]:
        """How much the loss depends on each channel of each layer, by these samples. Needs "tinytrain"."""
        from .scoring import scores

        return scores(self, x, y)

    def select(self, x: Any, y: Any) -> None:
        """Choose what learns by these samples, some of each class, and plan for that within the same limits. Weights
        and `lr` stay; optimizer state and the count of steps begin anew. After an error the job is as it was. Needs
        "tinytrain", and a job that `smidgen.compile` made."""
        from .scoring import reselected

        found = reselected(self, self._choose, x, y)
        lr = self.lr
        for name in ("plan", "replay"):
            self.__dict__.pop(name, None)
        self._take(found)
        self.lr = lr

    def _inputs(self, entry: str, given: Sequence[Any]) -> tuple[list[Array], int]:
        call = self._calls.get(entry)
        if call is None:
            buffers = [b for b in self.program.entry_buffers(entry) if b.direction == "input"]
            if entry == "train":
                buffers = self.engine.sample_buffers
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
        return [] if self.engine.classes is None else self.engine.classes.names()

    def add_class(self, name: str) -> int:
        """Take a spare class into use; the label to train it with. The others keep their numbers and weights."""
        if self.engine.classes is None:
            raise BadOption("the program has no spare classes", help="compile with classes=smidgen.Classes(spare=4)")
        return self.engine.classes.add(name)

    @functools.cached_property
    def replay(self) -> ReplayBuffer:
        """Samples that were learned, to be learned again, of a program compiled with Memory(replay=…)."""
        from .replay import ReplayBuffer

        if self.engine.replay is None:
            raise BadOption("the program keeps no samples",
                            help="compile with memory=smidgen.Memory(replay=smidgen.Replay(samples=200))")  # fmt: skip
        return ReplayBuffer(self.engine)

    # -- rungs ---------------------------------------------------------------------------------------------

    @property
    def rungs(self) -> tuple[Rung, ...]:
        """Plans of this program, the largest first; more than one if it was compiled with `ladder`."""
        return self.engine.rungs

    @property
    def rung(self) -> int:
        """The number of the plan that the next step follows; 0 is the largest. Weights do not depend on it. Going down
        gives memory back to the system at once."""
        return self.engine.rung

    @rung.setter
    def rung(self, number: int) -> None:
        self.engine.rung = number

    # -- state ---------------------------------------------------------------------------------------------

    @property
    def lr(self) -> float:
        """The learning rate; a schedule multiplies it, but does not change it."""
        return self.engine.state.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.engine.state.lr = value

    @property
    def step(self) -> int:
        """Updates done so far."""
        return self.engine.state.step

    @overload
    def state_dict(self, *, learned: Literal[False] = False) -> dict[str, Array]: ...
    @overload
    def state_dict(self, *, learned: Literal[True]) -> dict[str, Learned]: ...

    def state_dict(self, *, learned: bool = False) -> dict[str, Array] | dict[str, Learned]:
        """What was learned (and running statistics that changed), under the model's own names and layout. Of a
        parameter of which a slice learned, it is the whole tensor; with `learned=True` only the slice, with its axis
        and indices."""
        if learned:
            from .learned import learned_parts

            return learned_parts(self.state_dict(), self.engine.state.slices())
        with self.engine.machine.lock:
            self.engine.state.check_whole()
            found = self.engine.state.learned()
        return found if self.engine.classes is None else self.engine.classes.without_spare(found)

    def _merged(self) -> dict[str, Array]:
        """What was learned, as the model has it: what a method added beside a weight is merged into it."""
        from .merge import all_merged

        with self.engine.machine.lock:
            self.engine.state.check_whole()
            found = all_merged(self.program, self.engine.state.facts, self.engine.state.learned())
        return found if self.engine.classes is None else self.engine.classes.without_spare(found)

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Set learned parameters and statistics; names that this program does not learn are ignored, but not all of
        them. Nothing is set unless everything fits."""
        self._set_learned(values)

    def _set_learned(self, values: Mapping[str, Any]) -> None:
        check_mapping(values, "load_state_dict", "job.load_state_dict(model.state_dict())")
        with self.engine.machine.lock:
            self.engine.state.set_learned(
                values if self.engine.classes is None else self.engine.classes.with_spare(values)
            )

    def optimizer_state(self) -> dict[str, dict[str, Array]]:
        """Per parameter: the optimizer's tensors (momentum; exp_avg, exp_avg_sq) in the model's own layout."""
        with self.engine.machine.lock:
            self.engine.state.check_whole()
            return self.engine.state.optimizer()

    def load_optimizer_state(self, values: Mapping[str, Mapping[str, Any]], step: int) -> None:
        """Set the optimizer's tensors, as `optimizer_state` gives them, and the number of updates done. Parameters
        that are not given keep theirs. Nothing is set unless everything fits."""
        with self.engine.machine.lock:
            self.engine.state.set_optimizer(values, step)

    def load_into(self, model: Any) -> None:
        """Copy what was learned into the PyTorch module; everything else in it is left as it is. A model that lacks
        one of the names, or has it in another shape, is refused before anything is copied.

        `num_batches_tracked` of layers whose running statistics the program updates grows by the steps done (since
        the last call, if there was one for this model).
        """
        from .to_torch import load_into

        statistics = [k for n, f in self.engine.state.facts.items() if f["role"] == "stat" for k in (n, *f["aliases"])]
        load_into(model, self._merged(), statistics, self.step, self._counted, self.program.meta.get("added", ()))

    @property
    def mapped_bytes(self) -> int:
        """What the runtime mapped for state and arena."""
        return self.engine.machine.mapped_bytes

    @property
    def paged(self) -> Paged:
        """Bytes read from pages and written to them so far."""
        return self.engine.machine.paged

    # -- files ---------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program with its present state; the file appears complete or not at all."""
        place = checked_path(path, 'job.save("model.smg")')
        self.program.with_state(self.engine.whole()).save(place)

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Write the state, and where the last run of `fit` stands; an older file is replaced when the new one is whole.

        `resume` continues from there, with the same bits as if nothing had happened.
        """
        place = checked_path(path, 'job.checkpoint("run.ckpt")')
        run, best = None, None
        with self.engine.machine.lock:
            state, step = self.engine.whole(), self.step
            if self.engine.last_run is not None and self.engine.last_run.step == step:  # no steps of the caller's since
                position = self.engine.last_run.position
                run = {"settings": self.engine.last_run.settings, "position": position.to_json()}
                best = None if position.best is None else position.best.state
        from . import checkpoint

        checkpoint.write(place, checkpoint.Checkpoint(self.engine.fingerprint, step, state, run, best))

    def resume(self, path: str | os.PathLike[str], *, position: bool = True) -> None:
        """Take the state from a checkpoint of this program. If `fit` wrote it, the next call of `fit`, with the same
        arguments, continues that run at its next step (one that had ended returns its History at once); with
        `position=False` it begins a new run. Nothing is set unless everything fits."""
        from .resume import resume

        resume(self.engine, checked_path(path, 'job.resume("run.ckpt")'), position)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the state that a device saved with this program: the file of a runner, or an image of both slots."""
        from .resume import restore

        restore(self.engine, checked_path(path, 'job.restore("state.bin")'))

    def export_weights(self, path: str | os.PathLike[str], *, merge: bool = True) -> None:
        """Write what was learned, and statistics that changed, as safetensors under the model's own names. What a
        method added beside a weight (lora) is merged into it; with `merge=False` it is written as it is, as
        `import_weights` reads it."""
        place = checked_path(path, 'job.export_weights("w.safetensors")')
        from . import weights

        weights.export(place, self._merged() if merge else self.state_dict(), method=self.plan.method, step=self.step)

    def import_weights(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        """Set what this program learns from a safetensors file. Its names must be exactly those; with `strict=False`
        others may be in it, and some may be missing. Nothing is set unless everything fits."""
        place = checked_path(path, 'job.import_weights("w.safetensors")')
        from . import weights

        self._set_learned(weights.read(place, self.engine.state.facts, strict))
