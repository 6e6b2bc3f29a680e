"""Stored texts: SMIDGEN_WRITE=1 writes them again."""

from __future__ import annotations

import os
from pathlib import Path

SNAPSHOTS = Path(__file__).parents[1] / "snapshots"


def check_snapshot(name: str, text: str) -> None:
    if os.environ.get("SMIDGEN_WRITE"):
        (SNAPSHOTS / name).write_text(text + "\n", encoding="utf-8")
    assert text == (SNAPSHOTS / name).read_text(encoding="utf-8").rstrip("\n")
