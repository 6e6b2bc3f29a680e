"""`python -m smidgen.runtime [OUT]`: builds the library, unless it is newer than everything it is made from."""

import sys
from pathlib import Path

from .build import HERE, LIBRARY, compile_runtime


def is_current() -> bool:
    """Newer than C sources, scripts, and the list of what may run in place."""
    newest = max(p.stat().st_mtime for p in HERE.rglob("*") if p.suffix in (".c", ".h", ".py", ".txt"))
    return LIBRARY.exists() and LIBRARY.stat().st_mtime >= newest


if len(sys.argv) > 1:
    print(compile_runtime(Path(sys.argv[1]), fast=True))
elif not is_current():
    print(compile_runtime(LIBRARY, fast=True))
