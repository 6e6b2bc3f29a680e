"""Random slices of random networks: any axis, any indices, several of a tensor, beside parameters that learn whole."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from smidgen import Update, api
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.errors import CannotUpdate
from smidgen.report import parity, proof
from smidgen.train.job import Job
from tests.support import generated
from tests.support.generated import OPTIMIZERS, RandomNet

STEPS = 3
TRIES = 16


@dataclass(frozen=True)
class Outcome:
    """What one network showed; `refused` are slices that its layout has no axis for."""

    slices: int
    refused: int
    a: parity.Verdict
    b: parity.Verdict
    goes_home: bool

    @property
    def passed(self) -> bool:
        return self.a.passed and self.b.passed and self.goes_home


def parts(net: RandomNet, rng: random.Random) -> list[Any]:
    """At least one slice; about a fifth of the parameters learns whole, a fifth not at all."""
    params = [(name, tuple(p.shape)) for name, p in net.named_parameters() if p.ndim]
    rng.shuffle(params)
    found: list[Any] = []
    for k, (name, shape) in enumerate(params):
        how = "slice" if k == 0 else rng.choice(["slice", "slice", "slice", "whole", "none"])
        if how == "whole":
            found.append(name)
        elif how == "slice":
            axis = rng.randrange(len(shape))
            indices = rng.sample(range(shape[axis]), rng.randint(1, shape[axis]))
            cuts = sorted(rng.sample(range(1, len(indices)), min(rng.choice([0, 0, 1, 2]), len(indices) - 1)))
            ends = [*cuts, len(indices)]
            found += [Update(name, axis, indices[i:j]) for i, j in zip([0, *cuts], ends, strict=True)]
    return found


def lowered(net: RandomNet, xs: list[np.ndarray], wanted: list[Any], **options: Any) -> tuple[Entries, int]:
    """Where a slice is refused because the network has no such axis any more, its tensor learns whole; what the loss
    does not use is left out. How many were refused?"""
    refused = 0
    while True:
        try:
            return api.build(net, tuple(xs), method=wanted, **options), refused
        except CannotUpdate as error:
            name = error.what.split("'")[1]
            others = [part for part in wanted if getattr(part, "param", part) != name]
            if len(others) == len(wanted):
                raise
            is_axis = "cannot learn in slices" in error.what
            wanted, refused = [*others, *([name] if is_axis else [])], refused + is_axis


def outcome(seed: int) -> Outcome:
    net = RandomNet(seed).eval()
    rng = random.Random(seed + 2 * 10**6)
    optimizer, loss = OPTIMIZERS[rng.choice(["momentum", "adam"])], rng.choice(["cross_entropy", "mse"])
    batch = rng.choice([1, 2, 5])
    batches = [generated.data(net, loss, batch, seed + k) for k in range(STEPS)]
    entries, refused = lowered(net, batches[0][0], parts(net, rng), loss=loss, optimizer=optimizer, batch=batch)
    masks = parity.masks_of(entries)

    def reference(dtype: torch.dtype) -> parity.Reference:
        return parity.Reference(net, loss, optimizer, entries.learns, "frozen", dtype, masks)

    program = encode(entries)
    a = parity.free_run(entries, reference, batches)
    b = parity.restarted(Job(program, kernels="exact"), reference(torch.float64), optimizer, batches, TRIES)
    job = Job(program, kernels="exact")
    job.train_step(tuple(batches[0][0]), batches[0][1])
    home = proof.goes_home(job, net, batches[0][0], entries)
    return Outcome(len(masks), refused, a, b, home)


__all__ = ["Outcome", "outcome", "parts"]
