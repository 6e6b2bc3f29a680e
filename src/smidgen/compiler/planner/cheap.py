"""What costs next to nothing to recompute is not kept, whatever the budget: activations and norms with given
statistics, whose own input is kept anyway."""

from __future__ import annotations

from ... import ops
from ...ir import Graph, Node, at
from ...ops.build import typed
from ...program.plan import Decision
from ..passes.recompute import recompute
from .cost import HOST, ROUGH
from .greedy import fit
from .problem import doings, problem_of, profile

FEW = 4  # multiply-accumulates for an element written


def cheapened(graph: Graph, batch: int) -> tuple[Graph, Decision | None]:
    """With values recomputed where that takes no sums, as far as it lowers the peak. What it costs is told in the
    prices of all plans; which they are must not depend on those."""
    problem = problem_of(graph, batch, ROUGH)
    plain = profile(problem, problem.plain())

    few = {k for k, step in enumerate(problem.steps) if _takes_no_sums(graph, graph.nodes[step.node], batch)}
    lowest = fit(problem, 0, few.__contains__, hasty=True)[1].peak_bytes
    schedule, after = fit(problem, lowest, few.__contains__, hasty=True)
    again = doings(graph, problem, schedule)
    if not again or after.peak_bytes >= plain.peak_bytes:
        return graph, None
    count = sum(len(nodes) for nodes in again.values())
    told = problem_of(graph, batch, HOST)
    before_s, after_s = told.seconds, profile(told, schedule).seconds
    share = (after_s / before_s - 1) * 100
    why = f"recomputes {count} cheap result{'' if count == 1 else 's'} (about {share:.0f} % more time)"
    saved = plain.peak_bytes - after.peak_bytes
    return recompute(graph, again), Decision("cheap", why, saved, after_s - before_s)


def _takes_no_sums(graph: Graph, node: Node, batch: int) -> bool:
    call = typed(graph, node)
    written = sum(int(at(t.size, batch)) for t in call.outs)
    return int(at(ops.get(node.op).macs(call), batch)) <= FEW * written
