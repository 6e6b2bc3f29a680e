"""A replay buffer (replay.h) in memory of the caller's, from Python: what it holds, and the functions on it."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import Array, DType
from .library import REPLAY_PARTS, CReplay, CReplayPart, library

HEADER_WORDS = 4  # samples held, samples offered, draws done, 0


class Kind(enum.IntEnum):
    """SmgReplayKind: how a part of a sample is kept."""

    F32 = 0
    INT8 = 1
    RAW = 2


class Added(enum.IntEnum):
    """SmgReplayAdded: what became of a sample that was offered."""

    KEPT = 0
    PASSED = 1
    LABEL = 2
    NOT_FINITE = 3
    DAMAGED = 4


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a sample, as the program has it."""

    shape: tuple[int, ...]  # of one sample, its rows first
    dtype: DType
    kind: Kind

    @property
    def elements(self) -> int:
        """Floats, or bytes of what is kept as it is."""
        count = int(np.prod(self.shape, dtype=np.int64))
        return count * self.dtype.bytes if self.kind is Kind.RAW else count

    def rows(self, n: int) -> Array:
        return np.empty((n * self.shape[0], *self.shape[1:]), self.dtype.numpy)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a buffer holds; SmgReplay."""

    samples: int
    classes: int  # of the target; 0: it is no class
    parts: tuple[Part, ...]  # the target last
    fresh: int = 0  # new samples of a step, and
    step: int = 0  # all of its samples
    seed: int = 0
    at: int = 0  # in STATE

    def to_c(self) -> CReplay:
        given = [CReplayPart(part.elements, part.kind) for part in self.parts[:REPLAY_PARTS]]
        parts = (CReplayPart * REPLAY_PARTS)(*given)
        return CReplay(self.at, self.samples, self.classes, self.fresh, self.step, self.seed, len(self.parts), parts)

    @property
    def bytes(self) -> int:
        """Of the buffer; 0 if there can be none."""
        if len(self.parts) > REPLAY_PARTS or any(part.elements >= 2**32 for part in self.parts):
            return 0
        return int(library().smg_replay_bytes(ctypes.byref(self.to_c())))

    def to_json(self) -> dict[str, Any]:
        """Without its place in STATE."""
        parts = [[list(part.shape), part.dtype.value, int(part.kind)] for part in self.parts]
        return {"samples": self.samples, "classes": self.classes, "fresh": self.fresh, "step": self.step,
                "seed": self.seed, "parts": parts}  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Any], at: int) -> Shape:
        """ValueError and the like if it is none."""
        parts = tuple(
            Part(tuple(_size(d) for d in shape), DType(dtype), Kind(kind)) for shape, dtype, kind in data["parts"]
        )
        numbers = [_size(data[name]) for name in ("samples", "classes", "fresh", "step", "seed")]
        found = Shape(numbers[0], numbers[1], parts, numbers[2], numbers[3], numbers[4], _size(at))
        if not found.bytes or any(part.kind is not Kind.RAW and part.dtype is not DType.F32 for part in parts):
            raise ValueError("no replay buffer can be like that")
        return found

    def rows_bytes(self, n: int) -> int:
        """Of n new samples, as a step on a board holds them."""
        return int(library().smg_replay_rows_bytes(ctypes.byref(self.to_c()), n))


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**32:
        raise ValueError(f"{value!r:.40} is not a size")
    return value


class Buffer:
    """Samples in `memory`: bytes of a Shape, aligned to four."""

    def __init__(self, shape: Shape, memory: Array) -> None:
        self.shape, self.memory = shape, memory
        self._lib = library()
        self._c = shape.to_c()
        self._call = ctypes.byref(self._c), ctypes.c_void_p(memory.ctypes.data)

    def wrong(self) -> str:
        """Why what the memory holds is no such buffer; empty if it is one."""
        found = self._lib.smg_replay_check(*self._call)
        return str(found.decode()) if found else ""

    def clear(self) -> None:
        self.memory[:] = 0

    @property
    def held(self) -> int:
        return int(self._lib.smg_replay_held(*self._call))

    def held_of(self, number: int) -> int:
        return int(self._lib.smg_replay_held_of(*self._call, number))

    def seen_of(self, number: int) -> int:
        return int(self._lib.smg_replay_seen_of(*self._call, number))

    @property
    def counters(self) -> Array:
        """Samples held and offered, and draws done: in place."""
        words: Array = self.memory[: 4 * HEADER_WORDS].view(np.uint32)
        return words

    def add(self, arrays: Sequence[Array], n: int) -> list[Added]:
        """Offer n samples, one after the other: an array for each part, as the program has it."""
        given = [
            np.ascontiguousarray(array, part.dtype.numpy) for array, part in zip(arrays, self.shape.parts, strict=True)
        ]
        each = [array.nbytes // n for array in given]
        starts = [array.ctypes.data for array in given]
        found = []
        for i in range(n):
            pointers = self._pointers([start + i * size for start, size in zip(starts, each, strict=True)])
            found.append(Added(self._lib.smg_replay_add(*self._call, pointers)))
        return found

    def draw(self, k: int) -> list[Array]:
        """k samples at random: an array for each part."""
        rows = [part.rows(k) for part in self.shape.parts]
        done = self._lib.smg_replay_draw(*self._call, k, self._pointers([a.ctypes.data for a in rows]))
        assert done == k or not self.held
        return rows

    def share(self, n: int, split: bool) -> int:
        """How many go with n new ones."""
        return int(self._lib.smg_replay_share(*self._call, n, split))

    @staticmethod
    def _pointers(addresses: Sequence[int]) -> Any:
        return (ctypes.c_void_p * len(addresses))(*addresses)


__all__ = ["Added", "Buffer", "Kind", "Part", "Shape"]
