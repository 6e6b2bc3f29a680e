"""Random networks: the C runtime, exact and fast, equals the interpreter, the verifier passes, all compile.

SMIDGEN_NETWORKS says how many (`make generated`: 300).
"""

from __future__ import annotations

import os

import numpy as np
import pytest

import smidgen
from smidgen import api, interp
from smidgen.arrays import unlaid
from smidgen.errors import Internal, SmidgenError, UnsafeLayout
from smidgen.optimizers import Optimizer
from smidgen.trainer import Job

from . import generated

COUNT, CHUNK = int(os.environ.get("SMIDGEN_NETWORKS", "150")), 15
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": smidgen.SGD(0.05),
    "momentum": smidgen.SGD(0.05, momentum=0.9, weight_decay=1e-3),
    # eps above the rounding of a gradient that is zero in exact arithmetic, which Adam would blow up to a full step
    "adam": smidgen.Adam(1e-3, eps=1e-4),
}


def one(seed: int) -> str:
    """Compile and compare two steps and a prediction; returns the code of a documented refusal, or nothing."""
    net, method, optimizer, loss, batch = generated.sample(seed)
    net.eval()
    xs, y = generated.data(net, loss, batch, seed)
    try:
        entries = api.build(
            net, tuple(xs), loss=loss, optimizer=OPTIMIZERS[optimizer], method=method, batch=batch,
            bn="batch" if seed % 4 == 0 and batch > 1 else "frozen",
        )  # fmt: skip
        program = api.encode(entries)
    except (Internal, UnsafeLayout):
        raise
    except SmidgenError as refusal:
        return refusal.code
    train = entries.graphs["train"]
    state = interp.initial_state(train)
    fast = [Job(program, kernels="fast", threads=threads) for threads in (1, 2 + seed % 2)]
    jobs = [Job(program, kernels="exact"), *fast]
    for step, n in enumerate((batch, max(2, batch - 1) if batch > 1 else 1)):
        xs, y = generated.data(net, loss, n, seed + step)
        feeds = dict(zip(train.inputs, [*xs, y.astype(np.float32 if loss == "mse" else np.int32)], strict=True))
        outputs, after = interp.advance(train, state, feeds, n=n)
        for job in jobs:
            got = job.train_step(tuple(xs), y)
            assert got == pytest.approx(float(outputs["loss"]), rel=2e-4, abs=1e-5), f"seed {seed}: loss of step {step}"
        state = after
    for job in jobs:
        close(job, train, state, seed)
    bits = [job._machine.state.tobytes() for job in fast]
    assert bits[0] == bits[1], f"seed {seed}: the number of threads changes bits"
    return ""


def close(job: Job, graph: smidgen.api.Graph, state: dict[str, np.ndarray], seed: int) -> None:
    for name, value in job.state_dict().items():
        fact = job.program.meta["state"].get(name)
        if fact is None:
            continue
        want = unlaid(state[name], value.shape, graph.layouts.get(name, ()))
        scale = max(1e-3, float(np.abs(want).max(initial=0.0)))
        error = float(np.abs(value - want).max(initial=0.0)) / scale
        assert error < 3e-3, f"seed {seed}: {name} is off by {error:.1e} of its largest value"


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_random_networks_train_as_the_interpreter_says(first: int) -> None:
    """Groups of fifteen; without a refusal in any of them all compile, more than the 95 % we promise."""
    refusals = {seed: code for seed in range(first, first + CHUNK) if (code := one(seed))}
    assert not refusals
