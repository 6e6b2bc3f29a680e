"""The figures of `smidgen demo` on this machine: `python -m benchmarks.demo` writes docs/results/demo.json.

All but seconds are the same on every machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.parity import machine

OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "demo.json"


def main() -> int:
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "smidgen.cli", "demo", "--json"], check=True, stdout=subprocess.PIPE)
    wall_s = round(time.monotonic() - start, 2)
    about = {"command": "python -m benchmarks.demo", "date": time.strftime("%Y-%m-%d"), "machine": machine()}
    text = json.dumps({**about, "wall_s": wall_s, **json.loads(done.stdout)}, indent=1) + "\n"
    OUT.parent.mkdir(parents=True, exist_ok=True)
    partial = OUT.with_suffix(".part")
    partial.write_text(text)
    os.replace(partial, OUT)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
