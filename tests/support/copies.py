"""A copy of the project to change."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def copied(folder: Path) -> Path:
    """A copy of the project without its compiled library."""
    unwanted = shutil.ignore_patterns("*.so", "*.part", "*.egg-info")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder
