"""A small program for tests of firmware. Needs torch."""

from __future__ import annotations

import functools

import torch
from torch import nn

from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD
from smidgen.program.program import Program


@functools.cache
def small(classes: int = 3, accumulate: bool = False) -> Program:
    torch.manual_seed(classes)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))
    return encode(api.build(model, torch.randn(2, 4), optimizer=SGD(0.1), accumulate=accumulate))
