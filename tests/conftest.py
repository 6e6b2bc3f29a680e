"""One thread of linear algebra for each test process: tests run side by side. Exact kernels unless a test says
otherwise: most compare bits. Every test is marked with what it needs (tests/support/needs.py); where torch is left out,
it cannot be imported either."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.long_proofs import long_ones
from tests.support.needs import excluded, needs

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SMIDGEN_KERNELS", "exact")
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
# Many tests compile the same sources with the same flags, firmware above all: ccache, where it is installed.
CCACHE = Path("/usr/lib/ccache")
if CCACHE.is_dir():
    os.environ["PATH"] = f"{CCACHE}{os.pathsep}{os.environ['PATH']}"
    os.environ.setdefault("CCACHE_DIR", str(Path(__file__).parents[1] / "build" / "ccache"))
    os.environ.setdefault("CCACHE_MAXSIZE", "500M")
# A run in the background inherits an ignored Ctrl-C; tests that send one want Python's own.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    if "torch" in excluded(config.option.markexpr):
        sys.modules["torch"] = None  # type: ignore[assignment]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Modules with nothing but tests that are left out are not imported."""
    if collection_path.name.startswith("test_") and needs(collection_path) & excluded(config.option.markexpr):
        return True
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for need in needs(item.path):
            item.add_marker(need)
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
    long = set(long_ones(item.nodeid for item in items))
    for item in items:
        if item.nodeid in long:
            item.add_marker("long")
