"""One way to fit: graphs, what they take when placed, and what a step of them costs; and the best of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from ...devices import room as limits
from ...devices.device import Device
from ...program.program import Program, checked_meta
from ..assemble import Sized, encode, sized
from ..pipeline import Entries
from ..place import arena
from ..planner.cost import Spent, spent
from ..planner.within import Aim

LARGE: Final = 400  # nodes: with more, each try takes seconds, and a search reaches no less than the fast methods


@dataclass(frozen=True, slots=True)
class Price:
    """What to compare a step with: one without a limit, and what none within it costs less than, as far as known."""

    objective: str
    free: Spent
    least: float = 0.0


@dataclass(frozen=True)
class Found:
    """A way to fit: graphs, what they take, and what a step costs by the prices of the plan."""

    device: Device | None
    entries: Entries
    sized: Sized
    step: Spent
    given: Entries  # before anything was done to fit
    known: Mapping[int, float] = field(default_factory=dict)  # as bounds.least takes it
    price: Price | None = None

    @property
    def seconds(self) -> float:
        return self.step.seconds

    @property
    def joules(self) -> float:
        return self.step.joules

    def cost(self, aim: Aim) -> float:
        return self.joules if aim.objective == "energy" else self.seconds

    @property
    def need(self) -> limits.Need:
        return self.sized.need

    @cached_property
    def program(self) -> Program:
        return with_price(encode(self.entries, self.device, rooms=self.sized.rooms), self.step, self.price)


def found(
    device: Device | None, entries: Entries, aim: Aim, given: Entries | None = None, before: Found | None = None
) -> Found:
    """`before` is of the same device, and may have graphs in common."""
    room = None if device is None else room_for(device, entries)
    size = sized(entries, device, room, None if before is None else before.sized)
    return Found(device, entries, size, step_spent(entries, aim), given or entries)


def cheapest(device: Device, tried: Sequence[Found], aim: Aim) -> Found:
    """Of what fits, the cheapest; if nothing does, the smallest."""
    good = [f for f in tried if limits.fits(device, f.need)]
    if aim.deadline_s is not None:
        good = [f for f in good if f.seconds <= aim.deadline_s] or good
    smallest = min(tried, key=lambda f: f.need.ram_bytes)
    return min(good, key=lambda f: f.cost(aim), default=smallest)


def room_for(device: Device, entries: Entries) -> int:
    """No larger arena can fit; negative if not even the state does."""
    overhead = limits.Overhead(0, 0) if device.is_bare else limits.host_overhead()
    state = arena.place_state(entries.graphs.values(), device.align)[2]
    return limits.arena_room(device, limits.Need(state, 0, overhead, 0))


def is_large(entries: Entries) -> bool:
    return len(entries.plain[counts_in(entries)].nodes) > LARGE


def counts_in(entries: Entries) -> str:
    """The entry that takes the time of a step: `train` of a program for steps in parts is for smaller ones."""
    return "grad" if entries.step_samples else "train"


def step_seconds(entries: Entries, aim: Aim) -> float:
    return step_spent(entries, aim).seconds


def plain_cost(entries: Entries, aim: Aim) -> float:
    """Of a step with all the RAM that it wants, nothing computed again."""
    spent = step_spent(replace(entries, graphs={**entries.graphs, **entries.plain}), aim)
    return spent.joules if aim.objective == "energy" else spent.seconds


def step_spent(entries: Entries, aim: Aim) -> Spent:
    """By a whole step of as many samples as the user asked for, by the prices of the plan."""

    def of(name: str) -> Spent:
        return spent(entries.graphs[name], entries.batch, aim.prices)

    if not entries.step_samples:
        return of("train")
    whole, rest = divmod(entries.step_samples, entries.batch)
    parts = of("zero").plus(of("apply")).plus(of("grad"), whole)
    return parts.plus(spent(entries.graphs["grad"], rest, aim.prices)) if rest else parts


def with_price(program: Program, step: Spent, price: Price | None = None) -> Program:
    """The program, whose plan says what a step takes."""
    plan = {**program.meta["plan"], "step_seconds": step.seconds, "step_joules": step.joules}
    if price is not None:
        plan |= {"objective": price.objective, "least_cost": price.least}
        plan |= {"free_seconds": price.free.seconds, "free_joules": price.free.joules}
    return replace(program, meta=checked_meta({**program.meta, "plan": plan}))
