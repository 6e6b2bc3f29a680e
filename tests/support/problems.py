"""Random small problems for the planner."""

from __future__ import annotations

import random
from dataclasses import replace

from smidgen.compiler.planner.cost import Paging, Prices
from smidgen.compiler.planner.problem import NEVER, Problem, Step

PRICES = Prices(macs_per_s=1.0, bytes_per_s=1.0, call_s=0.0, watts=2.0)


PAGED = replace(PRICES, page=Paging(out_s=0.2, out_bytes_per_s=40.0, in_s=0.1, in_bytes_per_s=50.0, watts=0.5))


def generated(seed: int, prices: Prices = PRICES, count: int = 7) -> Problem:
    """A few steps that read what came before, some of which cannot be repeated, or take over an operand's memory."""
    rng = random.Random(seed)
    steps: list[Step] = []
    sizes: list[int] = []
    makers: list[int] = []
    for k in range(count):
        reads = tuple(sorted(rng.sample(range(len(sizes)), min(len(sizes), rng.choice((1, 1, 2))))))
        size = 16 * rng.randint(1, 4)
        takes = tuple(v for v in reads if sizes[v] == size and rng.random() < 0.5)
        writes = [len(sizes)]
        sizes.append(size)
        makers.append(k)
        if rng.random() < 0.2:
            writes.append(len(sizes))
            sizes.append(16 * rng.randint(1, 2))
            makers.append(k)
        limit = NEVER if rng.random() < 0.2 else rng.choice((count, rng.randint(k + 1, count)))
        own = rng.choice((0, 0, 16))
        steps.append(Step(k, reads, tuple(writes), rng.randint(1, 9) / 4, own, takes, limit))
    return Problem(tuple(steps), tuple(sizes), tuple(f"v{i}" for i in range(len(sizes))), tuple(makers), 16, prices)
