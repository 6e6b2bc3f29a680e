"""What no schedule can be better than, whatever it repeats or pages, how often and in which order.

Some steps of the plain order are picked. Between two of them a step is repeated at least once or not at all; at each of
them what is alive fits the budget; and whatever is read was kept from the one before, or is made in between. Every
schedule satisfies this, so the least cost is a bound on all: with fractions (a linear program) to find out which
picks say most, then without fractions.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from typing import Any

from ortools.linear_solver import pywraplp

from ..effort import COLUMN, PIVOT, Effort, meter, spend
from .problem import NEVER, PageIn, PageOut, Problem
from .stages import highest, moments

LADDER = (2, 4, 8, 16)  # so many steps are picked: with fractions, neither few nor many are always the best
WORK = 20_000  # variables of the linear program
WORK_ALONE = 60_000  # the same, of all programs with one picked step
BEST = 3  # picks for which it is found out without fractions
NODES = 200  # of that search, at most
ROOT = 2  # times what the linear program takes: its first node; the others take less


def least_extra(
    problem: Problem, budget_bytes: int, *, objective: str = "time", page: bool = False, effort_s: float = 5.0,
    enough: float = sys.float_info.max,
) -> float:  # fmt: skip
    """No schedule within the budget takes fewer extra seconds (or joules). Infinite: there is none. Less effort, a
    lower bound; nor is it raised further once it is above `enough`."""
    effort = Effort.of(effort_s)
    size = len(problem.steps) + len(problem.bytes)
    found: list[tuple[float, list[int], float]] = []  # bound, picked steps, and what it took to find it

    def add(picked: list[int]) -> None:
        if picked and (not found or not effort.is_spent):
            before = effort.left_s
            least = _Program(problem, picked, page, objective).least(budget_bytes)
            found.append((least, picked, before - effort.left_s))

    for t in highest(problem, budget_bytes)[: max(WORK_ALONE // size, 1)]:
        add([t])
        if found and found[-1][0] > enough:
            return found[-1][0]
    if not found:
        return 0.0
    alone = max(found)[1]
    for count in LADDER:
        picked = moments(problem, budget_bytes, count)
        if len(picked) < count or count * size > WORK:
            break
        add(sorted({*picked, *alone}))
        if found[-1][0] > enough:
            return found[-1][0]
    found.sort(reverse=True)
    best = found[0][0]
    for _, picked, took_s in found[:BEST]:
        nodes = int(min(effort.left_s / max(ROOT * took_s, 1e-9), NODES))
        if best <= enough and nodes:
            best = max(best, _Program(problem, picked, page, objective, nodes).least(budget_bytes))
    return best


class _Program:
    """A *span* reaches from behind one picked step to the next one, which belongs to it; the last one to the end."""

    def __init__(self, problem: Problem, moments: list[int], page: bool, objective: str, nodes: int = 0) -> None:
        """`nodes`: without fractions, in a search of so many; 0: with them."""
        self.problem, self.moments, self.nodes = problem, moments, nodes
        self.page = page
        self.price = problem.action_seconds if objective == "time" else problem.action_joules
        self.solver = pywraplp.Solver.CreateSolver("SCIP" if nodes else "GLOP")
        self.goal = self.solver.Objective()
        self.goal.SetMinimization()
        self.again: dict[tuple[int, int], Any] = {}  # (span, step)
        self.inward: dict[tuple[int, int], Any] = {}  # (span, value)
        self.held: dict[tuple[int, int], Any] = {}  # (span, value): alive beyond its end
        self.unit = max(problem.seconds, 1e-30) * (1.0 if objective == "time" else problem.prices.watts) / 1000
        self._variables()

    def _span_of(self, t: int) -> int:
        return bisect_left(self.moments, t)

    def _variables(self) -> None:
        problem = self.problem
        count = len(self.moments) + 1
        starts = [0, *(t + 1 for t in self.moments)]
        for k, step in enumerate(problem.steps):
            if step.limit == NEVER:
                continue
            for j in range(self._span_of(k), count):
                if starts[j] <= step.limit:
                    self.again[j, k] = self._new(self.price(k))
        for v, m in enumerate(problem.maker):
            begin = self._span_of(m)
            for j in range(begin, count - 1):
                self.held[j, v] = self._new(0.0)
            if self.page and problem.pageable[v]:
                out = self._new(self.price(PageOut(v)))
                for j in range(begin, count):
                    self.inward[j, v] = var = self._new(self.price(PageIn(v)))
                    self._row(-math.inf, 0, [(1, var), (-1, out)])

    def _new(self, cost: float) -> Any:
        var = self.solver.BoolVar("") if self.nodes else self.solver.NumVar(0, 1, "")
        self.goal.SetCoefficient(var, cost / self.unit)
        return var

    def _row(self, low: float, high: float, terms: list[tuple[float, Any]]) -> None:
        row = self.solver.Constraint(low, high)
        for coefficient, var in terms:
            row.SetCoefficient(var, row.GetCoefficient(var) + coefficient)

    def least(self, budget_bytes: int) -> float:
        problem = self.problem
        for (j, k), var in self.again.items():
            for v in problem.steps[k].reads:
                self._sourced(j, v, var)
        for (j, v), var in self.held.items():
            self._sourced(j, v, var)
        needed = {(self._span_of(t), v) for t, step in enumerate(problem.steps) for v in step.reads}
        for j, v in sorted(needed):
            self._sourced(j, v, None)
        for j, t in enumerate(self.moments):
            self._fits(j, t, budget_bytes)
        if self.nodes:
            self.solver.SetSolverSpecificParametersAsString(f"limits/nodes = {self.nodes}")
        self.solver.SetTimeLimit(max(int(meter().left_s() * 1000), 1))  # an emergency
        status = self.solver.Solve()
        rows, columns = self.solver.NumConstraints(), self.solver.NumVariables()
        spend(COLUMN * (rows + columns) + PIVOT * (rows + columns) * self.solver.iterations())
        if status == pywraplp.Solver.INFEASIBLE:
            return math.inf
        if not self.nodes:
            least = float(self.goal.Value()) if status == pywraplp.Solver.OPTIMAL else 0.0
        else:
            least = float(self.goal.BestBound())
            least = least if math.isfinite(least) else 0.0
        return max(0.0, least * (1 - 1e-6)) * self.unit  # the solver's own tolerance aside

    def _sourced(self, j: int, v: int, reader: Any) -> None:
        """Whoever reads or holds a value in span j has it from the span before, or it is made in this one."""
        if self._span_of(self.problem.maker[v]) == j:
            return
        found = [self.held.get((j - 1, v)), self.again.get((j, self.problem.maker[v])), self.inward.get((j, v))]
        terms = [(1.0, var) for var in found if var is not None]
        self._row(1 if reader is None else 0, math.inf, terms if reader is None else [*terms, (-1.0, reader)])

    def _fits(self, j: int, t: int, budget_bytes: int) -> None:
        problem = self.problem
        step = problem.steps[t]
        touched = {*step.reads, *step.writes}
        constant = problem.pinned_bytes + step.own_bytes + sum(problem.bytes[v] for v in touched)
        scale = max(budget_bytes, 1)
        terms = [
            (problem.bytes[v] / scale, self.held[j, v])
            for v, m in enumerate(problem.maker)
            if m < t and v not in touched
        ]
        taken = []
        for v in step.takes:  # one operand that is not held any longer makes room for the result
            var = self.solver.NumVar(0, 1, "")
            self._row(-math.inf, 1, [(1, var), (1, self.held[j, v])])
            terms.append((-problem.bytes[v] / scale, var))
            taken.append((1.0, var))
        if len(taken) > 1:
            self._row(-math.inf, 1, taken)
        self._row(-math.inf, (budget_bytes - constant) / scale, terms)
