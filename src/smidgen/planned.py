"""place → encode → verify: from the graphs of all entry points to a program, with its plan and parameter map inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import limits, place, verify
from .device import Device
from .effort import meter
from .encode import encode as encode_program
from .ir import Graph, Role
from .layout import Layout, Slot
from .lower import Entries, decided
from .native import Work
from .plan import Cost, Decision, Plan, Traffic
from .program import Program, checked_meta
from .timeline import facts_of, traffic
from .training_facts import run_facts


def encode(
    entries: Entries, device: Device | None = None, proven: bool = True, rooms: Mapping[str, int] | None = None
) -> Program:
    """place → encode → verify: the program, with its plan and parameter map inside. `rooms`: entry → an arena that is
    small enough for it."""
    layouts, stored = placed(entries, place.ALIGN if device is None else device.align, rooms)
    arenas = {name: layout.arena_bytes for name, layout in layouts.items()}
    raised = _raised_by_evaluate(arenas)
    if _is_dear(arenas, max(layout.state_bytes for layout in layouts.values())):
        rest = {name: graph for name, graph in entries.graphs.items() if name != "evaluate"}
        without = decided(replace(entries, graphs=rest), "no evaluate", "job.evaluate gives no loss", raised)
        return encode(without, device, proven, rooms)
    if raised > 0:
        entries = decided(entries, "evaluate", f"job.evaluate gives the loss, for {raised} bytes more", 0)
    planned = {name: (graph, layouts[name]) for name, graph in entries.graphs.items()}
    bare = encode_program(planned, entries.batch, {})
    need = limits.Need(bare.state_bytes, bare.arena_bytes, limits.device_overhead(device, bare), bare.flash_bytes)
    plan = _plan(entries, layouts, device, need)
    meta = {"plan": plan.to_json(), "state": _state_map(entries, stored), **run_facts(entries.graphs)}
    if entries.head is not None:
        meta["classes"] = entries.head.to_json(entries.class_names)
    done = replace(bare, meta=checked_meta(meta))
    if proven:
        verify.verify(done, entries.graphs, layouts)
    return done


def outlined(entries: Entries, device: Device, sized: Sized) -> Plan:
    """The plan of a program that is not made, since it would not fit."""
    if not sized.layouts:
        return Plan.from_json(encode(entries, device, proven=False).meta["plan"])
    layouts = dict(sized.layouts)
    if not sized.evaluates:
        layouts.pop("evaluate", None)
        entries = replace(entries, graphs={name: entries.graphs[name] for name in layouts})
    return _plan(entries, layouts, device, sized.need)


def _plan(entries: Entries, layouts: Mapping[str, Layout], device: Device | None, need: limits.Need) -> Plan:
    facts = facts_of(entries.graphs, layouts, entries.batch)
    named = None if device is None or device.name == limits.BUDGET else device
    page_bytes = max(layout.page_bytes for layout in layouts.values())
    return Plan(
        state_bytes=need.state_bytes,
        arena_bytes=need.arena_bytes,
        context_bytes=need.overhead.context_bytes,
        stack_bytes=need.overhead.stack_bytes,
        flash_bytes=need.flash_bytes,
        lower_bound_bytes=max(layout.lower_bound_bytes for layout in layouts.values()),
        arena_by_entry={name: layout.arena_bytes for name, layout in layouts.items()},
        cost=Cost({name: sum(m.macs for m in t.moments) for name, t in facts.entries.items()}),
        decisions=(*entries.decisions, *_stopped()),
        method=entries.method,
        learns=entries.learns,
        batch=entries.batch,
        step_samples=entries.step_samples or entries.batch,
        model_tensors=len(entries.parameters),
        model_parameters=_elements(entries, entries.parameters),
        learned_parameters=_elements(entries, entries.learns),
        optimizer=entries.optimizer,
        facts=facts,
        device="" if named is None else named.name,
        banks={} if named is None else limits.assigned(named, need) or {},
        slot_bytes=0 if named is None else named.slot_bytes,
        page_bytes=page_bytes,
        page_state_bytes=max(layout.page_state_bytes for layout in layouts.values()),
        paged={n: Traffic(*traffic(g, entries.batch)) for n, g in entries.graphs.items()} if page_bytes else {},
    )


def _stopped() -> tuple[Decision, ...]:
    """A plan that the clock cut short says so."""
    if not meter().stopped:
        return ()
    why = "planning was stopped by the clock: on a faster or idle machine the plan may be another one"
    return (Decision("stopped", why, 0),)


def with_limits(program: Program, limits: Mapping[str, int], work: Work) -> Program:
    """The program, whose plan says which limits it keeps with these kernels and threads, so that `load` keeps them."""
    if not limits:
        return program
    plan = {**program.meta["plan"], "limits": limits, "kernels": work.kernels, "threads": work.threads}
    return replace(program, meta=checked_meta({**program.meta, "plan": plan}))


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
    need: limits.Need
    evaluates: bool  # with the loss
    placed: Placed = field(default_factory=lambda: Placed({}, {}, {}))  # unless a program was made for it
    rooms: Mapping[str, int] = field(default_factory=dict)  # entry → the room that it was placed for

    @property
    def layouts(self) -> Mapping[str, Layout]:
        return self.placed.layouts


def sized(entries: Entries, device: Device | None, room_bytes: int | None = None, before: Sized | None = None) -> Sized:
    """What the program will take, as `encode` would find. Where neither flash nor the runtime's own memory depend on
    it, the program is not made for that: its state may be large. Graphs that were placed `before`, within as much room,
    are not placed again."""
    if device is not None and (device.is_bare or device.flash_bytes):
        made = encode(entries, device, proven=False)
        return Sized(limits.need_of(device, made), "evaluate" in made.entries)
    align = place.ALIGN if device is None else device.align
    rooms = {} if room_bytes is None else dict.fromkeys(entries.graphs, room_bytes)
    layouts, stored = placed(entries, align, rooms, None if before is None else before.placed)
    state = max(layout.state_bytes for layout in layouts.values())
    arena, evaluates = arena_of({name: layout.arena_bytes for name, layout in layouts.items()}, state)
    need = limits.Need(state, arena, limits.host_overhead(), 0)
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


def _state_map(entries: Entries, stored: Mapping[str, Slot]) -> dict[str, Any]:
    """State tensor → where it is, what it is, and how to get back to the user's layout."""
    facts: dict[str, Any] = {}
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
            if tensor.role is Role.OPTIM:
                fact["owner"], fact["slot"] = tensor.name.rsplit(":", 1)
            facts[tensor.name] = fact
    return facts
