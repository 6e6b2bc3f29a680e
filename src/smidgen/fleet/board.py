"""A board of a fleet, at the other end of a line. Each request has the next number of a session and is sent until its
answer comes, so nothing is lost with a byte, and nothing is done twice. Needs numpy only."""

from __future__ import annotations

import secrets
import struct
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ..errors import BoardRefused, BoardSilent
from .frames import ANSWER, MEANING, MESSAGES, Ask, Frame, Reader, Refusal
from .line import Line, line_to

ATTEMPTS: Final = 30
SECONDS: Final = 2.0
WORDS: Final = 12  # of an answer to HELLO
UNIT: Final = 32  # pieces of a recipe are multiples of it


class Restarted(Exception):
    """The board has no session any more: it was reset, or another gateway spoke to it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a board says of itself."""

    version: int
    payload_bytes: int  # the most of one message
    program_crc: int
    program_bytes: int
    state_bytes: int
    state_crc: int
    flags: int
    row_bytes: int  # one sample with its target
    rows: int  # that it holds at a time
    batch: int
    recipe_bytes: int  # room for another program
    dropped_bytes: int  # of the line that were no part of a frame

    @property
    def is_whole(self) -> bool:
        return bool(self.flags & 1)

    @property
    def is_restored(self) -> bool:
        """Its state came from a slot."""
        return bool(self.flags & 2)

    @property
    def has_slots(self) -> bool:
        return bool(self.flags & 4)

    @property
    def has_recipes(self) -> bool:
        return bool(self.flags & 8)

    @property
    def runs_its_own(self) -> bool:
        """Not a program that came over the line."""
        return bool(self.flags & 16)


class Board:
    """`address` is a serial device or tcp:host:port. A request is sent up to `attempts` times, with `seconds` between
    them: together more than the longest step takes."""

    def __init__(
        self, address: str, *, line: Line | None = None, attempts: int = ATTEMPTS, seconds: float = SECONDS
    ) -> None:
        self.address, self._line = address, line or line_to(address)
        self._attempts, self._seconds = attempts, seconds
        self._reader, self._session, self._sequence = Reader(), 0, 0
        self.facts: Facts | None = None
        self.resent = 0  # requests that were sent again

    def close(self) -> None:
        """The line; it is opened again when it is next used."""
        self._line.close()

    # -- requests --------------------------------------------------------------------------------------------------

    def hello(self) -> Facts:
        """Begins a session."""
        self._session = secrets.randbelow(2**32 - 1) + 1
        return self._greeted(self._ask(Ask.HELLO))

    def set_state(self, state: bytes) -> None:
        """All of it, optimizer, learning rate and seed included."""
        room = self._room(4)
        for at in range(0, len(state), room):
            self._ask(Ask.STATE_IN, struct.pack("<I", at) + state[at : at + room])
        self._ask(Ask.STATE_SET, struct.pack("<I", zlib.crc32(state)))

    def state(self) -> bytes:
        """Checked as a whole, too."""
        room, count = self._room(4), self._known().state_bytes
        parts = [
            self._ask(Ask.STATE_OUT, struct.pack("<2I", at, min(room, count - at))) for at in range(0, count, room)
        ]
        found = b"".join(parts)
        if zlib.crc32(found) != self.hash():
            raise BoardRefused("the state came in pieces that do not fit", at=self.address)
        return found

    def hash(self) -> int:
        """CRC-32 of the state."""
        return _number(self._ask(Ask.HASH))

    def save(self) -> int:
        """To a slot, which survives a power cut; CRC-32 of the state."""
        return _number(self._ask(Ask.SAVE))

    def set_rows(self, first: int, rows: Sequence[bytes]) -> None:
        """Samples into the rows from `first` on."""
        data, start, room = b"".join(rows), first * self._known().row_bytes, self._room(4)
        for at in range(0, len(data), room):
            self._ask(Ask.SAMPLES_IN, struct.pack("<I", start + at) + data[at : at + room])

    def step(self, rows: Sequence[int], total: int, first: int = 0) -> np.float32:
        """A step on these rows, or a part of one that has `total` samples; its loss, of all parts so far."""
        payload = struct.pack(f"<{3 + len(rows)}H", len(rows), total, first, *rows)
        return np.float32(struct.unpack_from("<f", self._ask(Ask.STEP, payload))[0])

    def infer(self, rows: Sequence[int], count: int) -> bytes:
        """`count` bytes: the outputs of these rows, one behind another. Where they need several messages, the board
        computes them once for each."""
        room = self._room(4)
        asked = struct.pack(f"<{1 + len(rows)}H", len(rows), *rows)
        parts = [
            self._ask(Ask.INFER, struct.pack("<2I", at, min(room, count - at)) + asked) for at in range(0, count, room)
        ]
        return b"".join(parts)

    def use_recipe(self, program: bytes) -> Facts:
        """Sends another program, which the board checks and then runs, with the state that it saved of it, if any."""
        self._ask(Ask.RECIPE, struct.pack("<I", len(program)))
        room = self._room(4) // UNIT * UNIT
        for at in range(0, len(program), room):
            self._ask(Ask.RECIPE_IN, struct.pack("<I", at) + program[at : at + room])
        return self._greeted(self._ask(Ask.RECIPE_USE, struct.pack("<I", zlib.crc32(program))))

    # -- the line --------------------------------------------------------------------------------------------------

    def _known(self) -> Facts:
        return self.facts if self.facts is not None else self.hello()

    def _room(self, head: int) -> int:
        return self._known().payload_bytes - head

    def _greeted(self, answer: bytes) -> Facts:
        if len(answer) != 4 * WORDS:
            raise BoardRefused("the board speaks another version of the messages", at=self.address,
                               help="firmware and gateway of the same smidgen")  # fmt: skip
        facts = Facts(*struct.unpack(f"<{WORDS}I", answer))
        if facts.version != MESSAGES or facts.payload_bytes < 64:
            raise BoardRefused(
                f"the board speaks version {facts.version} of the messages, not {MESSAGES}", at=self.address,
                help="firmware and gateway of the same smidgen",
            )  # fmt: skip
        self.facts = facts
        return facts

    def _ask(self, kind: Ask, payload: bytes = b"") -> bytes:
        if not self._session and kind is not Ask.HELLO:
            self.hello()
        self._sequence = (self._sequence + 1) & 0xFFFF_FFFF
        frame = Frame(kind, self._session, self._sequence, payload)
        data, broken = frame.pack(), ""
        for attempt in range(self._attempts):
            self.resent += attempt > 0
            until = time.monotonic() + self._seconds
            try:
                self._line.send(data)
                answer = self._answer(frame, until)
            except OSError as error:
                broken = error.strerror or str(error)
                time.sleep(max(0.0, min(self._seconds, until - time.monotonic())))
                continue
            if answer is not None:
                return self._checked(kind, answer)
        raise BoardSilent(
            f"the board does not answer {kind.name}", at=self.address, help="look at its power and at the line",
            why=f"{self._attempts} attempts within {self._attempts * self._seconds:g} s" + (broken and f"; {broken}"),
        )  # fmt: skip

    def _answer(self, asked: Frame, until: float) -> bytes | None:
        while (left := until - time.monotonic()) > 0:
            for frame in self._reader.frames(self._line.receive(left)):
                same = frame.session == asked.session and frame.sequence == asked.sequence
                if same and frame.kind == asked.kind | ANSWER and len(frame.payload) >= 4:
                    return frame.payload
        return None

    def _checked(self, kind: Ask, answer: bytes) -> bytes:
        number, fault = struct.unpack_from("<2H", answer)
        if number in (Refusal.NO_SESSION, Refusal.NOT_NEXT):
            self._session = 0
            raise Restarted(self.address)
        if number:
            known = number in Refusal.__members__.values()
            said = answer[4:].decode("utf-8", "replace")
            raise BoardRefused(
                f"the board refuses {kind.name} with error {number}"
                + (f": {MEANING[Refusal(number)]}" if known else ""),
                at=self.address, why=f"{said} (fault {fault})" if said else "", number=number,
            )  # fmt: skip
        return answer[4:]


def _number(answer: bytes) -> int:
    return int.from_bytes(answer[:4], "little")


__all__ = ["ATTEMPTS", "SECONDS", "Board", "Facts", "Restarted"]
