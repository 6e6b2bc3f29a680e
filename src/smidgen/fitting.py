"""A device or a byte budget as a hard limit: what does not fit is computed again instead of kept, or a step is taken in
parts; the cheapest of what fits is taken. If nothing fits, an error that says what would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from . import limits
from .device import Device
from .errors import SmidgenError
from .ir import Role, ceil_div
from .lower import Entries, checked, decided, lower_as, narrowed
from .options import Options
from .passes.page import page_state
from .plan import Decision, Plan
from .planned import encode
from .planner.cost import Spent, spent
from .planner.within import Aim, within
from .program import Program, checked_meta
from .terminal import bytes_text

if TYPE_CHECKING:
    from .torch_import import Imported

MOST_SQUEEZES = 6  # a placement above its bound asks for a lower bound


@dataclass(frozen=True, slots=True)
class Found:
    """A program, the graphs that it was made of, and what a step takes by the prices of the plan."""

    program: Program
    entries: Entries
    step: Spent
    given: Entries  # before anything was done to fit

    @property
    def seconds(self) -> float:
        return self.step.seconds


def encode_for(device: Device, imported: Imported, options: Options, aim: Aim) -> Program:
    """The program, if it fits the device; else an error that says what would."""
    return found_for(device, imported, options, aim).program


def found_for(device: Device, imported: Imported, options: Options, aim: Aim) -> Found:
    """`encode_for`, with the graphs that the program was made of."""
    quick = replace(aim, effort_s=0.0)
    entries = lower_as(imported, options)
    found = squeezed(device, entries, quick)
    if limits.over_flash(device, limits.need_of(device, found.program)) and options.const == "f32":
        options = replace(options, const="int8")
        found = squeezed(device, narrowed(entries), quick)
    if found.entries is not entries:
        tried = [found, *_in_parts(device, imported, options, entries.batch, quick)]
        tried += _optimizer_outside(device, found, quick) if aim.page else []
        found = _cheapest(device, tried, aim)
    return checked_fit(device, searched(device, found, aim), imported, options, aim)


def searched(device: Device, found: Found, aim: Aim) -> Found:
    """The cheaper of what was found and what a search for the optimum finds in the time that the aim gives it."""
    if found.entries is found.given or not aim.effort_s:
        return found
    fits = limits.fits(device, limits.need_of(device, found.program))
    return _cheapest(device, [squeezed(device, found.given, aim, most=MOST_SQUEEZES if fits else 1), found], aim)


def checked_fit(device: Device, found: Found, imported: Imported, options: Options, aim: Aim) -> Found:
    """What was found, unless it does not fit or takes too long: then an error with other choices that were tried."""
    quick = replace(aim, effort_s=0.0)

    def need_with(other: Mapping[str, Any]) -> limits.Need | None:
        changed = {name: value for name, value in other.items() if name != "momentum"}
        if "momentum" in other:
            changed["optimizer"] = replace(options.optimizer, momentum=other["momentum"])
        try:
            tried = squeezed(device, lower_as(imported, replace(options, **changed)), quick, proven=False)
        except SmidgenError:
            return None
        return limits.need_of(device, tried.program)

    limits.check_slots(device, found.program)
    need = limits.need_of(device, found.program)
    plan = Plan.from_json(found.program.meta["plan"])
    if not limits.fits(device, need):
        raise limits.over_limit(device, plan, need, need_with)
    if aim.deadline_s is not None and found.seconds > aim.deadline_s:
        raise limits.too_late(plan, found.seconds, aim.deadline_s)
    return found


def _cheapest(device: Device, found: list[Found], aim: Aim) -> Found:
    """Of what fits and is in time, the fastest or, if energy counts, what takes the least; in time or not, if nothing
    is; if nothing fits, the smallest."""
    good = [f for f in found if limits.fits(device, limits.need_of(device, f.program))]
    smallest = min(found, key=lambda f: limits.need_of(device, f.program).ram_bytes)
    good = [f for f in good if aim.deadline_s is None or f.seconds <= aim.deadline_s] or good
    return min(good, key=lambda f: f.step.joules if aim.objective == "energy" else f.seconds, default=smallest)


def _in_parts(device: Device, imported: Imported, options: Options, samples: int, aim: Aim) -> list[Found]:
    """Steps of as many samples, but so many at a time; smaller and smaller parts until nothing has to be computed
    again. Batch statistics are those of a part: not what was asked for, so not offered."""
    found: list[Found] = []
    batch = samples if options.bn == "frozen" else 1
    while batch > 1:
        batch = ceil_div(batch, 2)
        try:
            entries = lower_as(imported, replace(options, batch=batch, accumulate=True))
        except SmidgenError:  # a loss that is no sum over samples
            return found
        sums = sum(t.bytes(1) for t in entries.graphs["zero"].tensors.values() if not t.name.endswith("'"))
        why = f"a step of {samples} samples is taken {batch} at a time; their gradients add up in {bytes_text(sums)}"
        entries = decided(replace(entries, step_samples=samples), "split", why, 0)
        found.append(squeezed(device, entries, aim))
        if found[-1].entries is entries:
            break
    return found


def _optimizer_outside(device: Device, least: Found, aim: Aim) -> list[Found]:
    """With some of the optimizer's state at home in PAGE, where every step fetches and returns it: so much of it that
    it should fit, and what should take the least RAM. Large tensors are last, since they need room to come to."""
    entries = least.given
    made = {out for graph in entries.graphs.values() for node in graph.nodes for out in node.outs}
    state = {t.name: t for graph in entries.graphs.values() for t in graph.of_role(Role.OPTIM) if t.name not in made}
    names = sorted(state, key=lambda name: (state[name].bytes(1), name))
    if not names:
        return []
    need = limits.need_of(device, least.program)
    outside = list(accumulate(state[name].bytes(1) for name in names))
    guesses = [
        replace(need, state_bytes=need.state_bytes - count, arena_bytes=max(need.arena_bytes, state[name].bytes(1)))
        for name, count in zip(names, outside, strict=True)
    ]
    fits = [k for k, guess in enumerate(guesses) if limits.fits(device, guess)]
    smallest = min(range(len(names)), key=lambda k: guesses[k].ram_bytes)
    return [_paging_state(device, entries, names[: k + 1], outside[k], aim) for k in {*fits[:1], smallest}]


def _paging_state(device: Device, entries: Entries, names: Sequence[str], count: int, aim: Aim) -> Found:
    graphs = checked(page_state(entries.graphs, names, ahead=0), "page")
    paged = replace(entries, graphs=graphs, plain=page_state(entries.plain, names, ahead=0))
    why = f"{bytes_text(count)} of the optimizer's state are outside RAM: each step fetches and returns them"
    adds_s = step_seconds(paged, aim) - step_seconds(entries, aim)
    decisions = (*paged.decisions, Decision("page state", why, count, adds_s))
    return squeezed(device, replace(paged, decisions=decisions), aim)


def squeezed(device: Device, entries: Entries, aim: Aim, proven: bool = True, most: int = MOST_SQUEEZES) -> Found:
    """The program as it is if it fits the device's RAM; else with more computed again or paged, or as near as that
    comes."""
    best = _priced(encode(entries, device, proven), entries, entries, aim)
    room = limits.arena_room(device, limits.need_of(device, best.program))
    target = room
    for _ in range(most):
        if best.program.arena_bytes <= room:
            break
        trial = fitted(entries, max(target, 0), device.align, aim)
        program = encode(trial, device, proven)
        if program.arena_bytes >= best.program.arena_bytes:
            break
        target -= max(program.arena_bytes - room, 0)
        best = _priced(program, trial, entries, aim)
    return best


def fitted(entries: Entries, arena_bytes: int, align: int, aim: Aim) -> Entries:
    """With as much computed again or paged as it takes to stay within `arena_bytes`, or as near as it comes."""
    within_it = {name: within(graph, entries.batch, arena_bytes, align, aim) for name, graph in entries.plain.items()}
    graphs = {**entries.graphs, **{name: graph for name, (graph, _) in within_it.items()}}
    decisions = [d for d in entries.decisions if d.what not in ("recompute", "int8")] + within_it["train"][1]
    found = replace(entries, graphs=checked(graphs, "recompute"), decisions=tuple(decisions), const="f32")
    return narrowed(found) if entries.const == "int8" else found


def step_seconds(entries: Entries, aim: Aim) -> float:
    return step_spent(entries, aim).seconds


def step_spent(entries: Entries, aim: Aim) -> Spent:
    """By a whole step of as many samples as the user asked for, by the prices of the plan."""

    def of(name: str) -> Spent:
        return spent(entries.graphs[name], entries.batch, aim.prices)

    if not entries.step_samples:
        return of("train")
    return of("zero").plus(of("apply")).plus(of("grad"), ceil_div(entries.step_samples, entries.batch))


def _priced(program: Program, entries: Entries, given: Entries, aim: Aim) -> Found:
    step = step_spent(entries, aim)
    return Found(with_price(program, step), entries, step, given)


def with_price(program: Program, step: Spent) -> Program:
    """The program, whose plan says what a step takes."""
    plan = {**program.meta["plan"], "step_seconds": step.seconds, "step_joules": step.joules}
    return replace(program, meta=checked_meta({**program.meta, "plan": plan}))
