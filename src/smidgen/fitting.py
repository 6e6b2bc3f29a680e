"""A device or a byte budget as a hard limit: what does not fit is computed again instead of kept, or a step is taken in
parts; the cheapest of what fits is taken. If nothing fits, an error that says what would."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from . import limits, ops, place
from .build import typed
from .device import Device
from .errors import DoesNotFit, SmidgenError
from .ir import ceil_div
from .lower import Entries, Lowering, checked, decided, narrowed
from .options import Options
from .planned import Sized, encode, outlined, sized
from .planner.least import least_peak
from .planner.problem import problem_of
from .planner.within import Aim, within
from .program import Program
from .terminal import bytes_text

MOST_SQUEEZES = 6  # a placement above its bound asks for a lower bound
MOST_SEARCHES = 3  # the same, where each try is a search
LEAST_EFFORT_S = 0.1  # of searching, when the time for it is over: the fast methods remain


@dataclass(frozen=True)
class Found:
    """A way to fit: graphs, what they take, and how long a step takes by the prices of the plan."""

    device: Device | None
    entries: Entries
    sized: Sized
    seconds: float
    joules: float
    given: Entries  # before anything was done to fit

    def cost(self, aim: Aim) -> float:
        return self.joules if aim.objective == "energy" else self.seconds

    @property
    def need(self) -> limits.Need:
        return self.sized.need

    @cached_property
    def program(self) -> Program:
        return encode(self.entries, self.device)


def found(device: Device | None, entries: Entries, aim: Aim, given: Entries | None = None) -> Found:
    room = None if device is None else room_for(device, entries)
    return Found(device, entries, sized(entries, device, room), *step_cost(entries, aim), given or entries)


def encode_for(device: Device, lowering: Lowering, options: Options, aim: Aim) -> Program:
    """The program, if it fits the device; else an error that says what would."""
    return found_for(device, lowering, options, aim).program


def found_for(device: Device, lowering: Lowering, options: Options, aim: Aim) -> Found:
    """`encode_for`, with the graphs that the program was made of."""
    best, options = joint(device, lowering, options, aim)
    return checked_fit(device, best, lowering, options, aim)


def joint(device: Device, lowering: Lowering, options: Options, aim: Aim) -> tuple[Found, Options]:
    """The cheapest that was found among all ways to fit, or the smallest if nothing fits; and the options it took."""
    quick = replace(aim, effort_s=0.0)
    entries = lowering.entries(options)
    whole = squeezed(device, entries, quick)
    if limits.over_flash(device, whole.need) and options.const == "f32":
        options = replace(options, const="int8")
        entries = narrowed(entries)
        whole = squeezed(device, entries, quick)
    if whole.entries is entries or entries.batch == 1 or room_for(device, entries) < 0:  # parts have as much state
        return searched(device, whole, aim), options
    parts = in_parts(device, lowering, options, entries.batch, quick)
    if not parts:
        return searched(device, whole, aim), options
    half = replace(aim, effort_s=aim.effort_s / 2)
    best = cheapest(device, parts, aim)
    return cheapest(device, [searched(device, whole, half), searched(device, best, half), best], aim), options


def searched(device: Device, best: Found, aim: Aim) -> Found:
    """The cheaper of what was found and what a search for the optimum finds in the time that the aim gives it."""
    if best.entries is best.given or not aim.effort_s or not may_fit(device, best.given, aim):
        return best
    fits = limits.fits(device, best.need)
    return cheapest(device, [squeezed(device, best.given, aim, most=MOST_SEARCHES if fits else 1), best], aim)


def checked_fit(device: Device, best: Found, lowering: Lowering, options: Options, aim: Aim) -> Found:
    """What was found, unless it does not fit or takes too long: then an error with other choices that were tried."""
    quick = replace(aim, effort_s=0.0)

    def need_with(other: Mapping[str, Any]) -> limits.Need | None:
        changed = {name: value for name, value in other.items() if name != "momentum"}
        if "momentum" in other:
            changed["optimizer"] = replace(options.optimizer, momentum=other["momentum"])
        try:
            return squeezed(device, lowering.entries(replace(options, **changed), explained=False), quick).need
        except SmidgenError:
            return None

    if limits.assigned(device, best.need) is not None and (said := limits.beyond(best.need)):
        raise DoesNotFit(said)
    if not limits.fits(device, best.need):
        plan = outlined(best.entries, device, room_for(device, best.entries))
        raise limits.over_limit(device, plan, best.need, need_with)
    if aim.deadline_s is not None and best.seconds > aim.deadline_s:
        raise limits.too_late(best.entries.decisions, best.seconds, aim.deadline_s)
    return best


def room_for(device: Device, entries: Entries) -> int:
    """No larger arena can fit; negative if not even the state does."""
    overhead = limits.Overhead(0, 0) if device.is_bare else limits.host_overhead()
    state = place.place_state(entries.graphs.values(), device.align)[2]
    return limits.arena_room(device, limits.Need(state, 0, overhead, 0))


def may_fit(device: Device, entries: Entries, aim: Aim) -> bool:
    """False: whatever is computed again or paged, it is too large, which can be told at once."""
    room = room_for(device, entries)
    for graph in entries.plain.values():
        if least_peak(problem_of(graph, entries.batch, aim.prices, device.align), page=aim.page) > room:
            return False
    return place.lower_bound(entries.graphs["infer"], entries.batch) <= room


def cheapest(device: Device, tried: list[Found], aim: Aim) -> Found:
    """Of what fits, the cheapest; if nothing does, the smallest."""
    good = [f for f in tried if limits.fits(device, f.need)]
    if aim.deadline_s is not None:
        good = [f for f in good if f.seconds <= aim.deadline_s] or good
    smallest = min(tried, key=lambda f: f.need.ram_bytes)
    return min(good, key=lambda f: f.cost(aim), default=smallest)


def in_parts(device: Device, lowering: Lowering, options: Options, samples: int, aim: Aim) -> list[Found]:
    """Steps of as many samples, but so many at a time; smaller and smaller parts until nothing has to be computed
    again. Batch statistics are those of a part: not what was asked for, so not offered."""
    tried: list[Found] = []
    batch = samples if options.bn == "frozen" else 1
    try:
        least = part(lowering, options, samples, 1)
    except SmidgenError:  # a loss that is no sum over samples
        return tried
    if batch > 1 and not may_fit(device, least, aim):  # nor do larger parts
        return [squeezed(device, least, aim)]
    while batch > 1:
        batch = ceil_div(batch, 2)
        entries = least if batch == 1 else part(lowering, options, samples, batch)
        if not may_fit(device, entries, aim):
            continue
        tried.append(squeezed(device, entries, aim))
        if tried[-1].entries is entries:
            break
    return tried


def part(lowering: Lowering, options: Options, samples: int, batch: int) -> Entries:
    """A step of so many samples that is taken `batch` at a time."""
    entries = lowering.entries(replace(options, batch=batch, accumulate=True))
    sums = sum(t.bytes(1) for t in entries.graphs["zero"].tensors.values() if not t.name.endswith("'"))
    why = f"a step of {samples} samples is taken {batch} at a time; their gradients add up in {bytes_text(sums)}"
    return decided(replace(entries, step_samples=samples), "split", why, 0)


def squeezed(device: Device, entries: Entries, aim: Aim, most: int = MOST_SQUEEZES) -> Found:
    """The program as it is if it fits the device's RAM; else with more computed again or paged, or as near as that
    comes. Of the time for searching each try takes a half of what is left."""
    end = time.monotonic() + aim.effort_s
    best = found(device, entries, aim)
    room = limits.arena_room(device, best.need)
    target = room
    if best.need.arena_bytes > room and not may_fit(device, entries, aim):
        most = 1  # as small as it comes, once
    for _ in range(most):
        if best.need.arena_bytes <= room:
            break
        left = max(end - time.monotonic(), 0.0) / (2 if most > 1 else 1)
        now = replace(aim, effort_s=max(left, LEAST_EFFORT_S)) if aim.effort_s else aim
        trial = found(device, fitted(entries, max(target, 0), device.align, now), aim, entries)
        if trial.need.arena_bytes >= best.need.arena_bytes:
            break
        target -= max(trial.need.arena_bytes - room, 0)
        best = trial
    return best


def fitted(entries: Entries, arena_bytes: int, align: int, aim: Aim) -> Entries:
    """With as much computed again or paged as it takes to stay within `arena_bytes`, or as near as it comes."""
    quick = replace(aim, effort_s=0.0, deadline_s=None)
    within_it = {
        name: within(graph, entries.batch, arena_bytes, align, aim if name == _counts(entries) else quick)
        for name, graph in entries.plain.items()
    }
    graphs = {**entries.graphs, **{name: graph for name, (graph, _) in within_it.items()}}
    decisions = [d for d in entries.decisions if d.what not in ("recompute", "int8")] + within_it[_counts(entries)][1]
    found = replace(entries, graphs=checked(graphs, "recompute"), decisions=tuple(decisions), const="f32")
    return narrowed(found) if entries.const == "int8" else found


def _counts(entries: Entries) -> str:
    """The entry that takes the time of a step: `train` of a program for steps in parts is for smaller ones."""
    return "grad" if entries.step_samples else "train"


def step_seconds(entries: Entries, aim: Aim) -> float:
    return step_cost(entries, aim)[0]


def step_cost(entries: Entries, aim: Aim) -> tuple[float, float]:
    """Seconds and joules of a whole step of as many samples as the user asked for, by the prices of the plan."""
    times = {"train": 1}
    if entries.step_samples:
        times = {"zero": 1, "grad": ceil_div(entries.step_samples, entries.batch), "apply": 1}
    costs = [(count, _entry_cost(entries, name, aim)) for name, count in times.items()]
    return sum(count * one[0] for count, one in costs), sum(count * one[1] for count, one in costs)


def _entry_cost(entries: Entries, name: str, aim: Aim) -> tuple[float, float]:
    """What moves pages is priced as such, not as arithmetic."""
    graph, batch, prices = entries.graphs[name], entries.batch, aim.prices
    seconds = problem_of(graph, batch, prices).seconds
    moving = 0.0
    for node in graph.nodes:
        page = ops.get(node.op).page
        if not page or prices.page is None:
            continue
        count = graph[node.outs[0]].bytes(batch)
        seconds -= prices.seconds(node.op, typed(graph, node), batch)
        if page != "wait":
            moving += prices.page.in_seconds(count) if page in ("in", "start") else prices.page.out_seconds(count)
    watts = prices.page.watts if prices.page else 0.0
    return seconds + moving, seconds * prices.watts + moving * watts
