"""Layouts of a network's entries, and the verifier's word on them."""

from __future__ import annotations

from collections.abc import Mapping

from smidgen.compiler import verify
from smidgen.compiler.encode import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.place import arena as place
from smidgen.compiler.place.layout import Layout


def planned(entries: Entries) -> dict[str, Layout]:
    stored, const_bytes, state_bytes = place.place_state(entries.graphs.values())
    return {
        name: place.place(graph, entries.batch, stored, const_bytes, state_bytes)
        for name, graph in entries.graphs.items()
    }


def prove(entries: Entries, layouts: Mapping[str, Layout]) -> None:
    made = encode({n: (g, layouts[n]) for n, g in entries.graphs.items()}, entries.batch, {})
    verify.verify(made, entries.graphs, layouts)
