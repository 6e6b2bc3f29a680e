"""What each technique of lowering saves, by lowering without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...ir import Graph
from ...program.plan import Decision
from ...terminal import bytes_text
from ..graph.alias import loop_range
from ..graph.rows import streams
from ..place import arena
from .cost import Prices, spent
from .row_cost import counts_of
from .streams import unstreamed

HARDLY: Final = 0.005  # of a step's time

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


def stream_decision(
    graphs: Mapping[str, Graph], batch: int, step_samples: int, prices: Prices
) -> tuple[Decision, ...]:  # fmt: skip
    """What streams save: the largest entry without them, minus the largest. And what a step takes longer."""
    told = next(
        (text for name in sorted(graphs, key=lambda n: n != "train") if (text := _streams_text(graphs[name]))), ""
    )
    if not told:
        return ()
    with_, without = (max(arena.lower_bound(some(g), batch) for g in graphs.values()) for some in (_as_is, unstreamed))
    step = graphs.get("grad" if step_samples > batch and "grad" in graphs else "train")
    adds_s = 0.0 if step is None else step_samples * counts_of(step).total(prices.rows)
    share = adds_s / spent(unstreamed(step), step_samples, prices).seconds if step is not None and adds_s else 0.0
    if abs(share) < HARDLY:
        adds_s = share = 0.0
    short = f"streams {told}: {bytes_text(without - with_)} less, {f'{share:+.1%} time' if share else 'no time'}"
    why = f"{short}; row by row, no map of it exists as a whole"
    return (Decision("stream", why, without - with_, adds_s, short),)


def _as_is(graph: Graph) -> Graph:
    return graph


def _streams_text(graph: Graph) -> str:
    """From which layer to which."""
    body = loop_range(graph)
    names: list[str] = []
    for stream in streams(graph, graph.nodes[body.start - 1]) if body else ():
        inside = graph.nodes[body.start + stream.first : body.start + stream.first + stream.nodes]
        names += [node.src for node in inside if node.src]
    return f"{names[0]} to {names[-1]}" if names else ""


__all__ = ["savings", "stream_decision"]
