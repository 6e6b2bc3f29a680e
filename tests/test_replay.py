"""tools/replay.py: two runs find the same hashes, and a change of one is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import replay

CASES = "generated_3/[fd]*"  # without a limit, and for a device


def test_two_runs_find_the_same_and_a_difference_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, elsewhere = tmp_path / "before.json", tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert replay.main(["--write", str(stored), "--only", CASES]) == 0
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    assert replay.main(["--compare", str(stored), "--only", CASES]) == 0
    assert capsys.readouterr().out == "0 of 2 cases differ\n"

    data = json.loads(stored.read_text())
    assert list(data["cases"]) == ["generated_3/free", "generated_3/device"]
    assert data["cases"]["generated_3/free"] != data["cases"]["generated_3/device"]
    data["cases"]["generated_3/free"] = "0" * 64
    stored.write_text(json.dumps(data))
    assert replay.main(["--compare", str(stored), "--only", CASES]) == 1
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("generated_3/free: 000000000000 -> ")
    assert last == "1 of 2 cases differ"


def test_errors_are_kept_as_their_text(tmp_path: Path) -> None:
    found = replay.replayed("lenet5_int8/budget35", quick=True)
    assert list(found) == ["lenet5_int8/budget35"]
    assert len(found["lenet5_int8/budget35"]) == 64 or found["lenet5_int8/budget35"].startswith("error: error[E201]")


def test_cases_that_one_side_lacks_differ() -> None:
    assert replay.differences({"a": "1", "b": "2"}, {"a": "1", "c": "3"}) == ["b: 2 -> missing", "c: missing -> 3"]


def test_names_are_unique_and_quick_leaves_out_what_is_searched(tmp_path: Path) -> None:
    cases = list(replay.all_cases(tmp_path))
    assert len({case.name for case in cases}) == len(cases)
    assert {case.group for case in cases} == {"programs", "searched", "transcripts"}
    assert all(("/searched" in case.name) == (case.group == "searched") for case in cases)
