"""Markers say what a test needs: they are read from the sources, and what is left out is not even imported."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.long_proofs import LONG, long_ones
from tests.support.needs import OTHERS, ROOT, SIGNS, excluded, needs

TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def by_name(name: str) -> Path:
    (path,) = [path for path in TESTS if path.name == name]
    return path


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_a_module_that_imports_torch_is_marked(path: Path) -> None:
    source = path.read_text()
    says_so = any(line.split()[:2] in (["import", "torch"], ["from", "torch"]) for line in source.splitlines())
    assert "torch" in needs(path) or not says_so


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("test_text.py", set()),
        ("test_exact_math.py", {"cc"}),
        ("test_paging_board.py", {"torch", "cc", "arm"}),
        ("test_generated.py", {"torch"}),  # through the networks that it imports
        ("test_same_bits.py", {"torch", "cc"}),  # through a package, within a function
    ],
)
def test_needs_follow_imports(name: str, wanted: set[str]) -> None:
    assert needs(by_name(name)) == wanted


def test_every_file_with_further_needs_is_there() -> None:
    assert set(OTHERS) <= {path.name for path in TESTS}


def test_markers_are_declared() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    assert {text.partition(":")[0] for text in declared} == {*SIGNS, "browser", "long", "slow"}


def test_long_proofs_are_there_and_a_sample_of_them_is_not_long() -> None:
    for proof, every in LONG.items():
        file, _, name = proof.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / "tests" / file).read_text(), proof
        cases = [f"tests/{proof}[{k}]" for k in range(10)]
        left = [name for name in cases if name not in set(long_ones(cases))]
        assert left == (cases[::every] if every else [])


def test_only_plain_exclusions_spare_imports() -> None:
    assert excluded("not torch and not arm") == {"torch", "arm"}
    assert excluded("torch") == excluded("not torch or arm") == excluded("not (torch and arm)") == excluded("") == set()


def test_modules_left_out_are_not_imported() -> None:
    """With torch excluded it cannot be imported, so a module that needs it without a mark fails."""
    words = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not torch and not cc"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_text.py" in done.stdout
    assert "test_import.py" not in done.stdout and "test_same_bits.py" not in done.stdout  # noqa: PT018


def test_a_test_file_imports_no_other() -> None:
    guilty = [p.name for p in TESTS for line in p.read_text().splitlines() if is_import_of_a_test(line)]
    assert not guilty, "what two test files use belongs to tests/support"


def is_import_of_a_test(line: str) -> bool:
    words = line.split()
    return words[:1] == ["from"] and words[2:3] == ["import"] and words[1].split(".")[-1].startswith("test_")
