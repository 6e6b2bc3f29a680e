"""Shortcuts of the planner: each gives what the long way gives."""

from __future__ import annotations

import gc
import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.answers import ANSWERED, LATE, OUT, SHARES, summary
from benchmarks.nets.large import LARGE
from smidgen import api
from smidgen.compiler.effort import UNITS, metered
from smidgen.compiler.graph.text import parse
from smidgen.compiler.planner import cheap, greedy
from smidgen.compiler.planner import problem as problems
from smidgen.compiler.planner.cost import HOST, ROUGH, spent
from smidgen.compiler.planner.greedy import Means, _Closure, _drops, _firsts, _tidy, fit, thinned
from smidgen.compiler.planner.least_peak import least_peak
from smidgen.compiler.planner.lower_bound import least_extra
from smidgen.compiler.planner.problem import NEVER, Problem, Schedule, Step, problem_of, profile
from smidgen.compiler.planner.solve import solve
from tests.support.problems import PAGED, generated


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


@pytest.mark.parametrize("seed", range(40))
def test_what_a_drop_takes_at_least_is_told_without_a_profile(seed: int) -> None:
    problem, exact, told = generated(seed, PAGED, count=40), 0, 0
    high = profile(problem, problem.plain()).peak_bytes
    for share in (1.0, 0.8, 0.6):
        schedule, now = fit(problem, int(share * high), hasty=True)
        closure = _Closure(problem, schedule, now, lambda step: True)
        for drop in _drops(problem, schedule, now, 0, Means(problem.action_seconds), closure):
            trial = [*schedule[: drop.next], *drop.actions, *schedule[drop.next :]]
            after = profile(problem, trial).live[drop.next : drop.next + len(drop.actions)].max()
            least = closure.least_bytes(drop)
            assert least <= after
            told, exact = told + 1, exact + (least == after)
    assert 2 * exact >= told > 0


def gathered(n: int) -> Problem:
    """Steps with much working memory, and a last one that reads all their results: no drop lowers the peak."""
    steps = [Step(k, (), (k,), 1e-6, 4096, (), n + 1) for k in range(n)]
    steps.append(Step(n, tuple(range(n)), (n,), 1e-6, 0, (), NEVER))
    names = tuple(f"v{k}" for k in range(n + 1))
    return Problem(tuple(steps), (64,) * (n + 1), names, tuple(range(n + 1)), 0, ROUGH)


def test_profiles_grow_no_faster_than_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    work = {}
    for n in (200, 800):
        seen: list[int] = []
        monkeypatch.setattr(greedy, "profile", lambda p, s, seen=seen: (seen.append(len(s)), profile(p, s))[1])
        schedule, _ = fit(gathered(n), 0, hasty=True)
        assert schedule == gathered(n).plain()
        work[n] = sum(seen)
    assert work[800] <= 4 * work[200] * math.log(800) / math.log(200)


@pytest.mark.parametrize("seed", range(6))
def test_more_time_never_lowers_a_bound(seed: int) -> None:
    problem = generated(seed, PAGED, count=30)
    low, high = least_peak(problem, page=True), profile(problem, problem.plain()).peak_bytes
    budget = low + (high - low) // 3
    assert least_extra(problem, budget, page=True, effort_s=0.0) <= least_extra(problem, budget, page=True) + 1e-9


def test_a_search_ends_when_its_effort_is_spent() -> None:
    problem = generated(1, PAGED, count=160)
    low, high = least_peak(problem, page=True), profile(problem, problem.plain()).peak_bytes
    with metered() as work:
        solve(problem, low + (high - low) // 3, page=True, effort_s=2.0)
    assert UNITS < work.units < 3 * UNITS


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
    assert all(kind["in_time"] == kind["answers"] for kind in found["summary"].values())
    asked = {
        "impossible": 2 * 2 * len(LARGE),
        "late": 2 * len(LATE) * len(LARGE),
        "within": 2 * len(SHARES) * len(ANSWERED),
    }
    assert all(found["summary"][kind]["answers"] >= least for kind, least in asked.items())
