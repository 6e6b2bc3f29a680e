"""docs/reference/python.md has every public name, argument, field and member, with their defaults, and no other."""

from __future__ import annotations

import inspect
import re
import tomllib
from typing import Any

import pytest

import smidgen
from tools import python_reference
from tools.python_reference import MARKED, MEANINGS, PAGE, filled

TEXT = PAGE.read_text(encoding="utf-8")
TABLES = {found["name"]: found[0] for found in MARKED.finditer(TEXT)}
SIGNED = ["compile", "Memory", "Classes", "Bytes", "SGD", "Adam", "AdamW", "Update", "load", "Job.fit", "SmidgenError"]


def meanings() -> dict[str, dict[str, str]]:
    return tomllib.loads(MEANINGS.read_text(encoding="utf-8"))


def first_column(table: str) -> list[str]:
    return [cell.partition("(")[0] for cell in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)]


def public(name: str) -> Any:
    found: Any = smidgen
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", smidgen.__all__)
def test_every_public_name_is_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", TEXT)


@pytest.mark.parametrize("name", SIGNED)
def test_the_arguments_are_those_of_the_code(name: str) -> None:
    given = [p for p in inspect.signature(public(name)).parameters.values() if p.name != "self"]
    assert first_column(TABLES[name]) == [p.name for p in given]
    for p in given:
        shown = "" if p.default is p.empty else f'`"{p.default}"`' if isinstance(p.default, str) else f"`{p.default!r}`"
        row = next(line for line in TABLES[name].splitlines() if line.startswith(f"| `{p.name}` |"))
        assert row.split(" | ")[2].strip() == shown


def test_the_three_that_compile_take_the_sixteen_arguments_of_the_table() -> None:
    sixteen = first_column(TABLES["compile"])
    assert len(sixteen) == 16
    assert all(list(inspect.signature(public(f)).parameters) == sixteen for f in ("compile", "sweep", "max_batch"))


def test_all_that_a_job_can_do_is_on_the_page() -> None:
    assert sorted(first_column(TABLES["Job"])) == [name for name in dir(smidgen.Job) if not name.startswith("_")]


@pytest.mark.parametrize("name", ["Plan", "History"])
def test_all_that_is_returned_is_on_the_page(name: str) -> None:
    assert sorted(first_column(TABLES[name])) == [n for n in dir(public(name)) if not n.startswith("_")]


# -- the checks can fail -------------------------------------------------------------------------------------------


def test_a_new_argument_needs_a_meaning() -> None:
    known = meanings()
    del known["SGD"]["nesterov"]
    with pytest.raises(LookupError, match=r"arguments of SGD: missing \['nesterov'\]"):
        filled(TEXT, known)


def test_a_meaning_of_what_is_gone_is_refused() -> None:
    known = meanings()
    known["Plan"]["colour"] = "of the plan"
    with pytest.raises(LookupError, match=r"fields of Plan: .* not in the code \['colour'\]"):
        filled(TEXT, known)


def test_a_new_public_name_needs_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smidgen, "__all__", [*smidgen.__all__, "Novelty"])
    with pytest.raises(LookupError, match=r"marked places: missing \['Novelty'\]"):
        filled(TEXT, meanings())


def test_a_public_member_needs_a_docstring() -> None:
    class Bare:
        def method(self) -> None:
            pass

    with pytest.raises(LookupError, match="no docstring"):
        python_reference._first_sentence(Bare.method)


def test_functions_that_no_longer_take_the_same_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smidgen, "sweep", smidgen.load)
    with pytest.raises(LookupError, match="the same arguments"):
        filled(TEXT, meanings())


def test_an_older_table_is_made_anew() -> None:
    assert filled(TEXT.replace("| `momentum` | float | `0.0` |", "| `momentum` | float | `0.5` |"), meanings()) == TEXT
