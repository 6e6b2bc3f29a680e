"""Firmware of a board that a gateway speaks for: what it takes of RAM besides the program's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..errors import BadOption
from ..program.program import Program
from ..train.replay import sample_buffers

PAYLOAD: Final = 512  # bytes of a message
FRAME_BYTES: Final = 20  # around each payload
FLEET_BYTES: Final = 64  # SmgFleet with 32-bit pointers; the build asserts it
MEMBER_STACK_BYTES: Final = 640  # what serve.c and fleet.c add to the deepest call of main.c
RECIPE_UNIT: Final = 64


@dataclass(frozen=True, slots=True)
class Member:
    """`rows`: samples that it holds at a time, by default one batch. `recipe_bytes`: RAM for another program that comes
    over the line."""

    rows: int = 0
    recipe_bytes: int = 0

    def rows_bytes(self, program: Program) -> int:
        rows = self.rows or min(program.batch, (PAYLOAD - 12) // 2)
        return rows * sum(b.bytes(1) for b in sample_buffers(program))

    def ram_bytes(self, program: Program) -> int:
        rows = -(-self.rows_bytes(program) // 4) * 4
        return rows + 2 * (PAYLOAD + FRAME_BYTES) + FLEET_BYTES + 4 + self._recipe()

    def numbers(self, program: Program) -> list[tuple[str, object, str]]:
        """For the program's header."""
        return [
            ("FLEET_PAYLOAD", PAYLOAD, "bytes of a message to or from a gateway: see fleet.h"),
            ("FLEET_ROWS_BYTES", self.rows_bytes(program), "of samples at hand, each with its target"),
            ("FLEET_RECIPE_BYTES", self._recipe(), "for another program that comes over the line"),
        ]

    def _recipe(self) -> int:
        return -(-self.recipe_bytes // RECIPE_UNIT) * RECIPE_UNIT


def check_member(program: Program) -> None:
    shape = [b.name for b in sample_buffers(program) if b.bytes(1) == b.bytes(2)]
    if program.page_bytes or program.meta.get("replay") is not None:
        what = "pages" if program.page_bytes else "replays"
        raise BadOption(f"a gateway cannot speak for a program that {what}", help="build without --fleet")
    if shape:
        raise BadOption(f"'{shape[0]}' is the same for all samples, and a gateway sends samples", help="no --fleet")


__all__ = ["MEMBER_STACK_BYTES", "PAYLOAD", "Member", "check_member"]
