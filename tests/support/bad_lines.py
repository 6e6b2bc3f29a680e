"""A board on this machine (tests/c/fleet_board.c, the firmware's own C) at the end of a line that can be as bad as
wanted: it loses, changes, repeats and reorders, and the board can lose its power at any byte. Needs a C compiler."""

from __future__ import annotations

import os
import random
import select
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from smidgen.program.program import Program
from tests.support.libraries import compiled

SOURCE = Path(__file__).parents[1] / "c" / "fleet_board.c"
SANITIZE = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
Damage = Callable[[bytes], Iterator[bytes]]


def emulator() -> Path:
    """The board as a program, under the sanitizers."""
    return compiled("gcc", SANITIZE, [SOURCE])


class LocalBoard:
    """A line to a board that runs here. `damage` is what becomes of each frame, `cut_after` how many bytes the board
    takes before it loses its power, once; without slots it forgets everything."""

    def __init__(
        self, program: Program, folder: Path, *, rows_bytes: int = 4096, recipe_bytes: int = 0, slots: bool = True,
        out: Damage | None = None, back: Damage | None = None, cut_after: int | None = None,
    ) -> None:  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "own.smg").write_bytes(program.bare_bytes())
        place = str(folder / "slots.bin") if slots else "-"
        self.command = [emulator(), folder / "own.smg", place, str(rows_bytes), str(recipe_bytes)]
        self._out, self._back, self.cut_after = out or whole, back or whole, cut_after
        self._process: subprocess.Popen[bytes] | None = None
        self.sent = self.starts = 0

    def send(self, data: bytes) -> None:
        for piece in self._out(data):
            if self.cut_after is not None and self.sent + len(piece) > self.cut_after:
                piece = piece[: self.cut_after - self.sent]
                self._write(piece)
                self.cut_after = None
                self.cut()
                raise ConnectionResetError("the power is gone")
            self._write(piece)

    def receive(self, seconds: float) -> bytes:
        own = self._running()
        assert own.stdout is not None
        if not select.select([own.stdout], [], [], seconds)[0]:
            return b""
        data = os.read(own.stdout.fileno(), 65536)
        if not data:
            raise AssertionError(f"the board ended with status {own.wait()}")
        return b"".join(self._back(data))

    def cut(self) -> None:
        """Without a warning, as power goes."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None

    def close(self) -> None:
        """The board keeps its power."""

    def _write(self, data: bytes) -> None:
        own = self._running()
        assert own.stdin is not None
        self.sent += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(own.stdin.fileno(), view) :]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self.starts += 1
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )  # fmt: skip
        return self._process


def whole(data: bytes) -> Iterator[bytes]:
    yield data


class Bad:
    """Of so many pieces in a hundred each: lost bytes, changed bits, repeated, held back behind the next, noise."""

    def __init__(self, seed: int, percent: int) -> None:
        self._rng, self._percent = random.Random(seed), percent
        self._held: list[bytes] = []
        self.done = {"lost": 0, "changed": 0, "repeated": 0, "late": 0, "noise": 0}

    def __call__(self, data: bytes) -> Iterator[bytes]:
        rng = self._rng
        late, self._held = self._held, []
        if rng.randrange(100) >= self._percent or not data:
            yield from (data, *late)
            return
        what = rng.choice(sorted(self.done))
        self.done[what] += 1
        at = rng.randrange(len(data))
        if what == "lost":
            data = data[:at] + data[at + rng.choice((1, 1, 7, 1000)) :]
        elif what == "changed":
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif what == "noise":
            data = data[:at] + rng.randbytes(rng.randrange(1, 40)) + data[at:]
        elif what == "late":
            self._held = [data]
            yield from late
            return
        yield data
        if what == "repeated":
            yield data
        yield from late


__all__ = ["Bad", "LocalBoard", "emulator", "whole"]
