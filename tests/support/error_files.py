"""Networks and broken files that provoke the errors of the command line."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np

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


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x):
        y = self.head(x)
        return (y, y) if self.training else y


def of_two(output, target):
    return ((output[0] - output[1] + output[0] - target) ** 2).mean()
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


def write_data(place: Path) -> np.ndarray:
    """Data that is good, and data that is wrong in one way each; the samples of the good one."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((12, 3)).astype(np.float32), np.arange(12) % 2
    good = {"x": x, "y": y}
    files = {
        "good": good, "no_y": {"x": x}, "no_x": {"y": y, "z": y}, "empty": {"x": x[:0], "y": y[:0]},
        "wide": {"x": np.zeros((12, 4), np.float32), "y": y}, "label": {"x": x, "y": y + 1},
        "nan": {"x": np.where(np.arange(12)[:, None] == 5, np.nan, x).astype(np.float32), "y": y},
        "text": {"x": x.astype("U8"), "y": y}, "short": {"x": x, "y": y[:7]}, "target": {"x": x, "y": 1e30 * x[:, :2]},
        "word": {"x": np.array([[1, 2, 9]] * 4), "y": y[:4]},
    }  # fmt: skip
    for name, arrays in files.items():
        np.savez(place / f"{name}.npz", **arrays)
    np.savez(place / "objects.npz", x=np.array([{}], dtype=object), y=y)
    (place / "damaged.npz").write_bytes((place / "good.npz").read_bytes()[:100])
    np.save(place / "one_array.npy", x)
    for name, shape in (
        ("huge", "(1000000000000, 3)"),
        ("huger", "(99999999999999999999999, 3)"),
        ("unclear", "(4, 3"),
    ):
        with zipfile.ZipFile(place / f"{name}.npz", "w") as archive:
            archive.writestr("x.npy", npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"))
    return x
