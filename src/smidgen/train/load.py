"""A job from a program file."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import BadProgram
from ..files import checked_path, opened
from ..program.program import Program
from ..runtime.library import release_freed
from .job import Job


def load(
    path: str | os.PathLike[str],
    *,
    kernels: str | None = None,
    threads: int = 1,
    page_to: str | os.PathLike[str] | None = None,
) -> Job:
    """A job from a program file; torch is not needed. Constants stay in the file, which is mapped: it may be replaced
    (as `save` does) while the job lives, but not written into.

    `kernels="fast"`, the default where the runtime was built with them, uses this machine's vectors and `threads`,
    takes some work memory (plan.work_bytes), and gives the same bits for any number of threads on the same kind of
    machine; "exact" gives the same bits on every machine. The variable SMIDGEN_KERNELS changes the default.
    `page_to` is the file for a program that pages: all of it is reserved here, and it may be deleted afterwards.
    """
    place = checked_path(path, 'smidgen.load("model.smg")')
    try:
        before = _version(place)
        job = Job(Program.open(place), place, kernels=kernels, threads=threads, page_to=page_to)
        changed = _version(place) != before
        if changed:
            raise BadProgram("the file changed while it was read", help="load it again")
    except OSError as error:
        raise BadProgram(f"cannot read '{place}'", why=error.strerror or str(error)) from error
    except BadProgram as error:
        raise BadProgram(error.what, at=error.at or str(place), why=error.why, help=error.help) from error
    release_freed()  # reading the description took several times its size
    return job


def _version(path: Path) -> tuple[int, ...]:
    with opened(path) as file:
        facts = os.fstat(file.fileno())
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


__all__ = ["load"]
