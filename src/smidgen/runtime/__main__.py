"""`python -m smidgen.runtime [library.so]` compiles the C runtime."""

import sys
from pathlib import Path

from .compile import LIBRARY, compile_runtime

print(compile_runtime(Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY, fast=True))
