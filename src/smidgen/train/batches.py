"""Data for training: arrays in memory, checked as a whole before the first step, or any iterable of batches, checked
batch by batch. The order of samples depends on the seed and the epoch alone, on every machine.
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from ..errors import BadData, BadOption, SmidgenError
from ..ir import Array
from ..program.arrays import (
    as_buffer,
    check_layout,
    check_number_of_arrays,
    check_numbers,
    listed,
    number_of_samples,
    to_numpy,
)
from ..program.buffer import Buffer
from ..program.loss import LossFacts, check_labels

CHUNK: Final = 1 << 20  # numbers looked at in one go, so that checking takes little memory
PAIR: Final = "give x and y as arrays, or one iterable of pairs (x, y)"
NOT_BATCHES: Final = (np.ndarray, str, bytes, dict)

Result = TypeVar("Result")
Batch = tuple[list[Array], int]
"""Arrays as the program reads them, and the number of samples."""


def order(seed: int, epoch: int, count: int) -> Array:
    """A permutation of `count` samples: they are sorted by a hash of (seed, epoch, sample)."""
    start = _mixed(_mixed(seed) ^ epoch)
    keys = np.arange(count, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(start)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(MIX[0])
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(MIX[1])
    return np.argsort(keys ^ (keys >> np.uint64(31)), kind="stable")


# Constants of SplitMix64 (Steele, Lea, Flood 2014); `_mixed` is one step of it.
GOLDEN: Final = 0x9E3779B97F4A7C15
MIX: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _mixed(x: int) -> int:
    x = (x + GOLDEN) % 2**64
    x = (x ^ (x >> 30)) * MIX[0] % 2**64
    x = (x ^ (x >> 27)) * MIX[1] % 2**64
    return x ^ (x >> 31)


class Arrays:
    """Samples in memory; `batch` of them make a step. `checksum` is of all numbers, as the program reads them."""

    def __init__(self, x: Any, y: Any, buffers: Sequence[Buffer], facts: LossFacts, batch: int) -> None:
        given = [*listed(x), y]
        check_number_of_arrays(given, buffers)
        self.buffers, self.batch = buffers, batch
        self.arrays = [to_numpy(value, buffer.name) for value, buffer in zip(given, buffers, strict=True)]
        for array, buffer in zip(self.arrays, buffers, strict=True):
            check_layout(array, buffer)
        self.samples = number_of_samples(self.arrays, buffers)
        self.checksum = 0
        for array, buffer in zip(self.arrays, buffers, strict=True):
            self._check(array, buffer, facts if buffer is buffers[-1] else LossFacts())

    @property
    def steps(self) -> int:
        """In one epoch."""
        return -(-self.samples // self.batch)

    def sizes(self) -> set[int]:
        """Numbers of samples that steps have."""
        return {min(self.batch, self.samples), self.samples - (self.steps - 1) * self.batch}

    def epoch(self, which: Array | None, skip: int = 0) -> Iterator[Batch]:
        """Batches in the order of `which` (None: as they are), without the first `skip`."""
        for step in range(skip, self.steps):
            first, last = step * self.batch, min((step + 1) * self.batch, self.samples)
            yield self.taken(slice(first, last) if which is None else which[first:last]), last - first

    def taken(self, which: Array | slice) -> list[Array]:
        found = []
        for array, buffer in zip(self.arrays, self.buffers, strict=True):
            k = buffer.per_sample
            if k == 1:
                part = array[which]
            else:
                part = array.reshape(self.samples, k, *array.shape[1:])[which].reshape(-1, *array.shape[1:])
            found.append(as_buffer(part, buffer))
        return found

    def _check(self, array: Array, buffer: Buffer, facts: LossFacts) -> None:
        k = buffer.per_sample
        at_once = k * max(1, CHUNK // max(1, array[:1].size * k))
        for first in range(0, len(array), at_once):
            part = as_buffer(array[first : first + at_once], buffer)
            check_numbers(part, buffer, first // k)
            check_labels(part, buffer, facts, first // k)
            self.checksum = zlib.crc32(part.tobytes(), self.checksum)


class Stream:
    """Batches of the caller, in the caller's order; looked through up front if they are a list or tuple."""

    def __init__(
        self, batches: Any, buffers: Sequence[Buffer], facts: LossFacts, epochs: int, most: int | None
    ) -> None:
        self.batches, self.buffers, self.facts = batches, buffers, facts
        self.most = most  # samples of one batch; None: any number
        self.samples: int | None = None
        self.checksum = 0
        if not hasattr(batches, "__iter__") or isinstance(batches, NOT_BATCHES) or hasattr(batches, "detach"):
            raise BadOption(f"y is missing, and a {type(batches).__name__} is no iterable of batches", help=PAIR)
        if isinstance(batches, types.GeneratorType) and epochs > 1:
            raise BadOption(
                "a generator can be read only once", why=f"{epochs} epochs read the batches {epochs} times",
                help="give a list, or an object whose __iter__ starts again",
            )  # fmt: skip
        if isinstance(batches, (list, tuple)):
            self.samples = sum(n for _, n in self.epoch(None))

    @property
    def steps(self) -> int | None:
        """In one epoch, if known."""
        try:
            return len(self.batches)
        except (TypeError, NotImplementedError):
            return None

    def epoch(self, which: Array | None, skip: int = 0) -> Iterator[Batch]:
        number = 0
        for number, item in enumerate(self.batches, 1):
            if number > skip:
                try:
                    batch = self._read(item)
                except SmidgenError as error:
                    raise _placed(error, f"batch {number - 1} (counted from 0)") from error
                yield batch
        if number < max(1, skip):
            if skip:
                raise BadData("there are no more batches", why=f"{skip} were done before, {number} are given")
            if isinstance(self.batches, Iterator):
                help = "give a list, or an object whose __iter__ starts again"
                raise BadData("there are no batches, or no more", why="an iterator can be read only once", help=help)
            raise BadData("there are no batches", help="give at least one")

    def _read(self, item: Any) -> Batch:
        inputs = len(self.buffers) - 1
        if not isinstance(item, (tuple, list)) or len(item) not in (2, inputs + 1):
            raise BadData(f"a batch is a {type(item).__name__}, not a pair (x, y)", help=PAIR)
        given = [*listed(item[0]), item[1]] if len(item) == 2 else list(item)
        check_number_of_arrays(given, self.buffers)
        arrays = [as_buffer(value, buffer) for value, buffer in zip(given, self.buffers, strict=True)]
        n = number_of_samples(arrays, self.buffers)
        if self.most is not None and n > self.most:
            raise BadData(
                f"{n} samples given, the program takes at most {self.most} at a time",
                help=f"give up to {self.most} samples, or compile with Memory(accumulate=True)",
            )
        for array, buffer in zip(arrays, self.buffers, strict=True):
            check_numbers(array, buffer)
        check_labels(arrays[-1], self.buffers[-1], self.facts)
        return arrays, n


Data = Arrays | Stream


def located(call: Callable[[], Result], place: str) -> Result:
    """The result of a call whose errors say where its data were given."""
    try:
        return call()
    except SmidgenError as error:
        raise _placed(error, f"{place}, {error.at}" if error.at else place) from error


def _placed(error: SmidgenError, at: str) -> SmidgenError:
    return type(error)(error.what, at=at, why=error.why, help=error.help)


__all__ = ["Arrays", "Data", "Stream", "located", "order"]
