"""A limit and a model: named strategies make candidates, the cheapest one that fits is taken. If none does, an error
that says what would."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from ...devices.room import Limit, arena_room, assigned, beyond, check_slots, over_flash
from ...errors import DoesNotFit
from ...program.plan import Decision
from ...terminal import bytes_text, seconds_text
from ..assemble import Price, outlined, sized
from ..effort import Effort
from ..entries import Entries, decided, narrowed
from ..options import Options
from ..passes.additive import takes_statistics
from ..pipeline import Lowering
from ..planner.cost import Spent
from ..planner.goal import QUICK, Goal, Search
from . import lower_bound
from .candidate import Candidate, candidate, cheapest, eased, infer_spent, is_large, plain_cost, room_for, step_spent
from .choices import tried
from .learning_rows import each_tried, is_streamed, may_stream, streamed
from .micro_batch import ever_smaller, for_caches, micro_batched, other_statistics, patient
from .misfit import ANSWER_S, Option, TooLate, has_effort, over_limit, too_late
from .paged_state import has_paged_state, movable, paged_state
from .single_technique import SCHEDULED, alone
from .smallest import Smallest
from .squeeze import may_be_cheaper, may_fit, searched, squeezed
from .tiles import is_tiled, may_tile, tiled_each

DEAR: Final = 1.1  # of the time of a step without a limit: parts of what learns are tried row by row
MOST_ASKED: Final = 2  # times that a placement above its bound asks for a lower bound, for what only a message needs
PATIENCE_S: Final = 5.0  # of effort while nothing fits, or as much as there is in all
UNPAGED: Final = 0.6  # of it, for what has all state in RAM
DEADLINE_S: Final = 2.0  # of effort for a bound that no deadline can be below
LONGER: Final = 6  # times the effort: worth a try
UNLIMITED: Final = 1 << 50  # bytes


def best_for(limit: Limit, lowering: Lowering, options: Options, goal: Goal, search: Search) -> Candidate:
    """The candidate to make a program of, with its price; an error that says what would fit if none does."""
    answer = Effort.of(ANSWER_S)
    if search.effort_s:  # without a search, whatever is quick is tried
        search = Search(search.effort_s, Effort.of(max(PATIENCE_S, search.effort_s)))
    if goal.deadline_s is not None:
        least_s = _least(
            limit, lowering, options, replace(goal, objective="time"), enough=goal.deadline_s, above=goal.deadline_s,
            effort_s=DEADLINE_S,
        )  # fmt: skip
        if goal.deadline_s < least_s < math.inf:
            raise _too_late(limit, lowering, options, goal, least_s=least_s, answer=answer)
        if least_s == math.inf:
            goal = goal.at_leisure  # it does not fit, however long it takes
    floor = Smallest(limit.device, lowering, options, goal, search.effort_s)
    best, made = found_for(limit, lowering, options, goal, search, floor)
    best = checked_fit(limit, best, lowering, options, goal, search, answer)
    return _priced(best, limit, lowering, made, goal, search)


def found_for(
    limit: Limit, lowering: Lowering, options: Options, goal: Goal, search: Search, floor: Smallest
) -> tuple[Candidate, Options]:
    """The best that fits; else the smallest that there is, which no budget is below."""
    best, options = joint(limit, lowering, options, goal, search, floor)
    if not best.fits(limit) and floor.with_other_statistics is not None:
        if is_large(best.given) or floor.least.fits(limit):
            others = other_statistics(limit, lowering, options, floor.found.given.batch, goal)
            best = cheapest(limit, [best, *others], goal)
        best = best if best.fits(limit) else floor.taken(floor.least, limit)
    stream = floor.options.stream
    is_fast = (
        stream is not None and stream.kernels == "fast"
    )  # where calls take time, less of them are worth the memory that is left
    return eased(best, goal, arena_room(limit, best.need) if is_fast else 0), options


def _priced(
    best: Candidate, limit: Limit, lowering: Lowering, options: Options, goal: Goal, search: Search
) -> Candidate:
    """With the cost of the unconstrained step, and a proven lower bound for any step within the limit if effort was
    given for one."""
    whole = lowering.entries(options)
    free = step_spent(whole, goal)
    best = _filled(best, limit, whole, goal, free)
    infer = infer_spent(best.entries, goal)
    if not search.effort_s:
        return replace(best, price=Price(best.step, goal.objective, free, infer=infer))
    split = goal.split and (bool(best.entries.step_samples) or not takes_statistics(whole.graphs["train"]))
    least = _least(
        limit, lowering, options, replace(goal, split=split), enough=goal.cost(best.step), known=best.bounds,
        effort_s=min(search.effort_s, lower_bound.BOUND_S),
    )  # fmt: skip
    if is_streamed(best.entries) or is_tiled(best.entries):  # the bound is that of layers as a whole
        least = goal.cost(free)
    return replace(best, price=Price(best.step, goal.objective, free, min(least, goal.cost(best.step)), infer))


def _filled(best: Candidate, limit: Limit, whole: Entries, goal: Goal, free: Spent) -> Candidate:
    """A plan that takes more RAM than the one without a limit, to be faster, says so."""
    if goal.cost(best.step) >= goal.cost(free):
        return best
    more = best.need.ram_bytes - sized(whole, limit).need.ram_bytes
    if more <= 0:
        return best
    short = f"takes {bytes_text(more)} more than without a limit, to recompute less"
    percent = (1 - goal.cost(best.step) / goal.cost(free)) * 100
    decision = Decision("fill", f"{short}: {percent:.1f} % less {goal.objective}", 0, short=short)
    return replace(best, entries=decided(best.entries, decision))


# -- strategies --------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One model within one limit: what strategies look at, and what they have found so far."""

    limit: Limit
    lowering: Lowering
    options: Options
    goal: Goal
    search: Search
    entries: Entries
    quickly: Search  # for what needs no search, with all state in RAM
    whole: Candidate  # the undivided step, by quick methods
    others: list[Candidate] = field(default_factory=list)  # micro-batches and state in pages, by quick methods
    found: list[Candidate] = field(default_factory=list)  # by search and by single techniques

    @property
    def quick(self) -> list[Candidate]:
        return [self.whole, *self.others]

    @property
    def best(self) -> Candidate:
        return cheapest(self.limit, [*self.found, *self.quick], self.goal)


class Strategy(NamedTuple):
    """`run` adds candidates to the case, where `wanted` says that it may help."""

    name: str
    wanted: Callable[[Case], bool]
    run: Callable[[Case], None]


def _without_effort(entries: Entries, search: Search, share: float = 1.0) -> Search:
    """For what needs no search: patience without end where nothing is large, so that more effort finds no less."""
    limited = is_large(entries) and search.patience is not None
    return Search(0.0, Effort.of(share * search.left_s)) if limited else QUICK


def _may_split(case: Case) -> bool:
    """Micro-batches have as much state."""
    state = sum(t.bytes(1) for t in movable(case.entries)) if case.goal.page else 0
    return case.goal.split and case.entries.batch > 1 and room_for(case.limit, case.entries) + state >= 0


def _split(case: Case) -> None:
    search = patient(case.limit, case.goal, case.quickly, [case.whole])
    case.others += ever_smaller(case.limit, case.lowering, case.options, case.entries.batch, case.goal, search)


def _is_dear(case: Case) -> bool:
    """Other forms of the step take time themselves: not worth a try where little is to be gained."""
    fits = case.best.fits(case.limit)
    return not fits or case.goal.cost(case.best.step) > DEAR * plain_cost(case.entries, case.goal)


def _may_stream(case: Case) -> bool:
    return _is_dear(case) and any(may_stream(one.given) for one in case.quick)


def _stream(case: Case) -> None:
    """What learns, row by row."""
    search = patient(case.limit, case.goal, case.quickly, case.quick)
    for one in [c for c in case.quick if may_stream(c.given)]:
        case.others += streamed(case.limit, one.given, case.goal, search)


def _may_tile(case: Case) -> bool:
    return _is_dear(case) and any(may_tile(one.given) for one in case.quick)


def _tile(case: Case) -> None:
    """Gradients inside of blocks, some channels at a time."""
    search = patient(case.limit, case.goal, case.quickly, case.quick)
    for one in [c for c in case.quick if may_tile(c.given)]:
        case.others += each_tried(case.limit, tiled_each(one.given, case.goal), case.goal, search)


def _may_page_state(case: Case) -> bool:
    return case.goal.page and (bool(case.search.effort_s) or not any(c.fits(case.limit) for c in case.quick))


def _page_state(case: Case) -> None:
    search = patient(case.limit, case.goal, _without_effort(case.entries, case.search), case.quick)
    for k, one in enumerate(sorted((case.whole, *case.others[-1:]), key=lambda c: c.need.ram_bytes)):
        case.others += paged_state(case.limit, one, case.goal, search) if k == 0 or search.left_s else []


def _search(case: Case) -> None:
    """For the optimum of the undivided step and of the best other one; the more promising has what is left."""
    limit, goal, found = case.limit, case.goal, case.quick
    search = patient(limit, goal, case.search, found)
    sought = [case.whole, *([cheapest(limit, case.others, goal)] if case.others else [])]
    sought.sort(key=lambda c: (c.fits(limit), -goal.cost(c.step)))
    effort = Effort.of(search.effort_s)
    for left, one in zip(range(len(sought), 0, -1), sought, strict=True):
        case.found.append(searched(limit, one, goal, search.share(left, effort)))
    case.search = search


def _single(case: Case) -> None:
    """What one technique alone makes of the step, as other systems use it: never worse than any of them."""
    for name in SCHEDULED:
        best = case.best
        if name == "page" and not case.goal.page:
            continue
        if not case.search.left_s and is_large(case.entries) and not best.fits(case.limit):
            break
        below = case.goal.cost(best.step) if best.fits(case.limit) else math.inf
        one = alone(name, case.limit, case.entries, case.goal, QUICK, below)
        case.found += [] if one is None else [one]


STRATEGIES: Final = (
    Strategy("micro-batches", _may_split, _split),
    Strategy("tiles", _may_tile, _tile),
    Strategy("streams", _may_stream, _stream),
    Strategy("state in pages", _may_page_state, _page_state),
    Strategy("search for the optimum", lambda case: bool(case.search.effort_s), _search),
    Strategy("single techniques", lambda case: True, _single),
)
"""In order, after the step as it is and with as much recomputed or paged as the quick methods need."""


def joint(
    limit: Limit, lowering: Lowering, options: Options, goal: Goal, search: Search, floor: Smallest | None = None
) -> tuple[Candidate, Options]:
    """The best of all strategies, and the options that it was made with: int8 constants if only those fit the flash.
    Nothing is sought below the smallest budget, the `floor`; if nothing is found above it, that is taken."""
    floor = floor or Smallest(limit.device, lowering, options, goal, search.effort_s)
    entries = lowering.entries(options)
    goal = replace(goal, split=goal.split and not takes_statistics(entries.graphs["train"]))
    quickly = _without_effort(entries, search, UNPAGED if goal.page else 1.0)
    base = candidate(limit, entries, goal)
    if not base.fits(limit) and options != options.least:
        options = options.least
        entries = lowering.entries(options)
        base = candidate(limit, entries, goal)
    if over_flash(limit, base.need) and options.const == "f32":
        options = replace(options, const="int8")
        entries = narrowed(entries)
        base = candidate(limit, entries, goal)
    if not is_large(entries) and not (base.fits(limit) and floor.given.fits(limit)) and floor.within(limit) is None:
        return floor.taken(floor.found, limit), options
    if base.fits(limit) and (parts := for_caches(lowering, options, entries, goal)[0]) is not entries:
        return candidate(limit, parts, goal), options
    whole = squeezed(limit, entries, goal, quickly, first=base)
    case = Case(limit, lowering, options, goal, search, entries, quickly, whole)
    if case.whole.fits(limit) and not may_be_cheaper(case.whole, goal):
        return case.whole, options
    for strategy in STRATEGIES:
        if strategy.wanted(case):
            strategy.run(case)
    bounds = {n: least for c in case.found if not has_paged_state(c.given) for n, least in c.bounds.items()}
    best = case.best
    if not best.fits(limit):
        best = floor.within(limit) or floor.taken(floor.found, limit)
    return replace(best, bounds=bounds), options


# -- what is said of it ------------------------------------------------------------------------------------------------


def _least(limit: Limit, lowering: Lowering, options: Options, goal: Goal, **more: Any) -> float:
    """`lower_bound.least` of a model, with streams for the least memory."""
    options = options.least
    whole = lowering.entries(options)
    return lower_bound.least(
        limit, whole, lambda batch: micro_batched(lowering, options, whole.batch, batch), goal, **more
    )


def checked_fit(
    limit: Limit, best: Candidate, lowering: Lowering, options: Options, goal: Goal, search: Search,
    answer: Effort | None = None,
) -> Candidate:  # fmt: skip
    """What was found, unless it does not fit, though it is the smallest that there is, or takes too long: then an error
    with other choices that were tried, with what is left of the effort for an `answer`."""
    if assigned(limit, best.need) is not None and (said := beyond(best.need)):
        raise DoesNotFit(said)
    if not best.fits(limit):
        plan = outlined(best.entries, limit, best.sized)
        unsure = answer is not None and has_effort(answer) and may_fit(limit, best.given, goal)
        effort_s = LONGER * search.effort_s if unsure else 0.0

        def choices(limit: Limit, trying: Effort) -> tuple[Sequence[Option], int]:
            if limit.is_rung:
                return (), 0
            return tried(limit, trying, lowering, options, plan.step_samples, goal, search.effort_s)

        raise over_limit(limit, plan, best.need, options.optimizer, choices, answer, effort_s)
    if limit.device is not None and limit.slot_bytes:
        check_slots(limit.device, best.program())
    if goal.is_late(best.step):
        raise _too_late(limit, lowering, options, goal, best, answer=answer)
    return best


def _too_late(
    limit: Limit, lowering: Lowering, options: Options, goal: Goal, best: Candidate | None = None, **more: Any
) -> TooLate:
    """`best`: what was found; else nothing was looked for."""
    quick = replace(goal.at_leisure, fill=True)
    free = candidate(None, lowering.entries(options), goal)
    least = replace(options.least, const=best.entries.const) if best else options.least
    assert goal.deadline_s is not None

    def price(other: Mapping[str, Any]) -> Option:
        one = squeezed(limit, lowering.entries(replace(least, **other)), quick, most=MOST_ASKED)
        return Option(other, one.need, one.seconds)

    spent = [f"{d.kind} {seconds_text(d.adds_s)}" for d in (best.entries.decisions if best else ()) if d.adds_s]
    why = "whatever is recomputed, paged or split" if best is None else (
        f"of that, to fit: {', '.join(spent)}" if spent else "nothing in it was done to fit")  # fmt: skip
    enough = free.need.ram_bytes + limit.work_bytes
    if limit.ram_bytes < UNLIMITED:
        why += f"; without a limit it takes {seconds_text(free.seconds)} and {bytes_text(enough)}"
        more["more_bytes"] = enough if free.seconds <= goal.deadline_s and not limit.is_bare else 0
    found_s = best.seconds if best else 0.0
    batch, method = free.entries.batch, free.entries.method
    return too_late(limit, batch, method, why, goal.deadline_s, price, found_s=found_s, **more)


def in_time(lowering: Lowering, options: Options, goal: Goal) -> Entries:
    """A step with all the RAM it wants; with nothing recomputed, if it were too late else. Refused if it is."""
    entries = lowering.entries(options)
    if not goal.is_late(step_spent(entries, goal)):
        return entries
    kept = tuple(d for d in entries.decisions if d.kind != "cheap")
    plain = replace(entries, graphs={**entries.graphs, **entries.plain}, decisions=kept)
    if goal.is_late(step_spent(plain, goal)):
        raise _too_late(Limit.of_budget(UNLIMITED), lowering, options, goal, candidate(None, plain, goal))
    return plain
