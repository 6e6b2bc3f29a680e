"""Ctrl-C while work goes on: the first asks to stop at the next good moment, the second stops at once."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Interruption:
    """`asked` becomes True at the first Ctrl-C; the second raises KeyboardInterrupt. Outside the main thread, or where
    Ctrl-C is ignored, nothing changes."""

    def __init__(self) -> None:
        self.asked = False
        self._old: Any = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            old = signal.getsignal(signal.SIGINT)
            if callable(old):
                self._old = old
                signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)
            self._old = None

    def _handle(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


__all__ = ["Interruption"]
