"""A file that nobody can read in one go is several files, and a name says what is in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 450


@pytest.fixture(scope="module")
def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.c", "*.h"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def test_no_source_is_longer_than_can_be_read(sources: list[Path]) -> None:
    assert len(sources) > 400
    lines = {path.relative_to(ROOT): len(path.read_text().splitlines()) for path in sources}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def test_names_say_what_is_inside(sources: list[Path]) -> None:
    assert [path for path in sources if path.stem in ("utils", "util", "common", "helpers", "misc")] == []
