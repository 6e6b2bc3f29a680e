"""The memory and threads that kernels take beside a program, and the options that choose kernels. Needs numpy only."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Final

from ..errors import BadOption
from . import library


@dataclass(frozen=True, slots=True)
class Work:
    """RAM that kernels need beside STATE and ARENA: none if they are exact."""

    kernels: str
    threads: int

    def beside(self, program_bytes: int) -> int:
        """Beside a program with so many bytes of STATE and ARENA."""
        return int(library.library().smg_posix_work_bytes(self.threads, program_bytes)) if self.kernels == "fast" else 0

    def left(self, budget_bytes: int) -> int:
        """What a budget leaves for the program and all else: more work memory is taken beside a large program, so one
        that is a little smaller may have more room."""
        if self.kernels != "fast":
            return budget_bytes
        large = int(library.library().smg_posix_wide_from())
        return max(budget_bytes - self.beside(large), min(budget_bytes - self.beside(0), large - 1))

    def budget_for(self, ram_bytes: int) -> int:
        """The smallest budget that leaves so much: `left` turned round."""
        if self.kernels != "fast":
            return ram_bytes
        large = int(library.library().smg_posix_wide_from())
        return ram_bytes + self.beside(0 if ram_bytes < large else large)


EXACT: Final = Work("exact", 1)


def checked_page_to(page_to: Any, help: str = "page_to='page.bin'") -> None:
    """A path or None. Whether a file can be made there is found out when it is opened."""
    if page_to is None:
        return
    try:
        is_path = isinstance(page_to, str | os.PathLike) and b"\0" not in os.fsencode(page_to)
    except UnicodeEncodeError:  # half of a surrogate pair
        is_path = False
    if not is_path:
        raise BadOption(f"page_to={page_to!r} is not a path", help=help)


def has_fast() -> bool:
    """Whether the runtime was built with fast kernels."""
    return Work("fast", 1).beside(0) > 0


def asked_kernels() -> str | None:
    """What the environment says."""
    return os.environ.get("SMIDGEN_KERNELS") or None


def checked_kernels(kernels: Any, threads: Any) -> tuple[str, int]:
    """None: what SMIDGEN_KERNELS says; without it fast ones, if the runtime was built with them."""
    help = "threads=2"
    if kernels is None:
        kernels = asked_kernels() or ("fast" if has_fast() else "exact")
    if isinstance(kernels, str) and (found := re.fullmatch(r"(exact|fast):(\d{1,9})", kernels)) and threads == 1:
        kernels, threads, help = found[1], int(found[2]), "kernels='fast:2'"
    if not isinstance(kernels, str) or kernels not in ("exact", "fast"):
        raise BadOption(
            f"kernels={kernels!r:.60} is not understood", help="kernels='exact', 'fast' or, on two threads, 'fast:2'"
        )
    if type(threads) is not int or not 1 <= threads <= 64:
        raise BadOption(f"threads={threads!r} is not a number of threads", why="1 to 64", help=help)
    if kernels == "exact" and threads != 1:
        raise BadOption("exact kernels run on one thread", help="kernels='fast:2', or one thread")
    return kernels, int(threads)
