"""Bytes to a program. What is merely unusual is found by writing the result again (program.py)."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import BadProgram
from ..ir import Batch, DType
from .instructions import MAX_OPERANDS, MAX_PARAMS, MAX_RANK, SCALED_RANK, Buffer, Entry, Instruction, Operand, Word
from .lazy_json import Description, Unusual, decoded
from .writer import (
    BUFFER,
    COUNTED,
    CRC_FROM,
    ENTRY,
    HEADER,
    HEADER_BYTES,
    LEVELS,
    LOOP,
    MAGIC,
    OUTPUT,
    PAGES,
    REGIONS,
    RINGS,
    SCALED,
    SECTIONS,
    TAG,
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

    def entries(self) -> dict[str, Entry]:
        kernels = [self._name(offset) for (offset,) in struct.iter_unpack("<I", self.parts["kernels"])]
        if not all(kernels):
            raise BadProgram("a kernel has no name")
        entries: dict[str, Entry] = {}
        for name, own, start, words in self._entries():
            code = struct.unpack_from(f"<{words}I", self.parts["code"], 4 * start)
            entries[name] = Entry(own, tuple(self._code(code, kernels, own)))
        return entries

    def buffers(self) -> dict[str, tuple[Buffer, ...]]:
        """Of each entry point, without a look at its instructions."""
        return {name: own for name, own, _, _ in self._entries()}

    def _entries(self) -> Iterator[tuple[str, tuple[Buffer, ...], int, int]]:
        """Name, buffers, first code word, code words."""
        buffers = [self._buffer(*fields) for fields in BUFFER.iter_unpack(self.parts["buffers"])]
        self._check_types({buffer.dtype for buffer in buffers})
        for name, inputs, outputs, first, start, words, _ in ENTRY.iter_unpack(self.parts["entries"]):
            own = tuple(buffers[first : first + inputs + outputs])
            if len(own) != inputs + outputs or 4 * (start + words) > len(self.parts["code"]):
                raise BadProgram("an entry point refers to something outside the file")
            yield self._name(name), own, start, words

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

    def _name(self, offset: int) -> str:
        end = self.parts["strings"].find(b"\0", offset)
        if end < 0:
            raise BadProgram("a name does not end")
        try:
            return str(self.parts["strings"][offset:end], "utf-8")
        except UnicodeDecodeError as e:
            raise BadProgram("a name is not UTF-8") from e

    def _buffer(self, name: int, code: int, kind: int, rank: int, axis: int, *dims: int) -> Buffer:
        scale, offset, dtype = 1.0, 0.0, DType.of_code(code)
        if kind & SCALED:
            scale, offset = struct.unpack("<2f", struct.pack("<2I", *dims[SCALED_RANK:]))
            dims = dims[:SCALED_RANK]
        shaped = rank <= len(dims) <= MAX_RANK and (axis == 255 or axis < rank) and max(dims) < 2**31
        if dtype is None or kind & ~(OUTPUT | SCALED) or not shaped:
            raise BadProgram("a buffer has an unknown type or shape")
        shape = tuple(Batch(d) if i == axis else d for i, d in enumerate(dims[:rank]))
        found = Buffer(self._name(name), dtype, shape, "output" if kind & OUTPUT else "input", scale, offset)
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

    def _code(self, words: Sequence[int], kernels: Sequence[str], buffers: Sequence[Buffer]) -> Iterator[Instruction]:
        """Open loops are counted here; whether the runtime does what an instruction asks for, it says itself."""
        position, open_ = 0, list[int]()
        while position < len(words):
            head, second = words[position], words[position + 1]
            number, count, flags = head & 0xFFFF, head >> 16 & 0xFF, head >> 24
            position += 2
            open_ = [left - 1 for left in open_ if left]
            if number == LOOP:
                times = words[position : position + count]
                if flags or count not in (0, 1, 3) or len(times) != count or not second:
                    raise BadProgram("a loop is not understood")
                if open_ and second > open_[-1]:
                    raise BadProgram("a loop ends behind the loop around it")
                position += count
                open_.append(second)
                yield Instruction("", (), (), second, *times)
                continue
            levels, rings, tagged = flags & LEVELS, bool(flags & RINGS), bool(flags & TAG)
            unknown = flags & ~(LEVELS | RINGS | TAG)
            if number >= len(kernels) or count > MAX_OPERANDS or unknown or levels > len(open_):
                raise BadProgram("an instruction is not understood")
            own = words[position : position + count * (1 + levels + rings) + tagged]
            if len(own) != count * (1 + levels + rings) + tagged:
                raise BadProgram("the code ends within an instruction")
            position += len(own)
            places, more = own[:count], own[count:]
            strides = [tuple(more[k * count + i] for k in range(levels)) for i in range(count)]
            ring = more[levels * count : (levels + 1) * count] if rings else [0] * count
            operands = tuple(
                self._operand(place, steps, bytes_, buffers)
                for place, steps, bytes_ in zip(places, strides, ring, strict=True)
            )
            tag = own[-1] if tagged else 0
            if tag >> 24:
                raise BadProgram("an instruction is not understood")
            yield Instruction(kernels[number], operands, self._block(second), guard=tag & 0xFFFF, unit=tag >> 16)
        if any(open_):
            raise BadProgram("the code ends within a loop")

    def _operand(self, word: int, strides: tuple[int, ...], ring: int, buffers: Sequence[Buffer]) -> Operand:
        region = next((r for r, number in REGIONS.items() if number == word >> 29), None)
        offset = word & 0x1FFFFFFF
        if region is None or (region == "none" and offset):
            raise BadProgram("an operand is in an unknown region")
        if region in ("input", "output"):
            if offset >= len(buffers) or buffers[offset].direction != region:
                raise BadProgram("an operand names a buffer that does not exist")
        elif region not in COUNTED:
            offset *= 4
            if region == "page" and not self.page_bytes:
                raise BadProgram("an operand pages, and the program has no pages")
            if offset > self.sizes["state" if region == "list" else region]:
                raise BadProgram("an operand lies outside its region")
        return Operand.at(region, offset, strides, ring)

    def _block(self, start: int) -> tuple[Word, ...]:
        params = self.parts["params"]
        (head,) = struct.unpack_from("<I", params, 4 * start)
        count, scaled = head & 0xFFFF, head >> 16
        if count > MAX_PARAMS or scaled > 1:
            raise BadProgram("a parameter block is not understood")
        maps = -(-count // 32) if scaled else 0
        bits = struct.unpack_from(f"<{maps}I", params, 4 * start + 4)
        words = struct.unpack_from(f"<{count}i", params, 4 * (start + 1 + maps))
        return tuple(Batch(w) if scaled and bits[i // 32] >> i % 32 & 1 else w for i, w in enumerate(words))
