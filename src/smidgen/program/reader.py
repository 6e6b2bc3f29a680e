"""Bytes to a program. What is merely unusual is found by writing the result again (program.py)."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import BadProgram
from ..ir import Batch, DType
from .buffer import MAX_RANK, SCALED_RANK, Buffer
from .lazy_json import Description, Unusual, decoded
from .writer import (
    BUFFER,
    CRC_FROM,
    ENTRY,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    OUTPUT,
    PAGES,
    SCALED,
    SECTIONS,
    VERSION,
)

REGION_BYTES = 2**31 - 64
"""No region may be larger."""


@contextlib.contextmanager
def _described() -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as e:
        raise BadProgram("the description in the file is not JSON") from e


class Reader:
    """Takes a file apart."""

    def __init__(self, data: bytes | memoryview) -> None:
        if len(data) < HEADER_BYTES:
            raise BadProgram(f"the file has {len(data)} bytes, fewer than its header")
        self.data = data
        magic, version, total, crc, *rest = HEADER.unpack_from(data)
        self.batch, self.align, const, self.state_bytes, self.arena_bytes, sections = rest
        if magic != MAGIC:
            raise BadProgram("not a smidgen program")
        if version != VERSION:
            older = version < VERSION
            raise BadProgram(
                f"the file has format version {version}, this smidgen reads version {VERSION}",
                help="compile the model again with this smidgen" if older else "a newer smidgen reads it",
            )
        if total != len(data):
            raise BadProgram(f"the file has {len(data)} bytes, {total} are written in it")
        if crc != zlib.crc32(memoryview(data)[CRC_FROM:]):
            raise BadProgram("the checksum does not match: the file is damaged")
        counts = (len(SECTIONS), len(SECTIONS) + 1)
        if not 1 <= self.batch < 2**31 or self.align not in (4, 8, 16, 32, 64) or sections not in counts:
            raise BadProgram("batch size, alignment or number of sections are out of range")
        self.parts: dict[str, Any] = {}  # of a mapped file, what may be large stays there
        for i, name in enumerate((*SECTIONS, "page")[:sections]):
            start, count = struct.unpack_from("<2I", data, HEADER.size + 8 * i)
            if start + count > total:
                raise BadProgram(f"section '{name}' ends behind the file")
            part = data[start : start + count]
            self.parts[name] = part if name in ("const", "state", "page", "meta") else bytes(part)
        self.page_bytes = self.page_state_bytes = 0
        if "page" in self.parts:
            self.page_bytes, self.page_state_bytes = PAGES.unpack_from(self.parts["page"])
            if not self.page_bytes:
                raise BadProgram("the section on pages has no pages")
        self.parts["page"] = self.parts.get("page", b"")[PAGES.size :]
        if len(self.parts["const"]) != const or len(self.parts["state"]) > self.state_bytes:
            raise BadProgram("constants or initial state do not fit their region")
        if len(self.parts["page"]) > self.page_state_bytes or self.page_state_bytes > self.page_bytes:
            raise BadProgram("initial state in pages does not fit its region")
        if max(const, self.state_bytes, self.arena_bytes, self.page_bytes) > REGION_BYTES:
            raise BadProgram(f"a region is larger than {REGION_BYTES} bytes")
        self.sizes = {
            "const": const, "state": self.state_bytes, "arena": self.arena_bytes, "page": self.page_bytes,
        }  # fmt: skip

    def buffers(self) -> dict[str, tuple[Buffer, ...]]:
        """Of each entry point, without a look at its instructions."""
        return {name: own for name, own, _, _ in self.listed()}

    def listed(self) -> Iterator[tuple[str, tuple[Buffer, ...], int, int]]:
        """Name, buffers, first code word, code words."""
        buffers = [self._buffer(*fields) for fields in BUFFER.iter_unpack(self.parts["buffers"])]
        self._check_types({buffer.dtype for buffer in buffers})
        for name, inputs, outputs, first, start, words, _ in ENTRY.iter_unpack(self.parts["entries"]):
            own = tuple(buffers[first : first + inputs + outputs])
            if len(own) != inputs + outputs or 4 * (start + words) > len(self.parts["code"]):
                raise BadProgram("an entry point refers to something outside the file")
            yield self.name_at(name), own, start, words

    def meta(self) -> dict[str, Any]:
        with _described():
            meta = decoded(self._meta_text())
        if not isinstance(meta, dict):
            raise BadProgram("the description in the file is not an object")
        return meta

    def description(self) -> Mapping[str, Any]:
        with _described(), contextlib.suppress(Unusual):
            return Description(self._meta_text)
        return self.meta()

    def _meta_text(self) -> bytes:
        return bytes(self.parts["meta"])

    def name_at(self, offset: int) -> str:
        end = self.parts["strings"].find(b"\0", offset)
        if end < 0:
            raise BadProgram("a name does not end")
        try:
            return str(self.parts["strings"][offset:end], "utf-8")
        except UnicodeDecodeError as e:
            raise BadProgram("a name is not UTF-8") from e

    def _buffer(self, name: int, code: int, kind: int, rank: int, axis: int, *dims: int) -> Buffer:
        scale, offset, dtype = None, 0.0, DType.of_code(code)
        if kind & SCALED:
            scale, offset = struct.unpack("<2f", struct.pack("<2I", *dims[SCALED_RANK:]))
            dims = dims[:SCALED_RANK]
        shaped = rank <= len(dims) <= MAX_RANK and (axis == 255 or axis < rank) and max(dims) < 2**31
        if dtype is None or kind & ~(OUTPUT | SCALED) or not shaped:
            raise BadProgram("a buffer has an unknown type or shape")
        shape = tuple(Batch(d) if i == axis else d for i, d in enumerate(dims[:rank]))
        found = Buffer(self.name_at(name), dtype, shape, "output" if kind & OUTPUT else "input", scale, offset)
        if kind & SCALED and found.wrong_scale:
            raise BadProgram(found.wrong_scale)
        return found

    def _check_types(self, used: set[DType]) -> None:
        """The table lists the types of all buffers, and no others."""
        known = {t.code | t.bytes << 8: t for t in DType}
        listed = [known.get(word) for (word,) in struct.iter_unpack("<I", self.parts["types"])]
        if None in listed:
            raise BadProgram("the program has a type that this runtime does not know")
        if used != set(listed):
            raise BadProgram("the table of types is not that of the buffers")
