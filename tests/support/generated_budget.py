"""Random networks × method × budget × technique: whatever is done to fit, two steps learn the same, bit for bit.

python -m tests.support.generated_budget      # writes docs/results/generated.json; goes on where it was interrupted

Every network is tried with every technique, each within a budget of its own between what computing again reaches, or
less, and what the network takes without one. Status 1 if any bit differs, or less than 95 % compile or end in a
documented error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.parity import machine
from benchmarks.techniques import OURS, TECHNIQUES, Batch, Model, is_good, learned, outcome, report_text, said, summed
from smidgen import files
from smidgen.compiler.assemble import encode
from smidgen.compiler.fit.squeeze import squeezed
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import prices_of
from smidgen.compiler.planner.goal import Goal, Search
from smidgen.compiler.torch_import.capture import import_model
from smidgen.devices.room import Limit, need_of
from smidgen.errors import SmidgenError
from tests.support import generated
from tests.support.generated import OPTIMIZERS

OUT: Final = Path(__file__).parents[2] / "docs" / "results" / "generated.json"
FIRST: Final = 1000  # other networks than those of test_generated
COUNT: Final = 500
STEPS: Final = 2
LEAST: Final = 0.95  # that compile or end in a documented error
EFFORT_S: Final = (0.0, 0.2)  # of search, by turns
BAD: Final = ("differs", "fault", "over budget")
Json = dict[str, Any]


def rows_of(seed: int, pages: Path, techniques: Sequence[str] = TECHNIQUES) -> tuple[Json, list[Json]]:
    """What was made, and a row for each technique; one row for a network that is refused even without a budget."""
    net, method, optimizer, loss, batch = generated.sample(seed)
    net.eval()
    rng = np.random.default_rng(seed)
    batch = max(batch, int(rng.integers(1, 9)))
    bn = "batch" if seed % 4 == 0 and batch > 1 else "frozen"
    made = {"seed": seed, "method": method, "optimizer": optimizer, "batch": batch, "bn": bn}
    batches: list[Batch] = []
    for step in range(STEPS):
        xs, y = generated.data(net, loss, batch, seed + step)
        batches.append((tuple(xs), y))
    options = checked_options(net, optimizer=OPTIMIZERS[optimizer], method=method, batch=batch, bn=bn)
    try:
        model = Model(Lowering(import_model(net, batches[0][0], loss=loss, bn=bn)), options)
        entries = model.lowering.entries(options)
        free = encode(entries)
        wanted = learned(free, batches, pages)
    except SmidgenError as error:
        what = f"fault {error.code}" if isinstance(error, OURS) else "refused"
        return made, [{"technique": "none", "outcome": what, "code": error.code, "said": str(error)}]
    fixed = need_of(None, free).ram_bytes - free.arena_bytes
    least = min(squeezed(Limit.nothing(None), entries, Goal()).need.arena_bytes, free.arena_bytes)
    goal, search = Goal(prices=prices_of(None)), Search(EFFORT_S[seed % len(EFFORT_S)])
    found = []
    for technique in techniques:
        low = least
        if seed % 4 == 3:  # most of these are out of reach
            low = free.arena_bytes // 4
        elif technique in ("page", "joint, may page"):  # less than computing again reaches
            low //= 2
        budget = fixed + int(rng.integers(low, free.arena_bytes + 1))
        found.append(outcome(technique, budget, model, goal, search, wanted, batches, pages))
    return made, found


def report_of(networks: Sequence[Json], command: str) -> bytes:
    said_of = [(technique, what) for one in networks for technique, what in one["outcomes"].items()]
    bad = sum(what.startswith(BAD) for _, what in said_of)
    return report_text(
        {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine(), "networks": len(networks),
         "tries": len(said_of), "compiled_or_documented": 1 - bad / max(len(said_of), 1), "bad": bad,
         "by_technique": summed(said_of)}, networks,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Random networks within random budgets learn the same bits.")
    parser.add_argument("--count", type=int, default=COUNT, help="networks")
    parser.add_argument("--again", action="store_true", help="from the first one on")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args(argv)
    rows: list[Json] = json.loads(args.out.read_text())["rows"] if args.out.exists() and not args.again else []
    done = {row["seed"] for row in rows}
    command = f"python -m tests.support.generated_budget --count {args.count}"
    with tempfile.TemporaryDirectory() as folder:
        for seed in (s for s in range(FIRST, FIRST + args.count) if s not in done):
            made, found = rows_of(seed, Path(folder) / "pages")
            for row in found:
                if not is_good(row):
                    print(f"FAIL {made} {row}", file=sys.stderr, flush=True)
            rows.append({**made, "outcomes": {row["technique"]: said(row) for row in found}})
            if seed % 10 == 9:
                files.write(args.out, report_of(rows, command))
                print(f"{seed - FIRST + 1} of {args.count}", file=sys.stderr, flush=True)
    files.write(args.out, report_of(rows, command))
    report = json.loads(args.out.read_text())
    print(json.dumps({k: v for k, v in report.items() if k != "rows"}, indent=1))
    return 1 if report["bad"] or report["compiled_or_documented"] < LEAST else 0


if __name__ == "__main__":
    sys.exit(main())
