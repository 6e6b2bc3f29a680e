"""A graph that fits: the plain order if it does, else with values computed again."""

from __future__ import annotations

from ..ir import Graph
from ..passes.recompute import recompute
from ..plan import Decision
from .cost import HOST, Prices
from .greedy import fit
from .problem import problem_of, profile, repeats


def within(graph: Graph, batch: int, arena_bytes: int, align: int, prices: Prices = HOST) -> tuple[Graph, Decision]:
    """The graph rewritten so that its live bytes stay within `arena_bytes`; if that cannot be, the lowest that was
    found. The decision says what it took, and by how much the peak fell."""
    problem = problem_of(graph, batch, prices, align)
    plain = profile(problem, problem.plain())
    schedule, after = fit(problem, arena_bytes)
    again = repeats(problem, schedule)
    count = len({k for k, n in enumerate(problem.steps) if schedule.count(k) > 1})
    share = (after.seconds / plain.seconds - 1) * 100
    what = "1 result is" if count == 1 else f"{count} results are"
    why = f"{what} computed again instead of kept (about {share:.0f} % more time)"
    saved = plain.peak_bytes - after.peak_bytes
    return recompute(graph, again), Decision("recompute", why, saved, after.seconds - plain.seconds)
