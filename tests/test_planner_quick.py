"""Shortcuts of the planner: each gives what the long way gives."""

from __future__ import annotations

import gc
import json
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.answers import OUT, summary
from benchmarks.nets.large import LARGE
from smidgen import api
from smidgen.planner import cheap
from smidgen.planner import problem as problems
from smidgen.planner.bound import least_extra
from smidgen.planner.cost import HOST, ROUGH, spent
from smidgen.planner.greedy import _firsts, _tidy, fit, thinned
from smidgen.planner.least import least_peak
from smidgen.planner.problem import Problem, Schedule, problem_of, profile
from smidgen.planner.solve import solve
from smidgen.text import parse

from .test_planner import PAGED, generated


def _thinned_by_profiles(problem: Problem, schedule: Schedule, budget_bytes: int) -> Schedule:
    schedule = _tidy(schedule)
    extra = [p for p, first in enumerate(_firsts(schedule)) if not first]
    gone: set[int] = set()
    for p in sorted(extra, key=lambda p: -problem.action_seconds(schedule[p])):
        trial = _tidy([k for q, k in enumerate(schedule) if q not in gone and q != p])
        if profile(problem, trial).peak_bytes <= budget_bytes:
            gone.add(p)
    return _tidy([k for q, k in enumerate(schedule) if q not in gone])


@pytest.mark.parametrize("seed", range(40))
def test_what_must_stay_is_told_without_a_profile(seed: int) -> None:
    problem = generated(seed, PAGED, count=40)
    low, high = least_peak(problem, page=True), profile(problem, problem.plain()).peak_bytes
    for share in (0.1, 0.4, 0.7):
        budget = low + int(share * (high - low))
        for page in (False, True):
            schedule, now = fit(problem, budget, hasty=True, page=page)
            most = max(budget, now.peak_bytes)
            rest, after = thinned(problem, schedule, most)
            assert rest == _thinned_by_profiles(problem, schedule, most)
            assert after.live.tolist() == profile(problem, rest).live.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_more_time_never_lowers_a_bound(seed: int) -> None:
    problem = generated(seed, PAGED, count=30)
    low, high = least_peak(problem, page=True), profile(problem, problem.plain()).peak_bytes
    budget = low + (high - low) // 3
    assert least_extra(problem, budget, page=True, effort_s=0.0) <= least_extra(problem, budget, page=True) + 1e-9


def test_a_search_ends_in_its_time() -> None:
    problem = generated(1, PAGED, count=160)
    low, high = least_peak(problem, page=True), profile(problem, problem.plain()).peak_bytes
    start = time.monotonic()
    solve(problem, low + (high - low) // 3, page=True, effort_s=2.0)
    assert time.monotonic() - start < 4.0  # tests run beside each other


def test_a_graph_is_read_once_and_forgotten_with_it() -> None:
    graph = parse(
        """
        input x: f32[n,4]
        a: f32[n,4] = feed(x) perm=(0, 1)
        r = relu(a)
        output y: f32[n,4] = fetch(r) perm=(0, 1)
        """
    )
    one = problem_of(graph, 2, HOST)
    assert problem_of(graph, 2, HOST) is one
    assert problem_of(graph, 4, HOST) is not one
    assert problem_of(graph, 2, ROUGH) is not one
    key = id(graph)
    assert key in problems._read
    del graph
    gc.collect()
    assert key not in problems._read


def test_what_is_cheap_is_chosen_by_counts_and_told_in_the_prices_of_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 8, 3), nn.Sigmoid(), nn.MaxPool2d(2), nn.Flatten()
    )
    graph = api.build(net.eval(), torch.zeros(4, 3, 12, 12), batch=4).plain["train"]
    after, decision = cheap.cheapened(graph, 4)
    assert decision is not None
    extra_s = spent(after, 4, HOST).seconds - spent(graph, 4, HOST).seconds
    assert decision.adds_s == pytest.approx(extra_s)
    assert f"about {extra_s / spent(graph, 4, HOST).seconds:.0%}".replace("%", " %") in decision.why
    monkeypatch.setattr(cheap, "HOST", replace(HOST, call_s=1.0, rates={}))
    again, other = cheap.cheapened(graph, 4)
    assert again.nodes == after.nodes
    assert other is not None
    assert other.adds_s > 1 > decision.adds_s


def test_answers_are_judged_by_the_clock() -> None:
    rows = [
        {"net": "a", "kind": "impossible", "seconds": 11.0, "cpu_s": 3.0, "said": "error[E201]: needs"},
        {"net": "b", "kind": "impossible", "seconds": 20.0, "cpu_s": 3.0, "said": "fits, +1 % time"},
    ]
    found = summary(rows)
    assert found["impossible"] == {"answers": 1, "in_time": 0, "most_s": 10.0, "slowest_s": 11.0, "slowest": "a"}
    assert found["within"]["in_time"] == 1


def test_all_answers_on_record_came_in_time() -> None:
    found = json.loads(OUT.read_text())
    assert {row["net"] for row in found["rows"]} == set(LARGE)
    assert summary(found["rows"]) == found["summary"]
    assert all(kind["in_time"] == kind["answers"] > 30 for kind in found["summary"].values())
