"""`smidgen run`: training on the emulated board with data from a file, and what came of it. The batches and their
order are those of `smidgen train`, so both end with the same bits."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadOption, RunFailed
from ..ir import Array
from ..program.loss import Accuracy
from ..terminal import bytes_text, seconds_text
from ..train.batches import Arrays, order
from ..train.job import Job
from ..train.load import load
from ..train.loop import new_samples, training_data
from ..train.npz import Samples
from ..train.sample_rows import check_rows
from .emulate import BoardRun, Sections, Step, run_on_board, sections
from .firmware import manifest

SHOWN = 5  # kernels in the text


@dataclass(frozen=True, slots=True)
class Report:
    board: str
    device: str
    run: BoardRun
    sections: Sections
    ram_bytes: int  # as planned
    seconds: float
    before: float | None  # accuracy before the first step
    accuracy: float | None
    measured: int  # samples that the accuracy is of
    clock_hz: int | None
    same_as_host: bool | None  # None: not compared

    def to_json(self) -> dict[str, Any]:
        counts = self.run.counts
        steps = len(self.run.losses)
        return {
            "device": self.device, "board": self.board, "steps": steps, "losses": self.run.losses.tolist(),
            "accuracy_before": self.before, "accuracy": self.accuracy, "accuracy_samples": self.measured,
            "ram_bytes": self.ram_bytes, "linked_ram_bytes": self.sections.ram_bytes,
            "data_bytes": self.sections.data, "bss_bytes": self.sections.bss, "stack_bytes": self.sections.stack,
            "stack_used_bytes": self.run.stack_used, "text_bytes": self.sections.text,
            "program_bytes": self.sections.program,
            "state_sha256": hashlib.sha256(self.run.state).hexdigest(), **self._paged(),
            "instructions_per_step": None if counts is None else list(counts.runs[:steps]),
            "instructions": None if counts is None else counts.total,
            "kernels": None if counts is None else {
                name: {"calls": calls, "instructions": count} for name, (calls, count) in counts.kernels.items()
            },
            "seconds_per_step": self.seconds_per_step, "same_as_host": self.same_as_host, "seconds": self.seconds,
        }  # fmt: skip

    def _paged(self) -> dict[str, Any]:
        paged = self.run.paged
        return {"paged_in_bytes": paged.in_bytes, "paged_out_bytes": paged.out_bytes} if any(paged) else {}

    @property
    def seconds_per_step(self) -> float | None:
        """On the device, at one instruction a cycle."""
        counts, steps = self.run.counts, len(self.run.losses)
        return sum(counts.runs[:steps]) / steps / self.clock_hz if counts and self.clock_hz else None

    def to_text(self) -> str:
        losses, used = self.run.losses, self.sections
        lines = [f"{self.device} on {self.board}: {len(losses)} steps in {self.seconds:.1f} s of emulation"]
        some = max(1, min(10, len(losses) // 2))  # as many at both ends
        ends = f"{np.mean(losses[:some]):.4f} over the first {some}, {np.mean(losses[-some:]):.4f} over the last {some}"
        lines += [f"loss      {ends}" if some > 1 else f"loss      {losses[0]:.4f} at first, {losses[-1]:.4f} at last"]
        if self.accuracy is not None:
            before = "" if self.before is None else f"{self.before:.2%} before, "
            lines += [f"accuracy  {before}{self.accuracy:.2%} after, of {self.measured} samples"]
        lines += [
            f"RAM       {bytes_text(used.ram_bytes)}: {used.ram_bytes:,} bytes linked, {self.ram_bytes:,} planned; "
            f"stack {self.run.stack_used:,} of {used.stack:,} used",
            f"flash     {bytes_text(used.text + used.program)}: {used.text:,} bytes of code, "
            f"{used.program:,} of program",
        ]
        if any(self.run.paged):
            lines += [f"paged     {self.run.paged.in_bytes:,} bytes in, {self.run.paged.out_bytes:,} out"]
        counts = self.run.counts
        if counts is None:
            lines += ["instructions were not counted: a C compiler and arm-none-eabi-objdump are needed for that"]
        else:
            steps = counts.runs[: len(losses)]
            took = f"a step    {sum(steps) // len(steps):,} instructions"
            if self.seconds_per_step is not None and self.clock_hz:
                clock = f"{self.clock_hz / 1e6:g} MHz, one instruction a cycle"
                took += f": {seconds_text(self.seconds_per_step)} on {self.device} at {clock}"
            lines += [took]
            whole = sum(count for _, count in counts.kernels.values())
            largest = sorted(counts.kernels.items(), key=lambda item: -item[1][1])[:SHOWN]
            lines += [f"  {count / whole:6.1%}  {name}" for name, (_, count) in largest]
        if self.same_as_host is not None:
            lines += ["every loss and the state: the same bits as on this machine"]
        return "\n".join(lines)


def train_on_board(
    folder: Path, data: Samples, *, held_out: Samples | None = None, epochs: int = 1, steps: int | None = None,
    check: bool = False, save: str | None = None, count: bool = True, add_classes: Sequence[str] = (),
) -> Report:  # fmt: skip
    """Train the first program of a built project, with steps as large as planned. `steps` ends training early; `check`
    does the same steps on this machine and compares the bits; `add_classes` are taken into use first."""
    facts = manifest(folder)
    path = folder / f"{facts['programs'][0]}.smg"
    with tempfile.TemporaryDirectory() as place:  # the job keeps its page file when the name is gone
        job = load(path, kernels="exact", page_to=Path(place) / "page.bin")
    program = job.program
    if add_classes and program.page_bytes:
        raise BadOption(
            "a class cannot be added to a program that pages", help="smidgen train --add-class on this machine"
        )
    for name in add_classes:
        job.add_class(name)
    start = job.engine.state.copy().tobytes() if add_classes else b""
    batches = training_data(job, data.x, data.y, epochs, new_samples(job))
    assert isinstance(batches, Arrays)
    check_rows(program, job.engine.machine.run, batches.taken(slice(0, 2)), batches.buffers, max(batches.sizes()))
    chosen = list(itertools.islice(_epochs(batches, job, epochs), steps))
    measured = data if held_out is None else held_out
    tested = training_data(job, measured.x, measured.y, 1, program.batch)
    assert isinstance(tested, Arrays)
    most = tested.samples if held_out is not None else min(sum(n for _, n in chosen), tested.samples)
    predictions = list(itertools.islice(tested.epoch(None), -(-most // program.batch)))
    inputs = len(data.x)
    started = time.monotonic()
    trained = [_counted(job, *step) for step in chosen]
    tests = [(arrays[:inputs], n) for arrays, n in predictions]
    run = run_on_board(folder, program, trained, tests, count=count, state=start, new=batches.steps)
    seconds = time.monotonic() - started
    before = _accuracy(job, tested, [_predicted(job, *test) for test in tests], predictions)
    accuracy = _accuracy(job, tested, run.outputs, predictions)
    same = _compared(job, run, chosen, batches.steps) if check else None
    if save:
        program.with_state(run.state).save(save)
    return Report(
        facts["machine"], facts["device"], run, sections(folder / f"{facts['boards'][-1]}.elf"), facts["ram_bytes"],
        seconds, before, accuracy, sum(n for _, n in predictions), facts["clock_hz"], same,
    )  # fmt: skip


def _epochs(batches: Arrays, job: Job, epochs: int) -> Iterator[tuple[list[Array], int]]:
    for epoch in range(epochs):
        yield from batches.epoch(order(job.engine.state.seed, epoch, batches.samples))


def _counted(job: Job, arrays: Sequence[Array], n: int) -> Step:
    """Without samples that count for nothing, as the job runs micro-batches."""
    return job.engine.without_ignored(arrays, n) if n > job.program.batch else (arrays, n)


def _predicted(job: Job, arrays: Sequence[Array], n: int) -> tuple[Array, ...]:
    """As the board would before its first step: the bits are the same."""
    outs = [b for b in job.program.entry_buffers("infer") if b.direction == "output"]
    found = tuple(np.empty(b.shape(n), b.dtype.numpy) for b in outs)
    job.engine.run_whole("infer", arrays, found, n, n)
    return found


def _accuracy(
    job: Job, data: Arrays, outputs: Sequence[Sequence[Array]], predictions: Sequence[Step]
) -> float | None:  # fmt: skip
    outs = [b for b in job.program.entry_buffers("infer") if b.direction == "output"]
    found = Accuracy(job.engine.loss, outs, data.buffers[-1])
    for (arrays, _), made in zip(predictions, outputs, strict=True):
        found.add(made, arrays[-1])
    return found.value


def _compared(job: Job, run: BoardRun, steps: list[tuple[list[Array], int]], new: int) -> bool:
    """Raises RunFailed at the first difference."""
    for i, (arrays, n) in enumerate(steps):
        loss = np.float32(job.engine.train(arrays, n, keep=i < new))
        if loss.tobytes() != run.losses[i].tobytes():
            raise RunFailed(
                "the board computes other bits than this machine", at=f"step {i + 1} of {len(steps)}",
                why=f"the loss is {run.losses[i]!r} there and {loss!r} here",
            )  # fmt: skip
    if job.engine.state.copy().tobytes() != run.state:
        raise RunFailed("the board computes other bits than this machine", at="state after the last step")
    return True


__all__ = ["Report", "train_on_board"]
