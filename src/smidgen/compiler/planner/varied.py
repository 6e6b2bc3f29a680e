"""The greedy over and over: for less than the budget, and by prices that differ a little by chance.

Evictions with the best ratio, taken one by one, may lead to a dead end, or past a better set. Taking more away than
is needed and then giving back what turns out to be needless, the dearest first, often costs less; so do other choices
of nearly the same worth. The seed is fixed: with the same number of tries the answer is the same.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Final

from .greedy import Price, fit, price_of, thinned
from .least_peak import least_peak
from .problem import Action, Problem, Schedule

LOWER: Final = (0.5, 0.0, 0.25, 0.75)  # of the way from the least peak to the budget, by the true prices
SPREAD: Final = (0.1, 0.3, 0.8)  # of the logarithm of prices


def lower(
    problem: Problem, budget_bytes: int, *, page: bool = False, objective: str = "time"
) -> Iterator[Schedule | None]:
    """For less than the budget; None for each that does not meet it."""
    least = least_peak(problem, page=page)
    for share in LOWER if least <= budget_bytes else ():
        target = least + int(share * (budget_bytes - least))
        yield _met(problem, budget_bytes, target, page, objective)


def varied(
    problem: Problem, budget_bytes: int, *, page: bool = False, objective: str = "time"
) -> Iterator[Schedule | None]:
    """Without end, by prices that differ; None for each that does not meet the budget."""
    least = least_peak(problem, page=page)
    chance = random.Random(0)
    while least <= budget_bytes:
        target = least + int(chance.random() * (budget_bytes - least))
        price = _near(price_of(problem, objective), chance.choice(SPREAD), chance)
        yield _met(problem, budget_bytes, target, page, objective, price)


def any_price(problem: Problem, highest: Callable[[], int], *, page: bool = False) -> Iterator[Schedule]:
    """Without end, by prices that differ, for as little as is imaginable or a little more, below `highest`."""
    least = least_peak(problem, page=page)
    chance = random.Random(0)
    while True:
        target = least + int(chance.random() * (highest() - least))
        price = _near(price_of(problem, "time"), chance.choice(SPREAD), chance)
        yield fit(problem, target, page=page, price=price)[0]


def _met(
    problem: Problem, budget_bytes: int, target: int, page: bool, objective: str, price: Price | None = None
) -> Schedule | None:
    made, _ = fit(problem, target, page=page, objective=objective, price=price)
    better, one = thinned(problem, made, budget_bytes, objective)
    return better if one.peak_bytes <= budget_bytes else None


def _near(price: Price, spread: float, chance: random.Random) -> Price:
    factors: dict[Action, float] = {}

    def of(action: Action) -> float:
        if action not in factors:
            factors[action] = math.exp(chance.gauss(0.0, spread))
        return price(action) * factors[action]

    return of
