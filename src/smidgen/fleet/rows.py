"""Samples as a board keeps them: a row each, with all inputs and the target. What is on the board already is not sent
again; where not all fit, those that were used longest ago make room."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import BoardRefused
from ..ir import Array, batch_axis
from ..program.arrays import rows
from ..program.buffer import Buffer
from .board import Board, Facts

STEP_HEAD = 6  # bytes of a request before the numbers of its rows
MOST = 0xFFFF  # of a number of two bytes


class Rows:
    def __init__(self, board: Board, facts: Facts, buffers: Sequence[Buffer], splits: bool) -> None:
        """`splits`: the program takes a batch in parts."""
        self._board, self._facts, self._buffers, self._splits = board, facts, buffers, splits
        self._where: dict[bytes, int] = {}  # row → its number there, the one that was used longest ago first
        self._free = list(range(min(facts.rows, MOST + 1)))

    def train(self, arrays: Sequence[Array], n: int) -> np.float32:
        """A step; in parts, if the board does not take that many at once. The bits are the same."""
        found = [self._row(arrays, i) for i in range(n)]
        most = self._most(STEP_HEAD)
        if n > most and not self._splits:
            raise BoardRefused(
                f"a step has {n} samples, the board takes {most} at a time", at=self._board.address,
                why=f"it has {self._facts.rows} rows of {self._facts.row_bytes} bytes",
                help="build --accumulate, or firmware with more --fleet-rows",
            )  # fmt: skip
        loss = np.float32(0)
        for first in range(0, n, most):
            loss = self._board.step(self._sent(found[first : first + most]), n, first)
        return loss

    def infer(self, arrays: Sequence[Array], n: int, outputs: Sequence[Buffer]) -> tuple[Array, ...]:
        """What the model puts out for them, as the board computes it. The arrays are those of a step."""
        most = self._most(12)
        parts: list[list[Array]] = [[] for _ in outputs]
        for first in range(0, n, most):
            count = min(most, n - first)
            numbers = self._sent([self._row(arrays, i) for i in range(first, first + count)])
            data = self._board.infer(numbers, sum(out.bytes(count) for out in outputs))
            at = 0
            for part, out in zip(parts, outputs, strict=True):
                values = np.frombuffer(data[at : at + out.bytes(count)], out.dtype.numpy).reshape(out.shape(count))
                part.append(values)
                at += out.bytes(count)
        return tuple(np.concatenate(part, axis=_axis(out)) for part, out in zip(parts, outputs, strict=True))

    def _row(self, arrays: Sequence[Array], number: int) -> bytes:
        row = b"".join(rows(a, b, number, 1).tobytes() for a, b in zip(arrays, self._buffers, strict=True))
        if len(row) != self._facts.row_bytes:
            raise BoardRefused(
                f"a sample has {len(row)} bytes, a row of the board {self._facts.row_bytes}", at=self._board.address,
                help="give the gateway the program that the firmware was made of",
            )  # fmt: skip
        return row

    def _most(self, head: int) -> int:
        """Samples of one request."""
        facts = self._facts
        most = min(facts.batch, facts.rows, (facts.payload_bytes - head) // 2, MOST)
        if most < 1:
            raise BoardRefused("the board has no room for a sample", at=self._board.address,
                               help="firmware with more --fleet-rows")  # fmt: skip
        return most

    def _sent(self, wanted: Sequence[bytes]) -> list[int]:
        """Numbers of these rows, those that were not there yet sent."""
        for row in wanted:
            if row in self._where:
                self._where[row] = self._where.pop(row)  # used just now
        new: dict[int, bytes] = {}
        for row in wanted:
            if row not in self._where:
                if not self._free:
                    self._free.append(self._where.pop(next(iter(self._where))))
                number = self._free.pop(0)
                self._where[row] = number
                new[number] = row
        numbers = sorted(new)
        while numbers:
            first = last = numbers.pop(0)
            while numbers and numbers[0] == last + 1:
                last = numbers.pop(0)
            self._board.set_rows(first, [new[number] for number in range(first, last + 1)])
        return [self._where[row] for row in wanted]


def _axis(buffer: Buffer) -> int:
    return batch_axis(buffer.dims) or 0


__all__ = ["Rows"]
