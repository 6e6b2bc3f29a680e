"""All techniques together are never worse than one alone: by what the programs in the end take, on random networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smidgen.compiler.fit.candidate import Candidate, candidate
from smidgen.compiler.fit.micro_batch import micro_batched
from smidgen.compiler.fit.search import best_for, joint
from smidgen.compiler.fit.single_technique import SCHEDULED, alone
from smidgen.compiler.fit.smallest import Smallest
from smidgen.compiler.options import Options, checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import prices_of
from smidgen.compiler.planner.goal import QUICK, Goal, Search
from smidgen.compiler.torch_import.capture import import_model
from smidgen.devices.room import Limit
from smidgen.errors import SmidgenError
from smidgen.ir import ceil_div
from tests.support import generated
from tests.support.generated import OPTIMIZERS

SEEDS = [seed for seed in range(2000, 2060) if generated.sample(seed)[1] in ("full", "last:2", "bias")][4:8]


def modelled(seed: int) -> tuple[Lowering, Options] | None:
    net, method, optimizer, loss, batch = generated.sample(seed)
    net.eval()
    batch = max(batch, seed % 7 + 2)
    xs, _ = generated.data(net, loss, batch, seed)
    options = checked_options(net, optimizer=OPTIMIZERS[optimizer], method=method, batch=batch)
    try:
        lowering = Lowering(import_model(net, tuple(xs), loss=loss))
        lowering.entries(options)
    except SmidgenError:
        return None
    return lowering, options


def split(lowering: Lowering, options: Options, batch: int, goal: Goal) -> list[Candidate]:
    """In ever smaller parts, nothing recomputed for it."""
    tried = []
    samples = batch
    while batch > 1:
        batch = ceil_div(batch, 2)
        try:
            tried.append(candidate(None, micro_batched(lowering, options, samples, batch), goal))
        except SmidgenError:
            break
    return tried


@pytest.mark.parametrize(("seed", "objective"), [*((seed, "time") for seed in SEEDS), (SEEDS[-1], "energy")])
def test_no_technique_alone_is_better_than_all_together(seed: int, objective: str) -> None:
    made = modelled(seed)
    if made is None:
        return
    lowering, options = made
    entries = lowering.entries(options)
    for page in (False, True):
        goal = Goal(objective=objective, page=page, prices=prices_of(None))
        high = candidate(None, entries, goal).need.ram_bytes
        low = Smallest(None, lowering, options, goal).found.need.ram_bytes
        for share in np.random.default_rng(seed).uniform(0, 1, 2):
            if low >= high:  # what does nothing to fit is left as it is
                continue
            limit = Limit.of_budget(low + int(share * (high - low)))
            best, _ = joint(limit, lowering, options, goal, QUICK)
            assert best.fits(limit)
            single = [alone(name, limit, entries, goal, QUICK) for name in SCHEDULED if page or name != "page"]
            single += [f for f in split(lowering, options, entries.batch, goal) if f.fits(limit)]
            for one in single:
                assert one is None or goal.cost(best.step) <= goal.cost(one.step) * (1 + 1e-9), one.entries.decisions
            plan = best.program().meta["plan"]
            assert plan["arena_bytes"] <= best.need.arena_bytes
            assert (plan["step_seconds"], plan["step_joules"]) == (best.seconds, best.step.joules)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_fits_costs_less_than_a_plan_says_is_possible(seed: int) -> None:
    made = modelled(seed)
    if made is None:
        return
    lowering, options = made
    entries = lowering.entries(options)
    goals = [
        Goal(objective=objective, page=page, prices=prices_of(None))
        for objective in ("time", "energy") for page in (False, True)
    ]  # fmt: skip
    high = candidate(None, entries, goals[0]).need.ram_bytes
    low = Smallest(None, lowering, options, goals[0]).found.need.ram_bytes
    if low >= high:  # nothing can be done to fit
        return
    limit, search = Limit.of_budget((low + high) // 2), Search(0.3)
    for goal in goals:
        best = best_for(limit, lowering, options, goal, search)
        assert best.price is not None
        assert 0 < best.price.least <= goal.cost(best.step)
        tried = [alone(name, limit, entries, goal, search) for name in SCHEDULED if goal.page or name != "page"]
        tried += [joint(limit, lowering, options, replace(goal, split=False), QUICK)[0]]
        tried += split(lowering, options, entries.batch, goal)
        for one in tried:
            if one is not None and one.fits(limit):
                assert goal.cost(one.step) >= best.price.least * (1 - 1e-6), one.entries.decisions
        plan = best.program().meta["plan"]
        assert (plan["least_cost"], plan["objective"]) == (best.price.least, goal.objective)
        assert plan["free_seconds"] == candidate(None, entries, goal).seconds
