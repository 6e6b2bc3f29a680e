"""Words of the field: the glossary has them and what it points to exists; user-facing text has no private words.

User-facing are README, docs, the pages of errors, `--help`, errors, and the texts of packages that talk to users.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from smidgen.cli.arguments import parser
from smidgen.errors import all_errors
from tests.support.doc_pages import ROOT
from tools import fill_figures
from tools.result_tables import TABLES

SOURCES = ROOT / "src" / "smidgen"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
WORDS = {
    "arena", "state", "const", "scratch", "work memory", "context", "budget", "lifetime", "placement", "lower bound",
    "peak", "rematerialisation", "recompute", "checkpoint", "paging", "micro-batch", "gradient accumulation", "ladder",
    "rung", "decision", "method", "update", "quantize", "calibrate", "program", "plan", "entry point", "op", "kernel",
    "exact kernels", "fast kernels", "job", "runner", "slot",
}  # fmt: skip
PRIVATE = {
    "micro-batches": r"\b(?:taken?|takes|computed?|step|batch|samples) in parts\b",
    "recompute, rematerialise": r"\bcomput(?:e|es|ed|ing) (?:\w+ )?again\b",
    "paging": r"\b(?:go|goes|puts?|keeps?|kept|lies?|are|tensors|values) outside RAM\b",
    "the best ratio": r"\bbargains?\b",
    "lives in, is stored in": r"\b(?:has|have|give|gives|whose|its|their|a) homes?\b",
    "leave out, omit": r"\bleaves? \w*\s?away\b|\bleft away\b",
    "without success": r"\bin vain\b",
    "is not available": r"\bcannot be had\b",
    "must, will": r"\bshall\b",
}
"""Word of the field → what not to say instead."""
PAGES = [
    *(p for p in sorted(ROOT.glob("*.md"))),
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if p.parent.name not in ("results", "decisions")),
    *sorted((SOURCES / "report" / "explain").glob("*.md")),
]


def private_words(text: str) -> list[str]:
    plain = " ".join(text.split())
    return [f"'{m[0]}': say {word}" for word, known in PRIVATE.items() for m in re.finditer(known, plain, re.I)]


# -- the glossary --------------------------------------------------------------------------------------------------


def defined() -> set[str]:
    heads = re.findall(r"^- ((?:\*\*[^*]+\*\*(?:, )?)+):", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)
    return {word for head in heads for word in re.findall(r"\*\*([^*]+)\*\*", head)}


def test_the_glossary_defines_the_words_of_the_field() -> None:
    assert defined() >= WORDS


def test_what_the_glossary_points_to_exists() -> None:
    named = re.findall(r"`([^`]+)`", GLOSSARY.read_text(encoding="utf-8"))
    known = {o for p in parsers() for a in p._actions for o in a.option_strings}
    paths = [n for n in named if "/" in n and " " not in n]
    flags = [n.split()[0] for n in named if n.startswith("--")]
    assert len(paths) > 10
    assert len(flags) > 10
    assert [p for p in paths if p != "src/smidgen" and not (SOURCES / p).exists()] == []
    assert [f for f in flags if f != "--help" and f not in known] == []


def test_readers_find_the_glossary() -> None:
    assert "docs/reference/glossary.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    linking = [p for p in PAGES if "glossary.md" in p.read_text(encoding="utf-8") and p.is_relative_to(ROOT / "docs")]
    assert len(linking) >= 3


# -- no private words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_page_uses_the_words_of_the_field(page: Path) -> None:
    assert private_words(page.read_text(encoding="utf-8")) == []


def parsers() -> Iterator[argparse.ArgumentParser]:
    waiting: list[argparse.ArgumentParser] = [parser()]
    while waiting:
        one = waiting.pop()
        yield one
        for action in one._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()


def test_help_of_the_command_line_uses_the_words_of_the_field() -> None:
    texts = [one.format_help() for one in parsers()]
    assert len(texts) > 10
    assert [found for text in texts for found in private_words(text)] == []


def shown_texts(path: Path) -> Iterator[tuple[int, str]]:
    """All literal texts but docstrings: line, text."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    bare = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.lineno, node.value


def raised_texts(path: Path) -> Iterator[tuple[int, str]]:
    """Literal texts in calls of errors, and in what is raised: line, text."""
    names = {kind.__name__ for kind in all_errors().values()}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        call = node.exc if isinstance(node, ast.Raise) else node
        if isinstance(call, ast.Call) and (call is not node or getattr(call.func, "id", "") in names):
            for part in ast.walk(call):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def talking() -> list[object]:
    """Every file of the sources that has texts."""
    files = [path for path in sorted(SOURCES.rglob("*.py")) if any(shown_texts(path))]
    return [pytest.param(path, id=str(path.relative_to(SOURCES))) for path in files]


@pytest.mark.parametrize("path", talking())
def test_what_a_file_says_is_in_the_words_of_the_field(path: Path) -> None:
    assert [f"line {line}: {found}" for line, text in shown_texts(path) for found in private_words(text)] == []


@pytest.mark.parametrize("path", talking())
def test_an_error_asks_nothing(path: Path) -> None:
    assert [f"line {line}: {text}" for line, text in raised_texts(path) if re.search(r"[a-z]\?(?:$|\s)", text)] == []


def test_a_private_word_is_found() -> None:
    bad = "It shall be computed\nagain, in vain; the batch in parts, tensors outside RAM, a bargain. Leave it away."
    assert len(private_words(bad)) == 7
    assert private_words("functions outside RAM banks, in parts of the file, at home") == []


# -- README --------------------------------------------------------------------------------------------------------


def test_the_source_of_readme_can_be_read() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if len(line) > 150] == []
    comments = [c for c in re.findall(r"<!--.*?-->", text, re.DOTALL) if not c.startswith("<!-- setup:")]
    assert all(re.search(rf"^{re.escape(c)}$", text, re.MULTILINE) for c in comments), "a comment inside a sentence"


def test_commands_of_pages_can_be_pasted() -> None:
    for page in PAGES:
        typed = re.findall(r"^\$ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [line for line in typed if "…" in line.partition("#")[0]] == [], page


def test_measured_figures_of_readme_stand_in_tables() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$|^\|.*$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\d[\d.,]* ?(?:%|µs|ms|MB|times)", prose) == []


def test_every_table_of_results_is_shown_on_a_page() -> None:
    shown = [m[1] for page in fill_figures.pages() for m in fill_figures.MARKED.finditer(page.read_text("utf-8"))]
    assert sorted(shown) == sorted(TABLES)
