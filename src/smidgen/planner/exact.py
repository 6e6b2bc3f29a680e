"""The cheapest schedule of stages whose every position is within the budget, by CP-SAT, with a proof or a bound.

Variables say what is repeated or read in, and what is held from stage to stage; the memory of every position, also
between repeated steps, is linear in them and equals `profile`. The answer is profiled all the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise

from ortools.sat.python import cp_model

from ..effort import CHOICE, SOLVER, UNITS, Effort, meter, spend
from ..errors import Internal
from .problem import PageIn, PageOut, Problem, profile
from .stages import Choice, Stages, held, moments, schedule_of
from .terms import Row, Term, any_, is_, open_

WINDOWS = (1, 2, 3, 4, 8)
SMALL = 1200  # choices: up to here a proof is likely, and local search is not needed
LEAST_S = 0.5  # of effort for the solver, however long making the model took
FINE = 1e7  # units of cost in the plain program: what is smaller counts as nothing, so a bound stays a bound


@dataclass(frozen=True, slots=True)
class Answer:
    """`bound`: no schedule of these stages costs less extra. `choice` is None if none was found, and `impossible` says
    that there is none."""

    choice: Choice | None
    bound: float
    proven: bool
    impossible: bool = False


def exact(
    problem: Problem, budget_bytes: int, stages: Stages, *, objective: str = "time", hint: Choice | None = None,
    deadline_s: float | None = None, effort_s: float = 10.0,
) -> Answer:  # fmt: skip
    """The least extra seconds (or joules) of any schedule of these stages within the budget."""
    effort = Effort.of(effort_s)
    work = _Model(problem, stages, objective)
    work.limit(budget_bytes)
    work.tighten(budget_bytes)
    if deadline_s is not None:
        work.meet(deadline_s)
    work.minimize()
    return work.solve(hint, max(effort.left_s, LEAST_S), budget_bytes)


def lowest(
    problem: Problem, floor_bytes: int, stages: Stages, hint: Choice | None = None, effort_s: float = 10.0
) -> Answer:
    """The lowest peak of any schedule of these stages; `bound` is in bytes."""
    work = _Model(problem, stages, "time")
    work.tighten(floor_bytes)
    work.lower(floor_bytes)
    return work.solve(hint, effort_s, None)


class _Model:
    def __init__(self, problem: Problem, stages: Stages, objective: str) -> None:
        self.problem, self.stages, self.objective = problem, stages, objective
        self.model = cp_model.CpModel()
        self.vars: list[Term] = []
        self.n = len(problem.steps)
        self.again: dict[tuple[int, int], Term] = {}  # (stage, step)
        self.inward: dict[tuple[int, int, int], Term] = {}  # (stage, step that reads it, value)
        self.out: dict[int, Term] = {}  # value → is it ever written out
        self.held: dict[tuple[int, int], Term] = {}  # (stage, value): alive from the step before the stage into it
        self.derived: list[tuple[Term, bool, list[Term]]] = []  # (variable, is it the most or the least of, terms)
        self.rows: dict[tuple[tuple[int, int], ...], int] = {}  # sum of coefficient × variable ≤ bytes
        self.grain = reduce(math.gcd, problem.bytes, problem.pinned_bytes) or 1
        self.use: list[dict[int, list[int]]] = [
            {} for _ in range(self.n)
        ]  # stage → value → repeated steps that read it
        self._choices()
        self._hold()
        for t in range(self.n):
            self._available(t)
            self._postponed(t)
            self._memory(t)
        spend(CHOICE * len(self.vars))

    def _new(self) -> Term:
        self.vars.append(self.model.new_bool_var(""))
        return self.vars[-1]

    # -- variables -----------------------------------------------------------------------------------------------

    def _choices(self) -> None:
        problem = self.problem
        for t, steps in enumerate(self.stages.again):
            for k in steps:
                self.again[t, k] = self._new()
                for v in problem.steps[k].reads:
                    self.use[t].setdefault(v, []).append(k)
            for k in (*steps, t) if self.stages.page and t >= self.stages.first else ():
                for v in problem.steps[k].reads:
                    if problem.pageable[v] and problem.maker[v] + 1 < t:
                        self.inward[t, k, v] = self._new()
        for t, k, v in self.inward:
            if v not in self.out:
                self.out[v] = self._new()
            self.model.add_implication(self.inward[t, k, v], self.out[v])
            if k != t:
                self.model.add_implication(self.inward[t, k, v], self.again[t, k])
        self.in_stage: dict[tuple[int, int], list[tuple[int, Term]]] = {}  # (stage, value) → (step, read in before it)
        for (t, k, v), var in self.inward.items():
            self.in_stage.setdefault((t, v), []).append((k, var))

    def _hold(self) -> None:
        """One variable from each stage where a value is touched to the next such stage."""
        problem = self.problem
        for v, m in enumerate(problem.maker):
            readers = set(problem.readers[v])
            last = problem.last[v]
            end = max([last, *(t for t in range(self.stages.first, self.n) if v in self.use[t])])
            made = [t for t in range(m + 1, self.n) if (t, m) in self.again or (t, v) in self.in_stage]
            var: Term = None
            for t in range(m + 1, end + 1):
                if t <= last:
                    b = next(r for r in problem.readers[v] if r >= t)
                    needed = bisect_left(made, t) == bisect_left(made, b + 1)  # it cannot be made again until then
                    if needed:
                        self.held[t, v] = var = 1
                        continue
                touched = t - 1 == m or t - 1 in readers or v in self.use[t - 1] or (t - 1, v) in self.in_stage
                if var is None or touched or (t - 1, m) in self.again or is_(var, 1):
                    var = self._new()
                self.held[t, v] = var

    def _made(self, t: int, v: int, until: int) -> list[Term]:
        """Ways in which the value comes to be in the stage, up to a step of it."""
        found = [self.again[t, self.problem.maker[v]]] if (t, self.problem.maker[v]) in self.again else []
        return found + [var for k, var in self.in_stage.get((t, v), ()) if k <= until]

    # -- constraints ---------------------------------------------------------------------------------------------

    def _available(self, t: int) -> None:
        for k in (*self.stages.again[t], t):
            for v in self.problem.steps[k].reads:
                self._at_least([self.held.get((t, v), 0), *self._made(t, v, k)], self.again.get((t, k), 1))
        for v, m in enumerate(self.problem.maker):
            held, made = self.held.get((t, v), 0), self._made(t, v, t)
            if made and m < t:
                self.model.add_at_most_one(open_([held, *made]))
                if is_(held, 1):
                    for x in made:
                        self.model.add(x == 0)
            after = self.held.get((t + 1, v), 0)
            if m < t and after is not held:
                self._at_least([held, *made], after)

    def _at_least(self, terms: list[Term], needed: Term) -> None:
        if any_(terms, 1) or is_(needed, 0):
            return
        literals = open_(terms)
        self.model.add_bool_or(literals if is_(needed, 1) else [*literals, needed.negated()])

    def _postponed(self, t: int) -> None:
        """A repeat that nobody reads in its stage and whose operands are still there one stage later can wait: it then
        stands among what is alive there anyway, if it needs nothing but its operands and one result."""
        for k in self.stages.again[t]:
            step = self.problem.steps[k]
            if (t + 1, k) not in self.again or step.own_bytes or len(step.writes) > 1:
                continue
            if any(t in self.problem.readers[v] for v in step.writes):
                continue
            readers = [self.again[t, r] for v in step.writes for r in self.use[t].get(v, ())]
            there = [self.held.get((t + 2, u), 0) for u in step.reads if t + 1 not in self.problem.readers[u]]
            there += [self.held.get((t + 1, u), 0) for u in step.reads if (t + 1, u) in self.in_stage]  # not read in
            if any_(there, 0):
                continue
            self.model.add_bool_or([*readers, *(x.negated() for x in open_(there)), self.again[t, k].negated()])

    def _memory(self, t: int) -> None:
        problem = self.problem
        around = [v for v, m in enumerate(problem.maker) if m < t and self._may_be_there(t, v)]
        need = {v: self._need(t, v) for v in around}
        for k in (*self.stages.again[t], t):
            step = problem.steps[k]
            run = self.again.get((t, k), 1)
            row = Row(problem.pinned_bytes)
            row.add(step.own_bytes, run)
            for v in around:
                size, m = problem.bytes[v], problem.maker[v]
                if m < k:
                    readers, terms = need[v]
                    row.add(size, terms[bisect_left(readers, k)])
                    for r, var in self.in_stage.get((t, v), ()):
                        if r > k:
                            row.add(-size, var)
                else:
                    row.add(size, self.held.get((t, v), 0))
            for v in step.writes:
                row.add(problem.bytes[v], run)
            self._taken(t, k, run, need, row)
            self._keep(row)

    def _may_be_there(self, t: int, v: int) -> bool:
        return (t, v) in self.held or (t, v) in self.in_stage or (t, self.problem.maker[v]) in self.again

    def _need(self, t: int, v: int) -> tuple[list[int], list[Term]]:
        """Steps of the stage that read the value, with whether it is needed from each of them on; then at step t."""
        after = self.held.get((t + 1, v), 0)
        readers = self.use[t].get(v, [])
        terms: list[Term] = [1 if t in self.problem.readers[v] else after]
        for r in reversed(readers):
            terms.insert(0, self._most([self.again[t, r], terms[0]]))
        return readers, terms

    def _most(self, terms: list[Term]) -> Term:
        if any_(terms, 1):
            return 1
        literals = open_(terms)
        if len(literals) == 1:
            return literals[0]
        var = self._new()
        for x in literals:
            self.model.add_implication(x, var)
        self.derived.append((var, True, literals))
        return var

    def _taken(self, t: int, k: int, run: Term, need: dict[int, tuple[list[int], list[Term]]], row: Row) -> None:
        """The first result takes the place of one operand that dies here."""
        chosen: list[Term] = []
        for v in self.problem.steps[k].takes:
            later = self.held.get((t + 1, v), 0) if k == t else self._after(need[v], k)
            if is_(later, 1):
                continue
            var = self._new()
            if not is_(later, 0):
                self.model.add_implication(var, later.negated())
            if not is_(run, 1):
                self.model.add_implication(var, run)
            self.derived.append(
                (var, False, [run, 1 if is_(later, 0) else later.negated(), *(x.negated() for x in chosen)])
            )
            row.add(-self.problem.bytes[v], var)
            chosen.append(var)
        if len(chosen) > 1:
            self.model.add_at_most_one(chosen)

    def _after(self, need: tuple[list[int], list[Term]], k: int) -> Term:
        readers, terms = need
        return terms[bisect_left(readers, k + 1)]

    def _keep(self, row: Row) -> None:
        key = tuple(sorted((var, coefficient // self.grain) for var, coefficient in row.terms.items() if coefficient))
        self.rows[key] = max(self.rows.get(key, 0), row.constant)

    def tighten(self, budget_bytes: int) -> None:
        """What follows for whole windows of stages between moments above the budget. Redundant, but else, in fractions,
        a value could be made from a half of another one, twice."""
        windows: set[tuple[int, int]] = set()
        for count in WINDOWS:
            picked = moments(self.problem, budget_bytes, count)
            windows |= set(pairwise([*picked, self.n - 1]))
        for a, b in sorted(windows):
            self._window(a, b)

    def _window(self, a: int, b: int) -> None:
        """Stages after step a up to step b."""
        problem = self.problem
        inside: dict[int, list[Term]] = {}  # step → its repeats
        inward: dict[int, list[Term]] = {}  # value → how it comes from outside
        for t in range(a + 1, b + 1):
            for k in self.stages.again[t]:
                inside.setdefault(k, []).append(self.again[t, k])
        for (t, _, v), var in self.inward.items():
            if a < t <= b:
                inward.setdefault(v, []).append(var)
        ever = {k: self._either(terms) for k, terms in inside.items()}
        brought = {v: self._either(terms) for v, terms in inward.items()}

        def sourced(v: int, reader: Term) -> None:
            if problem.maker[v] <= a:
                found = [self.held.get((a + 1, v), 0), ever.get(problem.maker[v], 0), brought.get(v, 0)]
                self._at_least(found, reader)

        for k, var in ever.items():
            for v in problem.steps[k].reads:
                sourced(v, var)
        for v in range(len(problem.bytes)):
            sourced(v, self.held.get((b + 1, v), 0))
        for v in {v for t in range(a + 1, b + 1) for v in problem.steps[t].reads}:
            sourced(v, 1)

    def _either(self, terms: list[Term]) -> Term:
        """Exactly if one of them is."""
        var = self._most(terms)
        if len(terms) > 1:
            self.model.add_bool_or([*terms, var.negated()])
        return var

    # -- objective -----------------------------------------------------------------------------------------------

    def limit(self, budget_bytes: int) -> None:
        for key, constant in self.rows.items():
            room = (budget_bytes - constant) // self.grain
            if sum(c for _, c in key if c > 0) > room:
                self.model.add(
                    cp_model.LinearExpr.weighted_sum([self.vars[i] for i, _ in key], [c for _, c in key]) <= room
                )

    def lower(self, floor_bytes: int) -> None:
        most = max((c + self.grain * sum(f for _, f in key if f > 0) for key, c in self.rows.items()), default=0)
        peak = self.model.new_int_var(floor_bytes // self.grain, most // self.grain + 1, "peak")
        for key, constant in self.rows.items():
            total = cp_model.LinearExpr.weighted_sum([self.vars[i] for i, _ in key], [c for _, c in key])
            self.model.add(total + -(-constant // self.grain) <= peak)
        self.model.minimize(peak)
        self.unit = float(self.grain)

    def _priced(self, objective: str) -> list[tuple[Term, float]]:
        price = self.problem.action_seconds if objective == "time" else self.problem.action_joules
        found = [(var, price(k)) for (_, k), var in self.again.items()]
        found += [(var, price(PageIn(v))) for (_, _, v), var in self.inward.items()]
        return found + [(var, price(PageOut(v))) for v, var in self.out.items()]

    def minimize(self) -> None:
        priced = self._priced(self.objective)
        watts = 1.0 if self.objective == "time" else self.problem.prices.watts
        self.unit = self.problem.seconds * watts / FINE
        costs = [int(price / self.unit) for _, price in priced]
        self.model.minimize(cp_model.LinearExpr.weighted_sum([var for var, _ in priced], costs))

    def meet(self, deadline_s: float) -> None:
        priced = self._priced("time")
        unit = self.problem.seconds / FINE
        costs = [math.ceil(price / unit) for _, price in priced]
        room = int((deadline_s - self.problem.seconds) / unit)
        self.model.add(cp_model.LinearExpr.weighted_sum([var for var, _ in priced], costs) <= room)

    # -- solving -------------------------------------------------------------------------------------------------

    def solve(self, hint: Choice | None, effort_s: float, budget_bytes: int | None) -> Answer:
        """Two searches that prove; where there is much to choose from, half of the effort is for local search."""
        effort = Effort.of(effort_s)
        small = len(self.again) + len(self.inward) <= SMALL
        answer = self._run(["core", "max_lp"], hint, effort_s if small else effort_s / 2)
        if not (effort.is_spent or small or answer.proven):
            more = self._run(["max_lp"], answer.choice or hint, effort.left_s)
            answer = replace(more, choice=more.choice or answer.choice, bound=max(answer.bound, more.bound))
        if answer.choice is not None and budget_bytes is not None:
            peak = profile(self.problem, schedule_of(self.problem, answer.choice)).peak_bytes
            if peak > budget_bytes:
                raise Internal("the model of memory and the profile differ", why=f"{budget_bytes} became {peak} bytes")
        return answer

    def _run(self, searches: list[str], hint: Choice | None, effort_s: float) -> Answer:
        self.model.clear_hints()
        if hint is not None:
            self._hint(hint)
        solver = cp_model.CpSolver()
        solver.parameters.max_deterministic_time = effort_s * UNITS / SOLVER
        solver.parameters.max_time_in_seconds = max(meter().left_s(), 0.1)  # an emergency
        solver.parameters.interleave_search = True  # in turn and in a fixed order, whatever the number of threads
        solver.parameters.num_workers = 2
        solver.parameters.random_seed = 0
        solver.parameters.max_presolve_iterations = 1  # more of it takes longer than the search
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        solver.parameters.subsolvers.extend(searches)
        status = solver.solve(self.model)
        spend(SOLVER * solver.response_proto.deterministic_time)
        if status == cp_model.INFEASIBLE:
            return Answer(None, math.inf, True, impossible=True)
        bound = max(solver.best_objective_bound * self.unit, 0.0)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Answer(None, bound, False)
        again = frozenset(key for key, var in self.again.items() if solver.value(var))
        inward = frozenset(key for key, var in self.inward.items() if solver.value(var))
        return Answer(Choice(again, inward), bound, status == cp_model.OPTIMAL)

    def _hint(self, hint: Choice) -> None:
        known: dict[int, bool] = {}
        alive = held(self.problem, schedule_of(self.problem, hint))
        for key, var in self.again.items():
            known[var.index] = key in hint.again
        for key3, var in self.inward.items():
            known[var.index] = key3 in hint.inward
        paged = {v for _, _, v in hint.inward}
        for v, var in self.out.items():
            known[var.index] = v in paged
        for key, var in self.held.items():
            if not isinstance(var, int):
                known[var.index] = known.get(var.index, False) or key in alive
        for var, most, terms in self.derived:
            each = [
                bool(x) if isinstance(x, int) else known[x.index] if x.index >= 0 else not known[-x.index - 1]
                for x in terms
            ]
            known[var.index] = any(each) if most else all(each)
        for index, value in known.items():
            self.model.add_hint(self.vars[index], value)
