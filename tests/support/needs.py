"""What a test needs besides Python, numpy and the C runtime, read from the sources: the markers of every test.

A module needs what the modules of this project need that it imports. `pytest -m "not torch and not arm"` does not even
import the modules that need those.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").exists())
FOLDERS: Final = ("tests", "benchmarks", "tools")
# Marker → what in a source says so.
SIGNS: Final = {
    "torch": re.compile(r"^\s*(import|from) torch\b|importorskip\(\"torch\"", re.MULTILINE),
    "arm": re.compile(r"\barm-none-eabi-gcc\b"),
    "cc": re.compile(r"\b(compile_runtime|build_replay|build_binary|system_cc)\b|\"(gcc|clang|tcc)\""),
}
# Those that only reach it through another process, or through a page of the documentation.
OTHERS: Final = {
    "test_demo.py": ("torch",),
    "test_docs.py": ("torch", "cc"),
    "test_kept.py": ("torch",),
    "test_numpy_only.py": ("torch", "cc"),
    "test_parity_rules.py": ("torch",),
    "test_planted_faults.py": ("torch", "cc"),
    "test_transcripts.py": ("torch",),
}


@functools.cache
def needs(path: Path) -> frozenset[str]:
    """Markers of all tests in a file."""
    found: set[str] = set()
    seen: set[Path] = set()
    waiting = [path]
    while waiting:
        here = waiting.pop()
        if here in seen:
            continue
        seen.add(here)
        own, others = direct(here)
        found |= own
        waiting += others
    return frozenset(found.union(OTHERS.get(path.name, ())))


@functools.cache
def direct(path: Path) -> tuple[frozenset[str], tuple[Path, ...]]:
    """What a file needs itself, and the files that it imports."""
    source = path.read_text(encoding="utf-8")
    return frozenset(n for n, sign in SIGNS.items() if sign.search(source)), tuple(imported(path, source))


def imported(path: Path, source: str) -> Iterator[Path]:
    """Files of this project outside src that a file imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            base = ".".join([*package, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{a.name}" for a in node.names)]
        else:
            continue
        for name in names:
            place = ROOT.joinpath(*name.split("."))
            files = [place.with_suffix(".py"), place / "__init__.py"] if name.split(".")[0] in FOLDERS else []
            yield from (file for file in files if file.exists())


def excluded(expression: str) -> frozenset[str]:
    """The markers that `-m "not a and not b"` leaves out; none if it says anything else."""
    whole = re.fullmatch(r"not \w+( and not \w+)*", expression.strip())
    return frozenset(re.findall(r"not (\w+)", expression)) if whole else frozenset()
