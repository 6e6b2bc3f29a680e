"""The greedy for less than the budget and by other prices, and the effort to find nothing. Needs torch."""

from __future__ import annotations

import math
from itertools import islice

import pytest
import torch

import smidgen
from benchmarks.nets import NETS
from smidgen.compiler import effort
from smidgen.compiler.fit import search
from smidgen.compiler.fit.smallest import Smallest
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import HOST
from smidgen.compiler.planner.goal import Goal
from smidgen.compiler.planner.greedy import fit
from smidgen.compiler.planner.least_peak import least_peak
from smidgen.compiler.planner.lower_bound import least_extra
from smidgen.compiler.planner.problem import problem_of, profile
from smidgen.compiler.planner.solve import solve
from smidgen.compiler.planner.varied import lower, varied
from smidgen.compiler.torch_import.capture import import_model
from smidgen.errors import DoesNotFit
from tests.support.problems import PAGED, generated


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("page", [False, True])
def test_whatever_is_found_for_less_or_by_other_prices_meets_the_budget(seed: int, page: bool) -> None:
    problem = generated(seed, PAGED, count=40)
    low, high = least_peak(problem, page=page), profile(problem, problem.plain()).peak_bytes
    for share in (0.1, 0.5):
        budget = low + int(share * (high - low))
        tries = [*lower(problem, budget, page=page), *islice(varied(problem, budget, page=page), 12)]
        assert len(tries) == 16
        for made in filter(None, tries):
            assert profile(problem, made).peak_bytes <= budget
        again = [*lower(problem, budget, page=page), *islice(varied(problem, budget, page=page), 12)]
        assert tries == again
    assert not list(lower(problem, low - 1, page=page))
    assert not list(varied(problem, low - 1, page=page))


def test_where_the_best_ratios_end_above_the_budget_those_for_less_fit() -> None:
    """A step of MCUNet in less than a quarter of its arena: two operands of 512 KB and what lies over them."""
    net = NETS["mcunet"]
    model = net.model().eval()
    imported = import_model(model, (torch.zeros(1, 3, 128, 128),), loss="cross_entropy")
    graph = Lowering(imported).entries(checked_options(model, batch=1)).plain["train"]
    problem = problem_of(graph, 1, HOST)
    budget = 777_344
    assert fit(problem, budget, page=True)[1].peak_bytes > budget
    best = min(profile(problem, s).seconds for s in lower(problem, budget, page=True) if s is not None)
    assert best < 1.6 * problem.seconds
    found = solve(problem, budget, page=True, effort_s=1.0)
    assert found is not None
    assert found.peak_bytes <= budget
    assert found.seconds <= best


@pytest.mark.parametrize("seed", range(6))
def test_a_bound_that_is_enough_is_a_bound(seed: int) -> None:
    problem = generated(seed, PAGED, count=30)
    low, high = least_peak(problem), profile(problem, problem.plain()).peak_bytes
    budget = low + (high - low) // 4
    whole = least_extra(problem, budget)
    early = least_extra(problem, budget, enough=whole / 2)
    assert early <= whole + 1e-9
    assert early > whole / 2 or whole == 0 or early == whole == math.inf


def test_an_answer_does_not_wait_for_what_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    net = NETS["resnet8"]
    x, _ = net.data(1)
    model = net.model().eval()
    lowering, options = Lowering(import_model(model, x, loss=net.loss)), checked_options(model, batch=1)
    least = Smallest(None, lowering, options, Goal()).quick.need.ram_bytes
    meters: list[effort.Meter] = []
    meter = effort.Meter

    def recorded(**stop: float) -> effort.Meter:
        meters.append(meter(**stop))
        return meters[-1]

    monkeypatch.setattr(effort, "Meter", recorded)
    spent = []
    for percent in (96, 90, 84):  # a search may reach a little less than the smallest that is found without one
        try:
            memory = smidgen.Memory(least * percent // 100, effort=1.0)
            smidgen.compile(model, x, loss=net.loss, batch=1, kernels="exact", memory=memory)
        except DoesNotFit:
            spent.append(meters[-1].units)
    assert spent
    assert max(spent) < 12 * effort.UNITS  # with other choices, each of which is judged by its own smallest budget
    monkeypatch.setattr(search, "PATIENCE_S", 0.0)  # what fits at once needs no patience
    more = least + least // 10
    job = smidgen.compile(
        model, x, loss=net.loss, batch=1, budget=more, kernels="exact", memory=smidgen.Memory(effort=0.2)
    )
    assert job.plan.ram_bytes <= more
