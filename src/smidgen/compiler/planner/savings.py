"""What each technique of lowering saves, by lowering without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...ir import Graph
from ...program.plan import Decision
from ..place import arena

WHY: Final = {
    "fuse": "weight gradients go into the optimizer tile by tile",
    "bits": "thresholds keep one bit an element for the backward pass",
    "loop": "what does not learn runs sample by sample",
}


def savings(
    graphs: Mapping[str, Graph], without: Mapping[str, Callable[[], Graph]], batch: int
) -> tuple[Decision, ...]:
    """Of the `train` entry in the end: the largest entry without a technique, minus the largest."""
    bounds = {name: arena.lower_bound(graph, batch) for name, graph in graphs.items()}
    tried = []
    for what, made in without.items():
        most = max({**bounds, "train": arena.lower_bound(made(), batch)}.values())
        tried.append(Decision(what, WHY[what], most - max(bounds.values())))
    return tuple(d for d in tried if d.saves_bytes > 0)


__all__ = ["savings"]
