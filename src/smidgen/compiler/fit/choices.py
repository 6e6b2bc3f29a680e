"""Other choices, where not even the smallest budget is met: another optimizer, fewer samples, pages, other methods.
Each is judged by its own smallest budget, so what is said of it is what `compile` will say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from ...devices.room import Limit
from ...errors import SmidgenError
from ...methods import all_methods, named
from ..effort import Effort
from ..optimizers import SGD, Optimizer
from ..options import Options
from ..pipeline import Lowering
from ..planner.goal import Goal
from .misfit import MOST_TRIED, Option
from .smallest import Smallest

PREFERRED: Final = ("last_layer", "bias", "last:2", "last:3", "last:4")
"""Methods that are tried first, while there is effort."""


@dataclass(frozen=True)
class Choice:
    arguments: Mapping[str, Any]
    floor: Smallest

    def fits(self, limit: Limit) -> bool:
        """Without a search, if that is enough to tell."""
        return self.floor.quick.fits(limit) or (self.floor.may_reach(limit) and self.floor.least.fits(limit))


def tried(
    limit: Limit, trying: Effort, lowering: Lowering, options: Options, samples: int, goal: Goal, effort_s: float
) -> tuple[Sequence[Option], int]:
    """What fits, the smallest change first; if nothing does, the nearest. And how many were tried. When the effort is
    spent nothing more is."""
    known: list[Choice] = []

    def choice(**arguments: Any) -> Choice | None:
        if trying.is_spent:
            return None
        changed = {name: value for name, value in arguments.items() if name != "page_to"}
        paging = replace(goal, page=True) if "page_to" in arguments else goal
        one = Choice(arguments, Smallest(limit.device, lowering, replace(options, **changed), paging, effort_s))
        try:
            _ = one.floor.quick
        except SmidgenError:  # it is no choice for this model
            return None
        known.append(one)
        return one

    good = _optimizers_and_batches(limit, options, samples, choice)
    if not goal.page and goal.prices.page is not None:
        good += _fitting(limit, [choice(page_to="page.bin")])
    good += _methods(limit, options, samples, choice)
    if good:
        return [Option(one.arguments, one.floor.least.need) for one in good], len(known)
    nearest = sorted(known, key=lambda one: one.floor.quick.need.ram_bytes)[:MOST_TRIED]
    return [Option(one.arguments, one.floor.least.need) for one in nearest], len(known)


Make = Callable[..., Choice | None]
"""The choice with these arguments; None if it cannot be, or there is no effort left."""


def _fitting(limit: Limit, some: Sequence[Choice | None]) -> list[Choice]:
    return [one for one in some if one is not None and one.fits(limit)]


def _optimizers_and_batches(limit: Limit, options: Options, samples: int, choice: Make) -> list[Choice]:
    """Each alone; both where neither is enough."""
    plain = _without_state(options.optimizer)
    good = [] if plain is None else _fitting(limit, [choice(optimizer=plain)])
    good += _most_samples(limit, samples // 2, choice)
    if not good and plain is not None:
        good += _most_samples(limit, samples // 2, partial(choice, optimizer=plain))
    return good


def _without_state(optimizer: Optimizer) -> Optimizer | None:
    """The nearest optimizer that keeps nothing beside the parameters."""
    if not optimizer.slots:
        return None
    if isinstance(optimizer, SGD):
        return replace(optimizer, momentum=0.0, nesterov=False)
    return SGD(optimizer.lr, weight_decay=optimizer.weight_decay, clip_norm=optimizer.clip_norm)


def _most_samples(limit: Limit, samples: int, choice: Make) -> list[Choice]:
    """The most that fit, of so many and its halves; nothing between is tried if not even one sample fits."""
    least = _fitting(limit, [choice(batch=1)]) if samples else []
    while least and samples > 1:
        if found := _fitting(limit, [choice(batch=samples)]):
            return found
        samples //= 2
    return least


def _is_open(name: str) -> bool:
    """Does it choose by samples and by the limit? What it would need is not known before."""
    method = named(name)
    return method is not None and method.is_open


def _methods(limit: Limit, options: Options, samples: int, choice: Make) -> list[Choice]:
    """All that fit, what learns most first; if none does, those with one sample."""
    names = [name for name, method in all_methods().items() if not (method.argument or _is_open(name))]
    found: dict[frozenset[str], Choice] = {}
    for more in ({}, {"batch": 1}) if samples > 1 else ({},):
        for name in (*PREFERRED, *(name for name in names if name not in PREFERRED)):
            one = None if name == options.method else choice(method=name, **more)
            if one is not None and one.fits(limit):
                found.setdefault(frozenset(one.floor.learns), one)
        if found:
            break
    return sorted(found.values(), key=lambda one: -one.floor.learned_parameters)
