"""Several plans for several budgets in one program: each rung of the ladder is the same step, with as much computed
again as its budget asks for. All of them share STATE and begin at the start of ARENA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...devices import room as limits
from ...devices.device import Device
from ...errors import BadOption
from ...program.plan import Decision
from ...program.program import Program
from ...program.rungs import STEPS, entry_at
from ...runtime.work import Work
from ..assemble import encode
from ..options import Options
from ..pipeline import Entries, Lowering
from ..planner.within import Aim
from .candidate import Found, found, with_price
from .search import checked_fit, found_for, in_time
from .squeeze import searched, squeezed


def encode_ladder(
    budgets: Sequence[int], work: Work, device: Device | None, lowering: Lowering, options: Options, aim: Aim
) -> Program:
    """The program for `device`, if there is one, with a rung for each budget; else an error that names the rung."""
    if device is not None and device.is_bare:
        raise BadOption("a ladder on a board", why=f"nobody else uses the RAM of {device.name}", help="budget='256KB'")
    if device is not None:
        top = found_for(device, lowering, options, aim)
    else:
        top = found(None, in_time(lowering, options, aim), aim)
    options = replace(options, batch=top.entries.batch, const=top.entries.const)
    taken = work.beside(top.need.state_bytes + top.need.arena_bytes)  # on all rungs
    rungs: list[Found] = []
    for number, budget in enumerate(budgets, 1):
        room = replace(limits.within(budget, device, taken, work.threads), name=f"rung {number} of the ladder")
        first = squeezed(room, top.entries, replace(aim, effort_s=0.0))
        fits = checked_fit(room, searched(room, first, aim), lowering, options, aim)
        rungs.append(min(rungs[-1] if rungs else top, fits, key=lambda f: f.need.arena_bytes))
    rooms = {entry_at(name, number): rung.sized.rooms[name]
             for number, rung in enumerate(rungs, 1) for name in STEPS if name in rung.sized.rooms}  # fmt: skip
    return with_price(encode(joined(top, rungs), device, rooms={**top.sized.rooms, **rooms}), top.step, top.price)


def joined(top: Found, rungs: Sequence[Found]) -> Entries:
    """With the steps of all rungs as entries of their own; without `evaluate` if that would be dear on one of them."""
    graphs, decisions = dict(top.entries.graphs), list(top.entries.decisions)
    for number, rung in enumerate(rungs, 1):
        graphs |= {entry_at(name, number): rung.entries.graphs[name] for name in STEPS if name in top.entries.graphs}
        more = [d.why for d in rung.entries.decisions if d not in top.entries.decisions] or ["as without a limit"]
        saves = max(top.need.arena_bytes - rung.need.arena_bytes, 0)
        adds_s = max(rung.seconds - top.seconds, 0.0)
        decisions.append(Decision(f"rung {number}", f"{entry_at('train', number)}: {'; '.join(more)}", saves, adds_s))
        if not rung.sized.evaluates and graphs.pop("evaluate", None) is not None:
            why = f"job.evaluate gives no loss, for the sake of rung {number}"
            decisions.append(Decision("no evaluate", why, 0))
    return replace(top.entries, graphs=graphs, decisions=tuple(decisions))
