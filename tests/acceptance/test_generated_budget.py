"""Random networks × method × budget × technique: whatever is done to fit, two steps learn the same, bit for bit.

`make generated` runs 500 networks with every technique; here are some with three techniques each.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.same_bits import OUT as LARGE_OUT
from benchmarks.techniques import TECHNIQUES, differing, is_good, said
from smidgen.compiler.fit.single_technique import SCHEDULED
from smidgen.compiler.fit.sweep import MEANING
from tests.support.generated_budget import COUNT, FIRST, LEAST, OUT, rows_of

CHUNK = 10
FEW = 50


def techniques_of(seed: int) -> list[str]:
    """All of them by turns."""
    return [TECHNIQUES[seed % 2], *(TECHNIQUES[2 + (2 * seed + k) % (len(TECHNIQUES) - 2)] for k in range(2))]


@pytest.mark.parametrize("first", range(FIRST, FIRST + FEW, CHUNK))
def test_random_networks_within_random_budgets_learn_the_same_bits(first: int, tmp_path: Path) -> None:
    found = {seed: rows_of(seed, tmp_path / "pages", techniques_of(seed))[1] for seed in range(first, first + CHUNK)}
    assert all(is_good(row) for rows in found.values() for row in rows), found
    assert any(said(row) == "same" for rows in found.values() for row in rows)


def test_every_technique_is_tried() -> None:
    assert set(TECHNIQUES) == {"joint, may page", *MEANING} - {"none"}
    assert {t for seed in range(FIRST, FIRST + CHUNK) for t in techniques_of(seed)} == set(TECHNIQUES)
    assert set(SCHEDULED) < set(TECHNIQUES)


def test_other_bits_are_found() -> None:
    one = {"the losses": np.array([1.0, np.nan]), "w": np.arange(3.0), "w:momentum": np.zeros(2)}
    assert differing(one, {k: v.copy() for k, v in one.items()}) == []
    assert differing(one, {**one, "w": np.nextafter(one["w"], 9)}) == ["w"]
    assert differing(one, {k: v for k, v in one.items() if k != "w:momentum"}) == ["w:momentum"]
    rounded = {**one, "the losses": np.nextafter(one["the losses"].astype(np.float32), 9)}
    assert differing(one, rounded) == ["the losses"]


@pytest.mark.parametrize("path", [OUT, LARGE_OUT], ids=lambda path: path.name)
def test_the_recorded_runs_are_without_a_difference(path: Path) -> None:
    report = json.loads(path.read_text())
    assert report["bad"] == 0
    assert set(report["by_technique"]) - {"none"} == set(TECHNIQUES)
    assert report["networks"] == COUNT or path == LARGE_OUT
    assert report.get("compiled_or_documented", 1) >= LEAST
    assert report.get("left", []) == []
    for technique in TECHNIQUES:
        assert any(what.startswith("same") for what in report["by_technique"][technique]), technique
