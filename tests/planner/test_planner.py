"""Schedules for a budget: the exact model against brute force and dynamic programming, bounds that hold, techniques
alone and together."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from dataclasses import replace

import pytest

from smidgen.compiler.planner.cost import Paging
from smidgen.compiler.planner.cpsat import exact, lowest
from smidgen.compiler.planner.greedy import thinned
from smidgen.compiler.planner.least_peak import least_peak
from smidgen.compiler.planner.lower_bound import least_extra
from smidgen.compiler.planner.problem import NEVER, PageIn, PageOut, Problem, Schedule, Step, profile
from smidgen.compiler.planner.solve import smallest, solve
from smidgen.compiler.planner.stages import Choice, choice_of, schedule_of, stages_of
from tests.support.baselines import ALONE, BASELINES
from tests.support.chain import Chain
from tests.support.problems import PAGED, PRICES, generated


def staged(problem: Problem) -> list[Schedule]:
    """Every schedule that repeats a step at most once in a stage, in order; without any thought of what is useful."""
    n = len(problem.steps)
    pairs = [(t, k) for t in range(n) for k in range(t) if t <= problem.steps[k].limit]
    pairs = [(t, k) for t, k in pairs if problem.steps[k].limit != NEVER and t > k + 1]
    most = 3 if len(pairs) > 12 else len(pairs)
    chosen = itertools.chain.from_iterable(itertools.combinations(pairs, c) for c in range(most + 1))
    return [schedule_of(problem, Choice(frozenset(c), frozenset())) for c in chosen]


def free(problem: Problem, most: int) -> list[Schedule]:
    """Every schedule with at most so many repeated steps, anywhere, in any order, as often as one likes."""
    found = [problem.plain()]
    edge = found
    for _ in range(most):
        edge = [
            [*schedule[:p], k, *schedule[p:]]
            for schedule in edge
            for p in range(1, len(schedule))
            for k in range(max(s for s in schedule[:p] if isinstance(s, int)))
            if problem.steps[k].limit != NEVER and problem.steps[k].limit not in schedule[:p]
        ]
        found = found + edge
    return found


def budgets(problem: Problem) -> list[int]:
    top, low = profile(problem, problem.plain()).peak_bytes, least_peak(problem)
    return sorted({top - 16, (top + low) // 2 // 16 * 16, low + 16})


@pytest.mark.parametrize("seed", range(24))
def test_no_schedule_of_stages_is_cheaper_than_the_exact_one(seed: int) -> None:
    problem = generated(seed)
    every = [(profile(problem, s).peak_bytes, profile(problem, s).seconds - problem.seconds) for s in staged(problem)]
    for budget in budgets(problem):
        least = min((extra for peak, extra in every if peak <= budget), default=math.inf)
        answer = exact(problem, budget, stages_of(problem, budget, page=False))
        assert answer.proven
        if answer.choice is None:
            assert least == math.inf
            continue
        found = profile(problem, schedule_of(problem, answer.choice))
        assert found.peak_bytes <= budget
        assert found.seconds - problem.seconds <= least + 1e-9
        assert answer.bound == pytest.approx(found.seconds - problem.seconds, abs=1e-5 * problem.seconds)


def crowded(spare: bool = False) -> Problem:
    """Within 160 bytes, step 0 has to be repeated before step 3: before step 4 there is no room for its scratch (or for
    a second result, which nobody reads)."""
    reads = ((), (0,), (1,), (2,), (0, 2, 3), (0, 2, 4))
    scratch, sizes = (0 if spare else 32, 0, 0, 16, 0, 0), (64, 96, 16, 64, 16, 48, 32)
    writes = tuple((k, 6) if spare and k == 0 else (k,) for k in range(6))
    steps = tuple(Step(k, reads[k], writes[k], 1.0, scratch[k], (), NEVER if k == 1 else 6) for k in range(6))
    values = 7 if spare else 6
    return Problem(steps, sizes[:values], tuple("abcdefg")[:values], (*range(6), 0)[:values], 0, PRICES)


def least_of_stages(problem: Problem, budget_bytes: int) -> float:
    """Extra seconds of the cheapest schedule of stages, by the shortest way through (stage, step, what is kept)."""
    edge: list[tuple[float, int, int, frozenset[int]]] = [(0.0, 0, 0, frozenset())]
    seen: set[tuple[int, int, frozenset[int]]] = set()
    while edge:
        cost, t, first, kept = heapq.heappop(edge)
        if t == len(problem.steps):
            return cost - problem.seconds
        if (t, first, kept) in seen:
            continue
        seen.add((t, first, kept))
        for k in range(first, t + 1):
            step = problem.steps[k]
            if (k < t and not t <= step.limit) or not kept.issuperset(step.reads):
                continue
            here = kept.union(step.writes)
            for count in range(len(here) + 1):
                for some in map(frozenset, itertools.combinations(here, count)):
                    taken = next((problem.bytes[v] for v in step.takes if v not in some), 0)
                    need = sum(problem.bytes[v] for v in some.union(step.reads, step.writes)) + step.own_bytes - taken
                    if problem.pinned_bytes + need <= budget_bytes:
                        now = (t + 1, 0) if k == t else (t, k + 1)
                        heapq.heappush(edge, (cost + step.seconds, *now, some))
    return math.inf


@pytest.mark.parametrize("problem", [crowded(), crowded(spare=True), *(generated(seed, count=6) for seed in range(12))])
def test_the_exact_one_is_as_cheap_as_the_shortest_way(problem: Problem) -> None:
    for budget in sorted({least_peak(problem), *budgets(problem)}):
        answer = exact(problem, budget, stages_of(problem, budget, page=False))
        assert answer.proven
        assert answer.bound == pytest.approx(least_of_stages(problem, budget), abs=1e-5 * problem.seconds)


@pytest.mark.parametrize("spare", [False, True])
def test_a_repeat_does_not_wait_where_there_is_no_room_for_it(spare: bool) -> None:
    found = solve(crowded(spare), 160)
    assert found is not None
    assert found.schedule == [0, 1, 2, 0, 3, 4, 5]


def test_a_repeat_does_not_wait_for_an_operand_that_is_read_in_later() -> None:
    """Before step 5, value 0 must not come in before the repeat of step 2, which needs the room: step 1, which reads
    it, is repeated one stage earlier."""
    reads = ((), (0,), (), (), (3,), (0, 1, 2, 4))
    scratch, sizes = (0, 0, 48, 128, 96, 0), (64, 16, 32, 16, 16, 16)
    steps = tuple(Step(k, reads[k], (k,), 1.0, scratch[k], (), 6 if k else NEVER) for k in range(6))
    problem = Problem(steps, sizes, tuple("abcdef"), tuple(range(6)), 0, PAGED, changed=frozenset({1, 2}))
    answer = exact(problem, 144, stages_of(problem, 144, page=True))
    assert answer.choice is not None
    assert schedule_of(problem, answer.choice) == [0, PageOut(0), 1, 2, 3, PageIn(0), 1, 4, 2, PageIn(0), 5]


def test_a_schedule_that_is_none_of_stages_is_not_proven_by_them() -> None:
    """No schedule of stages fits; one that repeats step 3 before step 0 costs 12 more, and the one that is found 22."""
    reads = ((), (0,), (0, 1), (1, 2), (3,), (0, 4), (1, 2, 5), (0, 3, 6))
    seconds, sizes = (10, 1, 2, 2, 1, 10, 2, 1), (32, 48, 48, 32, 16, 16, 96, 16)
    steps = tuple(
        Step(k, reads[k], (k,), float(seconds[k]), 16 if k == 1 else 0, (), NEVER if k == 5 else 8) for k in range(8)
    )
    problem = Problem(steps, sizes, tuple("abcdefgh"), tuple(range(8)), 0, PRICES)
    best: Schedule = [*range(7), 3, 0, 7]
    assert profile(problem, best).peak_bytes == 224
    assert least_of_stages(problem, 224) == math.inf
    found = solve(problem, 224)
    assert found is not None
    assert found.bound <= profile(problem, best).seconds - problem.seconds + 1e-9
    assert found.proven == (found.extra <= 12)


@pytest.mark.parametrize("seed", range(16))
def test_no_schedule_at_all_is_below_the_bounds(seed: int) -> None:
    problem = generated(seed, count=6)
    every = [profile(problem, s) for s in free(problem, 2)]
    assert min(one.peak_bytes for one in every) >= least_peak(problem)
    for budget in budgets(problem):
        least = min((one.seconds - problem.seconds for one in every if one.peak_bytes <= budget), default=math.inf)
        assert least_extra(problem, budget) <= least + 1e-9


@pytest.mark.parametrize("seed", range(6))
def test_the_lowest_peak_is_that_of_the_best_schedule(seed: int) -> None:
    problem = generated(seed)
    low = least_peak(problem)
    answer = lowest(problem, low, stages_of(problem, low, page=False))
    assert answer.proven
    assert answer.choice is not None
    peak = profile(problem, schedule_of(problem, answer.choice)).peak_bytes
    assert peak <= min(profile(problem, s).peak_bytes for s in staged(problem))
    assert low <= peak == answer.bound
    assert smallest(problem)[1] == low


@pytest.mark.parametrize("objective", ["time", "energy"])
@pytest.mark.parametrize("seed", range(8))
def test_paging_and_computing_again_are_chosen_together(seed: int, objective: str) -> None:
    problem = generated(seed, PAGED)
    for budget in budgets(problem):
        both = solve(problem, budget, page=True, objective=objective)
        alone = solve(problem, budget, objective=objective)
        if both is None:
            assert alone is None
            continue
        assert both.proven
        assert both.peak_bytes <= budget
        assert least_extra(problem, budget, page=True, objective=objective) <= both.extra + 1e-9
        assert both.extra <= min(both.tried.values()) + 1e-9
        if alone is not None:
            assert both.extra <= alone.extra + 1e-9
        cost = profile(problem, both.schedule)
        assert (cost.seconds, cost.joules) == (both.seconds, both.joules)


def test_a_deadline_is_kept_where_paging_would_save_energy() -> None:
    """Paging takes a tenth of the power and is slow: without a deadline it wins, with one it must not."""
    slow = replace(PRICES, page=Paging(out_s=9.0, out_bytes_per_s=1e9, in_s=9.0, in_bytes_per_s=1e9, watts=0.01))
    problem = Chain((16,) * 6, (16,) * 6, (1.0,) * 5, 1.0).problem(slow)
    budget = profile(problem, problem.plain()).peak_bytes - 16
    easy = solve(problem, budget, page=True, objective="energy")
    hurried = solve(problem, budget, page=True, objective="energy", deadline_s=problem.seconds + 5)
    assert easy is not None
    assert hurried is not None
    assert any(isinstance(k, PageIn) for k in easy.schedule)
    assert not any(isinstance(k, PageIn) for k in hurried.schedule)
    assert easy.joules < hurried.joules
    assert hurried.seconds <= problem.seconds + 5
    assert solve(problem, budget, deadline_s=problem.seconds) is None


@pytest.mark.parametrize("seed", range(4))
def test_on_chains_the_exact_model_and_the_dynamic_program_agree(seed: int) -> None:
    rng = random.Random(seed)
    n = 6
    chain = Chain((32,) * (n + 1), (16,) * (n + 1), tuple(rng.randint(1, 9) / 3 for _ in range(n)), 1.0)
    problem = chain.problem(PRICES)
    for budget in range(profile(problem, problem.plain()).peak_bytes - 32, 64, -32):
        answer = exact(problem, budget, stages_of(problem, budget, page=False))
        assert answer.proven
        assert answer.bound == pytest.approx(chain.least_extra_s(budget), abs=1e-5 * problem.seconds)


@pytest.mark.parametrize("seed", range(6))
def test_joint_is_never_worse_than_a_technique_alone(seed: int) -> None:
    problem = generated(seed, PAGED, count=12)
    for budget in budgets(problem):
        made = {name: method(problem, budget, PAGED) for name, method in BASELINES.items()}
        cost = {name: profile(problem, s).seconds if s else math.inf for name, s in made.items()}
        assert cost["ideal"] == problem.seconds
        for name in ALONE:
            assert cost["joint"] <= cost[name] + 1e-9
            schedule = made[name]
            assert schedule is None or profile(problem, schedule).peak_bytes <= budget


def test_writing_out_reads_and_reading_in_makes_a_new_instance() -> None:
    problem = Chain((16, 32, 48), (16, 16, 16), (1.0, 1.0), 1.0).problem(PAGED)
    schedule: Schedule = [0, 1, PageOut(1), 2, 3, PageIn(1), 4, 5]
    assert profile(problem, problem.plain()).live.tolist() == [16, 48, 96, 112, 80, 48]
    assert profile(problem, schedule).live.tolist() == [16, 48, 48, 96, 80, 64, 80, 48]
    assert choice_of(problem, schedule) == Choice(frozenset(), frozenset({(4, 4, 1)}))
    extra = 0.2 + 32 / 40 + 0.1 + 32 / 50
    assert profile(problem, schedule).seconds == pytest.approx(problem.seconds + extra)
    assert profile(problem, schedule).joules == pytest.approx(2 * problem.seconds + 0.5 * extra)


def test_needless_repeats_are_taken_out_again() -> None:
    problem = Chain((16,) * 5, (16,) * 5, (1.0,) * 4, 1.0).problem(PRICES)
    wasteful: Schedule = [0, 1, 2, 3, 1, 4, 5, 1, 2, 3, 6, 7, 8, 9]
    peak = profile(problem, wasteful).peak_bytes
    schedule, after = thinned(problem, wasteful, peak)
    assert after.peak_bytes <= peak
    assert profile(problem, schedule).seconds == after.seconds < profile(problem, wasteful).seconds
