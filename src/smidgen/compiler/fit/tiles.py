"""Steps whose inner gradients exist for some channels at a time (passes/tiles.py): another way to fit, on top of which
results are recomputed and paged. Nothing is computed twice for it, but layers are called once for each tile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...ir import Graph
from ...program.plan import Decision
from ..entries import Entries
from ..passes.tiles import Chain, chains, in_tiles
from ..planner.goal import Goal
from ..planner.problem import problem_of, profile
from .candidate import counts_in, is_large
from .learning_rows import is_streamed, remade

MOST: Final = 4  # tiles of a chain
LEAST: Final = 1024  # bytes of a map: less is never worth it
LEVELS: Final = 3  # sets of chains that are tried, from the largest maps on
NAMED: Final = 3  # blocks in a decision


def may_tile(entries: Entries) -> bool:
    return not is_tiled(entries) and not is_streamed(entries)


def is_tiled(entries: Entries) -> bool:
    return any(decision.kind == "tile" for decision in entries.decisions)


def tiled_each(entries: Entries, goal: Goal) -> Iterator[Entries]:
    """The step with more and more of it in tiles: first where the largest maps are."""
    if not may_tile(entries):
        return
    found = {name: [c for c in chains(graph) if c.bytes >= LEAST] for name, graph in entries.plain.items()}
    counted = found[counts_in(entries)]
    sizes = sorted({chain.bytes for chain in counted}, reverse=True)
    picked = sorted({0, len(sizes) // 2, len(sizes) - 1}) if sizes else []
    for k in picked[-1:] if is_large(entries) else picked[:LEVELS]:
        graphs = {name: _tiled(entries.plain[name], [c for c in some if c.bytes >= sizes[k]])
                  for name, some in found.items()}  # fmt: skip
        wanted = [c for c in counted if c.bytes >= sizes[k]]
        yield remade(entries, graphs, _decision(entries, graphs[counts_in(entries)], wanted, goal), "tiles")


def _tiled(graph: Graph, some: list[Chain]) -> Graph:
    """From the last on, so that positions of the others stay."""
    for chain in reversed(some):
        graph = in_tiles(graph, chain, MOST)
    return graph


def _decision(entries: Entries, graph: Graph, some: list[Chain], goal: Goal) -> Decision:
    old = entries.plain[counts_in(entries)]
    before, after = (problem_of(g, entries.batch, goal.prices) for g in (old, graph))
    saved = profile(before, before.plain()).peak_bytes - profile(after, after.plain()).peak_bytes
    names = list(dict.fromkeys(old.nodes[chain.nodes[-1]].src for chain in some))
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    short = f"gradients behind {', '.join(filter(None, names[:NAMED]))}{rest} in tiles of channels"
    price = f"about {max(after.seconds / before.seconds - 1, 0.0) * 100:.0f} % more time"
    why = f"{short}: no inner map of gradients exists as a whole, the same bits ({price})"
    return Decision("tile", why, max(saved, 0), max(after.seconds - before.seconds, 0.0), short)


__all__ = ["is_tiled", "may_tile", "tiled_each"]
