"""The encoded program: what Python hands to the C runtime. runtime/format.h describes the same bytes.

A Program is canonical: equal programs have equal bytes, and `from_bytes` accepts only what `to_bytes` would write.
"""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import files
from ..errors import BadProgram, DoesNotFit, Internal
from .buffer import Buffer
from .lazy_json import Description
from .reader import Reader
from .writer import Writer, crc_of, is_made_of, packed_json

if TYPE_CHECKING:
    from .instructions import Entry, Instruction, Word


@dataclass(frozen=True, slots=True)
class Program:
    batch: int  # the most samples of one step
    align: int
    entries: Mapping[str, Entry]
    const: bytes = field(repr=False)
    state: bytes | memoryview = field(repr=False)  # initial values, without the zeros at the end
    state_bytes: int
    arena_bytes: int
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)
    page: bytes | memoryview = field(
        default=b"", repr=False
    )  # initial values of state in PAGE, without the zeros at the end
    page_state_bytes: int = 0
    page_bytes: int = 0  # size of PAGE; 0: the program does not page

    @property
    def const_bytes(self) -> int:
        return len(self.const)

    @property
    def saved_bytes(self) -> int:
        """All that learning changes: STATE, then the state in PAGE."""
        return self.state_bytes + self.page_state_bytes

    @property
    def flash_bytes(self) -> int:
        """Of the file, without `meta`, which a device does not need."""
        return Writer(replace(self, meta={})).size()

    @property
    def checksum(self) -> int:
        """As the file has it."""
        return crc_of(Writer(self).pieces())

    @property
    def kernels(self) -> tuple[str, ...]:
        """In the order of their first use."""
        return tuple(dict.fromkeys(i.kernel for e in self.entries.values() for i in e.code if i.kernel))

    @property
    def blocks(self) -> tuple[tuple[Word, ...], ...]:
        """Different lists of parameters, and tables of streams, in the order of their first use."""
        steps = (i for e in self.entries.values() for i in e.code if not i.is_loop)
        return tuple(dict.fromkeys(i.table or i.params for i in steps))

    @property
    def figures(self) -> Mapping[str, Any]:
        """The plan in `meta`, perhaps without its facts: quick to ask for."""
        return self.meta.figures if isinstance(self.meta, Description) else self.meta["plan"]

    def entry_code(self, entry: str) -> tuple[Instruction, ...]:
        return self.entries[entry].code

    def entry_buffers(self, entry: str) -> tuple[Buffer, ...]:
        known = self.entries.buffers if isinstance(self.entries, _Stored) else {}
        return known[entry] if entry in known else self.entries[entry].buffers

    def with_state(self, state: bytes | memoryview) -> Program:
        """The same program, starting from these values of STATE and of state in PAGE. A view is not copied."""
        if len(state) != self.saved_bytes:
            raise Internal(f"the state has {self.saved_bytes} bytes, {len(state)} given")
        own, paged = state[: self.state_bytes], state[self.state_bytes :]
        return replace(self, state=own[: trimmed_bytes(own)], page=paged[: trimmed_bytes(paged)])

    def to_bytes(self) -> bytes:
        return b"".join(Writer(self).parts())

    def bare_bytes(self) -> bytes:
        """As firmware has it: without the description that only Python reads, filled up to whole words."""
        data = replace(self, meta={}).to_bytes()
        return data + bytes(-len(data) % 4)

    @staticmethod
    def from_bytes(data: bytes | memoryview) -> Program:
        """Raises BadProgram unless `data` is exactly what `to_bytes` writes. Extents are checked by the runtime. What
        may be large of a view is not copied."""
        from .instruction_reader import entries

        try:
            reader = Reader(data)
            program = _program(reader, entries(reader), reader.meta())
            canonical = is_made_of(data, Writer(program).parts())
        except (struct.error, IndexError) as e:
            raise BadProgram("the file refers to something outside itself") from e
        except DoesNotFit as e:
            raise BadProgram(e.what, why=e.why) from e
        if not canonical:
            raise BadProgram("the file is not written the way smidgen writes programs")
        return program

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Program:
        with _named(path):
            return Program.from_bytes(Path(path).read_bytes())

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Program:
        """Like `load`, in a fraction of the time: constants stay in the file, which is mapped, and instructions are not
        looked at before somebody asks for them; BadProgram may come as late as that."""
        with _named(path), files.opened(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise BadProgram("the file has 0 bytes, fewer than its header")  # nothing that could be mapped
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            try:
                reader = Reader(view)
                return _program(reader, _Stored(view, reader.buffers()), reader.description())
            except (struct.error, IndexError) as e:
                raise BadProgram("the file refers to something outside itself") from e

    def save(self, path: str | os.PathLike[str]) -> None:
        """The file appears complete or not at all."""
        files.write(path, *Writer(self).parts())


def _program(reader: Reader, entries: Mapping[str, Entry], meta: Mapping[str, Any]) -> Program:
    parts = reader.parts
    return Program(
        reader.batch, reader.align, entries, parts["const"], parts["state"], reader.state_bytes, reader.arena_bytes,
        meta, parts["page"], reader.page_state_bytes, reader.page_bytes,
    )  # fmt: skip


@contextlib.contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors say which file it was."""
    try:
        yield
    except OSError as e:
        raise BadProgram(f"cannot read '{path}'", why=e.strerror or str(e)) from e
    except BadProgram as e:
        raise BadProgram(e.what, at=str(path), why=e.why, help=e.help) from e


class _Stored(Mapping[str, "Entry"]):
    """Entry points of a mapped file: their buffers, and all the rest as soon as one is taken out."""

    def __init__(self, data: memoryview, buffers: Mapping[str, tuple[Buffer, ...]]) -> None:
        self.buffers = buffers
        self._data = data

    @functools.cached_property
    def _entries(self) -> Mapping[str, Entry]:
        return Program.from_bytes(self._data).entries

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.buffers)

    def __len__(self) -> int:
        return len(self.buffers)

    def __contains__(self, name: object) -> bool:
        return name in self.buffers


_ZEROS: Final = bytes(1 << 16)


def trimmed(state: bytes | memoryview) -> bytes:
    """Without the words at the end that are zero."""
    return bytes(state[: trimmed_bytes(state)])


def trimmed_bytes(state: bytes | memoryview) -> int:
    """Up to the last word that is not zero."""
    end = len(state)
    while end and bytes(state[max(end - len(_ZEROS), 0) : end]) == _ZEROS[:end]:
        end -= min(end, len(_ZEROS))
    start = max(end - len(_ZEROS), 0)
    end = start + len(bytes(state[start:end]).rstrip(b"\0"))
    return -(-end // 4) * 4


def checked_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """As a file would give it back."""
    found: dict[str, Any] = json.loads(packed_json(meta))
    return found


__all__ = ["Program", "checked_meta", "trimmed", "trimmed_bytes"]
