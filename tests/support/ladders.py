"""Jobs with a ladder, their data and bits. Needs torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import smidgen
from tests.support.arguments import compiled


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm, self.drop = nn.BatchNorm2d(channels), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.drop(self.two(torch.relu(self.norm(self.one(x))))))


def residual(channels: int = 6, blocks: int = 4) -> nn.Module:
    """Momentum is the optimizer's; dropout, residuals and batch-norm are in here."""
    torch.manual_seed(0)
    deep = [Residual(channels) for _ in range(blocks)]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)
    return nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), *deep, *head)


def data(n: int, size: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((n, 3, size, size)).astype(np.float32), (np.arange(n) % 10).astype(np.int32)


def made(name: str, ladder: list[int | str], **more: Any) -> tuple[smidgen.Job, np.ndarray, np.ndarray]:
    """A job with momentum or Adam, and data for four batches and a rest."""
    if name == "residual":
        model, (x, y), loss = residual().train(), data(18), "cross_entropy"
        optimizer: Any = smidgen.SGD(lr=0.05, momentum=0.9)
    else:
        from benchmarks.nets import NETS

        net = NETS[name]
        model, (x, y), loss, optimizer = net.model().eval(), net.data(18), net.loss, smidgen.Adam(lr=1e-3)
    more = {"bn": "batch" if name == "residual" else "frozen", **more}
    job = compiled(
        model, x[:4], loss=loss, optimizer=optimizer, seed=3, ladder=ladder, **{"effort": 0, "kernels": "exact", **more}
    )
    return job, x, y


def shares(job: smidgen.Job, *parts: float) -> list[int | str]:
    """Budgets that leave so much of the arena."""
    fixed = job.plan.ram_bytes - job.plan.arena_bytes
    return [fixed + int(job.plan.arena_bytes * part) for part in parts]


def allowed(job: smidgen.Job, *rungs: int | None) -> Callable[[], float]:
    """A function that allows just these rungs, batch by batch, over and over; None: without a limit."""
    sizes = itertools.cycle([math.inf if rung is None else job.rungs[rung].ram_bytes for rung in rungs])
    return lambda: next(sizes)


def bits(job: smidgen.Job) -> bytes:
    return job.engine.machine.state.tobytes()
