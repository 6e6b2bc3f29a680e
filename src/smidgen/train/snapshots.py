"""Copies of the state, to go back to: in RAM, or in a file that nobody else sees. A job with a limit of RAM, or one
that pages, keeps them in files: its RAM is for the plan."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from ..errors import CannotWrite
from ..ir import Array
from .state import State

CHUNK: Final = 1 << 20  # bytes of state in PAGE that are in RAM at a time
ON_DISK: Final = "/var/tmp"  # unlike /tmp, which may be in RAM
HELP: Final = 'checkpoint="run.ckpt" on a disk with room, or TMPDIR=/some/disk'


class Kept(Protocol):
    """`data` is STATE, then what is in PAGE."""

    def keep(self, state: State) -> None: ...
    def bring_back(self, state: State) -> None: ...
    def take(self, data: bytes | memoryview) -> None: ...
    def data(self) -> memoryview: ...


class InRam:
    def __init__(self, count: int) -> None:
        self._copy = np.empty(count, np.uint8)

    def keep(self, state: State) -> None:
        state.copy_to(self._copy)

    def bring_back(self, state: State) -> None:
        state.set_all(self._copy)

    def take(self, data: bytes | memoryview) -> None:
        self._copy[:] = np.frombuffer(data, np.uint8)

    def data(self) -> memoryview:
        return self._copy.data


class Reserved:
    """A file without a name, with room for so many bytes; gone with this object. Everything raises OSError."""

    def __init__(self, folder: str | os.PathLike[str], count: int) -> None:
        self._file, name = tempfile.mkstemp(dir=folder)
        os.unlink(name)
        if count:
            os.posix_fallocate(self._file, 0, count)
        self.count = count

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)

    def write(self, data: memoryview, at: int = 0) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._file, data[done:], at + done)

    def read(self, data: memoryview, at: int = 0) -> None:
        done = 0
        while done < len(data):
            got = os.preadv(self._file, [data[done:]], at + done)
            if not got:
                raise OSError("the file ends early")
            done += got

    def mapped(self) -> memoryview:
        """What is in it, for as long as somebody looks at it."""
        return memoryview(mmap.mmap(self._file, self.count, access=mmap.ACCESS_READ) if self.count else b"")


class InFile:
    def __init__(self, folders: Sequence[str | os.PathLike[str]], count: int) -> None:
        """In the first of the folders that has room."""
        why = ""
        for folder in folders:
            try:
                self._reserved = Reserved(folder, count)
                return
            except OSError as error:
                why = why or error.strerror or str(error)
        raise CannotWrite(f"there is no place for a copy of the state, {count:,} bytes", why=why, help=HELP)

    def keep(self, state: State) -> None:
        state.check_whole()
        try:
            self._reserved.write(state.memory.data)
            for at, count in _chunks(state):
                assert state.pages is not None
                self._reserved.write(state.pages.read_page(at, count).data, len(state.memory) + at)
        except OSError as error:
            raise _cannot_keep(error) from error

    def bring_back(self, state: State) -> None:
        state.is_partial = True
        try:
            for at, count in _chunks(state):
                piece: Array = np.empty(count, np.uint8)
                self._reserved.read(piece.data, len(state.memory) + at)
                assert state.pages is not None
                state.pages.write_page(at, piece)
            self._reserved.read(state.memory.data)
        except OSError as error:
            raise _cannot_keep(error) from error
        state.is_partial = False

    def take(self, data: bytes | memoryview) -> None:
        try:
            self._reserved.write(memoryview(data))
        except OSError as error:
            raise _cannot_keep(error) from error

    def data(self) -> memoryview:
        return self._reserved.mapped()


def _chunks(state: State) -> Iterator[tuple[int, int]]:
    whole = 0 if state.pages is None else state.pages.page_state_bytes
    return ((at, min(CHUNK, whole - at)) for at in range(0, whole, CHUNK))


def _cannot_keep(error: OSError) -> CannotWrite:
    return CannotWrite("a copy of the state cannot be kept", why=error.strerror or str(error), help=HELP)


def folders(*files: str | os.PathLike[str] | None) -> list[Path]:
    """Where copies may be kept: beside these files, or wherever temporary files are on a disk."""
    beside = [Path(file).resolve().parent for file in files if file is not None]
    return [*beside, Path(os.environ.get("TMPDIR") or ON_DISK), Path(tempfile.gettempdir())]


__all__ = ["InFile", "InRam", "Kept", "Reserved", "folders"]
