"""Frames between a gateway and a board, as runtime/frames.h describes them: a checksum over everything, so that what a
line loses or changes is noticed, and the next whole frame is found again."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

SYNC: Final = b"\xa5\x5a"
VERSION: Final = 1  # of frames
MESSAGES: Final = 1  # version of what is in them
HEADER: Final = struct.Struct("<2sBBIIHH")
EXTRA_BYTES: Final = HEADER.size + 4
ANSWER: Final = 0x80


class Ask(IntEnum):
    """Requests, with the numbers of runtime/fleet.h."""

    HELLO = 1
    STATE_IN = 2
    STATE_SET = 3
    STATE_OUT = 4
    SAMPLES_IN = 5
    STEP = 6
    INFER = 7
    HASH = 8
    SAVE = 9
    RECIPE = 10
    RECIPE_IN = 11
    RECIPE_USE = 12


class Refusal(IntEnum):
    """Error numbers of answers, as in runtime/fleet.h."""

    NO_REQUEST = 1
    NO_SESSION = 2
    NOT_NEXT = 3
    LENGTH = 4
    RANGE = 5
    NOT_WHOLE = 6
    CHECKSUM = 7
    PART = 8
    STOPPED = 9
    NO_SLOTS = 10
    NO_RECIPES = 11
    NO_ROOM = 12
    BAD_RECIPE = 13
    STORAGE = 14
    SHAPE = 15


MEANING: Final = {
    Refusal.NO_REQUEST: "it does not know this message",
    Refusal.NO_SESSION: "it has started anew",
    Refusal.NOT_NEXT: "the message is out of order",
    Refusal.LENGTH: "the message has another length than it expects",
    Refusal.RANGE: "the message reaches beyond what the board has",
    Refusal.NOT_WHOLE: "not all of it has come",
    Refusal.CHECKSUM: "what it received is not what was sent",
    Refusal.PART: "not the next part of this batch",
    Refusal.STOPPED: "the step was stopped",
    Refusal.NO_SLOTS: "it has no slots to save to",
    Refusal.NO_RECIPES: "it has no room for other programs",
    Refusal.NO_ROOM: "it has less room than that takes",
    Refusal.BAD_RECIPE: "it cannot run this program",
    Refusal.STORAGE: "its storage cannot be written",
    Refusal.SHAPE: "an input is the same for all samples",
}


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int  # an Ask, with ANSWER added in answers
    session: int
    sequence: int
    payload: bytes

    def pack(self) -> bytes:
        head = HEADER.pack(SYNC, VERSION, self.kind, self.session, self.sequence, len(self.payload), 0)[:-2]
        whole = head + struct.pack("<H", zlib.crc32(head) & 0xFFFF) + self.payload
        return whole + struct.pack("<I", zlib.crc32(whole))


class Reader:
    """Finds frames in bytes as they come."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def frames(self, data: bytes) -> Iterator[Frame]:
        self._bytes += data
        while True:
            start = self._bytes.find(SYNC[:1])
            del self._bytes[: len(self._bytes) if start < 0 else start]
            found = self._first()
            if found is None:
                return
            if isinstance(found, Frame):
                del self._bytes[: EXTRA_BYTES + len(found.payload)]
                yield found
            else:
                del self._bytes[:1]

    def _first(self) -> Frame | bool | None:
        """The frame that begins here; False if none does, None if it is not all there."""
        if not self._bytes or (len(self._bytes) < 2 and SYNC.startswith(self._bytes)):
            return None
        if not self._bytes.startswith(SYNC):
            return False
        if len(self._bytes) < HEADER.size:
            return None
        _, version, kind, session, sequence, count, check = HEADER.unpack_from(self._bytes)
        if version != VERSION or zlib.crc32(self._bytes[: HEADER.size - 2]) & 0xFFFF != check:
            return False
        if len(self._bytes) < EXTRA_BYTES + count:
            return None
        before = HEADER.size + count
        (crc,) = struct.unpack_from("<I", self._bytes, before)
        if zlib.crc32(self._bytes[:before]) != crc:
            return False
        return Frame(kind, session, sequence, bytes(self._bytes[HEADER.size : before]))


__all__ = ["ANSWER", "EXTRA_BYTES", "HEADER", "MEANING", "MESSAGES", "Ask", "Frame", "Reader", "Refusal"]
