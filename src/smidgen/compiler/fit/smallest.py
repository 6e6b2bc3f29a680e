"""The smallest budget of a model. One procedure finds it that is not told any budget, so it is the same number whatever
was asked for: nothing is planned for less, and what it found is taken where a search finds nothing for as much or more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from ...devices.device import Device
from ...devices.room import Limit, Need, fits, least_budget, over_flash
from ...ir import Graph
from ...program.plan import Decision
from ...runtime.work import EXACT, Work
from ..assemble import sized
from ..effort import Effort
from ..entries import Entries, narrowed, without_streams
from ..options import Options
from ..passes.additive import takes_statistics
from ..pipeline import Lowering
from ..planner.cost import ROUGH, prices_of
from ..planner.goal import Goal
from ..planner.greedy import fit
from ..planner.least_peak import least_peak
from ..planner.problem import Problem, Schedule, problem_of, profile
from ..planner.varied import LOWER, any_price
from ..planner.within import applied
from .candidate import Candidate, counts_in, is_large, step_spent
from .learning_rows import by_rows_each
from .micro_batch import fewest_together, one_by_one
from .paged_state import with_paged_state
from .squeeze import rewritten, squeezed
from .tiles import tiled_each

SEARCH_S: Final = 1.0  # of effort for the lowest peak of one graph,
SHARE: Final = 0.2  # or of the effort that the user gives, if that is more
VARIED: Final = 0.2  # of it for the greedy by other prices
MOST_LOWER: Final = 8  # budgets that are a unit of alignment smaller
MOST_GRAPHS: Final = 3  # of a program that are searched, the largest first
FEW: Final = 2  # steps in tiles, and by rows, that are searched


@dataclass(frozen=True)
class Smallest:
    """`quick` is found without a search; `found` is what nothing goes below. Each is made when it is asked for."""

    device: Device | None
    lowering: Lowering
    options: Options
    goal: Goal
    effort_s: float = 0.0  # that the user gives

    @cached_property
    def limit(self) -> Limit:
        return Limit.nothing(self.device)

    @cached_property
    def quick(self) -> Candidate:
        return min([*self._quick, self.given], key=self._rank)

    @cached_property
    def given(self) -> Candidate:
        """The step as it is without a limit: what fits that is not looked into further."""
        entries = self.lowering.entries(self.options)
        return self._placed(entries, entries)

    @cached_property
    def found(self) -> Candidate:
        """By a search, in the order of what promises the least; what cannot become less than the best is left out."""
        best = self.quick
        for one in sorted(self._quick, key=self._rank):
            if self._rank(replace(one, sized=replace(one.sized, need=self._lowest(one)))) < self._rank(best):
                best = min(best, self._searched(one), key=self._rank)
        return self._placed_lower(best)

    @cached_property
    def with_other_statistics(self) -> Candidate | None:
        """Where batch-norm takes its statistics of fewer samples; None: there is no such step, or none is needed."""
        whole = self._whole
        if not self.goal.split or not takes_statistics(whole.graphs["train"]):
            return None
        entries = fewest_together(self.lowering, self._least_options(whole), whole.batch)
        if entries is None:
            return None
        tried = self._tight(self._with_and_without_streams([entries]))
        return min((self._searched(one) for one in tried), key=self._rank)

    def within(self, limit: Limit) -> Candidate | None:
        """What of it fits, without a search if that is enough."""
        one = self.quick if self.quick.fits(limit) else self.found
        return self.taken(one, limit) if one.fits(limit) else None

    def taken(self, one: Candidate, limit: Limit) -> Candidate:
        """For the limit that was asked for, by its prices."""
        return replace(one, limit=limit, step=step_spent(one.entries, self.goal))

    @property
    def least(self) -> Candidate:
        """The smallest program that there is, whatever statistics it takes."""
        other = self.with_other_statistics
        return min([self.found, *([] if other is None else [other])], key=self._rank)

    def budget_bytes(self, work: Work = EXACT) -> int:
        """The smallest budget that is enough, with these kernels."""
        return least_budget(self.least.need, self.device, work)

    def may_reach(self, limit: Limit) -> bool:
        """False: it is proven that nothing does, as far as that can be told at once."""
        return self.with_other_statistics is not None or any(fits(limit, self._lowest(one)) for one in self._quick)

    @property
    def learns(self) -> tuple[str, ...]:
        return self._whole.learns

    @property
    def learned_parameters(self) -> int:
        return sum(math.prod(self._whole.shapes[name]) for name in self.learns)

    def of(self, entries: Entries) -> Candidate:
        """The same for a step that is given."""
        return self._searched(self._tightest(entries))

    # -- how it is found -----------------------------------------------------------------------------------------------

    @cached_property
    def _goal(self) -> Goal:
        """By fixed prices, whatever was measured, and whatever should be small."""
        fixed = prices_of(self.device)
        prices = self.goal.prices if self.goal.prices == fixed else fixed
        page = self.goal.page and self.goal.prices.page is not None
        return Goal(page=page, prices=prices, split=self.goal.split)

    @cached_property
    def _whole(self) -> Entries:
        """The step at once, with streams for the least memory."""
        entries = self.lowering.entries(self.options.least)
        if self.options.const != "f32" or self.device is None or not self.device.flash_bytes:
            return entries
        over = over_flash(Limit.of_device(self.device), sized(entries, self.limit).need)
        return narrowed(entries) if over else entries

    @cached_property
    def _quick(self) -> list[Candidate]:
        """The step at once and sample by sample, with what is recomputed, paged, or kept in pages."""
        whole = self._whole
        steps = [whole]
        if whole.batch > 1 and self.goal.split and not takes_statistics(whole.graphs["train"]):
            parts = one_by_one(self.lowering, self._least_options(whole), whole.batch)
            steps += [] if parts is None else [parts]
        return self._tight(self._with_and_without_streams(steps))

    def _least_options(self, whole: Entries) -> Options:
        return replace(self.options.least, const=whole.const)

    def _with_and_without_streams(self, steps: Sequence[Entries]) -> list[Entries]:
        """On a board streams take stack: what they save may be less than that."""
        both = [some for step in steps for some in (step, without_streams(step))]
        return list({id(step): step for step in (both if self.limit.is_bare else steps)}.values())

    def _tight(self, steps: Sequence[Entries]) -> list[Candidate]:
        found = [self._tightest(entries) for entries in steps]
        for way in (tiled_each, by_rows_each):
            other = [self._tightest(made) for entries in steps for made in way(entries, self._goal)]
            found += sorted(other, key=self._rank)[:FEW]
        if self._goal.page:
            paged = [some for step in found for some in with_paged_state(self.limit, step, self._goal)]
            found += [self._tightest(entries) for some in paged for entries in some]
        return found

    def _rank(self, one: Candidate) -> tuple[bool, int]:
        flash = self.device is not None and over_flash(Limit.of_device(self.device), one.need)
        return flash, least_budget(one.need, self.device, EXACT)

    def _placed(self, entries: Entries, given: Entries, before: Candidate | None = None) -> Candidate:
        """Placed as low as is found: there is no room that would be enough."""
        size = sized(entries, self.limit, None, None if before is None else before.sized)
        return Candidate(self.limit, entries, size, step_spent(entries, self._goal), given)

    def _problem(self, entries: Entries, name: str) -> Problem:
        return problem_of(entries.plain[name], entries.batch, self._goal.prices, self.limit.align)

    def _tightest(self, entries: Entries) -> Candidate:
        """Without a search: each graph that counts as it is, or with the lowest peak of the fast methods."""
        best = self._placed(entries, entries)
        return self._better(best, {name: self._fast(entries, name) for name in entries.plain})

    def _fast(self, entries: Entries, name: str) -> Schedule:
        """The lowest peak of the fast methods."""

        def made() -> Schedule:
            problem, page = self._problem(entries, name), self._goal.page
            tried = [fit(problem, 0, hasty=True, page=paged)[0] for paged in ((False, True) if page else (False,))]
            tried += [] if is_large(entries) else [fit(problem, 0, page=page)[0]]
            return min(tried, key=lambda s: profile(problem, s).peak_bytes)

        return self._once("fast", entries, name, made)

    def _once(self, what: str, entries: Entries, name: str, made: Callable[[], Schedule]) -> Schedule:
        """With streams and without, the learning part may be the same graph."""
        graph = entries.plain[name]
        key = what, id(graph), entries.batch
        if key not in self._schedules:
            self._schedules[key] = graph, made()  # a graph that is kept keeps its id
        return self._schedules[key][1]

    @cached_property
    def _schedules(self) -> dict[tuple[str, int, int], tuple[Graph, Schedule]]:
        return {}

    def _searched(self, one: Candidate) -> Candidate:
        """With the lowest peak that a search finds for the largest graph, then for what is the largest after that."""
        done: set[str] = set()
        for _ in range(MOST_GRAPHS):
            name = max(one.sized.layouts, key=lambda n: one.sized.layouts[n].arena_bytes)
            if name in done or name not in one.given.plain:
                break
            done.add(name)
            effort_s = max(SEARCH_S, SHARE * self.effort_s)
            lowest = functools.partial(self._lowest_peak, one.given, name, effort_s)
            one = self._better(one, {name: self._once("searched", one.given, name, lowest)})
        return one

    def _placed_lower(self, one: Candidate) -> Candidate:
        """As for a budget that is a little smaller: a schedule with a higher peak may have a lower placement."""
        lowest = self._rank(replace(one, sized=replace(one.sized, need=self._lowest(one))))[1]
        for _ in range(MOST_LOWER if not is_large(one.given) else 0):
            limit = Limit.of_budget(self._rank(one)[1] - self.limit.align, self.device)
            if limit.ram_bytes < lowest:  # proven to be too small
                break
            trial = squeezed(limit, one.given, self._goal)
            if not trial.fits(limit):
                break
            one = trial
        return one

    def _lowest_peak(self, entries: Entries, name: str, effort_s: float) -> Schedule:
        """By the greedy for several targets and prices, then exactly where the graph is not large."""
        from ..planner.solve import smallest  # needs ortools, which nobody needs who does not compile

        page = self._goal.page
        problem = self._problem(entries, name)
        rough = problem_of(entries.plain[name], entries.batch, ROUGH, self.limit.align)
        least = least_peak(problem, page=page)
        best = self._fast(entries, name)
        lowest = profile(problem, best).peak_bytes
        effort = Effort.of(effort_s * VARIED)  # what problems cost, which others may have read before, is not in it

        def tries() -> Iterator[Schedule]:
            yield fit(rough, 0, page=page)[0]
            for share in LOWER:
                yield fit(problem, least + int(share * (lowest - least)), page=page)[0]
            yield from any_price(problem, lambda: lowest, page=page)

        trying = tries()
        while lowest > least and not effort.is_spent:
            made = next(trying)
            if (peak := profile(problem, made).peak_bytes) < lowest:
                best, lowest = made, peak
        return smallest(problem, page=page, effort_s=effort_s, known=[best])[0] if lowest > least else best

    def _better(self, one: Candidate, made: Mapping[str, Schedule]) -> Candidate:
        """With these schedules for the graphs that then decide how large the arena is, if that is smaller."""
        given, goal = one.given, self._goal
        graphs: dict[str, Graph] = {}
        decisions: Sequence[Decision] = [d for d in one.entries.decisions if d.kind in REWRITTEN]
        said: dict[str, Sequence[Decision]] = {}
        for name, schedule in made.items():
            graphs[name], said[name] = applied(given.plain[name], self._problem(given, name), schedule, goal)
        trial = self._rewritten(one, graphs, said.get(counts_in(given), decisions))
        low = {n: min(trial.sized.layouts[n].arena_bytes, one.sized.layouts[n].arena_bytes) for n in graphs}
        rest = [x.arena_bytes for n, x in trial.sized.layouts.items() if n not in given.plain and n != "evaluate"]
        most = max([*low.values(), *rest])
        kept = {n: graph for n, graph in graphs.items() if one.sized.layouts[n].arena_bytes > most}
        if kept.keys() != graphs.keys():
            counted = counts_in(given) in kept
            trial = self._rewritten(one, kept, said[counts_in(given)] if counted else decisions) if kept else one
        return min(one, trial, key=lambda c: (self._rank(c), sum(x.arena_bytes for x in c.sized.layouts.values())))

    def _rewritten(self, one: Candidate, graphs: Mapping[str, Graph], decisions: Sequence[Decision]) -> Candidate:
        return self._placed(rewritten(one.entries, graphs, decisions), one.given, one)

    def _lowest(self, one: Candidate) -> Need:
        """No schedule needs less, as far as that can be told at once."""
        layouts = one.sized.layouts
        floors = {name: least_peak(self._problem(one.given, name), page=self._goal.page) for name in one.given.plain}
        rest = [layout.arena_bytes for name, layout in layouts.items() if name not in floors and name != "evaluate"]
        return replace(one.need, arena_bytes=min(one.need.arena_bytes, max([*floors.values(), *rest])))


REWRITTEN: Final = ("cheap", "recompute", "page")  # decisions of the graph that counts


__all__ = ["Smallest"]
