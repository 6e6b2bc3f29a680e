"""The comparison of TinyTrain with the paper says what was run and what was not. Needs torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tinytrain
from benchmarks.tinytrain import EPISODES, METHODS, NETS, PAPER, SETS, method_of


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tinytrain, "BUILD", tmp_path)
    return tmp_path


def test_the_papers_table_is_whole() -> None:
    assert {net: set(rows) for net, rows in PAPER.items()} == {net: set(METHODS) for net in NETS}
    assert all(len(row) == len(SETS) for rows in PAPER.values() for row in rows.values())


def test_what_was_not_run_is_said_and_no_page_is_written_of_it(build: Path) -> None:
    assert tinytrain.table(EPISODES).count("not run") == len(NETS) * len(METHODS) * len(SETS)
    assert not tinytrain.is_whole()


def test_cells_are_means_of_the_episodes_that_are_there(build: Path) -> None:
    plan = {"arena_bytes": {"train": 3_000_000, "infer": 2_500_000}, "state_bytes": 250_000, "batch": 2,
            "macs": {"train": 9_000_000, "infer": 5_000_000}, "ram_bytes": 4_000_000}  # fmt: skip
    for net in NETS:
        for method in METHODS:
            own = {f"{file} {method_of(net, method)}": {str(i): 0.5 for i in range(EPISODES)} for file in SETS.values()}
            found = {"results": own, "plans": {} if method == "none" else {method: plan}}
            (build / f"{net}-{method}-report.json").write_text(json.dumps(found))
    assert tinytrain.is_whole()
    text = tinytrain.table(EPISODES)
    assert f"| mcunet | tinytrain | 50.0 ± 0.0 of {EPISODES} (paper 79.3) |" in text
    assert "| proxyless | full | 0.75 | 2.00 | 4.00 |" in text
    (build / "mcunet-full-report.json").unlink()
    assert not tinytrain.is_whole()
