"""State whose home is in PAGE: the optimizer's tensors, which a step touches once, and parameters that it touches in
few places. Every entry fetches what it reads, and returns what it changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final

from ...devices.room import Limit, fits
from ...ir import Role, Tensor
from ...program.plan import Decision
from ...terminal import bytes_text
from ..entries import Entries, checked
from ..passes.page import page_state, times_read
from ..passes.train_graph import lowered
from ..planner.goal import QUICK, Goal, Search
from .candidate import Candidate, counts_in, step_spent
from .squeeze import squeezed

APART: Final = 8  # nodes between two readers, after which a parameter leaves RAM and is fetched again
SELDOM: Final = 2  # times that a step may fetch a tensor


def movable(entries: Entries) -> list[Tensor]:
    """State that could live in pages, what is fetched least often first. Larger tensors come last: fetching one needs
    an arena slot of its size."""
    made = {out for graph in entries.graphs.values() for node in graph.nodes for out in node.outs}
    roles = (Role.OPTIM, Role.PARAM) if entries.const == "f32" else (Role.OPTIM,)
    state = {t.name: t for graph in entries.graphs.values() for t in graph.of_role(*roles)}
    steps = [entries.plain[counts_in(entries)], *([entries.graphs["apply"]] if entries.step_samples else [])]
    reads = [times_read(graph, [name for name in state if name in graph.tensors], APART) for graph in steps]
    often = {name: max((one.get(name, 0) for one in reads), default=0) for name in state if name not in made}
    seldom = [name for name, times in often.items() if times <= SELDOM]
    return [state[name] for name in sorted(seldom, key=lambda name: (often[name], state[name].bytes(1), name))]


def paged_state(limit: Limit, least: Candidate, goal: Goal, search: Search = QUICK) -> list[Candidate]:
    """With so much of the state in pages that it should fit, and with what should take the least RAM; the optimizer's
    alone, and parameters too."""
    found: list[Candidate] = []
    for some in with_paged_state(limit, least, goal):
        found += [squeezed(limit, entries, goal, search) for entries in some]
        if any(one.fits(limit) for one in found):
            break
    return found


def with_paged_state(limit: Limit, least: Candidate, goal: Goal) -> Iterator[list[Entries]]:
    """The same before anything else is done to fit: first with tensors of the optimizer alone."""
    entries, need = least.given, least.need
    tensors = movable(entries)
    optimizers = [t for t in tensors if t.role is Role.OPTIM]
    for some in [optimizers, tensors] if 0 < len(optimizers) < len(tensors) else [tensors]:
        outside = list(accumulate(t.bytes(1) for t in some))
        guesses = [
            replace(need, state_bytes=need.state_bytes - count, arena_bytes=max(need.arena_bytes, tensor.bytes(1)))
            for tensor, count in zip(some, outside, strict=True)
        ]
        enough = [k for k, guess in enumerate(guesses) if fits(limit, guess)]
        smallest = min(range(len(some)), key=lambda k: guesses[k].ram_bytes, default=None)
        chosen = sorted({*enough[:1], *([] if smallest is None else [smallest])})
        yield [_paged(entries, some[: k + 1], outside[k], goal) for k in chosen]


def _paged(entries: Entries, tensors: Sequence[Tensor], count: int, goal: Goal) -> Entries:
    names = [t.name for t in tensors]
    if any(t.role is Role.PARAM for t in tensors):  # a loop over samples would keep all that it reads in RAM
        whole = {name: lowered(graph, loop=False) for name, graph in entries.forward.items()}
        entries = replace(entries, graphs={**entries.graphs, **whole})
    graphs = checked(page_state(entries.graphs, names, ahead=0, apart=APART), "page")
    paged = replace(entries, graphs=graphs, plain=page_state(entries.plain, names, ahead=0, apart=APART))
    what = "state" if any(t.role is Role.PARAM for t in tensors) else "the optimizer's state"
    short = f"keeps {bytes_text(count)} of {what} in pages"
    adds_s = step_spent(paged, goal).seconds - step_spent(entries, goal).seconds
    decision = Decision("page_state", f"{short}: each step fetches and returns them", count, adds_s, short)
    return replace(paged, decisions=(*paged.decisions, decision))


def has_paged_state(entries: Entries) -> bool:
    return any(d.kind == "page_state" for d in entries.decisions)


__all__ = ["has_paged_state", "movable", "paged_state", "with_paged_state"]
