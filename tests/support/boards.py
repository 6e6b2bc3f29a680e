"""What tests of firmware need: the ARM compiler, make and QEMU. Without them they are skipped, and say so; in CI they
fail."""

from __future__ import annotations

import os
import shutil

import pytest

COMPILER = ("arm-none-eabi-gcc", "make")
EMULATOR = (*COMPILER, "qemu-system-arm")


def need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        said = f"not installed: {', '.join(missing)} (sh tools/system_packages.sh)"
        pytest.fail(said) if os.environ.get("CI") else pytest.skip(said)
