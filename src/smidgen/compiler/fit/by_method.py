"""Every method on one model within one limit, or without one: what learns, and what that takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from ...devices.room import Limit, assigned, check_slots, fits, least_budget
from ...errors import SmidgenError
from ...methods import all_methods, named, text_of
from ...program.plan import Decision
from ...runtime.work import EXACT, Work
from ..assemble import encode
from ..effort import Effort
from ..options import Options
from ..pipeline import Lowering
from ..planner.goal import Goal, Search
from .candidate import Candidate, candidate, infer_spent
from .choices import PREFERRED
from .search import PATIENCE_S, found_for
from .smallest import Smallest
from .sweep import Told

SAME: Final = "learns the same as {}"
Lacks = Literal["", "ram", "flash", "slot", "time"]


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method: its best plan within the limit; if none fits, its smallest one, and what the limit `lacks`."""

    method: str
    learned_parameters: int
    ram_bytes: int
    needs_bytes: int  # the smallest budget that this plan fits
    flash_bytes: int
    step_seconds: float  # predicted; so are the next ones
    step_joules: float
    infer_seconds: float
    parts: int  # micro-batches of a step
    decisions: tuple[Decision, ...]
    lacks: Lacks = ""
    added_parameters: int = 0  # of those that learn: what the method put beside the model's own

    @property
    def own_parameters(self) -> int:
        return self.learned_parameters - self.added_parameters

    @property
    def fits(self) -> bool:
        return not self.lacks


@dataclass(frozen=True, slots=True)
class ByMethod:
    """What learns most of the model's own parameters comes first. `left_out`: method → why it is no choice."""

    samples: int  # of a step
    model_parameters: int
    prices: str
    device: str  # empty: none
    ram_limit_bytes: int | None
    flash_limit_bytes: int | None
    deadline_s: float | None
    rows: tuple[MethodRow, ...]
    left_out: Mapping[str, str]


def by_method(
    limit: Limit | None, lowering: Lowering, options: Options, goal: Goal, search: Search, work: Work = EXACT,
    told: Told = lambda done, total, what: None,
) -> ByMethod:  # fmt: skip
    """All methods that have a name, `last` with a few numbers of layers, and what the options ask for."""
    names = _names(text_of(options.method))
    rows: list[MethodRow] = []
    left_out: dict[str, str] = {}
    known: dict[frozenset[object], str] = {}
    for number, name in enumerate(names):
        told(number, len(names), name)
        asked = options if name == text_of(options.method) else replace(options, method=name)
        try:
            same = known.setdefault(frozenset(lowering.choose(asked)), name)
            if same == name:
                rows.append(_row(name, limit, lowering, asked, goal, search, work))
            else:
                left_out[name] = SAME.format(same)
        except SmidgenError as error:
            left_out[name] = error.what
    entries = lowering.entries(options)
    device = None if limit is None else limit.device
    parameters = sum(math.prod(entries.shapes[p]) for p in entries.parameters)
    return ByMethod(
        entries.batch, parameters, goal.prices.name,
        "" if device is None else device.name, None if limit is None else limit.ram_bytes + limit.work_bytes,
        (limit.flash_bytes or None) if limit is not None else None, goal.deadline_s,
        tuple(sorted(rows, key=lambda row: (-row.own_parameters, -row.learned_parameters, row.step_seconds))), left_out,
    )  # fmt: skip


def _names(asked: str) -> list[str]:
    """All that say what learns without more: the usual argument will do, and nothing has to be searched."""
    chosen = {name.partition(":")[0] for name in PREFERRED}
    others = [named(name) for name, method in all_methods().items() if not method.argument or name not in chosen]
    return list(
        dict.fromkeys([*(str(method) for method in others if method and not method.is_open), *PREFERRED, asked])
    )


def _row(
    name: str, limit: Limit | None, lowering: Lowering, options: Options, goal: Goal, search: Search, work: Work
) -> MethodRow:
    best = _best(limit, lowering, options, goal, search)
    entries, need = best.entries, best.need
    flash = need.flash_bytes or encode(entries, best.limit, sized=best.sized, proven=False).flash_bytes
    slots = 0 if limit is None else 2 * limit.slot_bytes
    own = {p.name for p in lowering.imported.parameters}
    needs = need.with_work(work) if limit is None else least_budget(need, limit.device, work)
    return MethodRow(
        name, sum(math.prod(entries.shapes[p]) for p in entries.learns), need.with_work(work), needs,
        flash + need.overhead.code_bytes + slots, best.seconds, best.step.joules, infer_spent(entries, goal).seconds,
        -(-entries.step_samples // entries.batch) if entries.step_samples else 1,
        tuple(d for d in entries.all_decisions if d.is_to_fit), _lacks(limit, best, goal),
        sum(math.prod(entries.shapes[p]) for p in entries.learns if p not in own),
    )  # fmt: skip


def _best(limit: Limit | None, lowering: Lowering, options: Options, goal: Goal, search: Search) -> Candidate:
    if limit is None:
        return candidate(None, lowering.entries(options), goal)
    if search.effort_s:
        search = Search(search.effort_s, Effort.of(max(PATIENCE_S, search.effort_s)))
    floor = Smallest(limit.device, lowering, options, goal, search.effort_s)
    return found_for(limit, lowering, options, goal, search, floor)[0]


def _lacks(limit: Limit | None, best: Candidate, goal: Goal) -> Lacks:
    if limit is not None and not fits(limit, best.need):
        return "flash" if assigned(limit, best.need) is not None else "ram"
    if limit is not None and limit.device is not None and limit.slot_bytes:
        try:
            check_slots(limit.device, best.program())
        except SmidgenError:
            return "slot"
    return "time" if goal.is_late(best.step) else ""


__all__ = ["ByMethod", "MethodRow", "by_method"]
