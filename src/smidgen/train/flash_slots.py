"""State that a device saved (runtime/slots.c), read on the host: the newest of two slots whose checksum fits."""

from __future__ import annotations

import struct
import zlib
from typing import Final

from ..errors import BadCheckpoint
from ..program.program import Program

MAGIC: Final = b"SMGS"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4s7I")  # magic, version, bytes, sequence, program, CRC, 0, CRC of what is before


def newest_state(data: bytes | memoryview, program: Program) -> bytes | memoryview:
    """STATE from an image of both slots, each half of it. Raises BadCheckpoint if there is none."""
    half = len(data) // 2
    own = program.checksum
    found: list[tuple[int, bytes | memoryview]] = []
    others = False
    for slot in (data[:half], data[half:]):
        if (
            len(slot) < HEAD.size
            or zlib.crc32(slot[: HEAD.size - 4]) != struct.unpack_from("<I", slot, HEAD.size - 4)[0]
        ):
            continue
        magic, version, count, sequence, made_by, crc, zero, _ = HEAD.unpack_from(slot)
        state = slot[HEAD.size : HEAD.size + count]
        if magic != MAGIC or version != VERSION or zero or len(state) != count or zlib.crc32(state) != crc:
            continue
        if made_by != own or count != program.saved_bytes:
            others = True
            continue
        found.append((sequence, state))
    if not found:
        why = "it is of another program" if others else "neither slot is complete"
        raise BadCheckpoint("there is no saved state of this program", why=why,
                            help="give the file of `runner --state`, or both slots of a board")  # fmt: skip
    if len(found) == 2 and (found[1][0] - found[0][0]) % 2**32 < 2**31:
        return found[1][1]
    return found[0][1]
