"""The state before the step at hand, of programs that page: in a file beside the pages, since RAM is for the plan."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import CannotWrite
from .ir import Array


class Undo:
    """All of the file is reserved here, and nobody else sees it."""

    def __init__(self, page_to: str | os.PathLike[str], count: int) -> None:
        self._file = -1
        try:
            self._file, name = tempfile.mkstemp(dir=Path(page_to).resolve().parent)
            os.unlink(name)
            if count:
                os.posix_fallocate(self._file, 0, count)
        except OSError as error:
            raise CannotWrite(
                f"the state before a step, {count:,} bytes, cannot be kept beside '{page_to}'",
                why=error.strerror or str(error), help='page_to="page.bin" on a disk with more room',
            ) from error  # fmt: skip

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def keep(self, state: Array) -> None:
        """Raises OSError; the step has not begun then."""
        view, done = state.data, 0
        while done < len(view):
            done += os.pwrite(self._file, view[done:], done)

    def bring_back(self, state: Array) -> None:
        """Raises OSError; the state may then hold a part of it."""
        view, done = state.data, 0
        while done < len(view):
            got = os.preadv(self._file, [view[done:]], done)
            if not got:
                raise OSError("the file ends early")
            done += got


__all__ = ["Undo"]
