"""All techniques together are never worse than one alone: by what the programs in the end take, on random networks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from smidgen.compiler.fit.candidate import Found, found
from smidgen.compiler.fit.search import found_for, joint, part, smallest
from smidgen.compiler.fit.single_technique import SCHEDULED, alone
from smidgen.compiler.options import Options, checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import prices_of
from smidgen.compiler.planner.within import Aim
from smidgen.compiler.torch_import.capture import import_model
from smidgen.devices import room
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


def split(lowering: Lowering, options: Options, batch: int, aim: Aim) -> list[Found]:
    """In ever smaller parts, nothing computed again for it."""
    tried = []
    samples = batch
    while batch > 1:
        batch = ceil_div(batch, 2)
        try:
            tried.append(found(None, part(lowering, options, samples, batch), aim))
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
        aim = Aim(objective=objective, effort_s=0.0, page=page, prices=prices_of(None))
        high = found(None, entries, aim).need.ram_bytes
        low = smallest(None, lowering, options, aim).need.ram_bytes
        for share in np.random.default_rng(seed).uniform(0, 1, 2):
            if low >= high:  # what does nothing to fit is left as it is
                continue
            device = room.within(low + int(share * (high - low)), None)
            best, _ = joint(device, lowering, options, aim)
            assert room.fits(device, best.need)
            single = [alone(name, device, entries, aim) for name in SCHEDULED if page or name != "page"]
            single += [f for f in split(lowering, options, entries.batch, aim) if room.fits(device, f.need)]
            for one in single:
                assert one is None or best.cost(aim) <= one.cost(aim) * (1 + 1e-9), one.entries.decisions
            plan = best.program.meta["plan"]
            assert plan["arena_bytes"] <= best.need.arena_bytes
            assert (plan["step_seconds"], plan["step_joules"]) == (best.seconds, best.joules)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_that_fits_costs_less_than_a_plan_says_is_possible(seed: int) -> None:
    made = modelled(seed)
    if made is None:
        return
    lowering, options = made
    entries = lowering.entries(options)
    aims = [
        Aim(objective=objective, effort_s=0.3, page=page, prices=prices_of(None))
        for objective in ("time", "energy") for page in (False, True)
    ]  # fmt: skip
    high = found(None, entries, aims[0]).need.ram_bytes
    low = smallest(None, lowering, options, aims[0]).need.ram_bytes
    if low >= high:  # nothing can be done to fit
        return
    device = room.within((low + high) // 2, None)
    for aim in aims:
        best = found_for(device, lowering, options, aim)
        assert best.price is not None
        assert 0 < best.price.least <= best.cost(aim)
        tried = [alone(name, device, entries, aim) for name in SCHEDULED if aim.page or name != "page"]
        tried += [joint(device, lowering, options, replace(aim, at_once=True, effort_s=0.0))[0]]
        tried += split(lowering, options, entries.batch, aim)
        for one in tried:
            if one is not None and room.fits(device, one.need):
                assert one.cost(aim) >= best.price.least * (1 - 1e-6), one.entries.decisions
        plan = best.program.meta["plan"]
        assert (plan["least_cost"], plan["objective"]) == (best.price.least, aim.objective)
        assert plan["free_seconds"] == found(None, entries, aim).seconds
