"""Writes src/smidgen/devices/stack.json, the stack of kernels on each core: `python -m tools.measure_stack [core …]`.

Needs arm-none-eabi-gcc. A kernel that is not in the table is measured whenever firmware needs it, which takes seconds.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smidgen.devices import stack
from smidgen.devices.cores import CORES
from smidgen.devices.overhead import TABLE


def main(wanted: list[str]) -> None:
    known: Mapping[str, Any] = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    cores: dict[str, Any] = dict(known.get("cores", {})) if wanted else {}
    sources: dict[str, list[str]] = dict(known.get("sources", {}))
    version = subprocess.run(
        [f"{stack.CROSS}gcc", "-dumpfullversion"], check=True, capture_output=True, text=True
    ).stdout
    for core in wanted or CORES:
        with tempfile.TemporaryDirectory() as folder:
            cores[core], sources = stack.measured(core, Path(folder))
        print(core, {k: v for k, v in cores[core].items() if k != "kernels"})
    TABLE.write_text(to_text({"compiler": f"gcc {version.strip()}", "cores": cores, "sources": sources}))


def to_text(table: Mapping[str, Any]) -> str:
    """JSON with one kernel a line."""
    text = json.dumps(table, indent=1, sort_keys=True)
    return re.sub(r"\[\s+([^\]]*?)\s+\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])
