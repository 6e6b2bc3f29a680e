"""A replay buffer (replay.h) in memory of the caller, from Python: what it holds, and the functions on it. Samples are
there, too, or in pages, through the pager of an open program or one over an array."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ir import Array, DType
from .library import PAGED, REPLAY_PARTS, CPager, CReplay, CReplayPart, library

NO_LABEL = -(2**31)
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
    NOT_WRITTEN = 5


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
    is_outside: bool = False  # samples are in PAGE, and begin there at
    page: int = 0
    ignore: int | None = None  # the label of samples that count for nothing in a mean

    @property
    def numbers(self) -> tuple[int, ...]:
        """Fields of SmgReplay, in their order, before the parts."""
        ignore = NO_LABEL if self.ignore is None else self.ignore
        return (self.at, self.samples, self.classes, self.fresh, self.step, self.seed, ignore, int(self.is_outside),
                self.page, len(self.parts))  # fmt: skip

    def to_c(self) -> CReplay:
        given = [CReplayPart(part.elements, part.kind) for part in self.parts[:REPLAY_PARTS]]
        return CReplay(*self.numbers, (CReplayPart * REPLAY_PARTS)(*given))

    @property
    def bytes(self) -> int:
        """Of the buffer in STATE; 0 if there can be none."""
        if len(self.parts) > REPLAY_PARTS or any(part.elements >= 2**32 for part in self.parts):
            return 0
        return int(library().smg_replay_bytes(ctypes.byref(self.to_c())))

    @property
    def page_bytes(self) -> int:
        """Of the samples in PAGE; 0: they are in STATE."""
        return int(library().smg_replay_page_bytes(ctypes.byref(self.to_c())))

    def to_json(self) -> dict[str, Any]:
        """Without its places."""
        parts = [[list(part.shape), part.dtype.value, int(part.kind)] for part in self.parts]
        ignore = {} if self.ignore is None else {"ignore": self.ignore}
        return {"samples": self.samples, "classes": self.classes, "fresh": self.fresh, "step": self.step,
                "seed": self.seed, **ignore, "parts": parts}  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Shape:
        """With its places: `at` in STATE, and `page`, if samples are there. ValueError and the like if it is none."""
        parts = tuple(
            Part(tuple(_size(d) for d in shape), DType(dtype), Kind(kind)) for shape, dtype, kind in data["parts"]
        )
        numbers = [_size(data[name]) for name in ("samples", "classes", "fresh", "step", "seed")]
        found = Shape(numbers[0], numbers[1], parts, numbers[2], numbers[3], numbers[4], _size(data["at"]),
                      "page" in data, _size(data.get("page", 0)), _label(data.get("ignore")))  # fmt: skip
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


def _label(value: Any) -> int | None:
    if value is not None and (type(value) is not int or not NO_LABEL < value < 2**31):
        raise ValueError(f"{value!r:.40} is not a label")
    found: int | None = value
    return found


class ArrayPager:
    """An SmgPager over bytes in memory: a copy of what PAGE held."""

    def __init__(self, pages: Array) -> None:
        self.pages = pages
        self._ends = ctypes.create_string_buffer(b"the pages end before")
        self._c = CPager(None, PAGED(self._read), PAGED(self._write), None, None)
        self.address = ctypes.addressof(self._c)

    def _read(self, _: int | None, offset: int, to: int, count: int) -> int | None:
        return self._moved(offset, count, lambda at: ctypes.memmove(to, at, count))

    def _write(self, _: int | None, offset: int, data: int, count: int) -> int | None:
        return self._moved(offset, count, lambda at: ctypes.memmove(at, data, count))

    def _moved(self, offset: int, count: int, move: Callable[[int], object]) -> int | None:
        if offset + count > self.pages.nbytes:
            return ctypes.addressof(self._ends)
        move(self.pages.ctypes.data + offset)
        return None


class Buffer:
    """Samples in `memory`: bytes of a Shape, aligned to four; or in pages, through the SmgPager at an address."""

    def __init__(self, shape: Shape, memory: Array, pager: int | ArrayPager | None = None) -> None:
        self.shape, self.memory, self._pager = shape, memory, pager
        self._lib = library()
        self._c = shape.to_c()
        self._call = ctypes.byref(self._c), ctypes.c_void_p(memory.ctypes.data)
        self._stored = *self._call, ctypes.c_void_p(pager.address if isinstance(pager, ArrayPager) else pager)

    def wrong(self) -> str:
        """Why what the memory holds is no such buffer; empty if it is one."""
        found = self._lib.smg_replay_check(*self._stored)
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
            found.append(Added(self._lib.smg_replay_add(*self._stored, pointers)))
        return found

    def draw(self, k: int) -> list[Array]:
        """k samples at random: an array for each part. OSError with the reason if they cannot be read."""
        rows = [part.rows(k) for part in self.shape.parts]
        why = self._lib.smg_replay_draw(*self._stored, k, self._pointers([a.ctypes.data for a in rows]))
        if why:
            raise OSError(why.decode(errors="replace"))
        return rows

    def share(self, n: int, split: bool) -> int:
        """How many go with n new ones."""
        return int(self._lib.smg_replay_share(*self._call, n, split))

    @staticmethod
    def _pointers(addresses: Sequence[int]) -> Any:
        return (ctypes.c_void_p * len(addresses))(*addresses)


__all__ = ["Added", "ArrayPager", "Buffer", "Kind", "Part", "Shape"]
