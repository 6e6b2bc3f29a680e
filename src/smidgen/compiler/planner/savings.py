"""What each technique of lowering saves, by lowering without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...ir import Graph
from ...program.plan import Decision
from ..graph.alias import loop_range
from ..graph.rows import streams
from ..passes.quantize import Report
from ..place import arena
from .streams import unstreamed

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


def precision_decisions(report: Report | None) -> tuple[Decision, ...]:
    """What computes in int8, and what does not."""
    if report is None:
        return ()
    short = f"{len(report.layers)} layers in int8"
    dead = sum(report.layers.values())
    why = f"{short}, calibrated on {report.samples} samples" + (f"; {dead} of their outputs are dead" if dead else "")
    found = [Decision("precision", why, 0, short=short)]
    if report.kept:
        by_reason: dict[str, list[str]] = {}
        for layer, reason in report.kept.items():
            by_reason.setdefault(reason, []).append(layer)
        found += [Decision("f32", f"{', '.join(names)} in f32: {reason}", 0) for reason, names in by_reason.items()]
    if report.backs is not None:
        found.append(Decision("int16", "gradients of values in int8 are int16, with an exponent each", 0))
    if report.backs:
        found.append(Decision("f32", f"{', '.join(report.backs)} read gradients in f32: no form in int16 here", 0))
    if report.floats:
        found.append(Decision("f32", f"{', '.join(report.floats)} in f32: no form in integers here", 0))
    return tuple(found)


def stream_decision(graphs: Mapping[str, Graph], batch: int) -> tuple[Decision, ...]:
    """What streams save: the largest entry without them, minus the largest."""
    told = next(
        (text for name in sorted(graphs, key=lambda n: n != "train") if (text := _streams_text(graphs[name]))), ""
    )
    if not told:
        return ()
    with_, without = (max(arena.lower_bound(some(g), batch) for g in graphs.values()) for some in (_as_is, unstreamed))
    short = f"streams {told}"
    return (Decision("stream", f"{short}, row by row: no map of it exists as a whole", without - with_, short=short),)


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
