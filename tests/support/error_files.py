"""Networks and broken files that provoke the errors of the command line."""

from __future__ import annotations

import struct

NETS = """\
import torch
from torch import nn


class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 2)

    def forward(self, x):
        return self.head(x.reshape(4, 12))


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.pick, self.table = nn.Linear(3, 4), nn.Embedding(4, 2)

    def forward(self, x):
        return self.table(self.pick(x).argmax(1))


class Bessel(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        return torch.special.bessel_j0(self.head(x))


def plain():
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def flat():
    return nn.Flatten(0)


def wide():
    return nn.Linear(300_000, 1)


def loud():
    print("made")
    return plain()


def norm():
    return nn.BatchNorm1d(3)


def root_mean_square(output, target):
    return ((output - target) ** 2).mean().sqrt()
"""

METHODS = """\
from smidgen import Update
from smidgen.methods import Method, register
from torch import nn


@register
class NinthRow(Method):
    name, doc = "ninth_row", "a row that the weight does not have"

    def choose(self, graph, context):
        return [Update("weight", axis=0, indices=(8,))]


@register
class Words(Method):
    name, doc = "words", "names instead of updates"

    def choose(self, graph, context):
        return ["weight"]


def plain():
    return nn.Linear(3, 2)
"""


def npy(header: str) -> bytes:
    """An array that is nothing but a description."""
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
