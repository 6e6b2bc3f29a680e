"""The comparison of methods: rates are chosen by validation samples alone, and the page says what was run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.methods import run, table
from benchmarks.methods.run import CHOOSING, FEWER, REPORTED, Comparison, climbed


@pytest.mark.parametrize(
    ("scores", "start", "best"),
    [
        ([0, 0, 0.5, 0.9, 0.4, 0.3], 3, 3),
        ([0, 0, 0.5, 0.6, 0.7, 0.3], 2, 4),
        ([0.8, 0.7, 0.5, 0.4, 0.3, 0.2], 3, 0),
        ([0, 0, 0, 0, 0.2, 0.3], 1, 5),
    ],
)
def test_a_rate_is_looked_for_in_both_directions(scores: list[float], start: int, best: int) -> None:
    assert climbed(scores.__getitem__, start, len(scores)) == best


class Known:
    """Runs whose accuracy depends on the rate; test accuracies would choose another one."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}

    def of(self, given: dict[str, Any], ask: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        return self.runs.setdefault(json.dumps(given, sort_keys=True), ask(given))


def measured(given: dict[str, Any]) -> dict[str, Any]:
    if given["do"] == "sizes":
        full = 8 if given["method"] == "full" else 1
        return {"ram_bytes_8": 80_000 * full, "ram_bytes_1": 10_000 * full, "macs": 9, "learned": 5, "step_s": 0.01}
    if given["do"] == "search":
        return {"scheme": "b2 w3:1/8", "budget_bytes": given["budget_bytes"]}
    away = abs(math.log10(given["rate"] / 0.003)) + 0.5 * (given.get("optimizer") == "adam")
    spread = 0.001 if given["method"] == "last_layer" else 0.01
    reported = {"report": 0.5 + 0.1 * away + spread * given["seed"]} if given.get("report") else {}
    return {"choose": 0.9 - 0.1 * away, **reported}


@pytest.fixture(scope="module")
def known() -> Known:
    known = Known()
    for task in ("mcunet/flowers", "dscnn/words"):
        Comparison(task, known, measured).run()  # type: ignore[arg-type]
    return known


def test_what_is_reported_chooses_nothing(known: Known) -> None:
    learned = [json.loads(key) for key in known.runs if json.loads(key)["do"] == "learn"]
    assert {g["seed"] for g in learned if g.get("report")} == set(REPORTED)
    assert {g["seed"] for g in learned if not g.get("report")} == {CHOOSING}
    assert CHOOSING not in REPORTED
    assert {g["rate"] for g in learned if g.get("report")} == {0.003}
    assert {g.get("optimizer") for g in learned} == {None, "adam"}
    assert {g.get("optimizer") for g in learned if g.get("report")} == {None}


def test_more_seeds_learn_where_few_leave_a_wide_interval(known: Known) -> None:
    seeds: dict[tuple[str, str], int] = {}
    for given in map(json.loads, known.runs):
        if given.get("report"):
            seeds[given["task"], given["method"]] = max(given["seed"], seeds.get((given["task"], given["method"]), 0))
    assert seeds["mcunet/flowers", "last_layer"] == FEWER
    assert seeds["mcunet/flowers", "full"] == seeds["mcunet/flowers", "sparse_update:b2 w3:1/8"] == len(REPORTED)


def test_the_searched_scheme_gets_the_bytes_of_the_published_one(known: Known) -> None:
    budgets = {json.loads(k)["task"]: found["budget_bytes"] for k, found in known.runs.items() if "scheme" in found}
    assert budgets == {"mcunet/flowers": 80_000, "dscnn/words": 100_000}


def test_the_page_has_every_method_with_its_interval(known: Known) -> None:
    report = {"runs": known.runs, "date": "today", "machine": {"cpu": "a processor"}}
    found = table.rows(known.runs)
    assert [row.kind for row in found if row.task == "mcunet/flowers"] == list(table.COLOURS)
    text = table.page(report, {"mcunet/flowers": "1/2/3", "dscnn/words": "4/5/6"})
    assert (text.count("| 53.0 ± 2.0 |"), text.count("| 50.2 ± 0.2 |"), len(found)) == (11, 2, 13)  # five seeds, three
    assert f"| `sparse_update:{run.PUBLISHED['mcunet']}` (published) |" in text
    assert table.svg(found).count("<circle") == 13 + len(table.COLOURS)
