"""Digits with one class held back, and a network that knows the other nine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import smidgen


def net(classes: int = 9) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, classes),
    )  # fmt: skip


def digits() -> tuple[Any, Any]:
    found = load_digits()
    return (found.images / 16).astype(np.float32)[:, None], found.target.astype(np.int32)


def nine_known(new: int) -> tuple[Any, Any, nn.Sequential, Any]:
    """Digits in some order, in which `new` has the label 9; a network that learned the others of the first 1200; and
    what it is to learn from afterwards: 20 samples of the new one, 10 of each known one."""
    x, y = digits()
    order = np.random.default_rng(new).permutation(len(x))
    x, y = x[order], np.where(y[order] == new, 9, y[order] - (y[order] > new)).astype(np.int32)
    seen = y[:1200] != 9
    job = smidgen.compile(net(), x[:16], optimizer=smidgen.SGD(0.05, momentum=0.9))
    job.fit(x[:1200][seen], y[:1200][seen], epochs=8, progress=False)
    model = net()
    job.load_into(model)
    replayed = [np.flatnonzero(y[:1200] == k)[:10] for k in range(9)]
    return x, y, model, np.concatenate([np.flatnonzero(~seen)[:20], *replayed])
