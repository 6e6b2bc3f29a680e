"""The verifier refuses every planted fault in memory, and accepts what the planner makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from smidgen import api, place, program, verify
from smidgen.errors import SmidgenError, UnsafeLayout
from smidgen.ir import Role
from smidgen.layout import Layout, Slot

from . import small


def planned(entries: api.Entries) -> dict[str, Layout]:
    stored, const_bytes, state_bytes = place.place_state(entries.graphs.values())
    return {
        name: place.place(graph, entries.batch, stored, const_bytes, state_bytes)
        for name, graph in entries.graphs.items()
    }


def prove(entries: api.Entries, layouts: Mapping[str, Layout]) -> None:
    made = program.encode({n: (g, layouts[n]) for n, g in entries.graphs.items()}, entries.batch, {})
    verify.verify(made, entries.graphs, layouts)


@pytest.mark.parametrize("learn", [small.ALL, ("w3", "b3"), ("b1", "b2", "b3")], ids="-".join)
def test_plans_are_accepted(learn: tuple[str, ...]) -> None:
    entries = small.entries(learn, accumulate=True, dropout=0.1)
    prove(entries, planned(entries))


def test_an_arena_one_alignment_unit_smaller_is_refused() -> None:
    entries = small.entries()
    layouts = planned(entries)
    top = max(layout.arena_bytes for layout in layouts.values())
    shrunk = {n: replace(v, arena_bytes=min(v.arena_bytes, top - v.align)) for n, v in layouts.items()}
    with pytest.raises(SmidgenError):
        prove(entries, shrunk)


def test_every_pair_of_tensors_alive_together_is_protected() -> None:
    """Move each arena tensor onto each other one: whenever the planner keeps them apart, the verifier must object
    or the two must really never be alive together."""
    entries = small.entries()
    layouts = planned(entries)
    layout = layouts["train"]
    graph = entries.graphs["train"]
    arena = [t for t in layout.slots if layout.slots[t].region == "arena" and graph[t].role is Role.VALUE]
    refused = 0
    for moved in arena[:40]:
        for onto in arena[:40]:
            a, b = layout.slots[moved], layout.slots[onto]
            if a.offset == b.offset:
                continue
            bad = {**layout.slots, moved: Slot("arena", b.offset, a.bytes, a.stride)}
            if b.offset + a.bytes > layout.arena_bytes:
                continue
            try:
                prove(entries, {**layouts, "train": replace(layout, slots=bad)})
            except UnsafeLayout:
                refused += 1
    assert refused > 100


def test_a_slot_freed_one_step_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = place._lifetimes

    def early(families: place.Families) -> tuple[dict[str, int], dict[str, int]]:
        birth, death = honest(families)
        return birth, {name: max(birth[name], end - 1) for name, end in death.items()}

    monkeypatch.setattr(place, "_lifetimes", early)
    entries = small.entries()
    with pytest.raises(UnsafeLayout):
        prove(entries, planned(entries))


def test_an_update_before_a_late_reader_is_refused() -> None:
    entries = small.entries()
    graph = entries.graphs["train"]
    nodes = list(graph.nodes)
    update = next(i for i, n in enumerate(nodes) if n.op == "conv2d_dw_momentum" and "w2" in n.ins)
    reader = max(i for i, n in enumerate(nodes[:update]) if "w2" in n.ins)
    nodes.insert(reader, nodes.pop(update))
    wrong = graph.with_(nodes=tuple(nodes))
    bad = replace(entries, graphs={**entries.graphs, "train": wrong})
    with pytest.raises(UnsafeLayout, match="w2"):
        prove(bad, planned(bad))
