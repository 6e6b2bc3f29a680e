"""A program to bytes, exactly as runtime/format.h describes them."""

from __future__ import annotations

import functools
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..errors import DoesNotFit
from ..ir import Batch, DType, batch_axis
from .buffer import MAX_RANK, SCALED_RANK, Buffer

if TYPE_CHECKING:
    from .instructions import Instruction, Operand, OperandRegion, Word
    from .program import Program

Bytes = bytes | bytearray | memoryview
MAGIC: Final = b"SMDG"
VERSION: Final = 2
PAGES: Final = struct.Struct("<2I")  # PAGE bytes, and those of them that are state; begins the last section
SECTIONS: Final = ("types", "entries", "buffers", "kernels", "code", "params", "strings", "meta", "state", "const")
HEADER: Final = struct.Struct("<4s3I6I")
HEADER_BYTES: Final = HEADER.size + 8 * len(SECTIONS)
CRC_FROM: Final = 16
CONST_ALIGN: Final = 64
ENTRY: Final = struct.Struct("<7I")
BUFFER: Final = struct.Struct("<IBBBB8I")
OUTPUT, SCALED = 1, 2  # kinds of a buffer
LOOP: Final = 0xFFFF
STREAM: Final = 0xFFFE
LEVELS, TAG, ROWS = 3, 4, 8  # flags of an instruction
MAX_ENTRIES: Final = 16
MAX_KERNELS: Final = 192

REGIONS: Final[Mapping[OperandRegion, int]] = {
    "const": 0, "state": 1, "arena": 2, "input": 3, "output": 4, "page": 5, "list": 6, "none": 7,
}  # fmt: skip

COUNTED: Final = ("input", "output", "none")
"""Regions in which an operand is a number, not an offset in words."""


def packed_json(meta: Mapping[str, Any]) -> bytes:
    how: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False, "default": dict}
    return json.dumps(dict(meta), sort_keys=True, **how).encode()


class Writer:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.strings = bytearray()
        self._at: dict[str, int] = {}
        kernels, blocks = program.kernels, program.blocks
        if len(kernels) > MAX_KERNELS or len(program.entries) > MAX_ENTRIES:
            raise DoesNotFit(
                f"{len(kernels)} different kernels and {len(program.entries)} entry points",
                why=f"a program can have {MAX_KERNELS} and {MAX_ENTRIES}",
            )
        self._kernel = {name: i for i, name in enumerate(kernels)}
        self._kernels = struct.pack(f"<{len(kernels)}I", *[self._name(k) for k in kernels])
        self._params = b""
        self._block: dict[tuple[Word, ...], int] = {}
        for block in blocks:
            self._block[block] = len(self._params) // 4
            self._params += packed_block(block)

    def _name(self, text: str) -> int:
        if text not in self._at:
            self._at[text] = len(self.strings)
            self.strings += text.encode() + b"\0"
        return self._at[text]

    def parts(self) -> list[Bytes]:
        """The file; what may be large is not copied."""
        pieces = self.pieces()
        crc = crc_of(pieces)
        return [MAGIC, struct.pack("<3I", VERSION, CRC_FROM + length_of(pieces), crc), *pieces]

    def size(self) -> int:
        """Of the file, without making it."""
        return CRC_FROM + length_of(self.pieces())

    def pieces(self) -> list[Bytes]:
        """All that the checksum covers."""
        p = self.program
        entries, buffers, code = bytearray(), bytearray(), bytearray()
        for name, entry in p.entries.items():
            inputs = sum(b.direction == "input" for b in entry.buffers)
            words = b"".join(self._instruction(i) for i in entry.code)
            entries += ENTRY.pack(
                self._name(name), inputs, len(entry.buffers) - inputs, len(buffers) // BUFFER.size,
                len(code) // 4, len(words) // 4, len(entry.code),
            )  # fmt: skip
            buffers += b"".join(self._buffer(b) for b in entry.buffers)
            code += words
        parts: list[tuple[Bytes, ...]] = [
            (self._types(),), (entries,), (buffers,), (self._kernels,), (code,), (self._params,), (self.strings,),
            (packed_json(p.meta),), (p.state,), (p.const,),
        ]  # fmt: skip
        names: tuple[str, ...] = SECTIONS
        if p.page_bytes:
            names, parts = (*names, "page"), [*parts, (PAGES.pack(p.page_bytes, p.page_state_bytes), p.page)]
        table, at, body = bytearray(), HEADER.size + 8 * len(names), list[Bytes]()
        for name, part in zip(names, parts, strict=True):
            gap = -at % (CONST_ALIGN if name == "const" else 4)
            table += struct.pack("<2I", at + gap, length_of(part))
            body += [bytes(gap), *part]
            at += gap + length_of(part)
        sizes = (p.batch, p.align, p.const_bytes, p.state_bytes, p.arena_bytes, len(names))
        return [struct.pack("<6I", *sizes), table, *body]

    def _types(self) -> bytes:
        """Of all buffers, ascending."""
        used = {b.dtype for e in self.program.entries.values() for b in e.buffers}
        return b"".join(struct.pack("<I", t.code | t.bytes << 8) for t in DType if t in used)

    def _buffer(self, b: Buffer) -> bytes:
        axis = batch_axis(b.dims)
        dims = [d.times if isinstance(d, Batch) else d for d in b.dims]
        dims += [0] * (MAX_RANK - len(dims))
        kind = OUTPUT * (b.direction == "output")
        if b.is_scaled:
            if len(b.dims) > SCALED_RANK:
                raise DoesNotFit(f"'{b.name}' has a scale and {len(b.dims)} axes", why=f"{SCALED_RANK} are possible")
            if why := b.wrong_scale:
                raise DoesNotFit(f"'{b.name}' cannot have scale {b.scale:g} and offset {b.offset:g}", why=why)
            kind |= SCALED
            dims[SCALED_RANK:] = struct.unpack("<2I", struct.pack("<2f", b.scale, b.offset))
        return BUFFER.pack(self._name(b.name), b.dtype.code, kind, len(b.dims), 255 if axis is None else axis, *dims)

    def _instruction(self, i: Instruction) -> bytes:
        if i.is_loop:
            if i.phase and not i.phase < i.period:
                why = "a phase is an iteration within a period, counted from 0"
                raise DoesNotFit(f"a loop has phase {i.phase} and period {i.period}", why=why)
            more = [i.count, i.period, i.phase] if i.period else [i.count] if i.count else []
            return struct.pack(f"<{2 + len(more)}I", LOOP | len(more) << 16, i.body, *more)
        if i.is_stream:
            return struct.pack("<3I", STREAM | 1 << 16, i.body, self._block[i.table])
        levels = max((o.levels for o in i.operands), default=0)
        rows = any(o.rows for o in i.operands)
        words = [operand_word(o) for o in i.operands]
        words += [o.strides[k] if k < o.levels else 0 for k in range(levels) for o in i.operands]
        words += [o.rows for o in i.operands] if rows else []
        words += [i.guard | i.unit << 16] if i.guard or i.unit else []
        flags = levels | TAG * bool(i.guard or i.unit) | ROWS * rows
        head = struct.pack("<HBBI", self._kernel[i.kernel], len(i.operands), flags, self._block[i.params])
        return head + struct.pack(f"<{len(words)}I", *words)


def crc_of(pieces: Sequence[Bytes]) -> int:
    return functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0)


def length_of(pieces: Sequence[Bytes]) -> int:
    return sum(len(piece) for piece in pieces)


def is_made_of(data: bytes | memoryview, parts: Sequence[Bytes]) -> bool:
    """Are these the parts of it, and all of them?"""
    at = 0
    for part in parts:
        if data[at : at + len(part)] != part:
            return False
        at += len(part)
    return at == len(data)


def operand_word(o: Operand) -> int:
    counted = o.region in COUNTED
    return REGIONS[o.region] << 29 | (o.offset if counted else o.offset // 4)


def packed_block(block: Sequence[Word]) -> bytes:
    """Count and whether any word counts samples, a bit for each word that does, the words."""
    scaled = [isinstance(w, Batch) for w in block]
    words = [w.times if isinstance(w, Batch) else w for w in block]
    starts = range(0, len(block), 32) if any(scaled) else ()
    maps = [sum(s << k for k, s in enumerate(scaled[i : i + 32])) for i in starts]
    head = struct.pack(f"<{1 + len(maps)}I", len(block) | any(scaled) << 16, *maps)
    return head + struct.pack(f"<{len(words)}i", *words)
