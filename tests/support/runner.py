"""Running a binary of another machine here."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from smidgen.deploy import linux_binary
from smidgen.errors import MissingPart


def fnv(state: bytes) -> str:
    found = 0xCBF29CE484222325
    for byte in state:
        found = (found ^ byte) * 0x100000001B3 % 2**64
    return f"{found:016x}"


def ready(target: str) -> Sequence[str]:
    """How to run a binary of the target here; skips the test if that cannot be done."""
    try:
        linux_binary.zig()
        return linux_binary.emulator(target)
    except MissingPart as error:
        pytest.skip(str(error))


def command(run: Sequence[str], *words: str | Path) -> str:
    done = subprocess.run([*run, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
