"""Text for people: colours and moving lines on a terminal, plain lines in a pipe. Needs nothing but Python."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Final, TextIO

COLOURS: Final = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip
REDRAW_S: Final = 0.1
BAR_CELLS: Final = 24


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """As https://no-color.org says."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def width(most: int = 120) -> int:
    return min(most, shutil.get_terminal_size((100, 24)).columns)


def paint(text: str, *styles: str, colour: bool) -> str:
    """`text` in the given styles, or as it is."""
    return f"\x1b[{';'.join(COLOURS[s] for s in styles)}m{text}\x1b[0m" if colour and text else text


def bytes_text(count: int, rounded: Callable[[float], int] = round) -> str:
    """Three digits and a unit of 1024: `412 KB`, `9.6 MB`, `873 bytes`. `rounded`: `math.ceil` for what must be
    enough."""
    size = float(count)
    if count < 1024:
        return f"{count} bytes"
    for unit in ("KB", "MB", "GB"):
        size /= 1024
        places = max(2 - math.floor(math.log10(size)), 0)
        shown = rounded(size * 10**places) / 10**places
        if shown < 1000 or unit == "GB":
            return f"{shown:.3g} {unit}" if shown < 1000 else f"{shown:,.0f} {unit}"
    raise AssertionError


def count_text(count: float) -> str:
    """Three digits and a prefix of 1000: `31.4 M`."""
    for prefix in ("", " k", " M", " G"):
        if count < 999.5:
            return f"{count:.3g}{prefix}"
        count /= 1000
    return f"{count:,.3g} T"


def seconds_text(seconds: float) -> str:
    """`85 µs`, `3.2 ms`, `14.1 s`, `3:05`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else f"{int(seconds) // 60}:{int(seconds) % 60:02}"


class Progress:
    """One line that is drawn again in place; on a stream that is no terminal, nothing at all.

    with Progress("training", total=120) as bar:
        bar.advance(8, "loss 0.31")
    """

    def __init__(self, what: str, total: int | None = None, stream: TextIO | None = None) -> None:
        self.what, self.total, self.done, self.text = what, total, 0, ""
        self._stream = sys.stderr if stream is None else stream
        self._active = is_terminal(self._stream)
        self._start, self._drawn = time.monotonic(), 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def advance(self, by: int = 1, text: str = "") -> None:
        self.done, self.text = self.done + by, text
        if self._active and time.monotonic() - self._drawn >= REDRAW_S:
            self._draw()

    def show(self, done: int, total: int, text: str) -> None:
        """So far, whatever was said before."""
        self.total = total or None
        self.advance(done - self.done, text)

    def clear(self) -> None:
        """Takes the line away, so that other text can be printed."""
        if self._active and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = 0.0

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        share = min(1.0, self.done / self.total) if self.total else 0.0
        filled = round(share * BAR_CELLS)
        bar = f"{'━' * filled}{'─' * (BAR_CELLS - filled)} {share:4.0%}  " if self.total else f"{self.done}  "
        spent = self._drawn - self._start
        left = f"  {seconds_text(spent / share - spent)} left" if 0 < share < 1 and spent > 2 else ""
        line = f"{self.what}  {bar}{self.text}{left}"
        self._stream.write("\r\x1b[K" + line[: width() - 1])
        self._stream.flush()
