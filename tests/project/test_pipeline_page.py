"""docs/explain/pipeline.md draws the packages and their directions: as tests/support/layers.py has them."""

from __future__ import annotations

import re

import pytest

from tests.support.layers import BASE, COMPILER, DIRECTION, ROOT, SOURCE

PAGE = ROOT / "docs" / "explain" / "pipeline.md"
TEXT = PAGE.read_text(encoding="utf-8")


def section(title: str, text: str = TEXT) -> str:
    return text.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """Cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def directions(text: str, title: str = "Packages") -> list[tuple[str, set[str]]]:
    """Package → what it imports, in the order of the page."""
    found = []
    for name, _, may in rows(section(title, text)):
        words = re.findall(r"\w+", may)
        found.append((name.strip("`"), {w for word in words for w in (BASE.split() if word == "base" else [word])}))
    return found


def missing(text: str) -> list[str]:
    """Files and folders of the source that the page names and nobody has."""
    names = re.findall(r"(?<!\[)`([\w/]+(?:\.py|\.c|/))`", text)
    top = [name for name in names if not name.startswith(("src/", "tests/", "docs/"))]
    return [name for name in top if not (SOURCE / name).exists()]


def test_packages_and_directions_are_those_of_the_table() -> None:
    assert directions(TEXT) == [(name, set(may.split())) for name, may in DIRECTION.items()]


def test_the_order_of_the_compiler_is_that_of_the_table() -> None:
    assert directions(TEXT, "Within the compiler") == [(name, set(may.split())) for name, may in COMPILER.items()]


def test_every_file_that_the_page_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py)`", section("What `compile()` does"))
    assert len(named) > 15, "the walk names its modules"
    assert missing(TEXT) == []


@pytest.mark.parametrize(("old", "new"), [
    ("| errors |\n| `program`", "| errors, ir |\n| `program`"),
    ("| errors, ir, ops, devices |", "| errors, ir, devices |"),
    ("| `demo` |", "| `toys` |"),
])  # fmt: skip
def test_a_page_that_says_something_else_is_found(old: str, new: str) -> None:
    assert TEXT.count(old) == 1
    assert directions(TEXT.replace(old, new)) != directions(TEXT)


def test_a_file_that_is_not_there_is_found() -> None:
    assert missing("`compiler/pipelines.py`, `nowhere/`, `compiler/pipeline.py`") == [
        "compiler/pipelines.py",
        "nowhere/",
    ]
