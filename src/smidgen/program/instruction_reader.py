"""Code words of a file to instructions."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from ..errors import BadProgram
from ..ir import Batch
from .buffer import Buffer
from .instructions import MAX_OPERANDS, MAX_PARAMS, Entry, Instruction, Operand, StreamTable, Word
from .reader import Reader
from .writer import COUNTED, LEVELS, LOOP, REGIONS, ROWS, STREAM, TAG

MAX_TABLE = 0xFFFF


def entries(reader: Reader) -> dict[str, Entry]:
    kernels = [reader.name_at(offset) for (offset,) in struct.iter_unpack("<I", reader.parts["kernels"])]
    if not all(kernels):
        raise BadProgram("a kernel has no name")
    entries: dict[str, Entry] = {}
    for name, own, start, words in reader.listed():
        code = struct.unpack_from(f"<{words}I", reader.parts["code"], 4 * start)
        entries[name] = Entry(own, tuple(_code(reader, code, kernels, own)))
    return entries


def _code(
    reader: Reader, words: Sequence[int], kernels: Sequence[str], buffers: Sequence[Buffer]
) -> Iterator[Instruction]:
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
            trips, period, phase = (*times, 0, 0, 0)[:3]
            yield Instruction("", body=second, count=trips, period=period, phase=phase)
            continue
        if number == STREAM:
            if flags or count != 1 or not second or (open_ and second > open_[-1]):
                raise BadProgram("a stream is not understood")
            block = _block(reader, words[position], MAX_TABLE)
            table = tuple(word for word in block if not isinstance(word, Batch))
            if len(table) != len(block) or StreamTable.of(table, second) is None:
                raise BadProgram("the table of a stream is not understood")
            position += 1
            open_.append(second)
            yield Instruction("", body=second, table=table)
            continue
        levels, by_rows, tagged = flags & LEVELS, bool(flags & ROWS), bool(flags & TAG)
        unknown = flags & ~(LEVELS | ROWS | TAG)
        if number >= len(kernels) or count > MAX_OPERANDS or unknown or levels > len(open_):
            raise BadProgram("an instruction is not understood")
        own = words[position : position + count * (1 + levels + by_rows) + tagged]
        if len(own) != count * (1 + levels + by_rows) + tagged:
            raise BadProgram("the code ends within an instruction")
        position += len(own)
        places, more = own[:count], own[count:]
        strides = [tuple(more[k * count + i] for k in range(levels)) for i in range(count)]
        rows = more[levels * count : (levels + 1) * count] if by_rows else [0] * count
        operands = tuple(
            _operand(reader, place, steps, number, buffers)
            for place, steps, number in zip(places, strides, rows, strict=True)
        )
        tag = own[-1] if tagged else 0
        if tag >> 24:
            raise BadProgram("an instruction is not understood")
        yield Instruction(kernels[number], operands, _block(reader, second), guard=tag & 0xFFFF, unit=tag >> 16)
    if any(open_):
        raise BadProgram("the code ends within a loop")


def _operand(reader: Reader, word: int, strides: tuple[int, ...], rows: int, buffers: Sequence[Buffer]) -> Operand:
    region = next((r for r, number in REGIONS.items() if number == word >> 29), None)
    offset = word & 0x1FFFFFFF
    if region is None or (region == "none" and offset):
        raise BadProgram("an operand is in an unknown region")
    if region in ("input", "output"):
        if offset >= len(buffers) or buffers[offset].direction != region:
            raise BadProgram("an operand names a buffer that does not exist")
    elif region not in COUNTED:
        offset *= 4
        if region == "page" and not reader.page_bytes:
            raise BadProgram("an operand pages, and the program has no pages")
        if offset > reader.sizes["state" if region == "list" else region]:
            raise BadProgram("an operand lies outside its region")
    return Operand.at(region, offset, strides, rows)


def _block(reader: Reader, start: int, most: int = MAX_PARAMS) -> tuple[Word, ...]:
    params = reader.parts["params"]
    (head,) = struct.unpack_from("<I", params, 4 * start)
    count, scaled = head & 0xFFFF, head >> 16
    if count > most or scaled > 1:
        raise BadProgram("a parameter block is not understood")
    maps = -(-count // 32) if scaled else 0
    bits = struct.unpack_from(f"<{maps}I", params, 4 * start + 4)
    words = struct.unpack_from(f"<{count}i", params, 4 * (start + 1 + maps))
    return tuple(Batch(w) if scaled and bits[i // 32] >> i % 32 & 1 else w for i, w in enumerate(words))
