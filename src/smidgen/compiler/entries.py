"""All entry points of a program as graphs, and what is done to all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..ir import Graph
from ..methods import Beside, Merge, Scored, Update
from ..program.plan import Decision
from .graph.check import check
from .passes.narrow import narrow
from .passes.spare_classes import Head
from .place.arena import lower_bound
from .planner.savings import stream_decision
from .planner.streams import eased, streamed, unstreamed

if TYPE_CHECKING:
    from ..runtime.replay import Shape
    from .options import Replay, Streaming


@dataclass(frozen=True, slots=True)
class Entries:
    """All entry points as graphs, before they are placed."""

    graphs: Mapping[str, Graph]
    batch: int
    method: str
    learns: tuple[str, ...]
    aliases: Mapping[str, tuple[str, ...]]
    shapes: Mapping[str, tuple[int, ...]]  # of parameters and statistics in the user's layout
    decisions: tuple[Decision, ...]
    parameters: tuple[str, ...] = ()  # of the user's model, learning or not
    optimizer: str = ""  # for people
    head: Head | None = None  # with spare classes
    class_names: tuple[str, ...] = ()
    plain: Mapping[str, Graph] = field(default_factory=dict)  # entries without rematerialisation
    forward: Mapping[str, Graph] = field(default_factory=dict)  # entries that do not learn, before they were lowered
    const: str = "f32"
    step_samples: int = 0  # of a step in micro-batches; 0: up to `batch`, at once
    updates: tuple[Update, ...] = ()  # of what learns: which part of it
    merges: tuple[Merge | Beside, ...] = ()
    replay: tuple[Replay, Shape] | None = None
    changed: Mapping[str, Graph] = field(default_factory=dict)  # the network as a method left it, if it changed it
    stream: Streaming | None = None  # as in Options
    scored: tuple[Scored, ...] = ()  # layers whose channels the program scores
    added: tuple[str, ...] = ()  # parameters and statistics of methods, which the user's model does not have
    explain: Callable[[], tuple[Decision, ...]] = field(default=tuple, compare=False)  # what lowering decided anyway

    @property
    def all_decisions(self) -> tuple[Decision, ...]:
        """Those of lowering too. They are made by lowering again without each technique, which takes a while."""
        return (*self.explain(), *stream_decision(self.graphs, self.batch), *self.decisions)


def narrowed(entries: Entries, wanted: bool = True) -> Entries:
    """With constants in int8 where that loses nothing."""
    graphs, saved = narrow({n: unstreamed(g) for n, g in entries.graphs.items()}) if wanted else ({}, 0)
    if not saved:
        return entries
    why = f"constants are int8 with scales: {saved:,} bytes of flash less, the same bits"
    found = by_rows(replace(entries, graphs=checked(graphs, "narrow"), const="int8"), entries.stream)
    return decided(found, Decision("int8", why, 0))


def by_rows(entries: Entries, stream: Streaming | None) -> Entries:
    """What does not learn row by row, where that takes less memory."""
    if stream is None:
        return entries
    kernels, whole, least = stream.kernels, stream.whole_inputs, stream.least

    def done(graphs: Mapping[str, Graph], wanted: Collection[str]) -> dict[str, Graph]:
        some = {n: streamed(g, entries.batch, kernels, whole, least) if n in wanted else g for n, g in graphs.items()}
        return checked(some, "stream")

    graphs = done(entries.graphs, entries.graphs)
    wanted = {name for name, graph in graphs.items() if graph is not entries.graphs[name]}
    if not least and wanted:  # no entry has to be smaller than another one is anyway
        floor = max(lower_bound(graph, entries.batch) for graph in graphs.values())
        wanted = {name for name in wanted if lower_bound(entries.graphs[name], entries.batch) > floor}
        graphs = done(entries.graphs, wanted)
    both = {*wanted, *entries.plain} if least else wanted
    return replace(entries, graphs=graphs, plain=done(entries.plain, both), stream=stream)


def without_streams(entries: Entries) -> Entries:
    """The same entries if they have none."""
    graphs, plain = ({n: unstreamed(g) for n, g in some.items()} for some in (entries.graphs, entries.plain))
    if all(graphs[name] is graph for name, graph in entries.graphs.items()):
        return entries
    return replace(entries, graphs=graphs, plain=plain, stream=None)


def with_fewer_streams(entries: Entries, arena_bytes: int, align: int) -> Entries:
    """Only where that is not enough without them, and no finer."""
    whole, batch = entries.stream is not None and entries.stream.whole_inputs, entries.batch
    graphs = {name: eased(graph, batch, arena_bytes, align, whole) for name, graph in entries.graphs.items()}
    return replace(entries, graphs=checked(graphs, "stream"))


def checked(graphs: Mapping[str, Graph], after: str) -> dict[str, Graph]:
    for graph in graphs.values():
        check(graph, after)
    return dict(graphs)


def decided(entries: Entries, decision: Decision) -> Entries:
    return replace(entries, decisions=(*entries.decisions, decision))
