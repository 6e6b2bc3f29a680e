"""The state before the step at hand, of programs that page: in a file beside the pages, since RAM is for the plan."""

from __future__ import annotations

import os
from pathlib import Path

from .errors import CannotWrite
from .ir import Array
from .kept import Reserved


class Undo:
    """All of the file is reserved here."""

    def __init__(self, page_to: str | os.PathLike[str], count: int) -> None:
        try:
            self._reserved = Reserved(Path(page_to).resolve().parent, count)
        except OSError as error:
            raise CannotWrite(
                f"the state before a step, {count:,} bytes, cannot be kept beside '{page_to}'",
                why=error.strerror or str(error), help='page_to="page.bin" on a disk with more room',
            ) from error  # fmt: skip

    def keep(self, state: Array) -> None:
        """Raises OSError; the step has not begun then."""
        self._reserved.write(state.data)

    def bring_back(self, state: Array) -> None:
        """Raises OSError; the state may then hold a part of it."""
        self._reserved.read(state.data)


__all__ = ["Undo"]
