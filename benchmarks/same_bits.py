"""Whatever is done to fit, the same bits are learned → docs/results/same_bits.json.

python -m benchmarks.same_bits                   # goes on where it was interrupted
python -m benchmarks.same_bits --net vgg11 --again
python -m benchmarks.same_bits --large           # instead: some of full size, one step → same_bits_large.json

Thirteen networks at reduced size × budget × technique: two steps with exact kernels and momentum, compared bit for bit
with the program that has no budget: weights, statistics, the optimizer's state and losses. Budgets are floor + a share
of (base − floor), as in benchmarks.fit. With batch-norm statistics of the batch too, where there are norms
(micro-batches are not offered then). No program is made that the verifier does not pass. Status 1 if anything differs.
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

import smidgen
from smidgen import files
from smidgen.compiler.fit.candidate import candidate
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import prices_of
from smidgen.compiler.planner.goal import Goal, Search
from smidgen.compiler.torch_import.capture import import_model

from .fit import SHARES
from .nets.large import LARGE, REDUCED
from .parity import machine
from .techniques import TECHNIQUES, Model, is_good, learned, outcome, report_text, said, summed

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "same_bits.json"
BATCH: Final = 8
STEPS: Final = 2
ALL_SHARES: Final = (0.95, *SHARES)
BATCH_SHARES: Final = (0.95, 0.5, 0.25)  # with statistics of the batch
EFFORT_S: Final = 0.2  # of search for each budget
FULL_SIZE: Final = ("resnet18", "mobilenetv2", "squeezenet", "bert_small")
FULL_TECHNIQUES: Final = ("joint", "joint, may page", "page", "split")
FULL_SHARES: Final = (0.5, 0.25)
Json = dict[str, Any]


def rows_of(name: str, bn: str, large: bool, effort_s: float, folder: Path) -> list[Json]:
    net = LARGE[name] if large else REDUCED[f"{name}_reduced"]
    batch, steps = (2, 1) if large else (BATCH, STEPS)
    batches = [net.batch(batch, seed) for seed in range(1, steps + 1)]
    module = net.model().eval()
    options = checked_options(module, optimizer=smidgen.SGD(net.lr, momentum=0.9), batch=batch, bn=bn)
    model = Model(Lowering(import_model(module, batches[0][0], loss=net.loss, bn=bn)), options)
    goal, search = Goal(prices=prices_of(None)), Search(effort_s)
    base = candidate(None, model.lowering.entries(options), goal)
    wanted = learned(base.program(), batches, folder / "pages")
    floor = base.need.ram_bytes - base.need.arena_bytes
    rows: list[Json] = []
    shares = FULL_SHARES if large else ALL_SHARES if bn == "frozen" else BATCH_SHARES
    for share in shares:
        budget = floor + round(share * base.need.arena_bytes)
        for technique in FULL_TECHNIQUES if large else TECHNIQUES:
            if technique == "split" and bn == "batch":
                continue
            start = time.monotonic()
            made = outcome(technique, budget, model, goal, search, wanted, batches, folder / "pages")
            row = {"net": name, "bn": bn, "batch": batch, "base_bytes": base.need.ram_bytes, "share": share, **made}
            rows.append(row)
            print(f"{name}, bn {bn}, {share:.0%}, {technique}: {said(row)}, {time.monotonic() - start:.1f} s",
                  file=sys.stderr, flush=True)  # fmt: skip
    return rows


def report_of(rows: Sequence[Json], command: str, left: Sequence[str]) -> bytes:
    def share(row: Json) -> str:
        return f"{row['share']:.0%}"

    return report_text(
        {
            "command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine(), "steps": STEPS,
            "networks": len({row["net"] for row in rows}), "tries": len(rows), "left": left,
            "programs": sum("parts" in row for row in rows), "bad": sum(not is_good(row) for row in rows),
            "by_technique": summed((row["technique"], said(row)) for row in rows),
            "by_share": summed((share(row), said(row)) for row in rows),
        },
        rows,
    )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Whatever is done to fit, the same bits are learned.")
    parser.add_argument("--net", action="append", choices=list(LARGE), help="default: all")
    parser.add_argument("--large", action="store_true", help="some networks of full size instead")
    parser.add_argument("--again", action="store_true", help="also rows that are there")
    parser.add_argument("--effort", type=float, default=EFFORT_S, metavar="S", help="of search for each budget")
    args = parser.parse_args(argv)
    out = OUT.with_name("same_bits_large.json") if args.large else OUT
    rows: list[Json] = json.loads(out.read_text())["rows"] if out.exists() else []
    command = "python -m benchmarks.same_bits" + (" --large" if args.large else "")
    frozen, both = ("frozen",), ("frozen", "batch")
    names = FULL_SIZE if args.large else LARGE
    wanted = [(n, bn) for n in names for bn in (both if LARGE[n].has_norm and not args.large else frozen)]
    cases = [(n, bn) for n, bn in wanted if not args.net or n in args.net]
    with tempfile.TemporaryDirectory() as folder:
        for name, bn in cases:
            mine = [row for row in rows if (row["net"], row["bn"]) == (name, bn)]
            if mine and not args.again:
                continue
            rows = [row for row in rows if row not in mine] + rows_of(name, bn, args.large, args.effort, Path(folder))
            rows.sort(key=lambda row: (list(LARGE).index(row["net"]), row["bn"] != "frozen"))
            left = [f"{n}, bn {b}" for n, b in wanted if not any((r["net"], r["bn"]) == (n, b) for r in rows)]
            files.write(out, report_of(rows, command, left))
    for row in rows:
        if not is_good(row):
            print(f"FAIL {row}", file=sys.stderr)
    print(json.dumps({k: v for k, v in json.loads(out.read_text()).items() if k != "rows"}, indent=1))
    return 0 if all(map(is_good, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
