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
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from . import atomic
from .description import Description, Unusual, decoded
from .errors import BadProgram, DoesNotFit, Internal
from .instructions import (
    MAX_OPERANDS,
    MAX_PARAMS,
    MAX_RANK,
    Buffer,
    Entry,
    Instruction,
    Operand,
    OperandRegion,
    Word,
)
from .ir import Batch, DType, batch_axis

Bytes = bytes | bytearray | memoryview
MAGIC: Final = b"SMDG"
VERSION: Final = 1
PAGES: Final = struct.Struct("<2I")  # PAGE bytes, and those of them that are state; begins the tenth section
SECTIONS: Final = ("entries", "buffers", "kernels", "code", "params", "strings", "meta", "state", "const")
HEADER: Final = struct.Struct("<4s3I6I")
HEADER_BYTES: Final = HEADER.size + 8 * len(SECTIONS)
CRC_FROM: Final = 16
CONST_ALIGN: Final = 64
ENTRY: Final = struct.Struct("<7I")
BUFFER: Final = struct.Struct("<IBBBB8I")
LOOP: Final = 0xFFFF
STRIDES: Final = 1  # the flag
MAX_ENTRIES: Final = 16
MAX_KERNELS: Final = 192
REGION_BYTES: Final = 2**31 - 64
"""No region may be larger."""

REGIONS: Final[Mapping[OperandRegion, int]] = {
    "const": 0, "state": 1, "arena": 2, "input": 3, "output": 4, "page": 5, "none": 7,
}  # fmt: skip
DTYPES: Final = (DType.F32, DType.I32, DType.U8)


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
    page_bytes: int = 0  # outside RAM; 0: the program does not page

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
        return _Writer(replace(self, meta={})).size()

    @property
    def checksum(self) -> int:
        """As the file has it."""
        return _crc(_Writer(self)._pieces())

    @property
    def kernels(self) -> tuple[str, ...]:
        """In the order of their first use."""
        return tuple(dict.fromkeys(i.kernel for e in self.entries.values() for i in e.code if i.kernel))

    @property
    def blocks(self) -> tuple[tuple[Word, ...], ...]:
        """Different lists of parameters, in the order of their first use."""
        return tuple(dict.fromkeys(i.params for e in self.entries.values() for i in e.code if i.kernel))

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
        return b"".join(_Writer(self).parts())

    @staticmethod
    def from_bytes(data: bytes | memoryview) -> Program:
        """Raises BadProgram unless `data` is exactly what `to_bytes` writes. Extents are checked by the runtime. What
        may be large of a view is not copied."""
        try:
            program = _Reader(data).program()
            canonical = _is(data, _Writer(program).parts())
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
        with _named(path), atomic.opened(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise BadProgram("the file has 0 bytes, fewer than its header")  # nothing that could be mapped
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            try:
                return _Reader(view).stored()
            except (struct.error, IndexError) as e:
                raise BadProgram("the file refers to something outside itself") from e

    def save(self, path: str | os.PathLike[str]) -> None:
        """The file appears complete or not at all."""
        atomic.write(path, *_Writer(self).parts())


@contextlib.contextmanager
def _named(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors say which file it was."""
    try:
        yield
    except OSError as e:
        raise BadProgram(f"cannot read '{path}'", why=e.strerror or str(e)) from e
    except BadProgram as e:
        raise BadProgram(e.what, at=str(path), why=e.why, help=e.help) from e


class _Stored(Mapping[str, Entry]):
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
    found: dict[str, Any] = json.loads(_json(meta))
    return found


def _json(meta: Mapping[str, Any]) -> bytes:
    how: dict[str, Any] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False, "default": dict}
    return json.dumps(dict(meta), sort_keys=True, **how).encode()


# -- to bytes -----------------------------------------------------------------------------------------------------


class _Writer:
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
        pieces = self._pieces()
        crc = _crc(pieces)
        return [MAGIC, struct.pack("<3I", VERSION, CRC_FROM + _length(pieces), crc), *pieces]

    def size(self) -> int:
        """Of the file, without making it."""
        return CRC_FROM + _length(self._pieces())

    def _pieces(self) -> list[Bytes]:
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
            (entries,), (buffers,), (self._kernels,), (code,), (self._params,), (self.strings,), (_json(p.meta),),
            (p.state,), (p.const,),
        ]  # fmt: skip
        names: tuple[str, ...] = SECTIONS
        if p.page_bytes:
            names, parts = (*names, "page"), [*parts, (PAGES.pack(p.page_bytes, p.page_state_bytes), p.page)]
        table, at, body = bytearray(), HEADER.size + 8 * len(names), list[Bytes]()
        for name, part in zip(names, parts, strict=True):
            gap = -at % (CONST_ALIGN if name == "const" else 4)
            table += struct.pack("<2I", at + gap, _length(part))
            body += [bytes(gap), *part]
            at += gap + _length(part)
        sizes = (p.batch, p.align, p.const_bytes, p.state_bytes, p.arena_bytes, len(names))
        return [struct.pack("<6I", *sizes), table, *body]

    def _buffer(self, b: Buffer) -> bytes:
        axis = batch_axis(b.dims)
        dims = [d.times if isinstance(d, Batch) else d for d in b.dims]
        dims += [0] * (MAX_RANK - len(dims))
        output = int(b.direction == "output")
        return BUFFER.pack(
            self._name(b.name), DTYPES.index(b.dtype), output, len(b.dims), 255 if axis is None else axis, *dims
        )

    def _instruction(self, i: Instruction) -> bytes:
        if i.is_loop:
            return struct.pack("<2I", LOOP, i.body)
        strided = any(o.stride for o in i.operands)
        head = struct.pack("<HBBI", self._kernel[i.kernel], len(i.operands), strided * STRIDES, self._block[i.params])
        words = [_operand_word(o) for o in i.operands] + ([o.stride for o in i.operands] if strided else [])
        return head + struct.pack(f"<{len(words)}I", *words)


def _crc(pieces: Sequence[Bytes]) -> int:
    return functools.reduce(lambda crc, piece: zlib.crc32(piece, crc), pieces, 0)


def _length(pieces: Sequence[Bytes]) -> int:
    return sum(len(piece) for piece in pieces)


def _is(data: bytes | memoryview, parts: Sequence[Bytes]) -> bool:
    """Are these the parts of it, and all of them?"""
    at = 0
    for part in parts:
        if data[at : at + len(part)] != part:
            return False
        at += len(part)
    return at == len(data)


def _operand_word(o: Operand) -> int:
    counted = o.region in ("input", "output", "none")
    return REGIONS[o.region] << 29 | (o.offset if counted else o.offset // 4)


def packed_block(block: Sequence[Word]) -> bytes:
    """Count and whether any word counts samples, a bit for each word that does, the words."""
    scaled = [isinstance(w, Batch) for w in block]
    words = [w.times if isinstance(w, Batch) else w for w in block]
    starts = range(0, len(block), 32) if any(scaled) else ()
    maps = [sum(s << k for k, s in enumerate(scaled[i : i + 32])) for i in starts]
    head = struct.pack(f"<{1 + len(maps)}I", len(block) | any(scaled) << 16, *maps)
    return head + struct.pack(f"<{len(words)}i", *words)


# -- from bytes ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _described() -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as e:
        raise BadProgram("the description in the file is not JSON") from e


class _Reader:
    """Takes a file apart. What is merely unusual is found by writing the result again."""

    def __init__(self, data: bytes | memoryview) -> None:
        if len(data) < HEADER_BYTES:
            raise BadProgram(f"the file has {len(data)} bytes, fewer than its header")
        self.data = data
        magic, version, total, crc, *rest = HEADER.unpack_from(data)
        self.batch, self.align, const, self.state_bytes, self.arena_bytes, sections = rest
        if magic != MAGIC:
            raise BadProgram("not a smidgen program")
        if version != VERSION:
            raise BadProgram(f"the file has format version {version}, this smidgen reads version {VERSION}")
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

    def program(self) -> Program:
        kernels = [self._name(offset) for (offset,) in struct.iter_unpack("<I", self.parts["kernels"])]
        if not all(kernels):
            raise BadProgram("a kernel has no name")
        entries: dict[str, Entry] = {}
        for name, own, start, words in self._entries():
            code = struct.unpack_from(f"<{words}I", self.parts["code"], 4 * start)
            entries[name] = Entry(own, tuple(self._code(code, kernels, own)))
        return self._with(entries, self._meta())

    def stored(self) -> Program:
        assert isinstance(self.data, memoryview)
        buffers = {name: own for name, own, _, _ in self._entries()}
        return self._with(_Stored(self.data, buffers), self._description())

    def _entries(self) -> Iterator[tuple[str, tuple[Buffer, ...], int, int]]:
        """Name, buffers, first code word, code words."""
        buffers = [self._buffer(*fields) for fields in BUFFER.iter_unpack(self.parts["buffers"])]
        for name, inputs, outputs, first, start, words, _ in ENTRY.iter_unpack(self.parts["entries"]):
            own = tuple(buffers[first : first + inputs + outputs])
            if len(own) != inputs + outputs or 4 * (start + words) > len(self.parts["code"]):
                raise BadProgram("an entry point refers to something outside the file")
            yield self._name(name), own, start, words

    def _meta(self) -> dict[str, Any]:
        with _described():
            meta = decoded(self._meta_text())
        if not isinstance(meta, dict):
            raise BadProgram("the description in the file is not an object")
        return meta

    def _description(self) -> Mapping[str, Any]:
        with _described(), contextlib.suppress(Unusual):
            return Description(self._meta_text)
        return self._meta()

    def _meta_text(self) -> bytes:
        return bytes(self.parts["meta"])

    def _with(self, entries: Mapping[str, Entry], meta: Mapping[str, Any]) -> Program:
        return Program(
            self.batch, self.align, entries, self.parts["const"], self.parts["state"], self.state_bytes,
            self.arena_bytes, meta, self.parts["page"], self.page_state_bytes, self.page_bytes,
        )  # fmt: skip

    def _name(self, offset: int) -> str:
        end = self.parts["strings"].find(b"\0", offset)
        if end < 0:
            raise BadProgram("a name does not end")
        try:
            return str(self.parts["strings"][offset:end], "utf-8")
        except UnicodeDecodeError as e:
            raise BadProgram("a name is not UTF-8") from e

    def _buffer(self, name: int, dtype: int, output: int, rank: int, axis: int, *dims: int) -> Buffer:
        shaped = rank <= MAX_RANK and (axis == 255 or axis < rank) and max(dims) < 2**31
        if dtype >= len(DTYPES) or output > 1 or not shaped:
            raise BadProgram("a buffer has an unknown type or shape")
        shape = tuple(Batch(d) if i == axis else d for i, d in enumerate(dims[:rank]))
        return Buffer(self._name(name), DTYPES[dtype], shape, "output" if output else "input")

    def _code(self, words: Sequence[int], kernels: Sequence[str], buffers: Sequence[Buffer]) -> Iterator[Instruction]:
        position, left = 0, 0
        while position < len(words):
            head, second = words[position], words[position + 1]
            number, count, flags = head & 0xFFFF, head >> 16 & 0xFF, head >> 24
            position += 2
            if number == LOOP:
                if left or not second:
                    raise BadProgram("a loop inside a loop, or an empty one")
                left = second
                yield Instruction("", body=second)
                continue
            if number >= len(kernels) or count > MAX_OPERANDS or flags & ~STRIDES or (flags and not left):
                raise BadProgram("an instruction is not understood")
            places = words[position : position + count]
            strides = words[position + count : position + 2 * count] if flags else [0] * count
            if len(places) != count or len(strides) != count:
                raise BadProgram("the code ends within an instruction")
            position += count * (1 + flags)
            operands = tuple(self._operand(w, s, buffers) for w, s in zip(places, strides, strict=True))
            yield Instruction(kernels[number], operands, self._block(second))
            left -= left > 0
        if left:
            raise BadProgram("the code ends within a loop")

    def _operand(self, word: int, stride: int, buffers: Sequence[Buffer]) -> Operand:
        region = next((r for r, number in REGIONS.items() if number == word >> 29), None)
        offset = word & 0x1FFFFFFF
        if region is None or (region == "none" and offset):
            raise BadProgram("an operand is in an unknown region")
        if region in ("input", "output"):
            if offset >= len(buffers) or buffers[offset].direction != region:
                raise BadProgram("an operand names a buffer that does not exist")
        elif region != "none":
            offset *= 4
            if region == "page" and not self.page_bytes:
                raise BadProgram("an operand pages, and the program has no pages")
            if offset > self.sizes[region]:
                raise BadProgram("an operand lies outside its region")
        return Operand(region, offset, stride)

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


__all__ = ["Buffer", "Entry", "Instruction", "Operand", "Program"]
