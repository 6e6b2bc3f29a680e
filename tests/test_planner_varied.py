"""The greedy for less than the budget and by other prices, and how long nothing may be found. Needs torch."""

from __future__ import annotations

import math
import time
from itertools import islice

import pytest
import torch

import smidgen
from benchmarks.nets import NETS
from smidgen import fitting
from smidgen.errors import DoesNotFit
from smidgen.lower import Lowering
from smidgen.options import checked_options
from smidgen.planner.bound import least_extra
from smidgen.planner.cost import HOST
from smidgen.planner.greedy import fit
from smidgen.planner.least import least_peak
from smidgen.planner.problem import problem_of, profile
from smidgen.planner.solve import solve
from smidgen.planner.varied import lower, varied
from smidgen.planner.within import Aim
from smidgen.torch_import import import_model

from .test_planner import PAGED, generated


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


def test_where_the_best_bargains_end_above_the_budget_those_for_less_fit() -> None:
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
    least = fitting.smallest(None, lowering, options, Aim()).need.ram_bytes
    waited = []
    for percent in (96, 90, 84):  # a search may reach a little less than the smallest that is found without one
        start, budget = time.monotonic(), least * percent // 100
        try:
            smidgen.compile(model, x, loss=net.loss, batch=1, budget=budget, kernels="exact", effort=1.0)
        except DoesNotFit:
            waited.append(time.monotonic() - start)
    assert waited
    assert max(waited) < 15.0  # tests run beside each other
    monkeypatch.setattr(fitting, "PATIENCE_S", 0.0)  # what fits at once needs no patience
    more = least + least // 10
    job = smidgen.compile(model, x, loss=net.loss, batch=1, budget=more, kernels="exact", effort=0.2)
    assert job.plan.ram_bytes <= more
