"""Whether docs/results/step.json meets what we hold ourselves to: a line for each goal; status 1 if one is missed.

python -m benchmarks.kernels products --json docs/results/products.json
python -m benchmarks.goals

Ratios are to the fastest contestant of a row with the same threads. A floor must hold; a target is where we want to be.
Matrix products are judged by the kernel alone, the best of its rounds, as the peak is; rows `output` of step.json time
a whole prediction of a few of them, by the median.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.step import NETS, OUT, all_rows

Json = dict[str, Any]
SMALL: Final = NETS[:5]
SPEED: Final = {  # net → floor and target at batch 1, then at larger batches
    **dict.fromkeys(SMALL, ((1.5, 4.0), (1.2, 2.5))),
    "mobilenetv2_100": ((1.0, 2.0), (1.0, 2.0)),
    "resnet18": ((0.8, 1.2), (0.8, 1.2)),
    "transformer": ((0.8, 1.2), (0.8, 1.2)),
}
OF_TORCH: Final = {"full": 1 / 3, "last_layer": 1 / 10, "bias": 1 / 10}  # of its memory, at batch 8 and 32
OF_PLAN: Final = 1.1
OF_MACS: Final = 1.25  # of the time that the multiply-accumulates of a part, as a share of all, would take
PRODUCTS: Final = OUT.with_name("products.json")
PRODUCT_SIZES: Final = (256, 1024)
COLD_S: Final = 0.060  # above `import numpy`
GEMM_SHARE: Final = 0.88
STEP_SHARE: Final = ("mobilenetv2_100", 8, 0.35)


@dataclass(frozen=True)
class Verdict:
    goal: str
    row: str
    value: float
    limit: float
    least: bool  # the limit is the least that is good, else the most

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit

    def __str__(self) -> str:
        sign = ("≥" if self.met else "<") if self.least else ("≤" if self.met else ">")
        return f"{self.row}: {self.value:.3g} {sign} {self.limit:.3g}"


def name_of(row: Json) -> str:
    return f"{row['net']} batch {row['batch']} {row['method']}, {row['threads']} thread{'s' * (row['threads'] > 1)}"


def verdicts(rows: Sequence[Json]) -> Iterator[Verdict]:
    for row in rows:
        ours, torch = row["results"].get("smidgen", {}), row["results"].get("torch", {})
        name, method = name_of(row), row["method"]
        if method == "full" and row["ratio"]:
            floor, target = SPEED[row["net"]][row["batch"] > 1]
            yield Verdict("speed, floor", name, row["ratio"], floor, least=True)
            yield Verdict("speed, target", name, row["ratio"], target, least=True)
        if method == "output":
            continue
        yield Verdict("memory of the plan", name, ours["anon_bytes"] / row["ram_bytes"], OF_PLAN, least=False)
        if row["batch"] > 1 and "anon_bytes" in torch:
            share = ours["anon_bytes"] / torch["anon_bytes"]
            yield Verdict("memory of PyTorch's", name, share, OF_TORCH[method], least=False)
        if (row["net"], row["batch"], method, row["threads"]) == (*STEP_SHARE[:2], "full", 1):
            yield Verdict("share of peak of a step", name, ours["share_of_peak"], STEP_SHARE[2], least=True)
        if (row["net"], row["batch"], method, row["threads"]) == ("mcunet", 1, "full", 1):
            yield Verdict("cold start above numpy's", name, ours["cold_s"] - row["numpy_s"], COLD_S, least=False)
    yield from in_proportion(rows)


def of_products(report: Json) -> Iterator[Verdict]:
    found = report["nets"]["products"]
    for layer in found["layers"]:
        n = layer["params"][1]
        if n in PRODUCT_SIZES:
            share = 2 * layer["macs"] / layer["seconds"]["forward"] / found["peak_flops"]
            yield Verdict("share of peak of a matrix product", f"{n} by {n}", share, GEMM_SHARE, least=True)


def in_proportion(rows: Sequence[Json]) -> Iterator[Verdict]:
    """What learns less takes less time, as it multiplies less."""
    full = {(r["net"], r["batch"], r["threads"]): r for r in rows if r["method"] == "full"}
    for row in rows:
        whole = full.get((row["net"], row["batch"], row["threads"]))
        if row["method"] in ("last_layer", "bias") and whole:
            time = row["results"]["smidgen"]["step_s"] / whole["results"]["smidgen"]["step_s"]
            yield Verdict(
                "time in proportion", name_of(row), time / (row["macs"] / whole["macs"]), OF_MACS, least=False
            )


def said(rows: Sequence[Json], products: Json, show: Callable[[str], None]) -> bool:
    """Every goal with the rows that miss it; whether all floors and limits hold in all rows."""
    found = [*verdicts(rows), *of_products(products)]
    for goal in dict.fromkeys(v.goal for v in found):
        here = [v for v in found if v.goal == goal]
        missed = [v for v in here if not v.met]
        worst = (min if here[0].least else max)(here, key=lambda v: v.value / v.limit)
        show(f"{goal}: {len(here) - len(missed)} of {len(here)} rows; worst {worst}")
        for one in missed:
            show(f"  missed  {one}")
    have = {(r["net"], r["batch"], r["method"], r["threads"]) for r in rows}
    absent = [str(r) for r in all_rows() if (r.net, r.batch, r.method, r.threads) not in have]
    if absent:
        show(f"not measured: {len(absent)} rows: {'; '.join(absent)}")
    return not absent and all(v.met for v in found if v.goal != "speed, target")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=OUT)
    parser.add_argument("--products", type=Path, default=PRODUCTS)
    args = parser.parse_args()
    rows, products = json.loads(args.json.read_text())["rows"], json.loads(args.products.read_text())
    return 0 if said(rows, products, print) else 1


if __name__ == "__main__":
    sys.exit(main())
