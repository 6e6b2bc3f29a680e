"""Tests of one group run in one process, which makes what they share once. Versions of pytest and of its plugin that do
not fit each other lose groups without a word, and then everything is built twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
import os
import pytest

pytestmark = pytest.mark.xdist_group("one")


@pytest.mark.parametrize("number", range(12))
def test_where(number):
    with open("where", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_a_group_is_run_by_one_process(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    (tmp_path / "test_one.py").write_text(SOURCE)
    words = ["-m", "pytest", "-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider", "test_one.py"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    where = (tmp_path / "where").read_text().split()
    assert len(where) == 12
    assert len(set(where)) == 1
