"""Ranges of all values of a network on the user's samples: what int8 has to hold."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...errors import BadCalibration
from ...ir import Array, DType, Graph, Role, batch_axis
from ...program.arrays import to_numpy
from ..graph import interp
from .identity import Identity

FEW: Final = 8
"""Samples: below, a warning."""
AT_A_TIME: Final = 8
BINS: Final = 2048
OUTSIDE: Final = 1e-4  # the share of numbers that a percentile cuts off, half of it on either side
STEPS: Final = 64  # ranges that are tried for the least squared error

HELP: Final = "data=x, some dozens of typical samples, as the network is given them"


class Calibration:
    """The user's samples, and the ranges that were found so far: of a value that several graphs have, once."""

    def __init__(self, data: Any, mode: str) -> None:
        self._data, self._mode = data, mode
        self._inputs: list[Array] | None = None
        self._ranges: dict[int, tuple[float, float]] = {}
        self.identity = Identity()

    @property
    def samples(self) -> int:
        return 0 if self._inputs is None else len(self._inputs[0])

    def ranges(self, graph: Graph) -> Mapping[int, tuple[float, float]]:
        """By the number of each value; those of all f32 values of the graph, which is one without gradients, are
        among them."""
        numbers = self.identity.of(graph)
        wanted = {
            name: number
            for name, number in numbers.items()
            if number not in self._ranges and graph[name].role is Role.VALUE and graph[name].dtype is DType.F32
        }
        if wanted:
            self._ranges |= {wanted[name]: found for name, found in self._observed(graph, wanted).items()}
        return self._ranges

    def _observed(self, graph: Graph, names: Mapping[str, int]) -> dict[str, tuple[float, float]]:
        inputs = self._inputs = checked(self._data, graph) if self._inputs is None else self._inputs
        low, high = dict.fromkeys(names, np.inf), dict.fromkeys(names, -np.inf)

        def widen(name: str, value: Array) -> None:
            if value.size:
                low[name] = min(low[name], float(value.min()))
                high[name] = max(high[name], float(value.max()))

        self._watch(graph, inputs, names, widen)
        for name in names:
            if not (np.isfinite(low[name]) and np.isfinite(high[name])):
                if low[name] == np.inf:  # it has no elements
                    low[name] = high[name] = 0.0
                    continue
                raise BadCalibration(
                    f"'{name}' is not finite on the samples", why="int8 needs the range of every value",
                    help="samples on which the network's results are finite",
                )  # fmt: skip
        if self._mode == "minmax":
            return {name: (low[name], high[name]) for name in names}
        edges = {name: (min(low[name], 0.0), max(high[name], 0.0)) for name in names}
        counts = {name: np.zeros(BINS, np.int64) for name in names}

        def count(name: str, value: Array) -> None:
            if edges[name][0] < edges[name][1]:
                counts[name] += np.histogram(value, BINS, edges[name])[0]

        self._watch(graph, inputs, names, count)
        pick = _percentile if self._mode == "percentile" else _least_error
        return {name: pick(counts[name], *edges[name]) for name in names}

    @staticmethod
    def _watch(graph: Graph, inputs: Sequence[Array], names: Mapping[str, int], see: Any) -> None:
        for first in range(0, len(inputs[0]), AT_A_TIME):
            part = {name: x[first : first + AT_A_TIME] for name, x in zip(graph.inputs, inputs, strict=False)}
            env = interp.run(graph, part, n=len(next(iter(part.values()))))
            for name in names:
                if name in env:
                    see(name, env[name])


def _percentile(counts: Array, low: float, high: float) -> tuple[float, float]:
    """Without the outermost numbers on either side; 0 stays inside."""
    total = counts.sum()
    if not total:
        return low, high
    below = np.cumsum(counts) / total
    edges = np.linspace(low, high, BINS + 1)
    first = int(np.searchsorted(below, OUTSIDE / 2, "right"))
    last = int(np.searchsorted(below, 1 - OUTSIDE / 2, "left"))
    return min(float(edges[min(first, BINS - 1)]), 0.0), max(float(edges[min(last + 1, BINS)]), 0.0)


def _least_error(counts: Array, low: float, high: float) -> tuple[float, float]:
    """Of ranges that cut off more and more on both sides, the one with the least squared error of 255 steps."""
    if not counts.sum():
        return low, high
    edges = np.linspace(low, high, BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    best, least = (low, high), np.inf
    for k in range(STEPS):
        share = 1 - k / (2 * STEPS)
        a, b = low * share, high * share
        step = (b - a) / 255
        inside = np.clip(middle, a, b)
        error = float((counts * ((middle - inside) ** 2 + step * step / 12)).sum())
        if error < least:
            best, least = (a, b), error
    return best


def checked(data: Any, graph: Graph) -> list[Array]:
    """The samples as the inputs of the graph take them; labels behind them are left out."""
    names = [name for name in graph.inputs if batch_axis(graph[name].shape) is not None]
    if data is None:
        why = "the range of every value decides what a step of int8 stands for"
        raise BadCalibration("precision='int8' has no samples to calibrate with", why=why, help=HELP)
    given = list(data) if isinstance(data, (tuple, list)) else [data]
    if len(given) not in (len(names), len(names) + 1):
        raise BadCalibration(f"{len(given)} arrays to calibrate with", why=f"the network has {len(names)} inputs",
                             help=HELP)  # fmt: skip
    arrays = [_array(value, name, graph) for value, name in zip(given, names, strict=False)]
    counts = {len(array) for array in arrays}
    if len(counts) != 1 or 0 in counts:
        raise BadCalibration("the inputs have different numbers of samples to calibrate with, or none", help=HELP)
    (count,) = counts
    if count < FEW:
        warnings.warn(
            f"int8 is calibrated on {count} samples: values beyond theirs will be cut off, and some points of accuracy "
            f"may be lost; use {FEW} at least, better some dozens of all classes", stacklevel=2,
        )  # fmt: skip
    return arrays


def _array(value: Any, name: str, graph: Graph) -> Array:
    array, tensor = to_numpy(value, name), graph[name]
    shape = tuple(int(d) for d in tensor.shape[1:])  # type: ignore[arg-type]
    if array.shape[1:] != shape or not array.ndim:
        want = ", ".join(map(str, ("n", *shape)))
        raise BadCalibration(f"'{name}' has shape {array.shape} in the samples, the network takes ({want})", help=HELP)
    if tensor.dtype is not DType.F32:
        return array
    if array.dtype.kind not in "fiub":
        raise BadCalibration(f"'{name}' has dtype {array.dtype} in the samples, the network takes numbers", help=HELP)
    array = np.asarray(array, np.float32)
    if not np.isfinite(array).all():
        raise BadCalibration(f"'{name}' holds NaN or infinity in the samples to calibrate with",
                             help="leave such samples out, or replace the numbers: numpy.nan_to_num")  # fmt: skip
    if array.size and float(array.min()) == float(array.max()):
        raise BadCalibration(f"'{name}' is {float(array.min()):g} everywhere in the samples to calibrate with",
                             why="of a constant no range can be told", help=HELP)  # fmt: skip
    return array


__all__ = ["Calibration"]
