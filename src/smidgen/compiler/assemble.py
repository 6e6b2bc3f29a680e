"""place → encode → verify: from the graphs of all entry points to a program, with its plan and parameter map inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..devices.room import Limit, Need, assigned, device_overhead, host_overhead
from ..errors import Internal
from ..ir import ALIGN, REPLAY, REPLAY_ROWS, DType, Graph, Role
from ..methods import Beside, Merge
from ..methods.scored import with_places
from ..program.arrays import FROZEN, INT8, SCALE, of_whole, packed_map
from ..program.plan import Cost, Decision, Plan, Traffic
from ..program.program import Program, checked_meta
from ..runtime.work import Work
from . import verify
from .effort import meter
from .encode import encode as encode_program
from .entries import Entries, decided
from .loss_facts import run_facts
from .place import arena as place
from .place.layout import Layout, Slot
from .plan_facts import facts_of, traffic
from .planner.cost import Spent
from .replay import facts_of as facts_of_replay
from .replay import planned


@dataclass(frozen=True, slots=True)
class Price:
    """Predicted cost of a step; within a limit also the cost of the unconstrained step, and a proven lower bound for
    any step within it (0 if none was computed)."""

    step: Spent
    objective: str = ""
    free: Spent = field(default_factory=Spent)
    least: float = 0.0
    infer: Spent = field(default_factory=Spent)  # of one sample


@dataclass(frozen=True, slots=True)
class Asked:
    """Entry that trains → the RAM that was asked for, with these kernels and threads."""

    limits: Mapping[str, int]
    work: Work


def encode(
    entries: Entries, limit: Limit | None = None, *, sized: Sized | None = None, price: Price | None = None,
    asked: Asked | None = None, proven: bool = True,
) -> Program:  # fmt: skip
    """place → encode → verify: the program, with its plan and parameter map inside. What was `sized` is not placed
    again."""
    draft = drafted(entries, limit, rooms=sized.rooms if sized else None, before=sized.placed if sized else None)
    entries = draft.entries
    plan = _plan(entries, draft.layouts, limit, draft.need, price, asked)
    meta = {"plan": plan.to_json(), "state": _state_map(entries, draft.stored), **run_facts(entries.graphs)}
    if frozen := _frozen_facts(entries, draft.stored):
        meta["frozen"] = frozen
    if entries.added:
        meta["added"] = list(entries.added)
    merges = [m for m in entries.merges if isinstance(m, Merge)]
    if merges:
        meta["merges"] = [_merge_fact(entries, merge, draft.stored) for merge in merges]
    beside = [m for m in entries.merges if isinstance(m, Beside)]
    if beside:
        meta["beside"] = [fact for m in beside if (fact := _beside_fact(entries, m, draft.stored))]
    if entries.head is not None:
        meta["classes"] = entries.head.to_json(entries.class_names)
    if entries.scored:
        meta["scores"] = with_places(entries.scored)
    meta |= draft.program.meta
    done = replace(draft.program, meta=checked_meta(meta))
    if proven:
        verify.verify(done, entries.graphs, draft.layouts)
    return done


@dataclass(frozen=True, slots=True)
class Draft:
    """A program without its plan: placed and encoded."""

    entries: Entries  # without `evaluate` where that would raise RAM
    layouts: Mapping[str, Layout]
    stored: Mapping[str, Slot]
    program: Program
    need: Need


def drafted(
    entries: Entries, limit: Limit | None, rooms: Mapping[str, int] | None = None, before: Placed | None = None
) -> Draft:
    """`rooms`: entry → an arena that is small enough for it; `before`: layouts that may be taken as they are."""
    layouts, stored = placed(entries, ALIGN if limit is None else limit.align, rooms, before)
    arenas = {name: layout.arena_bytes for name, layout in layouts.items()}
    raised = _raised_by_evaluate(arenas)
    if _is_dear(arenas, max(layout.state_bytes for layout in layouts.values())):
        rest = {name: graph for name, graph in entries.graphs.items() if name != "evaluate"}
        decision = Decision("no_evaluate", "job.evaluate gives no loss", raised)
        return drafted(decided(replace(entries, graphs=rest), decision), limit, rooms, before)
    if raised > 0:
        entries = decided(entries, Decision("evaluate", f"job.evaluate gives the loss, for {raised} bytes more", 0))
    program = encode_program(
        {name: (graph, layouts[name]) for name, graph in entries.graphs.items()}, entries.batch,
        _replay_facts(entries, stored),
    )  # fmt: skip
    overhead = device_overhead(None if limit is None else limit.device, program)
    need = Need(program.state_bytes, program.arena_bytes, overhead, program.flash_bytes)
    return Draft(entries, layouts, stored, program, need)


def _replay_facts(entries: Entries, stored: Mapping[str, Slot]) -> dict[str, Any]:
    """Of a buffer of past samples: what it holds, and how many of them are in a step."""
    if entries.replay is None:
        return {}
    wanted, shape = entries.replay
    kept = planned(shape, wanted, entries.step_samples or entries.batch)
    places = {"at": stored[REPLAY].offset}
    if shape.is_outside:
        places["page"] = stored[REPLAY_ROWS].offset
    return {"replay": {**facts_of_replay(kept, entries.graphs), **places}}


def outlined(entries: Entries, limit: Limit, sized: Sized) -> Plan:
    """The plan of a program that is not made, since it would not fit."""
    if not sized.layouts:
        draft = drafted(entries, limit)
        return _plan(draft.entries, draft.layouts, limit, draft.need)
    layouts = dict(sized.layouts)
    if not sized.evaluates:
        layouts.pop("evaluate", None)
        entries = replace(entries, graphs={name: entries.graphs[name] for name in layouts})
    return _plan(entries, layouts, limit, sized.need)


def _plan(
    entries: Entries, layouts: Mapping[str, Layout], limit: Limit | None, need: Need, price: Price | None = None,
    asked: Asked | None = None,
) -> Plan:  # fmt: skip
    facts = facts_of(entries.graphs, layouts, entries.batch)
    device = None if limit is None else limit.device
    page_bytes = max(layout.page_bytes for layout in layouts.values())
    price = price or Price(Spent())
    return Plan(
        state_bytes=need.state_bytes,
        arena_bytes=need.arena_bytes,
        context_bytes=need.overhead.context_bytes,
        stack_bytes=need.overhead.stack_bytes,
        flash_bytes=need.flash_bytes,
        lower_bound_bytes=max(layout.lower_bound_bytes for layout in layouts.values()),
        arena_by_entry={name: layout.arena_bytes for name, layout in layouts.items()},
        cost=Cost({name: sum(m.macs for m in t.moments) for name, t in facts.entries.items()}),
        decisions=(*entries.all_decisions, *_stopped()),
        method=entries.method,
        learns=entries.learns,
        batch=entries.batch,
        step_samples=entries.step_samples or entries.batch,
        model_tensors=len(entries.parameters),
        model_parameters=_elements(entries, entries.parameters),
        learned_parameters=_elements(entries, entries.learns) - _frozen_elements(entries),
        optimizer=entries.optimizer,
        facts=facts,
        device="" if device is None else device.name,
        banks={} if limit is None or device is None else assigned(limit, need) or {},
        slot_bytes=0 if device is None else device.slot_bytes,
        page_bytes=page_bytes,
        page_state_bytes=max(layout.page_state_bytes for layout in layouts.values()),
        paged={n: Traffic(*traffic(g, entries.batch)) for n, g in entries.graphs.items()} if page_bytes else {},
        step_seconds=price.step.seconds,
        step_joules=price.step.joules,
        infer_seconds=price.infer.seconds,
        infer_joules=price.infer.joules,
        objective=price.objective,
        free_seconds=price.free.seconds,
        free_joules=price.free.joules,
        least_cost=price.least,
        limits=asked.limits if asked else {},
        kernels=asked.work.kernels if asked else "",
        threads=asked.work.threads if asked else 0,
    )


def _stopped() -> tuple[Decision, ...]:
    """A plan that the clock cut short says so."""
    if not meter().stopped:
        return ()
    why = "planning was stopped by the clock: on a faster or idle machine the plan may be another one"
    return (Decision("stopped", why, 0),)


@dataclass(frozen=True, slots=True)
class Placed:
    """Layouts, and what they are of."""

    layouts: Mapping[str, Layout]
    stored: Mapping[str, Slot]
    graphs: Mapping[str, Graph]

    def layout_of(self, name: str, graph: Graph, stored: Mapping[str, Slot]) -> Layout | None:
        return self.layouts[name] if self.graphs.get(name) is graph and self.stored == stored else None


@dataclass(frozen=True, slots=True)
class Sized:
    need: Need
    evaluates: bool  # with the loss
    placed: Placed = field(default_factory=lambda: Placed({}, {}, {}))  # unless a program was made for it
    rooms: Mapping[str, int] = field(default_factory=dict)  # entry → the room that it was placed for

    @property
    def layouts(self) -> Mapping[str, Layout]:
        return self.placed.layouts


def sized(entries: Entries, limit: Limit | None, room_bytes: int | None = None, before: Sized | None = None) -> Sized:
    """What the program will take, as `encode` would find. Where neither flash nor the runtime's own memory depend on
    it, the program is not made for that: its state may be large. Graphs that were placed `before`, within as much room,
    are not placed again."""
    if limit is not None and (limit.is_bare or limit.flash_bytes):
        draft = drafted(entries, limit)
        known = Placed(draft.layouts, draft.stored, draft.entries.graphs)
        return Sized(draft.need, "evaluate" in draft.entries.graphs, known)
    align = ALIGN if limit is None else limit.align
    rooms = {} if room_bytes is None else dict.fromkeys(entries.graphs, room_bytes)
    layouts, stored = placed(entries, align, rooms, None if before is None else before.placed)
    state = max(layout.state_bytes for layout in layouts.values())
    arena, evaluates = arena_of({name: layout.arena_bytes for name, layout in layouts.items()}, state)
    need = Need(state, arena, host_overhead(), 0)
    return Sized(need, evaluates, Placed(layouts, stored, entries.graphs), rooms)


def arena_of(by_entry: Mapping[str, int], state_bytes: int) -> tuple[int, bool]:
    """The arena of the program, and whether `evaluate` is among its entries: not if that were dear."""
    dear = _is_dear(by_entry, state_bytes)
    return max(count for name, count in by_entry.items() if not (dear and name == "evaluate")), (
        "evaluate" in by_entry and not dear
    )


def placed(
    entries: Entries, align: int, rooms: Mapping[str, int] | None = None, before: Placed | None = None
) -> tuple[dict[str, Layout], dict[str, Slot]]:
    stored, const_bytes, state_bytes = place.place_state(entries.graphs.values(), align)
    layouts = {
        name: (before and before.layout_of(name, graph, stored))
        or place.place(graph, entries.batch, stored, const_bytes, state_bytes, align, (rooms or {}).get(name))
        for name, graph in entries.graphs.items()
    }
    return layouts, stored


def _raised_by_evaluate(by_entry: Mapping[str, int]) -> int:
    """Bytes by which `evaluate` alone would make the arena larger."""
    sizes = dict(by_entry)
    own = sizes.pop("evaluate", 0)
    return own - max(sizes.values(), default=own)


def _is_dear(by_entry: Mapping[str, int], state_bytes: int) -> bool:
    """Would `evaluate` alone raise RAM by more than 1 %?"""
    return _raised_by_evaluate(by_entry) * 100 > state_bytes + max(by_entry.values())


def _elements(entries: Entries, names: Sequence[str]) -> int:
    return sum(math.prod(entries.shapes[name]) for name in names)


def _frozen_elements(entries: Entries) -> int:
    """Of parameters of which only a slice learns, those beside it."""
    found = 0
    for update in entries.updates:
        if update.axis is not None and update.indices is not None:
            shape = entries.shapes[update.param]
            found += math.prod(shape) // shape[update.axis] * (shape[update.axis] - len(update.indices))
    return found


def _merge_fact(entries: Entries, merge: Merge, stored: Mapping[str, Slot]) -> dict[str, Any]:
    """Where the weight is with which two learned ones are merged, and how to get back to the user's layout."""
    found = _weight_fact(entries, merge.into, stored)
    if found is None:
        raise Internal(f"the program does not have '{merge.into}'", why="a method merges into it")
    return {"into": merge.into, "left": merge.left, "right": merge.right, **found}


def _weight_fact(entries: Entries, name: str, stored: Mapping[str, Slot]) -> dict[str, Any] | None:
    """Where a constant of the user's model is, or how one that learns, all of it or a slice, is laid out; None if the
    program has neither."""
    laid = next((graph.layouts[name] for graph in entries.graphs.values() if name in graph.layouts), ())
    steps = [[kind, list(arg)] for kind, arg in of_whole(laid)]
    found = {"aliases": list(entries.aliases[name]), "shape": list(entries.shapes[name]), "steps": steps}
    if name in entries.learns:
        return found
    int8 = f"{name}{INT8}"
    if int8 in stored:
        return found | {"base": stored[int8].offset, "scales": stored[f"{name}{SCALE}"].offset}
    if name not in stored or stored[name].region != "const":
        return None
    return found | {"base": stored[name].offset}


def _frozen_facts(entries: Entries, stored: Mapping[str, Slot]) -> dict[str, Any]:
    """Parameters and statistics that do not learn → where they are, as they are; None where they went into another
    constant, or are int8: such a program cannot be given other values for them. Empty if all parameters learn."""
    every = {alias for name in entries.shapes for alias in entries.aliases.get(name, ())}
    known = [name for name in entries.shapes if name not in every and name not in entries.added]
    slices = {u.param for u in entries.updates if u.indices is not None}
    state = {name for name, slot in stored.items() if slot.region != "const"}
    merged = {name for graph in entries.graphs.values() for name in graph.merged}
    found = {}
    for name in known:
        if name not in state and name not in entries.learns and name not in slices:
            fact = _weight_fact(entries, name, stored)
            numbers = all(g[name].dtype is DType.F32 for g in entries.graphs.values() if name in g.tensors)
            found[name] = None if fact is None or "scales" in fact or not numbers or name in merged else fact
        elif name in slices and merged & {name, f"{name}{FROZEN}"}:
            found[name] = None
    return found if found.keys() & set(entries.parameters) else {}


def _beside_fact(entries: Entries, beside: Beside, stored: Mapping[str, Slot]) -> dict[str, Any] | None:
    """How a layer goes into the one that it stands beside; None if that is not stored as the user has it."""
    into = _weight_fact(entries, beside.into, stored)
    bias = None if beside.into_bias is None else _weight_fact(entries, beside.into_bias, stored)
    if into is None or bias is None:
        return None
    return {
        "into": {"into": beside.into, **into}, "into_bias": {"into": beside.into_bias, **bias}, "axis": beside.axis,
        "weight": beside.weight, "bias": beside.bias, "moments": beside.moments, "seen": beside.seen,
        "eps": beside.eps,
        "laid": [[kind, list(arg)] for kind, arg in beside.steps],
    }  # fmt: skip


def _state_map(entries: Entries, stored: Mapping[str, Slot]) -> dict[str, Any]:
    """State tensor → where it is, what it is, and how to get back to the user's layout."""
    facts: dict[str, Any] = {}
    slices = {u.param: [u.axis, list(u.indices)] for u in entries.updates if u.indices is not None}
    for graph in entries.graphs.values():
        for tensor in graph.tensors.values():
            slot = stored.get(tensor.name)
            if slot is None or slot.region == "const" or tensor.name in facts:
                continue
            fact: dict[str, Any] = {
                "role": tensor.role.value, "dtype": tensor.dtype.value, "offset": slot.offset,
                "stored": list(tensor.shape),
            }  # fmt: skip
            if tensor.paged:
                fact["region"] = "page"
            if tensor.role in (Role.PARAM, Role.STAT):
                fact["shape"] = list(entries.shapes[tensor.name])
                fact["aliases"] = list(entries.aliases[tensor.name])
                fact["steps"] = [[kind, list(arg)] for kind, arg in graph.layouts.get(tensor.name, ())]
                if tensor.name in slices:
                    fact["part"] = slices[tensor.name]
                rest = f"{tensor.name}{FROZEN}"
                if tensor.quant is not None:
                    whole = graph.tensors.get(rest, tensor).quant
                    fact["map"] = packed_map(whole or tensor.quant)
                for key, kept in (("rest", rest), ("rest", f"{rest}{INT8}"), ("rest_scale", f"{rest}{SCALE}")):
                    if kept in stored:
                        fact[key] = stored[kept].offset
            if tensor.role is Role.OPTIM:
                fact["owner"], fact["slot"] = tensor.name.rsplit(":", 1)
            facts[tensor.name] = fact
    return facts
