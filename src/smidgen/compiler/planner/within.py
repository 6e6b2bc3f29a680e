"""A graph that fits: the plain order if it does, else with values computed again or paged, as cheaply as is found."""

from __future__ import annotations

import itertools

from ...ir import Graph
from ...program.plan import Decision
from ...terminal import bytes_text
from ..passes.recompute import recompute
from .cost import ROUGH
from .goal import LEAST_S, Goal, Search
from .greedy import fit, thinned
from .least_peak import least_peak
from .problem import PageIn, Problem, Schedule, doings, problem_of, profile
from .varied import lower

LARGE = 400  # steps: with more, no method but the first is tried unless there is effort left for it


def within(
    graph: Graph, batch: int, arena_bytes: int, align: int, goal: Goal, search: Search, thin: bool = False
) -> tuple[Graph, list[Decision], float]:
    """The graph rewritten so that its live bytes stay within `arena_bytes`; if that cannot be, the lowest that was
    found, `thin` if it matters what that costs. The decisions say what it took, and by how much the peak fell. And a
    bound: no schedule within these bytes costs less extra."""
    problem = problem_of(graph, batch, goal.prices, align)
    schedule, least = _schedule(problem, arena_bytes, goal, search)
    may_be = least_peak(problem, page=goal.page) <= arena_bytes
    if may_be and search.left_s and profile(problem, schedule).peak_bytes > arena_bytes:
        # Where the choices with the best ratio lead nowhere, those by other prices may lead elsewhere.
        other = fit(problem_of(graph, batch, ROUGH, align), arena_bytes, page=goal.page)[0]
        schedule = min(schedule, other, key=lambda s: profile(problem, s).peak_bytes)
    if thin:
        schedule = thinned(problem, schedule, profile(problem, schedule).peak_bytes, goal.objective)[0]
    return *applied(graph, problem, schedule, goal), least


def applied(graph: Graph, problem: Problem, schedule: Schedule, goal: Goal) -> tuple[Graph, list[Decision]]:
    """The graph rewritten as the schedule says, and what to say of it."""
    plain = profile(problem, problem.plain())
    after = profile(problem, schedule)
    saved = plain.peak_bytes - after.peak_bytes
    kind = "seconds" if goal.objective == "time" else "joules"
    base, total = getattr(plain, kind), getattr(after, kind)
    price = f"about {(total / base - 1) * 100:.0f} % more {'time' if goal.objective == 'time' else 'energy'}"
    again = len({k for k in schedule if isinstance(k, int) and schedule.count(k) > 1})
    paged = {k.value for k in schedule if isinstance(k, PageIn)}
    decisions = []
    if again:
        short = (
            f"recomputes {again} result{'' if again == 1 else 's'} instead of keeping {'it' if again == 1 else 'them'}"
        )
        decisions.append(Decision("recompute", f"{short} ({price})", saved, after.seconds - plain.seconds, short))
    if paged:
        bytes_out = bytes_text(sum(problem.bytes[v] for v in paged))
        short = f"pages {len(paged)} tensor{'' if len(paged) == 1 else 's'} out and back, {bytes_out} a step"
        why = short if again else f"{short} ({price})"
        saves, adds_s = (0, 0.0) if again else (saved, after.seconds - plain.seconds)
        decisions.append(Decision("page", why, saves, adds_s, short))
    return recompute(graph, doings(graph, problem, schedule)), decisions


def _schedule(problem: Problem, arena_bytes: int, goal: Goal, search: Search) -> tuple[Schedule, float]:
    """The schedule, and a bound on what anything that fits must cost more than the plain one, as far as it was looked
    for."""
    if least_peak(problem, page=goal.page) > arena_bytes:  # it cannot be: no reason to spend time on it
        return min(
            (fit(problem, 0, hasty=True, page=page)[0] for page in {False, goal.page}),
            key=lambda s: profile(problem, s).peak_bytes,
        ), 0.0
    if not search.effort_s and goal.objective == "time":
        made, one = fit(problem, arena_bytes, page=goal.page)
        if one.peak_bytes > arena_bytes:
            tries = itertools.takewhile(lambda _: search.left_s, lower(problem, arena_bytes, page=goal.page))
            made = next(filter(None, tries), made)
            one = profile(problem, made)
        late = goal.deadline_s is not None and one.seconds > goal.deadline_s
        if not late or len(problem.steps) > LARGE:
            return made, 0.0
    from .solve import smallest, solve  # needs ortools, which nobody needs who does not compile

    found = solve(
        problem, arena_bytes, objective=goal.objective, deadline_s=goal.deadline_s, page=goal.page,
        effort_s=min(search.effort_s, max(search.left_s, LEAST_S)),
    )  # fmt: skip
    if found is not None:
        return found.schedule, found.bound
    made, one = fit(problem, arena_bytes, page=goal.page, objective=goal.objective)
    if goal.deadline_s is not None and one.peak_bytes <= arena_bytes:  # it fits, but not in time
        return made, 0.0
    return smallest(problem, page=goal.page, effort_s=min(search.effort_s / 2, 5.0, search.left_s / 2))[0], 0.0
