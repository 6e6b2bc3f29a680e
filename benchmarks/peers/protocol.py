"""What every contestant is given and gives back. Imported in every environment, so: Python and numpy only.

A contestant is a module with
    start(options) -> str               import the library, say its version; memory is counted from here on
    build(case, options) -> Run         the network with its weights, ready to train
    prepare(case, options) -> None      (optional) conversion and compilation that a user does beforehand
    WARM_STEPS: int                     (optional) steps until it has settled, 2 if not given
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Array = Any  # numpy's, or the library's own
Layer = Mapping[str, Any]


class Run(Protocol):
    def step(self) -> float:
        """One whole training step; the loss before its update, when everything is done."""

    def forward(self) -> Array:
        """The network's output for the case's inputs with the present weights, as numpy."""


@dataclass(frozen=True)
class Options:
    threads: int
    variant: str = ""


@dataclass(frozen=True)
class Case:
    """A network, a batch and a method, as files: `folder` is <net>/b<batch>/<method>."""

    folder: Path
    net: str
    batch: int
    method: str
    lr: float
    momentum: float
    classes: int
    learns: tuple[str, ...]  # names of the parameters that learn

    @staticmethod
    def read(folder: Path) -> Case:
        facts = json.loads((folder / "case.json").read_text())
        keys = ("net", "batch", "method", "lr", "momentum", "classes")
        return Case(folder, **{k: facts[k] for k in keys}, learns=tuple(facts["learns"]))

    def data(self) -> tuple[Array, Array]:
        """float32 inputs in PyTorch's order, int64 labels: the same arrays whenever they are asked for."""
        return _data(self.folder.parent)

    def weights(self) -> dict[str, Array]:
        """By PyTorch's names, in PyTorch's layout; batch-norm statistics included."""
        with np.load(self.folder.parent.parent / "weights.npz") as file:
            return {name: file[name] for name in file.files}

    def layers(self) -> list[Layer]:
        found: list[Layer] = json.loads((self.folder.parent / "layers.json").read_text())
        return found


@functools.cache
def _data(folder: Path) -> tuple[Array, Array]:
    return np.load(folder / "x.npy"), np.load(folder / "y.npy")


def run_layers(layers: Sequence[Layer], x: Any, ops: object) -> Any:
    """The network's output: `ops` has a method for each layer's op, which takes the layer and its inputs."""
    values = {"x": x}
    for layer in layers:
        values[layer["out"]] = getattr(ops, layer["op"])(layer, *[values[name] for name in layer["ins"]])
    return values[layers[-1]["out"]]


def folded_norm(layer: Layer, weights: Mapping[str, Array]) -> tuple[Array, Array]:
    """Constants of a norm with frozen statistics: (x - mean) / sqrt(var + eps) = x * factor - offset."""
    factor = 1.0 / np.sqrt(weights[layer["var"]].astype(np.float64) + layer["eps"])
    return factor.astype(np.float32), (factor * weights[layer["mean"]]).astype(np.float32)


def one_hot(y: Array, classes: int) -> Array:
    return np.eye(classes, dtype=np.float32)[y]


__all__ = ["Array", "Case", "Layer", "Options", "Run", "folded_norm", "one_hot", "run_layers"]
