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

from ..errors import RunFailed
from ..ir import Array
from ..program.loss import Accuracy
from ..program.program import Program
from ..terminal import bytes_text
from ..train.batches import Arrays, order
from ..train.job import Job, load
from ..train.loop import training_data
from ..train.npz import Samples
from ..train.sample_rows import check_rows
from ..train.settings import checked_batch
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
    accuracy: float | None
    measured: int  # samples that the accuracy is of
    same_as_host: bool | None  # None: not compared

    def to_json(self) -> dict[str, Any]:
        counts = self.run.counts
        steps = len(self.run.losses)
        return {
            "device": self.device, "board": self.board, "steps": steps, "losses": self.run.losses.tolist(),
            "accuracy": self.accuracy, "accuracy_samples": self.measured,
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
            "same_as_host": self.same_as_host, "seconds": self.seconds,
        }  # fmt: skip

    def _paged(self) -> dict[str, Any]:
        paged = self.run.paged
        return {"paged_in_bytes": paged.in_bytes, "paged_out_bytes": paged.out_bytes} if any(paged) else {}

    def to_text(self) -> str:
        losses, used = self.run.losses, self.sections
        lines = [f"{self.device} on {self.board}: {len(losses)} steps in {self.seconds:.1f} s of emulation"]
        lines += [f"loss      {losses[0]:.4f} at first, {np.mean(losses[-10:]):.4f} over the last {len(losses[-10:])}"]
        if self.accuracy is not None:
            lines += [f"accuracy  {self.accuracy:.2%} of {self.measured} samples"]
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
            lines += [f"a step    {sum(steps) // len(steps):,} instructions"]
            whole = sum(count for _, count in counts.kernels.values())
            largest = sorted(counts.kernels.items(), key=lambda item: -item[1][1])[:SHOWN]
            lines += [f"  {count / whole:6.1%}  {name}" for name, (_, count) in largest]
        if self.same_as_host is not None:
            lines += ["every loss and the state: the same bits as on this machine"]
        return "\n".join(lines)


def train_on_board(
    folder: Path, data: Samples, *, held_out: Samples | None = None, epochs: int = 1, steps: int | None = None,
    check: bool = False, save: str | None = None, count: bool = True,
) -> Report:  # fmt: skip
    """Train the first program of a built project, with steps as large as planned. `steps` ends training early; `check`
    does the same steps on this machine and compares the bits."""
    facts = manifest(folder)
    path = folder / f"{facts['programs'][0]}.smg"
    with tempfile.TemporaryDirectory() as place:  # the job keeps its page file when the name is gone
        job = load(path, kernels="exact", page_to=Path(place) / "page.bin")
    program = job.program
    batches = training_data(job, data.x, data.y, epochs, checked_batch(None, program))
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
    run = run_on_board(folder, program, trained, [(arrays[:inputs], n) for arrays, n in predictions], count=count)
    seconds = time.monotonic() - started
    accuracy = _accuracy(job, program, tested, run, predictions)
    same = _compared(job, run, chosen) if check else None
    if save:
        program.with_state(run.state).save(save)
    return Report(
        facts["machine"], facts["device"], run, sections(folder / f"{facts['boards'][-1]}.elf"), facts["ram_bytes"],
        seconds, accuracy, sum(n for _, n in predictions), same,
    )  # fmt: skip


def _epochs(batches: Arrays, job: Job, epochs: int) -> Iterator[tuple[list[Array], int]]:
    for epoch in range(epochs):
        yield from batches.epoch(order(job.engine.state.seed, epoch, batches.samples))


def _counted(job: Job, arrays: Sequence[Array], n: int) -> Step:
    """Without samples that count for nothing, as the job runs micro-batches."""
    return job.engine.without_ignored(arrays, n) if n > job.program.batch else (arrays, n)


def _accuracy(job: Job, program: Program, data: Arrays, run: BoardRun, predictions: Sequence[Step]) -> float | None:
    outs = [b for b in program.entry_buffers("infer") if b.direction == "output"]
    found = Accuracy(job.engine.loss, outs, data.buffers[-1])
    for (arrays, _), outputs in zip(predictions, run.outputs, strict=True):
        found.add(outputs, arrays[-1])
    return found.value


def _compared(job: Job, run: BoardRun, steps: list[tuple[list[Array], int]]) -> bool:
    """Raises RunFailed at the first difference."""
    for i, (arrays, n) in enumerate(steps):
        loss = np.float32(job.engine.train(arrays, n))
        if loss.tobytes() != run.losses[i].tobytes():
            raise RunFailed(
                "the board computes other bits than this machine", at=f"step {i + 1} of {len(steps)}",
                why=f"the loss is {run.losses[i]!r} there and {loss!r} here",
            )  # fmt: skip
    if job.engine.state.copy().tobytes() != run.state:
        raise RunFailed("the board computes other bits than this machine", at="state after the last step")
    return True


__all__ = ["Report", "train_on_board"]
