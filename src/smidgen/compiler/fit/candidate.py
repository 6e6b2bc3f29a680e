"""One way to fit a limit: graphs, what they take when placed, what a step of them costs; and the best of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ...devices.room import Limit, Need, Overhead, arena_room, fits, host_overhead
from ...program.program import Program
from ..assemble import Asked, Price, Sized, encode, sized
from ..entries import Entries, with_fewer_streams
from ..place import arena
from ..planner.cost import Spent, spent
from ..planner.goal import Goal
from ..replay import planned

LARGE: Final = 400  # nodes: with more, each try takes seconds, and a search reaches no less than the fast methods


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to fit: graphs, what they take, and what a step costs by the prices of the plan."""

    limit: Limit | None
    entries: Entries
    sized: Sized
    step: Spent
    given: Entries  # before anything was done to fit
    bounds: Mapping[int, float] = field(default_factory=dict)  # micro-batch → proven least extra cost of one
    price: Price | None = None

    @property
    def seconds(self) -> float:
        return self.step.seconds

    @property
    def need(self) -> Need:
        return self.sized.need

    def fits(self, limit: Limit) -> bool:
        return fits(limit, self.need)

    def program(self, asked: Asked | None = None) -> Program:
        """Encoded and verified, with a plan that says what a step costs and which limits were asked for."""
        return encode(self.entries, self.limit, sized=self.sized, price=self.price or Price(self.step), asked=asked)


def candidate(
    limit: Limit | None, entries: Entries, goal: Goal, given: Entries | None = None, before: Candidate | None = None
) -> Candidate:
    """`before` is of the same limit, and may have graphs in common."""
    room = None if limit is None else room_for(limit, entries)
    size = sized(entries, limit, room, None if before is None else before.sized)
    return Candidate(limit, entries, size, step_spent(entries, goal), given or entries)


def cheapest(limit: Limit, tried: Sequence[Candidate], goal: Goal) -> Candidate:
    """The one place that compares: of what fits, in time if anything is, the cheapest; else the smallest."""
    good = [c for c in tried if c.fits(limit)]
    good = [c for c in good if not goal.is_late(c.step)] or good
    smallest = min(tried, key=lambda c: c.need.ram_bytes)
    return min(good, key=lambda c: goal.cost(c.step), default=smallest)


def eased(one: Candidate, goal: Goal, most_bytes: int) -> Candidate:
    """Found with streams for the least memory: the same with as few of them as an arena of so many bytes allows, or of
    as many as it takes anyway."""
    stream = one.entries.stream
    if one.limit is None or stream is None or not stream.least or not one.fits(one.limit):
        return one
    for arena_bytes in sorted({max(most_bytes, one.need.arena_bytes), one.need.arena_bytes}, reverse=True):
        fewer = with_fewer_streams(one.entries, arena_bytes, one.limit.align)
        if all(fewer.graphs[name] is graph for name, graph in one.entries.graphs.items()):
            return one
        trial = candidate(one.limit, fewer, goal, one.given, one)
        if trial.fits(one.limit):
            return replace(trial, bounds=one.bounds)
    return one


def room_for(limit: Limit, entries: Entries) -> int:
    """No larger arena can fit; negative if not even the state does."""
    overhead = Overhead(0, 0) if limit.is_bare else host_overhead()
    state = arena.place_state(entries.graphs.values(), limit.align)[2]
    return arena_room(limit, Need(state, 0, overhead, 0))


def is_large(entries: Entries) -> bool:
    return len(entries.plain[counts_in(entries)].nodes) > LARGE


def counts_in(entries: Entries) -> str:
    """The entry that takes the time of a step: `train` of a program for micro-batches is for smaller steps."""
    return "grad" if entries.step_samples else "train"


def plain_cost(entries: Entries, goal: Goal) -> float:
    """Of a step with all the RAM that it wants, nothing recomputed."""
    return goal.cost(step_spent(replace(entries, graphs={**entries.graphs, **entries.plain}), goal))


def step_spent(entries: Entries, goal: Goal) -> Spent:
    """By a whole step of as many samples as the user asked for, by the prices of the plan."""

    def of(name: str) -> Spent:
        return spent(entries.graphs[name], entries.batch, goal.prices)

    replayed = _features_spent(entries, goal).plus(_rows_spent(entries, goal))
    if not entries.step_samples:
        return of("train").plus(replayed)
    whole, rest = divmod(entries.step_samples, entries.batch)
    parts = of("zero").plus(of("apply")).plus(of("grad"), whole).plus(replayed)
    return parts.plus(spent(entries.graphs["grad"], rest, goal.prices)) if rest else parts


def _features_spent(entries: Entries, goal: Goal) -> Spent:
    """By the frozen part, which new samples of a step run and old ones do not."""
    if entries.replay is None or "features" not in entries.graphs:
        return Spent()
    wanted, shape = entries.replay
    new = planned(shape, wanted, entries.step_samples or entries.batch).fresh
    return spent(entries.graphs["features"], new, goal.prices)


def _rows_spent(entries: Entries, goal: Goal) -> Spent:
    """By samples that are kept in PAGE: each old one is compared with its checksum, then read; new ones are written."""
    page = goal.prices.page
    if entries.replay is None or page is None or not entries.replay[1].is_outside:
        return Spent()
    wanted, shape = entries.replay
    step = planned(shape, wanted, entries.step_samples or entries.batch)
    each = step.page_bytes // step.samples
    seconds = (step.step - step.fresh) * 2 * page.in_seconds(each) + step.fresh * page.out_seconds(each)
    return Spent(seconds, seconds * page.watts)


def infer_spent(entries: Entries, goal: Goal) -> Spent:
    """By an inference of one sample."""
    return spent(entries.graphs["infer"], 1, goal.prices)
