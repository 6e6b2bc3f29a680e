"""Builds of the C runtime for tests, each made once: by whichever test process comes first, and again only when a
source, the compiler or an option has changed. They are in build/libraries."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from smidgen.runtime.compile import HERE, compile_runtime

ROOT: Final = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
FOLDER: Final = ROOT / "build" / "libraries"
DAYS: Final = 7


def compiled(cc: str = "", flags: Sequence[str] = ("-O3",), main: Sequence[Path] = ()) -> Path:
    """The library that `compile_runtime` makes, or the program whose sources `main` are."""
    command = shlex.split(cc or os.environ.get("CC", "cc"))
    program = Path(shutil.which(command[0]) or command[0]).resolve()
    key = hashlib.sha256(sources().encode())
    for part in (program, program.stat().st_mtime_ns if program.exists() else 0, *command[1:], "|", *flags):
        key.update(f"{part}\0".encode())
    for path in sorted({file for one in main for file in one.parent.glob("*.[ch]")}):  # they include each other
        key.update(path.read_bytes())
    key.update("|".join(path.name for path in main).encode())
    FOLDER.mkdir(parents=True, exist_ok=True)
    out = FOLDER / f"{main[0].stem if main else 'lib'}-{key.hexdigest()[:20]}"
    with (FOLDER / f"{out.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not out.exists():
            forget_old()
            compile_runtime(out, cc, flags, main=main)
        os.utime(out)
    return out


@functools.cache
def sources() -> str:
    """One hash for all of the runtime."""
    digest = hashlib.sha256()
    for path in sorted(p for p in HERE.rglob("*") if p.suffix in (".c", ".h", ".py", ".txt")):
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def forget_old() -> None:
    for path in FOLDER.iterdir():
        if path.suffix != ".lock" and time.time() - path.stat().st_mtime > DAYS * 86400:
            path.unlink(missing_ok=True)
