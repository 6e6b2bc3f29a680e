"""The verifier refuses every planted fault in memory, and accepts what the planner makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import smidgen
from smidgen import ops
from smidgen.compiler import verify
from smidgen.compiler.entries import Entries
from smidgen.compiler.graph.text import parse
from smidgen.compiler.place import arena as place
from smidgen.compiler.place.layout import Slot
from smidgen.errors import SmidgenError, UnsafeLayout
from smidgen.runtime import library
from tests.support import small
from tests.support.layouts import planned, prove


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


def alive_together(entries: Entries, a: str, b: str) -> bool:
    """By definition, not by the planner: some node runs while both are made and still to be read."""
    nodes = entries.graphs["train"].nodes

    def life(name: str) -> set[int]:
        touched = [i for i, node in enumerate(nodes) if name in node.ins or name in node.outs]
        return set(range(touched[0], touched[-1] + 1))

    return len(life(a) & life(b)) > 1


def test_every_pair_of_tensors_alive_together_is_protected() -> None:
    """Move each arena tensor onto each other one: the verifier objects whenever both are needed at the same time."""
    entries = small.entries()
    layouts = planned(entries)
    layout, graph = layouts["train"], entries.graphs["train"]
    views = {t for node in graph.nodes if ops.get(node.op).is_view for t in (*node.ins, *node.outs)}
    arena = [t for t in layout.slots if layout.slots[t].region == "arena" and t not in views]
    room = {**layouts, "train": replace(layout, arena_bytes=2 * layout.arena_bytes)}
    pairs = [(a, b) for a in arena for b in arena if a != b and alive_together(entries, a, b)]
    assert len(pairs) > 100
    for moved, onto in pairs:
        a, b = layout.slots[moved], layout.slots[onto]
        bad = {**layout.slots, moved: Slot("arena", b.offset, a.bytes, a.stride)}
        with pytest.raises(UnsafeLayout):
            prove(entries, {**room, "train": replace(room["train"], slots=bad)})


@pytest.mark.parametrize("region", ["const", "state", "accumulators"])
def test_tensors_that_outlive_an_entry_may_not_share_bytes(region: str) -> None:
    entries = small.entries(("w3", "b3"), accumulate=True)
    layouts = planned(entries)
    one, other = {"const": ("w1", "w2"), "state": ("w3", "b3"), "accumulators": ("w3:acc", "b3:acc")}[region]
    bad = {}
    for name, layout in layouts.items():
        slots = dict(layout.slots)
        if one in slots and other in slots:
            slots[one] = replace(slots[one], offset=slots[other].offset)
        bad[name] = replace(layout, slots=slots)
    with pytest.raises(SmidgenError):
        prove(entries, bad)


def test_an_accumulator_is_at_one_place_in_all_entries() -> None:
    entries = small.entries(accumulate=True)
    layouts = planned(entries)
    slots = dict(layouts["apply"].slots)
    slots["b1:acc"], slots["b2:acc"] = slots["b2:acc"], slots["b1:acc"]
    with pytest.raises(UnsafeLayout, match="another place in 'apply'"):
        prove(entries, {**layouts, "apply": replace(layouts["apply"], slots=slots)})


def test_a_slot_freed_one_step_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = place._lifetimes

    def early(families: place.Families) -> tuple[dict[str, int], dict[str, int]]:
        birth, death = honest(families)
        return birth, {name: max(birth[name], end - 1) for name, end in death.items()}

    monkeypatch.setattr(place, "_lifetimes", early)
    entries = small.entries()
    with pytest.raises(UnsafeLayout):
        prove(entries, planned(entries))


@pytest.mark.parametrize("index", [(0, 2, 3), (0, 1, 4)])
def test_a_part_is_taken_in_place_only_if_its_list_ascends(index: tuple[int, ...]) -> None:
    """It spares a copy: the rest of the tensor is written over from the front."""
    text = """
        input x: f32[n,5]
        const i: i32[3]
        x.fed: f32[n,5] = feed(x) perm=(0, 1)
        h: f32[n,5] = exp(x.fed)
        p: f32[n,3] = take(h, i) axis=1
        q: f32[n,3] = exp(p)
        output y: f32[n,3] = fetch(q) perm=(0, 1)
    """
    graph = parse(text)
    graph = graph.with_(data={"i": np.array(index, np.int32)})
    layout = place.place(graph, 64, *place.place_state([graph]))
    assert layout.slots["p"].offset == layout.slots["h"].offset
    turned = graph.with_(data={"i": np.array(index[::-1], np.int32)})
    apart = place.place(turned, 64, *place.place_state([turned]))
    assert apart.slots["p"].offset != apart.slots["h"].offset
    entries = replace(small.entries(), graphs={"infer": turned})
    with pytest.raises(UnsafeLayout, match="overlap"):
        prove(entries, {"infer": layout})


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


def test_the_shadow_memory_carries_what_an_array_of_bytes_would() -> None:
    rng = np.random.default_rng(0)
    shadow, plain = verify._Shadow(), np.zeros(40, int)
    for value in range(1, 2000):
        start, end = sorted(rng.integers(0, 41, 2).tolist())
        shadow.write(start, end - start, value)
        plain[start:end] = value
        start, end = sorted(rng.integers(0, 41, 2).tolist())
        assert list(dict.fromkeys(shadow.read(start, end - start))) == list(dict.fromkeys(plain[start:end].tolist()))
    assert len(shadow._starts) <= len(plain) + 1


def test_a_deeper_network_of_the_same_layers_asks_kernels_no_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    real, asked = library.kernel_needs, []
    monkeypatch.setattr(library, "kernel_needs", lambda *given: (asked.append(given), real(*given))[1])
    counts = []
    for depth in (10, 40):
        asked.clear()
        layers = [layer for _ in range(depth) for layer in (torch.nn.Linear(4, 4), torch.nn.ReLU())]
        smidgen.compile(torch.nn.Sequential(*layers), torch.zeros(2, 4))
        counts.append(len(asked))
    assert counts[0] == counts[1] > 0
