"""How near the optimum plans within a budget are, and how long it takes to know → docs/results/optimal.json.

python -m benchmarks.optimal             # random networks of up to 60 steps, 10 s each; then large ones, 60 s each
python -m benchmarks.optimal --large 0

A budget is a share of the way from the lowest peak that is imaginable to the peak of the plain step. `above` is how
much longer a whole step may take than the best one: time of the plan / (time of the plain step + bound) - 1. Where that
is more than 5 %, a search of ten minutes (`--long`) says how far the plan is from the best that is known. Status 1 if a
search took longer than it may, or a plan is further than 5 % from the best that is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.nets.large import task
from benchmarks.peers.machine import describe
from smidgen import files
from smidgen.compiler.optimizers import SGD
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import prices_of
from smidgen.compiler.planner.least_peak import least_peak
from smidgen.compiler.planner.problem import Problem, problem_of, profile
from smidgen.compiler.planner.solve import solve
from smidgen.compiler.torch_import.capture import import_model

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "optimal.json"
SHARES: Final = (0.75, 0.5, 0.35, 0.25, 0.15)
LARGE: Final = ("resnet18", "squeezenet", "bert_small")
LARGE_SHARES: Final = (0.5, 0.25)
MOST_STEPS: Final = 60
BATCH: Final = 8
SMALL_S, LARGE_S = 10.0, 60.0
NEAR: Final = 0.05
Json = dict[str, Any]


def small_problems(count: int) -> Iterator[tuple[str, Problem]]:
    """Random networks of the tests, as many steps as are allowed but no trifles."""
    from tests.support import generated

    seed = found = 0
    while found < count:
        seed += 1
        net, method, _, loss, _ = generated.sample(seed)
        if method != "full":
            continue
        net.eval()
        inputs, target = generated.data(net, loss, BATCH, seed)
        imported = import_model(net, tuple(inputs), loss=loss, target=target)
        problem = _problem(Lowering(imported), net)
        if MOST_STEPS // 2 <= len(problem.steps) <= MOST_STEPS and least_peak(problem) < _peak(problem):
            found += 1
            yield f"random {seed}", problem


def large_problems() -> Iterator[tuple[str, Problem]]:
    for name in LARGE:
        model, inputs, loss = task(name, BATCH)
        yield name, _problem(Lowering(import_model(model, inputs, loss=loss)), model)


def _problem(lowering: Lowering, model: Any) -> Problem:
    entries = lowering.entries(checked_options(model, batch=BATCH, optimizer=SGD(lr=0.01)))
    return problem_of(entries.plain["train"], BATCH, prices_of(None))


def _peak(problem: Problem) -> int:
    return profile(problem, problem.plain()).peak_bytes


def answers(
    name: str, problem: Problem, shares: Sequence[float], limit_s: float, long_s: float = 0.0
) -> Iterator[Json]:
    low, high = least_peak(problem), _peak(problem)
    for share in shares:
        for page in (False, True):
            budget = low + int(share * (high - low))
            start = time.monotonic()
            found = solve(problem, budget, page=page, effort_s=limit_s)
            row: Json = {"net": name, "steps": len(problem.steps), "share": share, "page": page,
                         "solve_s": time.monotonic() - start, "fits": found is not None}  # fmt: skip
            if found is not None:
                base = problem.seconds
                row |= {"proven": found.proven, "extra": found.extra / base,
                        "above": max(found.seconds / (base + found.bound) - 1, 0.0)}  # fmt: skip
                if long_s and row["above"] > NEAR:
                    long = solve(problem, budget, page=page, effort_s=long_s, known=[found.schedule])
                    known_s = found.seconds if long is None else min(found.seconds, long.seconds)
                    row |= {"long_s": long_s, "above_best_known": found.seconds / known_s - 1}
            print(json.dumps(row), flush=True)
            yield row


def summary(rows: Sequence[Json]) -> Json:
    good = [r for r in rows if r["fits"]]
    return {
        "answers": len(rows), "fit": len(good), "proven": sum(r["proven"] for r in good),
        "above_most": max((r["above"] for r in good), default=0.0),
        "above_best_known_most": max((r.get("above_best_known", r["above"]) for r in good), default=0.0),
        "solve_s_most": max((r["solve_s"] for r in rows), default=0.0),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=20, help="random networks")
    parser.add_argument("--large", type=int, default=1, help="0: none")
    parser.add_argument("--long", type=float, default=600.0, help="seconds; 0: no long search")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    small = [r for name, p in small_problems(args.small) for r in answers(name, p, SHARES, SMALL_S)]
    problems = large_problems() if args.large else ()
    large = [r for name, p in problems for r in answers(name, p, LARGE_SHARES, LARGE_S, args.long)]
    report = {
        "date": time.strftime("%Y-%m-%d"), "machine": describe(), "small": summary(small), "large": summary(large),
        "rows": [*small, *large],
    }  # fmt: skip
    files.write(args.out, (json.dumps(report, indent=1) + "\n").encode())
    print(json.dumps({"small": report["small"], "large": report["large"]}, indent=1))
    late = any(r["solve_s"] > limit_s for rows, limit_s in ((small, SMALL_S), (large, LARGE_S)) for r in rows)
    return 1 if late or report["large"]["above_best_known_most"] > NEAR else 0


if __name__ == "__main__":
    sys.exit(main())
