"""Wrong data and arguments for `fit` and `evaluate`: every message is exact, and no step was done before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from tests.support import small
from tests.support.jobs import made, said, state

X, Y = small.data(19)

HUGE = np.full(X.shape, 1e300)
NAN, INF, LABEL = X.copy(), X.copy().astype(np.float64), Y.copy()
NAN[5, 1, 2, 3] = np.nan
NAN[7] = np.nan
INF[18, 0, 0, 0] = -np.inf
LABEL[3:6] = (5, -1, 9)
FINITE = "  help: leave such samples out, or replace the numbers: numpy.nan_to_num"
PAIR = "  help: give x and y as arrays, or one iterable of pairs (x, y)"
DATA: list[tuple[str, tuple[Any, ...], str]] = [
    ("NaN", (NAN, Y), f"error[E502]: 'x' holds NaN in sample 5 (counted from 0)\n{FINITE}"),
    ("infinity", (INF, Y), f"error[E502]: 'x' holds an infinite number in sample 18 (counted from 0)\n{FINITE}"),
    (
        "a label out of range", (X, LABEL),
        "error[E502]: label 5 in sample 3 (counted from 0) is not the number of a class\n"
        "  why  there are 5 classes, 0 to 4",
    ),
    ("no samples", (X[:0], Y[:0]), "error[E502]: no samples given\n  help: give at least one sample"),
    (
        "fewer labels", (X, Y[:18]),
        "error[E502]: inputs have different numbers of samples\n  why  x 19, target 18",
    ),
    (
        "another shape", (X[:, :, :7], Y),
        "error[E502]: 'x' has shape (19, 3, 7, 8), the program wants (n, 3, 8, 8)",
    ),
    ("one sample alone", (X[0], Y[:1]), "error[E502]: 'x' has shape (3, 8, 8), the program wants (n, 3, 8, 8)"),
    ("float labels", (X, Y + 0.5), "error[E502]: 'target' has dtype float64, the program wants integers"),
    ("two inputs", ((X, X), Y), "error[E502]: 3 arrays given, 2 wanted: x, target"),
    ("text", (np.full(X.shape, "a"), Y), "error[E502]: 'x' has dtype <U1, the program wants numbers"),
    ("a huge number", (HUGE, Y), "error[E502]: 'x' holds a number that does not fit single precision"),
    ("no y", (X,), f"error[E304]: y is missing, and a ndarray is no iterable of batches\n{PAIR}"),
    ("a tensor alone", (torch.ones(2),), f"error[E304]: y is missing, and a Tensor is no iterable of batches\n{PAIR}"),
    ("a number", (3,), f"error[E304]: y is missing, and a int is no iterable of batches\n{PAIR}"),
    (
        "a pair for batches", ((X, Y),),
        f"error[E502]: a batch is a ndarray, not a pair (x, y)\n  at   batch 0 (counted from 0)\n{PAIR}",
    ),
    (
        "a large batch", ([(X[:4], Y[:4]), (X[:5], Y[:5])],),
        "error[E502]: 5 samples given, the program takes at most 4 at a time\n  at   batch 1 (counted from 0)\n"
        "  help: give up to 4 samples, or compile with Memory(accumulate=True)",
    ),
    (
        "NaN in a batch", ([(X[:4], Y[:4]), (NAN[4:8], Y[4:8])],),
        f"error[E502]: 'x' holds NaN in sample 1 (counted from 0)\n  at   batch 1 (counted from 0)\n{FINITE}",
    ),
    (
        "no batches", ([],),
        "error[E502]: there are no batches\n  help: give at least one",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("given", "text"), [pytest.param(*row[1:], id=row[0].replace(" ", "-")) for row in DATA])
@pytest.mark.parametrize("use", ["fit", "eval", "evaluate"])
def test_the_error_is_exact_and_comes_before_any_step_for(use: str, given: tuple[Any, ...], text: str) -> None:
    job = made(batch=4)
    before = state(job)
    if use == "fit":
        assert said(lambda: job.fit(*given, epochs=2)) == text
    elif "at most 4 at a time" in text:
        assert job.evaluate(*given)["samples"] == 9
    elif use == "evaluate":
        assert said(lambda: job.evaluate(*given)) == text
    else:
        lines = text.split("\n")
        lines[1:2] = [lines[1].replace("at   ", "at   eval, ")] if "  at   " in text else ["  at   eval", *lines[1:2]]
        # A tuple of two is a pair of arrays, so what shall be batches comes as a list.
        one = list(given[0]) if isinstance(given[0], tuple) else given[0]
        assert said(lambda: job.fit(X, Y, eval=given if len(given) == 2 else one)) == "\n".join(lines)
    assert state(job) == before


OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("epochs", {"epochs": 0}, "epochs=0 is not a number of at least 1\n  help: epochs=3"),
    ("epochs text", {"epochs": "3"}, "epochs='3' is not a number of at least 1\n  help: epochs=3"),
    ("patience", {"patience": 0}, "patience=0 is not a number of at least 1\n  help: patience=2, or None"),
    ("schedule", {"schedule": "cosin"}, "no schedule named 'cosin'\n  help: did you mean 'cosine'?"),
    (
        "schedule number", {"schedule": 3},
        "schedule=3 is not a schedule\n"
        "  help: one of constant, linear, cosine, or a function of the progress from 0 to 1",
    ),
    (
        "schedule result", {"schedule": lambda p: -1},
        "the schedule gives -1\n  why  it gives the share of job.lr, a number from 0\n"
        "  help: schedule=lambda progress: 1 - progress",
    ),
    ("warmup", {"warmup": 1.0}, "warmup=1.0 is not a share of the run\n  why  from 0 to below 1\n  help: warmup=0.1"),
    ("shuffle", {"shuffle": "yes"}, "shuffle='yes' is not True or False\n  help: shuffle=True"),
    ("seed", {"seed": -1}, "seed=-1 is not a seed\n  why  it is an integer from 0 to 2**31 - 1\n  help: seed=0"),
    (
        "batch", {"batch": 5},
        "batch=5, but the program takes at most 4 at a time\n  help: batch=4, or compile with Memory(accumulate=True)",
    ),
    ("batch zero", {"batch": 0}, "batch=0 is not a number of at least 1\n  help: batch=4"),
    ("checkpoint", {"checkpoint": 3}, "3 is not a path\n  help: checkpoint=\"run.ckpt\""),
    ("every", {"checkpoint_every": 3}, "checkpoint_every without a path\n  help: checkpoint=\"run.ckpt\""),
    ("progress", {"progress": 3}, "progress=3 is not True or False\n  help: progress=True"),
    ("on_epoch", {"on_epoch": 3}, "on_epoch=3 is not a function\n  help: on_epoch=print"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "text"), [pytest.param(*r[1:], id=r[0].replace(" ", "-")) for r in OPTIONS])
def test_the_error_is_exact_for_the_option(options: dict[str, Any], text: str) -> None:
    job = made(batch=4)
    assert said(lambda: job.fit(X, Y, **options)) == f"error[E304]: {text}"
    assert job.step == 0


def test_what_can_be_read_only_once_serves_one_epoch() -> None:
    pairs = [(X[:4], Y[:4]), (X[4:8], Y[4:8])]
    job = made()
    assert job.fit(pair for pair in pairs).steps == 2
    assert said(lambda: job.fit((pair for pair in pairs), epochs=2)) == (
        "error[E304]: a generator can be read only once\n  why  2 epochs read the batches 2 times\n"
        "  help: give a list, or an object whose __iter__ starts again"
    )
    text = said(lambda: job.fit(iter(pairs), epochs=2))
    assert text.startswith("error[E502]: there are no batches, or no more\n  why  an iterator can be read only once")
    assert job.step == 4
    text = said(lambda: job.fit(pairs, eval=iter(pairs), epochs=2))
    assert text.startswith(
        "error[E502]: there are no batches, or no more\n  at   eval\n  why  an iterator can be read "
    )
    assert said(lambda: job.fit((pair for pair in pairs), schedule="cosine")) == (
        "error[E304]: a schedule needs to know how many batches there are\n  help: give a list, or arrays x and y"
    )


def test_a_last_batch_too_small_for_batch_statistics_is_refused_before_the_first_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 4)).astype(np.float32), rng.integers(0, 3, 9)
    job = smidgen.compile(model, x[:4], bn="batch", memory=smidgen.Memory(accumulate=True))
    before = state(job)
    for batch in (4, 5, 8):  # parts of 4 and 1; 5 = 4 + 1, and 4; 8 and 1
        text = said(lambda batch=batch: job.fit(x, y, batch=batch))  # type: ignore[misc]
        assert text.startswith("error[E305]: batch statistics need more than one value per channel")
        assert state(job) == before
    assert job.fit(x[:8], y[:8], epochs=2).stopped == "done"


def test_an_error_within_a_step_leaves_the_state_before_it() -> None:
    class Labels(nn.Module):
        """The runtime meets the bad label only after the statistics of the norm have moved."""

        def __init__(self) -> None:
            super().__init__()
            self.norm, self.table = nn.BatchNorm1d(4), nn.Embedding(3, 4)

        def forward(self, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.norm(x) * self.table(k)
            return found

    x, k = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), np.array([0, 1, 2, 0])
    job = smidgen.compile(Labels(), (x, k), loss="mse", bn="batch")
    before = state(job)
    assert said(lambda: job.fit((x, np.array([0, 1, 2, 3])), x)).startswith("error[E503]: ")
    assert state(job) == before
