"""How long it takes until a budget is answered, after import → docs/results/answers.json.

python -m benchmarks.answers                    # all networks of benchmarks.nets.large, at full size, batch 8
python -m benchmarks.answers --net bert_base    # one of them; the others stay as they are

Impossible budgets (1 MB, and a little less than the smallest that is found to fit: lower and lower until nothing does),
deadlines that cannot be met (less than a step with all RAM takes, and hardly more than that in a quarter of it), and
for ResNet-50 and BERT-base budgets at shares of the way from the floor (state and the runtime's own memory) to the plan
without one; each with and without somewhere to page to, by the default effort of `smidgen.compile`. Seconds are those
of the clock, `cpu_s` those of the processor: the machine should have nothing else to do. Status 1 if an answer took too
many of the clock.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from smidgen import files
from smidgen.compiler.effort import UNITS, metered
from smidgen.compiler.fit.candidate import Candidate, candidate
from smidgen.compiler.fit.search import best_for
from smidgen.compiler.fit.smallest import Smallest
from smidgen.compiler.optimizers import SGD
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import prices_of, spent
from smidgen.compiler.planner.goal import Goal, Search
from smidgen.compiler.torch_import.capture import import_model
from smidgen.devices.room import Limit
from smidgen.errors import DoesNotFit

from .nets.large import LARGE, task
from .peers.machine import describe

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "answers.json"
SHARES: Final = (0.75, 0.5, 0.35, 0.25, 0.15)
ANSWERED: Final = ("resnet50", "bert_base")
BATCH: Final = 8
EFFORT_S: Final = 5.0
BELOW: Final = (0.995, 0.985, 0.965, 0.925, 0.85, 0.7, 0.5, 0.25)  # of the smallest budget
LATE: Final = ((0.9, 0.5), (1.001, 0.25))  # of a step with all RAM, and share of the arena
MOST_S: Final = {"impossible": 10.0, "late": 10.0, "within": 60.0}
Json = dict[str, Any]


class Net:
    def __init__(self, name: str) -> None:
        self.name = name
        model, inputs, loss = task(name, BATCH)
        self.options = checked_options(model, batch=BATCH, optimizer=SGD(lr=0.01))
        start = time.monotonic()
        self.imported = import_model(model, inputs, loss=loss)
        self.import_s = time.monotonic() - start
        entries = Lowering(self.imported).entries(self.options)
        self.base: Candidate = candidate(None, entries, Goal(prices=prices_of(None)))
        self.all_ram_s = spent(entries.plain["train"], BATCH, prices_of(None)).seconds

    def rows(self) -> Iterator[Json]:
        base = self.base.need
        floor = base.ram_bytes - base.arena_bytes
        for page in (False, True):
            goal = Goal(page=page, prices=prices_of(None))
            least = Smallest(None, Lowering(self.imported), self.options, goal).found.need.ram_bytes
            yield self.answer("impossible", 1 << 20, goal)
            for below in BELOW:
                row = self.answer("impossible", int(below * least), goal)
                yield row
                if not is_plan(row):
                    break
            for share_s, share in LATE:
                hurried = replace(goal, deadline_s=self.all_ram_s * share_s)
                yield self.answer("late", floor + int(share * base.arena_bytes), hurried)
            for share in SHARES if self.name in ANSWERED else ():
                yield self.answer("within", floor + int(share * base.arena_bytes), goal) | {"share": share}

    def answer(self, kind: str, budget_bytes: int, goal: Goal) -> Json:
        lowering = Lowering(self.imported)  # with nothing done yet
        start, start_cpu = time.monotonic(), time.process_time()
        with metered(EFFORT_S) as meter:
            try:
                made = best_for(Limit.of_budget(budget_bytes), lowering, self.options, goal, Search(EFFORT_S)).program()
                extra = made.meta["plan"]["step_seconds"] / self.base.seconds - 1
                said = f"fits, {extra:+.1%} time"
            except DoesNotFit as error:
                said = str(error).splitlines()[0]
        row = {"net": self.name, "kind": kind, "page": goal.page, "budget_bytes": budget_bytes,
               "seconds": time.monotonic() - start, "cpu_s": time.process_time() - start_cpu,
               "effort_s": meter.units / UNITS, "said": said}  # fmt: skip
        print(json.dumps(row), flush=True)
        return row


def kind_of(row: Json) -> str:
    """A budget that was thought to be impossible may fit all the same."""
    kind: str = row["kind"]
    return "within" if is_plan(row) else kind


def is_plan(row: Json) -> bool:
    return str(row["said"]).startswith("fits")


def summary(rows: Sequence[Json]) -> Json:
    found: Json = {}
    for kind, most in MOST_S.items():
        ours = [row for row in rows if kind_of(row) == kind]
        if ours:
            worst = max(ours, key=lambda row: row["seconds"])
            found[kind] = {"answers": len(ours), "in_time": sum(row["seconds"] <= most for row in ours), "most_s": most,
                           "slowest_s": worst["seconds"], "slowest": worst["net"]}  # fmt: skip
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append", choices=list(LARGE), help="default: all")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    rows: list[Json] = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    for name in args.net or LARGE:
        made = list(Net(name).rows())
        rows = sorted([*(r for r in rows if r["net"] != name), *made], key=lambda r: list(LARGE).index(r["net"]))
        report = {"date": time.strftime("%Y-%m-%d"), "machine": describe(), "effort_s": EFFORT_S,
                  "summary": summary(rows), "rows": rows}  # fmt: skip
        files.write(args.out, (json.dumps(report, indent=1) + "\n").encode())
    slow = [row for row in rows if row["seconds"] > MOST_S[kind_of(row)]]
    for row in slow:
        print(f"FAIL {row['net']}, {row['kind']}: {row['seconds']:.1f} s", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
