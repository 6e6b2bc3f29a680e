"""A graph that fits: the plain order if it does, else with values computed again or paged, as cheaply as is found."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from ..effort import Effort
from ..ir import Graph
from ..passes.recompute import recompute
from ..plan import Decision
from ..terminal import bytes_text
from .cost import HOST, ROUGH, Prices
from .greedy import fit, thinned
from .least import least_peak
from .problem import PageIn, Problem, Schedule, doings, problem_of, profile
from .varied import lower

LARGE = 400  # steps: with more, no method but the first is tried unless there is time for it
LEAST_EFFORT_S = 0.1  # of searching, when the time for it is over: the fast methods remain


@dataclass(frozen=True, slots=True)
class Aim:
    """What is to be small, and how hard to try. `effort_s`: of search for the optimum; 0: the first schedule that
    fits. `deadline_s`: a step must not take longer."""

    objective: str = "time"  # or energy
    deadline_s: float | None = None
    effort_s: float = 0.0
    page: bool = False
    prices: Prices = HOST
    threads: int = 0  # of kernels that are faster in parts, though the whole fits; 0: they are not
    at_once: bool = False  # never in parts
    patience: Effort | None = None  # once it is spent and nothing fits, nothing more is tried; None: without end
    fills: bool = False  # what fits as it is computes less again where there is room for that

    @property
    def left_s(self) -> float:
        """Seconds of patience."""
        return math.inf if self.patience is None else self.patience.left_s


def within(
    graph: Graph, batch: int, arena_bytes: int, align: int, aim: Aim, thin: bool = False
) -> tuple[Graph, list[Decision], float]:
    """The graph rewritten so that its live bytes stay within `arena_bytes`; if that cannot be, the lowest that was
    found, `thin` if it matters what that costs. The decisions say what it took, and by how much the peak fell. And a
    bound: no schedule within these bytes costs less extra."""
    problem = problem_of(graph, batch, aim.prices, align)
    schedule, least = _schedule(problem, arena_bytes, aim)
    may_be = least_peak(problem, page=aim.page) <= arena_bytes
    if may_be and aim.left_s and profile(problem, schedule).peak_bytes > arena_bytes:
        # Where the best bargains lead nowhere, those by other prices may lead elsewhere.
        other = fit(problem_of(graph, batch, ROUGH, align), arena_bytes, page=aim.page)[0]
        schedule = min(schedule, other, key=lambda s: profile(problem, s).peak_bytes)
    if thin:
        schedule = thinned(problem, schedule, profile(problem, schedule).peak_bytes, aim.objective)[0]
    return *applied(graph, problem, schedule, aim), least


def applied(graph: Graph, problem: Problem, schedule: Schedule, aim: Aim) -> tuple[Graph, list[Decision]]:
    """The graph rewritten as the schedule says, and what to say of it."""
    plain = profile(problem, problem.plain())
    after = profile(problem, schedule)
    saved = plain.peak_bytes - after.peak_bytes
    kind = "seconds" if aim.objective == "time" else "joules"
    base, total = getattr(plain, kind), getattr(after, kind)
    price = f"about {(total / base - 1) * 100:.0f} % more {'time' if aim.objective == 'time' else 'energy'}"
    again = len({k for k in schedule if isinstance(k, int) and schedule.count(k) > 1})
    paged = {k.value for k in schedule if isinstance(k, PageIn)}
    decisions = []
    if again:
        what = "1 result is" if again == 1 else f"{again} results are"
        why = f"{what} computed again instead of kept ({price})"
        decisions.append(Decision("recompute", why, saved, after.seconds - plain.seconds))
    if paged:
        bytes_out = bytes_text(sum(problem.bytes[v] for v in paged))
        what = "1 tensor goes" if len(paged) == 1 else f"{len(paged)} tensors go"
        why = f"{what} outside RAM and back, {bytes_out} a step"
        why += "" if again else f" ({price})"
        decisions.append(Decision("page", why, 0 if again else saved, 0.0 if again else after.seconds - plain.seconds))
    return recompute(graph, doings(graph, problem, schedule)), decisions


def _schedule(problem: Problem, arena_bytes: int, aim: Aim) -> tuple[Schedule, float]:
    """The schedule, and a bound on what anything that fits must cost more than the plain one, as far as it was looked
    for."""
    if least_peak(problem, page=aim.page) > arena_bytes:  # it cannot be: no reason to spend time on it
        return min(
            (fit(problem, 0, hasty=True, page=page)[0] for page in {False, aim.page}),
            key=lambda s: profile(problem, s).peak_bytes,
        ), 0.0
    if not aim.effort_s and aim.objective == "time":
        made, one = fit(problem, arena_bytes, page=aim.page)
        if one.peak_bytes > arena_bytes:
            tries = itertools.takewhile(lambda _: aim.left_s, lower(problem, arena_bytes, page=aim.page))
            made = next(filter(None, tries), made)
            one = profile(problem, made)
        late = aim.deadline_s is not None and one.seconds > aim.deadline_s
        if not late or len(problem.steps) > LARGE:
            return made, 0.0
    from .solve import smallest, solve  # needs ortools, which nobody needs who does not compile

    found = solve(
        problem, arena_bytes, objective=aim.objective, deadline_s=aim.deadline_s, page=aim.page,
        effort_s=min(aim.effort_s, max(aim.left_s, LEAST_EFFORT_S)),
    )  # fmt: skip
    if found is not None:
        return found.schedule, found.bound
    made, one = fit(problem, arena_bytes, page=aim.page, objective=aim.objective)
    if aim.deadline_s is not None and one.peak_bytes <= arena_bytes:  # it fits, but not in time
        return made, 0.0
    return smallest(problem, page=aim.page, effort_s=min(aim.effort_s / 2, 5.0, aim.left_s / 2))[0], 0.0
