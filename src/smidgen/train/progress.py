"""A run of `fit` on stderr: a bar on a terminal, nothing in a pipe; on request a line per epoch everywhere.

Nothing that happens to the stream stops training.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from ..terminal import Progress, count_text
from .history import Epoch, Position, metrics_cells


class Show:
    def __init__(self, progress: bool | None, epochs: int, steps: int | None) -> None:
        self.epochs, self.steps, self.lines = epochs, steps, bool(progress)
        self._active = progress is not False and sys.stderr is not None
        self._bar: Progress | None = None
        self._measured, self._text = "", ""

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *_: object) -> None:
        self._safely(self._clear)

    def epoch(self, number: int, done: int) -> None:
        self._safely(lambda: self._begin(number, done))

    def step(self, at: Position) -> None:
        rate = f"  {count_text(at.epoch_samples / at.seconds)} samples/s" if at.seconds else ""
        text = f"loss {at.loss_sum / at.epoch_samples:.4g}{self._measured}{rate}"
        self._text = text
        self._safely(lambda: self._advance(1, text))

    def measuring(self) -> None:
        self._safely(lambda: self._advance(0, f"{self._text}  measuring …"))

    def closed(self, record: Epoch) -> None:
        cells = metrics_cells(record.eval or {})
        self._measured = "".join(f"  {name} {value}" for name, value in cells.items())
        self._safely(self._clear)
        if self.lines:
            self._safely(lambda: print(record, file=sys.stderr, flush=True))

    def note(self, text: str) -> None:
        """A line for people, whatever else is shown."""
        self._safely(lambda: print(text, file=sys.stderr, flush=True))

    def _begin(self, number: int, done: int) -> None:
        self._clear()
        self._bar = Progress(f"epoch {number}/{self.epochs}", self.steps)
        self._bar.advance(done)

    def _advance(self, by: int, text: str) -> None:
        if self._bar is not None:
            self._bar.advance(by, text)

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.clear()
            self._bar = None

    def _safely(self, call: Callable[[], object]) -> None:
        if not self._active:
            return
        try:
            call()
        except (OSError, ValueError):  # a pipe nobody reads any more, a closed file
            self._active, self._bar = False, None


__all__ = ["Show"]
