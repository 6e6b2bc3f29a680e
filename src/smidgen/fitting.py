"""A device or a byte budget as a hard limit: what does not fit is computed again instead of kept, or a step is taken in
parts; the cheapest of what fits is taken. If nothing fits, an error that says what would."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from . import bounds, limits, ops
from .alone import SCHEDULED, alone
from .device import Device
from .effort import Effort
from .errors import DoesNotFit, SmidgenError
from .found import Found, Price, cheapest, found, is_large, room_for, step_seconds, step_spent
from .homes import has_state_outside, movable, state_outside
from .ir import Graph, Role, at, ceil_div
from .lower import Entries, Lowering, decided, narrowed
from .options import Options
from .passes.additive import WEIGHTED, takes_statistics
from .planned import outlined, sized
from .planner.within import LEAST_EFFORT_S, Aim
from .program import Program
from .squeezing import may_be_cheaper, may_fit, searched, squeezed
from .terminal import bytes_text, seconds_text
from .training_facts import loss_facts

MOST_ASKED = 2  # times that a placement above its bound asks for a lower bound, for what only a message needs
CACHE_BYTES = 2 << 20  # near to one core of most hosts; a constant, so that plans are the same everywhere
ENOUGH_SAMPLES = 4  # to keep a thread busy
MOST_WEIGHTS = 0.25  # bytes of weights for one of values that a step in parts may go through
WORTH = 0.75  # of the RAM: parts that save less are not worth it
PATIENCE_S = 5.0  # of a search in which nothing fits, or as long as it may take in all
UNPAGED = 0.6  # of it, for what has all state in RAM
DEADLINE_S = 2.0  # for a bound that no deadline can be below
LONGER = 6  # times the effort: worth a try
UNLIMITED = 1 << 50  # bytes


def encode_for(device: Device, lowering: Lowering, options: Options, aim: Aim) -> Program:
    """The program, if it fits the device; else an error that says what would."""
    return found_for(device, lowering, options, aim).program


def found_for(device: Device, lowering: Lowering, options: Options, aim: Aim) -> Found:
    """`encode_for`, with the graphs that the program was made of."""
    answer = Effort.of(limits.ANSWER_S)
    if aim.effort_s:  # without a search, whatever is quick is tried
        aim = replace(aim, patience=Effort.of(max(PATIENCE_S, aim.effort_s)))
    if aim.deadline_s is not None:
        least_s = _least(
            device, lowering, options, replace(aim, objective="time"), enough=aim.deadline_s, above=aim.deadline_s,
            effort_s=DEADLINE_S,
        )  # fmt: skip
        if aim.deadline_s < least_s < math.inf:
            raise _too_late(device, lowering, options, aim, least_s=least_s, answer=answer)
        if least_s == math.inf:
            aim = replace(aim, deadline_s=None)  # it does not fit, however long it takes
    best, options = joint(device, lowering, options, aim)
    if not limits.fits(device, best.need) and not aim.at_once and takes_statistics(best.entries.graphs["train"]):
        best = cheapest(device, [best, *_other_statistics(device, lowering, options, best.entries.batch, aim)], aim)
    return _priced(checked_fit(device, best, lowering, options, aim, answer), device, lowering, options, aim)


def _priced(best: Found, device: Device, lowering: Lowering, options: Options, aim: Aim) -> Found:
    """With what a step without a limit costs, and what no step within it costs less than, if that was looked for."""
    whole = lowering.entries(options)
    free = step_spent(whole, aim)
    if not aim.effort_s:
        return replace(best, price=Price(aim.objective, free))
    at_once = aim.at_once or (not best.entries.step_samples and takes_statistics(whole.graphs["train"]))
    least = _least(
        device, lowering, options, replace(aim, at_once=at_once), enough=best.cost(aim), known=best.known,
        effort_s=min(aim.effort_s, bounds.BOUND_S),
    )  # fmt: skip
    return replace(best, price=Price(aim.objective, free, min(least, best.cost(aim))))


def joint(device: Device, lowering: Lowering, options: Options, aim: Aim) -> tuple[Found, Options]:
    """The cheapest that was found among all ways to fit that learn the same, or the smallest if nothing fits; and the
    options it took."""
    entries = lowering.entries(options)
    aim = replace(aim, at_once=aim.at_once or takes_statistics(entries.graphs["train"]))
    quick = replace(aim, effort_s=0.0, patience=_for_quick(entries, aim, UNPAGED if aim.page else 1.0))
    base = found(device, entries, quick)
    if limits.over_flash(device, base.need) and options.const == "f32":
        options = replace(options, const="int8")
        entries = narrowed(entries)
        base = found(device, entries, quick)
    if limits.fits(device, base.need) and (parts := as_parts(lowering, options, entries, aim)) is not entries:
        return found(device, parts, aim), options
    whole = squeezed(device, entries, quick, first=base)
    if limits.fits(device, whole.need) and not may_be_cheaper(whole, aim):
        return whole, options
    quick = _patient(device, quick, [whole])
    others: list[Found] = []
    outside = sum(t.bytes(1) for t in movable(entries)) if aim.page else 0
    if not aim.at_once and entries.batch > 1 and room_for(device, entries) + outside >= 0:  # parts have as much state
        others += in_parts(device, lowering, options, entries.batch, quick)
    if aim.page and (aim.effort_s or not any(limits.fits(device, one.need) for one in (whole, *others))):
        outer = replace(aim, effort_s=0.0, patience=_for_quick(entries, aim))
        outer = _patient(device, outer, [whole, *others])
        for k, one in enumerate(sorted((whole, *others[-1:]), key=lambda f: f.need.ram_bytes)):
            others += state_outside(device, one, outer) if k == 0 or outer.left_s else []
    best = cheapest(device, [whole, *others], aim)
    if not aim.effort_s:
        return _or_alone(device, best, entries, aim), options
    aim = _patient(device, aim, [whole, *others])
    sought = [whole, *([cheapest(device, others, aim)] if others else [])]
    sought.sort(key=lambda f: (limits.fits(device, f.need), -f.cost(aim)))  # the best one has what others leave
    tried: list[Found] = []
    search = Effort.of(aim.effort_s)
    for left, one in zip(range(len(sought), 0, -1), sought, strict=True):
        effort_s = max(search.left_s / left, LEAST_EFFORT_S)
        patience = None if aim.patience is None else Effort.of(aim.left_s / left)
        tried.append(searched(device, one, replace(aim, effort_s=effort_s, patience=patience)))
    known = {batch: least for one in tried if not has_state_outside(one.given) for batch, least in one.known.items()}
    best = _or_alone(device, cheapest(device, [*tried, best], aim), entries, aim)
    return replace(best, known=known), options


def _for_quick(entries: Entries, aim: Aim, share: float = 1.0) -> Effort | None:
    """For what needs no search: without end where nothing is large, so that more effort finds no less."""
    return Effort.of(share * aim.left_s) if is_large(entries) and aim.patience is not None else None


def _patient(device: Device, aim: Aim, tried: Sequence[Found]) -> Aim:
    """If something fits, and in time, there is time to look for what is better."""
    good = [one for one in tried if limits.fits(device, one.need)]
    late = aim.deadline_s is not None and all(one.seconds > aim.deadline_s for one in good)
    return replace(aim, patience=None) if good and not late else aim


def _least(device: Device, lowering: Lowering, options: Options, aim: Aim, **more: Any) -> float:
    """`bounds.least` of a model."""
    whole = lowering.entries(options)
    return bounds.least(device, whole, lambda batch: part(lowering, options, whole.batch, batch), aim, **more)


def _or_alone(device: Device, best: Found, entries: Entries, aim: Aim) -> Found:
    """What was found, or what one technique alone makes of the step, if that is cheaper."""
    quick = replace(aim, effort_s=0.0)
    for name in SCHEDULED if aim.page else [n for n in SCHEDULED if n != "page"]:
        if not aim.left_s and is_large(entries) and not limits.fits(device, best.need):
            break
        below = best.cost(aim) if limits.fits(device, best.need) else math.inf
        one = alone(name, device, entries, quick, below)
        best = best if one is None else cheapest(device, [best, one], aim)
    return best


def checked_fit(
    device: Device, best: Found, lowering: Lowering, options: Options, aim: Aim, answer: Effort | None = None
) -> Found:
    """What was found, unless it does not fit or takes too long: then an error with other choices that were tried, with
    what is left of the effort for an `answer`. None: the steps are given, and neither parts nor pages are offered."""
    quick = replace(aim, effort_s=0.0, fills=False)
    if answer is not None and limits.assigned(device, best.need) is None and limits.has_effort(answer):
        least = replace(smallest(device, lowering, options, aim), device=device)
        best = min(best, least, key=lambda f: f.need.ram_bytes)

    def need_with(other: Mapping[str, Any]) -> limits.Need | None:
        try:
            if "page_to" in other:
                return need_with_pages()
            entries = lowering.entries(replace(options, **other), explained=False)
            return squeezed(device, entries, quick, most=MOST_ASKED).need
        except SmidgenError:
            return None

    def need_with_pages() -> limits.Need | None:
        if aim.page or aim.prices.page is None or answer is None:
            return None
        paging = replace(quick, page=True)
        whole = squeezed(device, lowering.entries(options), paging)
        tried = [whole, *state_outside(device, whole, paging)]
        if best.entries.step_samples and limits.has_effort(answer):
            parts = squeezed(device, best.given, paging)
            tried += [parts, *state_outside(device, parts, paging)]
        need = cheapest(device, tried, paging).need
        return need if need.ram_bytes < best.need.ram_bytes else None

    if limits.assigned(device, best.need) is not None and (said := limits.beyond(best.need)):
        raise DoesNotFit(said)
    if not limits.fits(device, best.need):
        plan = outlined(best.entries, device, best.sized)
        unsure = aim.effort_s and answer is not None and limits.has_effort(answer) and may_fit(device, best.given, aim)
        effort_s = LONGER * aim.effort_s if unsure else 0.0
        raise limits.over_limit(device, plan, best.need, options.optimizer, need_with, answer, effort_s)
    if device.slot_bytes:
        limits.check_slots(device, best.program)
    if aim.deadline_s is not None and best.seconds > aim.deadline_s:
        raise _too_late(device, lowering, options, aim, best, answer=answer)
    return best


def _too_late(
    device: Device, lowering: Lowering, options: Options, aim: Aim, best: Found | None = None, **more: Any
) -> limits.TooLate:
    """`best`: what was found; else nothing was looked for."""
    quick = replace(aim, effort_s=0.0, deadline_s=None, fills=True)
    free = found(None, lowering.entries(options), aim)
    assert aim.deadline_s is not None

    def price(other: Mapping[str, Any]) -> limits.Option:
        one = squeezed(device, lowering.entries(replace(options, **other), explained=False), quick, most=MOST_ASKED)
        return limits.Option(other, one.need, one.seconds)

    spent = [f"{d.what} {seconds_text(d.adds_s)}" for d in (best.entries.decisions if best else ()) if d.adds_s]
    why = "whatever is computed again, paged or taken in parts" if best is None else (
        f"of that, to fit: {', '.join(spent)}" if spent else "nothing in it was done to fit")  # fmt: skip
    enough = free.need.ram_bytes + device.work_bytes
    if device.ram_bytes < UNLIMITED:
        why += f"; without a limit it takes {seconds_text(free.seconds)} and {bytes_text(enough)}"
        more["more_bytes"] = enough if free.seconds <= aim.deadline_s and not device.is_bare else 0
    found_s = best.seconds if best else 0.0
    batch, method = free.entries.batch, free.entries.method
    return limits.too_late(device, batch, method, why, aim.deadline_s, price, found_s=found_s, **more)


def in_time(lowering: Lowering, options: Options, aim: Aim) -> Entries:
    """A step with all the RAM it wants; with nothing computed again, if it were too late else. Refused if it is."""
    entries = lowering.entries(options)
    if aim.deadline_s is None or step_seconds(entries, aim) <= aim.deadline_s:
        return entries
    kept = tuple(d for d in entries.decisions if d.what != "cheap")
    plain = replace(entries, graphs={**entries.graphs, **entries.plain}, decisions=kept)
    if step_seconds(plain, aim) > aim.deadline_s:
        unlimited = limits.within(UNLIMITED, None)
        raise _too_late(unlimited, lowering, options, aim, found(None, plain, aim))
    return plain


def in_parts(device: Device, lowering: Lowering, options: Options, samples: int, aim: Aim) -> list[Found]:
    """Steps of as many samples, but so many at a time; smaller and smaller parts until nothing has to be computed
    again."""
    tried: list[Found] = []
    batch, least = samples, one_by_one(lowering, options, samples)
    if least is None:
        return tried
    if not may_fit(device, least, aim):  # nor do larger parts
        return [squeezed(device, least, aim)]
    while batch > 1:
        batch = ceil_div(batch, 2)
        if tried and not aim.left_s:
            break
        entries = least if batch == 1 else part(lowering, options, samples, batch)
        if not may_fit(device, entries, aim):
            continue
        tried.append(squeezed(device, entries, aim))
        aim = _patient(device, aim, tried)
        if tried[-1].entries is entries and limits.fits(device, tried[-1].need):
            break
    return tried


def one_by_one(lowering: Lowering, options: Options, samples: int) -> Entries | None:
    """The step in parts of one sample; None if parts are not the same step, or nobody knows what belongs to one."""
    try:
        least = part(lowering, options, samples, 1)
    except SmidgenError:  # a loss that is no sum over samples
        return None
    several = any(at(t.shape, 2)[:1] != (2,) for t in least.graphs["grad"].of_role(Role.INPUT))
    return None if several else least  # several rows for each sample, whose order is not known


def _other_statistics(device: Device, lowering: Lowering, options: Options, samples: int, aim: Aim) -> list[Found]:
    """The largest parts that fit, none of them a single sample, though norms then take the statistics of parts: that
    learns something else than was asked for, so it is done only where nothing else fits, and the plan says it."""
    quick = replace(aim, effort_s=0.0)
    batch = samples if one_by_one(lowering, options, samples) else 1
    while batch > 2:
        batch = ceil_div(batch, 2)
        if samples % batch == 1:
            continue
        entries = part(lowering, options, samples, batch)
        why = f"batch norms take the statistics of {batch} samples, not of {samples}: other weights are learned"
        one = squeezed(device, decided(entries, "statistics of parts", why, 0), quick)
        tried = [one, *(state_outside(device, one, quick) if aim.page else [])]
        if any(limits.fits(device, f.need) for f in tried):
            return tried
    return []


def smallest(device: Device | None, lowering: Lowering, options: Options, aim: Aim) -> Found:
    """As little RAM as is found without a search: whole or in parts of one sample, with as much as possible computed
    again or paged."""
    none, quick = limits.within(1, device), replace(aim, effort_s=0.0, objective="time", deadline_s=None)
    entries = lowering.entries(options)
    tried = [squeezed(none, entries, quick)]
    if entries.batch > 1 and not takes_statistics(entries.graphs["train"]) and not aim.at_once:
        least = one_by_one(lowering, options, entries.batch)
        tried += [] if least is None else [squeezed(none, least, quick)]
    if aim.page:
        tried += [one for whole in tried for one in state_outside(none, whole, quick)]
    return min(tried, key=lambda f: f.need.ram_bytes)


def part(lowering: Lowering, options: Options, samples: int, batch: int) -> Entries:
    """A step of so many samples that is taken `batch` at a time."""
    entries = lowering.entries(replace(options, batch=batch, accumulate=True))
    sums = sum(t.bytes(1) for t in entries.graphs["zero"].tensors.values() if not t.name.endswith("'"))
    why = f"a step of {samples} samples is taken {batch} at a time; their gradients add up in {bytes_text(sums)}"
    return decided(replace(entries, step_samples=samples), "split", why, 0)


def as_parts(lowering: Lowering, options: Options, entries: Entries, aim: Aim) -> Entries:
    """So few samples at a time that their values come nearer to fit the caches of a processor, which is faster and
    takes less RAM, unless the weights, which every part goes through, are as large as the values."""
    if not aim.threads or aim.deadline_s is not None or not _sample_by_sample(entries):
        return entries
    whole = sized(entries, None).need
    values, weights = _operand_bytes(entries.graphs["train"], entries.batch)
    samples = entries.batch
    while whole.arena_bytes * samples > aim.threads * CACHE_BYTES * entries.batch:
        fewer = ceil_div(samples, 2)
        if fewer < aim.threads * ENOUGH_SAMPLES or weights * entries.batch > MOST_WEIGHTS * values * fewer:
            break
        samples = fewer
    if samples == entries.batch:
        return entries
    try:
        parts = part(lowering, options, entries.batch, samples)
    except SmidgenError:  # a loss that is no sum over samples
        return entries
    return parts if sized(parts, None).need.ram_bytes < WORTH * whole.ram_bytes else entries


def _sample_by_sample(entries: Entries) -> bool:
    """Every sample has outputs of its own, and labels that are ignored, which a mean does not count, can be left out
    with their samples."""
    infer, train = entries.graphs["infer"], entries.graphs["train"]
    for output in infer.of_role(Role.OUTPUT):
        one, two = at(output.shape, 1), at(output.shape, 2)
        if one[:1] != (1,) or two != (2, *one[1:]):
            return False
    if any(ops.get(node.op).batchwise for node in infer.nodes) or takes_statistics(train):
        return False
    means = [n for n in train.nodes if n.op in WEIGHTED and n.attrs["reduction"] == "mean"]
    if not all(at(train[n.ins[1]].shape, 2) == (2,) for n in means):
        return False
    return not means or bool(loss_facts(train).get("alone"))


def _operand_bytes(graph: Graph, batch: int) -> tuple[int, int]:
    """What the kernels of a step read and write: of values, and of all that is the same for any batch."""
    values = weights = 0
    for node in graph.nodes:
        if not ops.get(node.op).is_view:
            for tensor in (graph[name] for name in (*node.ins, *node.outs)):
                count = tensor.bytes(batch)
                if tensor.role is Role.VALUE and count != tensor.bytes(1):
                    values += count
                else:
                    weights += count
    return values, weights
