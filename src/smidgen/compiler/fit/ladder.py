"""Several plans for several budgets in one program: each rung of the ladder is the same step, with as much recomputed
as its budget asks for. All of them share STATE and begin at the start of ARENA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...devices.room import Limit
from ...errors import BadOption
from ...program.plan import Decision
from ...program.program import Program
from ...program.rungs import STEPS, entry_at
from ...program.writer import MAX_ENTRIES
from ...runtime.work import Work
from ..assemble import Asked, Price, encode
from ..entries import Entries, by_rows
from ..options import Options
from ..pipeline import Lowering
from ..planner.goal import Goal, Search
from .candidate import Candidate, candidate, eased
from .search import best_for, checked_fit, in_time
from .smallest import Smallest
from .squeeze import searched, squeezed


def encode_ladder(
    budgets: Sequence[int], work: Work, limit: Limit | None, lowering: Lowering, options: Options, goal: Goal,
    search: Search, asked: Asked,
) -> Program:  # fmt: skip
    """The program for `limit`, if there is one, with a rung for each budget; else an error that names the rung."""
    if limit is not None and limit.is_bare:
        why = f"nothing else uses the RAM of {limit.name}"
        raise BadOption("a ladder is for machines with an operating system", why=why, help="budget='256KB'")
    if limit is not None:
        top = best_for(limit, lowering, options, goal, search)
    else:
        top = candidate(None, in_time(lowering, options, goal), goal)
    _check_length(budgets, top.entries)
    options = replace(options, batch=top.entries.batch, const=top.entries.const)
    given = by_rows(top.entries, options.least.stream)
    taken = work.beside(top.need.state_bytes + top.need.arena_bytes)  # on all rungs
    rungs: list[Candidate] = []
    for number, budget in enumerate(budgets, 1):
        room = Limit.of_budget(budget, None if limit is None else limit.device, taken, work.threads)
        room = replace(room, name=f"rung {number} of the ladder", is_rung=True)
        best = searched(room, squeezed(room, given, goal), goal, search)
        if not best.fits(room):
            floor = Smallest(room.device, lowering, options, goal, search.effort_s)
            best = floor.taken(floor.of(given), room)
        fits = eased(checked_fit(room, best, lowering, options, goal, search), goal, 0)
        rungs.append(min(rungs[-1] if rungs else top, fits, key=lambda c: c.need.arena_bytes))
    rooms = {name: room for name, room in rungs[-1].sized.rooms.items() if name not in STEPS}
    rooms |= {entry_at(name, number): rung.sized.rooms[name]
              for number, rung in enumerate(rungs, 1) for name in STEPS if name in rung.sized.rooms}  # fmt: skip
    before = {name: graph for name, graph in top.sized.placed.graphs.items() if name in STEPS}
    size = replace(
        top.sized, rooms={**top.sized.rooms, **rooms}, placed=replace(top.sized.placed, graphs=before)
    )  # the other entries are placed as low as the smallest rung needs them
    return encode(joined(top, rungs), limit, sized=size, price=top.price or Price(top.step), asked=asked)


def _check_length(budgets: Sequence[int], entries: Entries) -> None:
    """A program has room for so many entry points, and each rung adds its steps."""
    each = sum(name in entries.graphs for name in STEPS)
    most = (MAX_ENTRIES - len(entries.graphs)) // each
    if len(budgets) > most:
        count = len(entries.graphs) + each * len(budgets)
        raise BadOption(
            f"a ladder of {len(budgets)} rungs is too long for this program",
            why=f"it would have {count} entry points, and can have {MAX_ENTRIES}: each rung adds {each}",
            help=f"at most {most} rungs" + (", or Memory(accumulate=False) for more" if each > 1 else ""),
        )


def joined(top: Candidate, rungs: Sequence[Candidate]) -> Entries:
    """With the steps of all rungs as entries of their own; the others as the smallest rung needs them, without
    `evaluate` if that raises RAM on one."""
    own = {name: graph for name, graph in top.entries.graphs.items() if name in STEPS}
    graphs, decisions = {**top.entries.graphs, **rungs[-1].entries.graphs, **own}, list(top.entries.all_decisions)
    for number, rung in enumerate(rungs, 1):
        graphs |= {entry_at(name, number): rung.entries.graphs[name] for name in STEPS if name in top.entries.graphs}
        more = [d.why for d in rung.entries.all_decisions if d not in top.entries.all_decisions] or [
            "as without a limit"
        ]
        saves = max(top.need.arena_bytes - rung.need.arena_bytes, 0)
        adds_s = max(rung.seconds - top.seconds, 0.0)
        decisions.append(Decision("rung", f"{entry_at('train', number)}: {'; '.join(more)}", saves, adds_s))
        if not rung.sized.evaluates and graphs.pop("evaluate", None) is not None:
            why = f"job.evaluate gives no loss: rung {number} has no room for it"
            decisions.append(Decision("no_evaluate", why, 0))
    return replace(top.entries, graphs=graphs, decisions=tuple(decisions), explain=tuple)
