"""What devices learn from streams: nothing is reported that something was chosen by, and the page says what was run."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.tinyol import motion, table
from benchmarks.tinyol.run import CHOOSING, OUT, REPORTED, Setting, chosen
from benchmarks.tinyol.words import AIM


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(OUT.read_text())
    return found


def test_the_published_page_is_what_the_results_say(report: dict[str, Any]) -> None:
    assert OUT.with_suffix(".md").read_text() == table.page(report)
    assert OUT.with_suffix(".svg").read_text() == table.svg(report)


def test_nobody_is_reported_by_whom_a_rate_was_chosen(report: dict[str, Any]) -> None:
    people: dict[str, set[int]] = {}
    for part in ("choose", "report"):
        people[part] = {g[who] for g, _ in table.of(report, do="motion", part=part) for who in ("known", "comes")}
    assert people["choose"]
    assert not people["choose"] & people["report"]
    assert {g["seed"] for g, _ in table.of(report, do="words", part="choose")} == set(CHOOSING)
    assert {g["seed"] for g, _ in table.of(report, do="words", part="report")} == set(REPORTED)
    assert not set(CHOOSING) & set(REPORTED)


def test_another_persons_walking_is_learned(report: dict[str, Any]) -> None:
    pairs = [run for _, run in table.of(report, do="motion", part="report")]
    gained = [next(iter(run["after"].values()))["all"] - run["before"]["all"] for run in pairs]
    assert len(pairs) >= 20
    assert np.mean(gained) - table.half_width(gained) > 0


def test_replay_keeps_old_words_and_the_page_says_whether_the_aim_is_met(report: dict[str, Any]) -> None:
    found = table.curves(report)
    lost = {arm: np.mean(found[arm]["old"][0]) - np.mean(found[arm]["old"][-1]) for arm in table.ARMS}
    new = {arm: np.mean(found[arm]["new"][-1]) for arm in table.ARMS}
    assert lost["replay"] < 0.5 * lost["alone_new"]
    assert new["replay"] > new["alone"]
    known = {arm: 3 * np.mean(found[arm]["old"][-1]) + new[arm] for arm in table.ARMS}  # 30 old words, 10 new ones
    assert known["replay"] > max(known["alone"], known["alone_new"])
    assert ("is met" in table.aim(found)) == (lost["replay"] <= AIM)
    assert table.aim(found) in table.page(report)
    assert all(len(found[arm]["old"]) == 11 and len(found[arm]["new"]) == 10 for arm in table.ARMS)


def test_the_board_learned_the_bits_of_the_host(report: dict[str, Any]) -> None:
    (board,) = [run for _, run in table.of(report, do="board")]
    assert board["device"] == "nano33ble"
    assert board["same_bits"]
    assert board["ram_bytes"] == board["linked_ram_bytes"]


def run(lost: float, new: float) -> dict[str, Any]:
    return {"old": [0.9, 0.9 - lost], "new": [new]}


@pytest.mark.parametrize(("most_lost", "best"), [(0.04, (32, 0.1)), (1.0, (32, 0.3)), (0.0, (64, 0.03))])
def test_of_settings_that_lose_little_the_one_that_learns_most_is_taken(most_lost: float, best: Setting) -> None:
    found = {
        (32, 0.3): [run(0.2, 0.8)], (32, 0.1): [run(0.03, 0.7), run(0.04, 0.6)], (64, 0.1): [run(0.03, 0.6)],
        (64, 0.03): [run(0.01, 0.2)],
    }  # fmt: skip
    assert chosen(found, most_lost) == best


def test_auc_counts_ties_as_half() -> None:
    assert motion.auc(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == 0.875
    assert motion.auc(np.array([3.0]), np.array([1.0, 2.0])) == 0.0
