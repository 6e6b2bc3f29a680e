"""Random networks × method × budget: whatever is done to fit, the state after two steps is the same, bit for bit.

SMIDGEN_GENERATED=500 runs them all (`make generated`); `make test` takes every tenth.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from smidgen import limits
from smidgen.errors import DoesNotFit, Internal, SmidgenError, UnsafeLayout
from smidgen.fitting import encode_for
from smidgen.lower import Lowering, lower_as
from smidgen.options import checked_options
from smidgen.planned import encode
from smidgen.planner.within import Aim
from smidgen.squeezing import squeezed
from smidgen.torch_import import import_model
from smidgen.trainer import Job

from . import generated
from .test_generated import OPTIMIZERS

COUNT = int(os.environ.get("SMIDGEN_GENERATED", "50"))
CHUNK = 10
FIRST = 1000  # other networks than those of test_generated
TECHNIQUES = ("recompute", "joint", "joint, may page")


def one(seed: int, pages: Path) -> str:
    """What happened: `same`, or the code of a documented refusal."""
    net, method, optimizer, loss, batch = generated.sample(seed)
    net.eval()
    rng = np.random.default_rng(seed)
    batch = max(batch, int(rng.integers(1, 9)))
    bn = "batch" if seed % 4 == 0 and batch > 1 else "frozen"
    xs, _ = generated.data(net, loss, batch, seed)
    options = checked_options(net, optimizer=OPTIMIZERS[optimizer], method=method, batch=batch, bn=bn)
    try:
        imported = import_model(net, tuple(xs), loss=loss, target=None, bn=bn)
        entries = lower_as(imported, options)
        free = encode(entries)
    except (Internal, UnsafeLayout):
        raise
    except SmidgenError as refusal:
        return refusal.code
    whole = limits.within(2**40, None)
    fixed = limits.need_of(whole, free).ram_bytes - free.arena_bytes
    least = min(squeezed(limits.within(1, None), entries, Aim()).need.arena_bytes, free.arena_bytes)
    if seed % 4 == 3:  # most of these are out of reach
        least = free.arena_bytes // 4
    technique = TECHNIQUES[seed % len(TECHNIQUES)]
    if technique == "joint, may page":  # less than recomputing reaches
        least //= 2
    device = limits.within(fixed + int(rng.integers(least, free.arena_bytes + 1)), None)
    try:
        if technique == "recompute":
            program = squeezed(device, entries, Aim()).program
            if not limits.fits(device, limits.need_of(device, program)):
                return DoesNotFit.code
        else:
            program = encode_for(device, Lowering(imported), options, Aim(page=technique != "joint"))
    except DoesNotFit as refusal:
        return refusal.code
    assert limits.need_of(device, program).ram_bytes <= device.ram_bytes
    page_to = pages / f"{seed}.pages" if program.page_bytes else None
    jobs = [Job(free, kernels="exact"), Job(program, kernels="exact", page_to=page_to)]
    for step in range(2):
        xs, y = generated.data(net, loss, batch, seed + step)
        for job in jobs:
            job.train_step(tuple(xs), y)
    states = [job.state_dict() | {f"{p}:{s}": v for p, of in job.optimizer_state().items() for s, v in of.items()}
              for job in jobs]  # fmt: skip
    for name, value in states[0].items():
        assert np.array_equal(value, states[1][name], equal_nan=True), f"seed {seed}: {name} differs"
    return "same, paged" if page_to else "same"


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_random_networks_within_random_budgets_learn_the_same_bits(first: int, tmp_path: Path) -> None:
    found = {seed: one(seed, tmp_path) for seed in range(first, first + CHUNK)}
    assert set(found.values()) <= {"same", "same, paged", DoesNotFit.code}, found
    assert "same" in found.values()
