"""A client of a fleet: a program and the samples of one device. Needs numpy and the C runtime only.

What a round returns depends on what it is given and on the samples, and on nothing before it: each round opens the
program anew, with an optimizer that has seen nothing.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadData, BadOption
from ..ir import Array
from ..program.program import Program
from ..train.batches import order
from ..train.frozen import with_frozen
from ..train.job import Job
from ..train.load import load
from ..train.settings import checked_batch
from .parts import taken
from .terms import Terms

Counters = dict[str, float]


@dataclass(frozen=True, slots=True)
class Reply:
    """All that leaves a client: what learned, and counters."""

    terms: Terms
    values: Mapping[str, Array]
    counters: Counters


class Client:
    """`program` is a file. `eval` is a pair (x, y) to be judged by; without it, that is what is trained on. `part` is
    the client's number in the fleet, which its randomness depends on. `budget_bytes` is what the device has for
    training, for strategies that ask. A program that pages does so to `page_to`, by
    default a file without a name in the folder for temporary files."""

    def __init__(
        self,
        program: str | os.PathLike[str],
        x: Any,
        y: Any,
        *,
        eval: tuple[Any, Any] | None = None,
        part: int = 0,
        name: str = "",
        kernels: str | None = None,
        threads: int = 1,
        page_to: str | os.PathLike[str] | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.program, self.x, self.y, self.eval = program, x, y, eval
        self.part, self.name = part, name or f"client {part}"
        self._kernels, self._threads, self._page_to = kernels, threads, page_to

    def open(self, frozen: Mapping[str, Array] | None = None) -> Job:
        """The program as it is in its file, with other values for what it does not learn, if there are."""
        options: dict[str, Any] = {"kernels": self._kernels, "threads": self._threads, "page_to": self._page_to}
        if not frozen:
            return opened(self.program, **options)
        with tempfile.TemporaryDirectory(prefix="smidgen-") as folder:  # constants stay in the file, which is mapped
            path = os.path.join(folder, "net.smg")
            with_frozen(Program.open(self.program), frozen).save(path)
            return opened(path, **options)

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
        """One round: from these values, `epochs` over the samples. `version` is the fleet's; another one is refused.
        With `whole`, the values are whole tensors of a fleet whose devices differ: the program takes its part of them,
        also of what it does not learn, and its version is not asked for. `lr` is by default the program's.
        `proximal_mu` holds the weights near those given, as FedProx does."""
        job, terms = self._given(values, version, whole)
        values = terms.values_of(job)
        if lr is not None:
            job.lr = lr
        own = round_seed(seed, round, self.part)
        job.engine.state.restart(own)
        began = time.perf_counter()
        if proximal_mu:
            near = Near(job, terms, values, proximal_mu, (self.x, self.y), batch, own)
            history = job.fit(near, epochs=epochs, progress=False)
        else:
            history = job.fit(self.x, self.y, epochs=epochs, batch=batch, seed=own, progress=False)
        seconds = time.perf_counter() - began
        assert history.last is not None
        counters = counters_of(job, history.last.samples, history.samples, history.steps, history.last.loss, seconds)
        return Reply(terms, terms.values_of(job), counters)

    def about(self) -> Counters:
        """What a server may ask before it decides what this device learns; 0: no limit."""
        return {"ram-bytes": self.open().plan.ram_bytes, "budget-bytes": self.budget_bytes or 0}

    def labels(self) -> list[int]:
        """Classes that there are samples of."""
        y = np.asarray(self.y)
        if y.dtype.kind not in "iu":
            raise BadOption("targets that are no classes have no labels", help="a strategy without head=")
        return [int(label) for label in np.unique(y) if label >= 0]

    def evaluate(self, values: Mapping[str, Array], *, version: str | None = None, whole: bool = False) -> Counters:
        """Loss, and accuracy where it means something, of these values."""
        job, _ = self._given(values, version, whole)
        found = job.evaluate(*(self.eval or (self.x, self.y)))
        names = {"samples": "num-examples"}
        return {names.get(k, k): v for k, v in found.items()}

    def _given(self, values: Mapping[str, Array], version: str | None, whole: bool) -> tuple[Job, Terms]:
        job = self.open()
        terms = Terms.of(job)
        if whole:
            own = taken(values, terms, self.name)
            others = {
                name: value for name, value in values.items() if name not in terms or terms[name].axis is not None
            }
            if others:
                job = self.open(others)
            values = own
        elif version is not None:
            terms.check_version(version, self.name)
        terms.check(values, self.name)
        terms.put(job, values)
        return job, terms


def counters_of(job: Job, samples: int, all_samples: int, steps: int, loss: float, seconds: float) -> Counters:
    """`samples` and the loss are of one epoch, the last one; `all_samples` of all."""
    plan = job.plan
    full = all_samples / (plan.step_samples or plan.batch)  # steps, which the plan has priced
    return {
        "num-examples": samples, "steps": steps, "loss": loss, "ram-bytes": plan.ram_bytes,
        "mapped-bytes": job.mapped_bytes, "seconds": seconds, "device-seconds": full * plan.step_seconds,
        "joules": full * plan.step_joules,
    }  # fmt: skip


def opened(
    program: str | os.PathLike[str],
    *,
    kernels: str | None = None,
    threads: int = 1,
    page_to: str | os.PathLike[str] | None = None,
) -> Job:
    """A job from a file; one that pages does so to a file without a name, unless `page_to` is given."""
    if page_to is not None or not Program.open(program).page_bytes:
        return load(program, kernels=kernels, threads=threads, page_to=page_to)
    with tempfile.TemporaryDirectory(prefix="smidgen-") as folder:  # its file is reserved when it is opened
        return load(program, kernels=kernels, threads=threads, page_to=os.path.join(folder, "page.bin"))


def round_seed(seed: int, round: int, part: int) -> int:
    """Of the order of samples and of dropout, another one for each round and client."""
    return zlib.crc32(f"{seed} {round} {part}".encode()) & 0x7FFF_FFFF


def _at_least_0(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise BadOption(f"proximal_mu={value!r} is not a number ≥ 0", help="FedProx(proximal_mu=0.01)")
    return float(value)


class Near:
    """Batches in the order in which `fit` takes them. After each step, the gradient µ(w - w₀) of the proximal term, w
    before the step, is added as the optimizer would have: into the momentum of SGD and, times the rate, to w."""

    def __init__(
        self, job: Job, terms: Terms, start: Mapping[str, Array], mu: float, data: tuple[Any, Any],
        batch: int | None, seed: int,
    ) -> None:  # fmt: skip
        x, y = data
        inputs = list(x) if isinstance(x, (tuple, list)) else [x]
        self.inputs, self.y = [np.asarray(a) for a in inputs], np.asarray(y)
        if len(self.inputs[0]) != len(self.y):
            raise BadData("FedProx needs one target a sample", help="a strategy without a proximal term: FedAvg()")
        self.job, self.terms, self.start, self.mu = job, terms, start, _at_least_0(mu)
        self.batch = checked_batch(batch, job.program)
        ahead = job.engine.optimizer.get("nesterov", False)  # the step looks ahead along the momentum
        self.rate = np.float32(1 + job.engine.optimizer["momentum"] if ahead else 1)
        self.seed, self.epoch = seed, 0

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        which = order(self.seed, self.epoch, len(self.y))
        self.epoch += 1
        for first in range(0, len(which), self.batch):
            part = which[first : first + self.batch]
            before = self.terms.values_of(self.job)
            yield tuple(a[part] for a in self.inputs), self.y[part]
            self.pull(before)

    def pull(self, before: Mapping[str, Array]) -> None:
        state = self.job.engine.state
        pull = {
            name: np.float32(self.mu) * (before[name] - self.start[name])
            for name in self.terms
            if state.facts[name]["role"] == "param"
        }
        after = self.terms.values_of(self.job)
        step = np.float32(state.lr) * self.rate
        self.terms.put(self.job, {**after, **{name: after[name] - step * p for name, p in pull.items()}})
        momentum = {n: slots for n, slots in self.job.optimizer_state().items() if set(slots) == {"momentum"}}
        for name, slots in momentum.items():
            where = self.terms[name].where or tuple(map(slice, pull[name].shape))  # beside it: spare classes
            slots["momentum"][where] += pull[name]
        if momentum:
            self.job.load_optimizer_state(momentum, self.job.step)


__all__ = ["Client", "Counters", "Near", "Reply", "counters_of", "opened", "round_seed"]
