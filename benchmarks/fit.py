"""Budgets: extra time and energy of every technique alone and of all together → docs/results/fit.json and fit.md.

python -m benchmarks.fit                      # goes on where it was interrupted
python -m benchmarks.fit --net resnet50 --again
python -m benchmarks.fit --measure            # also runs the plans, with fast kernels on one thread
python -m benchmarks.fit --tables             # fit.md and fit.svg from fit.json, nothing else

Base is the plan without a budget, floor is state and the runtime's own memory; budgets are floor + a share of (base −
floor). Status 1 if all techniques together are worse than one alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from smidgen import files
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.fit.max_batch import largest_batch
from smidgen.compiler.fit.search import best_for
from smidgen.compiler.fit.sweep import Point, Sweep, sweep
from smidgen.compiler.optimizers import SGD
from smidgen.compiler.options import Options, checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.compiler.planner.cost import prices_of
from smidgen.compiler.planner.goal import Goal, Search
from smidgen.compiler.torch_import.capture import import_model
from smidgen.devices.room import Limit
from smidgen.errors import DoesNotFit
from smidgen.report.sweep_text import share_text, sweep_json
from smidgen.terminal import bytes_text, seconds_text

from .make_tables import table
from .nets import NETS
from .nets.large import task
from .parity import machine

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "fit.json"
SHARES: Final = (0.75, 0.5, 0.35, 0.25, 0.15)
BATCH: Final = 8
EFFORT_S: Final = 10.0  # of searching for each budget
MOST_MEASURED_BYTES: Final = 12 << 30
TURNS, TURNS_S = (3, 40), 3.0  # steps of a plan that is measured: least and most, and seconds if they allow
TOLERANCE: Final = 1e-9
COLOURS: Final = {
    "joint": "#d55e00", "recompute": "#0072b2", "page": "#cc79a7", "split": "#009e73", "chen": "#56b4e9",
    "sage": "#e69f00", "dtr": "#b8860b", "melon": "#6b5b95",
}  # fmt: skip
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    label: str
    net: str
    pixels: int = 0  # 0: as in benchmarks.nets.large


CASES: Final = {
    "mcunet": Case("MCUNet-5fps, 128 px", "mcunet", 128),
    "mobilenetv2": Case("MobileNetV2, 224 px", "mobilenetv2"),
    "resnet18": Case("ResNet-18, 224 px", "resnet18"),
    "vgg16": Case("VGG-16, 224 px", "vgg16"),
    "resnet50": Case("ResNet-50, 224 px", "resnet50"),
    "bert_base": Case("BERT-base, 128 tokens", "bert_base"),
}


def lowering_of(case: Case) -> tuple[Lowering, Options]:
    if case.pixels:
        net = replace(NETS[case.net], shape=(3, case.pixels, case.pixels))
        model, inputs, loss = net.model().eval(), net.batch(BATCH)[0], net.loss
    else:
        model, inputs, loss = task(case.net, BATCH)
    options = checked_options(model, batch=BATCH, optimizer=SGD(lr=0.01))
    return Lowering(import_model(model, inputs, loss=loss)), options


def row_of(name: str, measure: bool, effort_s: float) -> Json:
    case = CASES[name]
    lowering, options = lowering_of(case)
    goal, search = Goal(page=True, prices=prices_of(None)), Search(effort_s)
    kept: dict[tuple[str, int], Entries] = {}

    def keep(point: Point, entries: Entries) -> None:
        if measure and point.technique in ("none", "recompute", "page", "split", "joint"):
            kept[point.technique, point.budget_bytes] = entries

    found = sweep(lowering, options, None, goal, search, shares=(1.0, *SHARES), told=say, made=keep)
    broken = [
        [p.technique, p.budget_bytes]
        for p in found.points
        if (mine := p.seconds) is not None
        and ((best := found.at("joint", p.budget_bytes).seconds) is None or best > mine * (1 + TOLERANCE))
    ]
    return {
        "net": name, "label": case.label, "date": time.strftime("%Y-%m-%d"), "machine": machine(),
        "batch": BATCH, "optimizer": "SGD", "bn": "frozen", "effort_s": effort_s,
        **sweep_json(found),
        "broken": broken,
        "impossible": impossible(lowering, options, goal, search, found.floor_bytes // 2),
        "largest": {f"{mb}MB": largest(lowering, options, goal, mb << 20) for mb in (64, 256)},
        "measured": measured(found, kept) if measure else [],
    }  # fmt: skip


def impossible(lowering: Lowering, options: Options, goal: Goal, search: Search, budget_bytes: int) -> Json:
    """How long it takes until the error is there: for the budget or, as long as something fits, half of it."""
    while True:
        fresh = Lowering(lowering.imported)
        start, spent = time.monotonic(), time.process_time()
        try:
            best_for(Limit.of_budget(budget_bytes), fresh, options, goal, search)
        except DoesNotFit as error:
            said = str(error).splitlines()[0]
            return {"budget_bytes": budget_bytes, "seconds": time.monotonic() - start,
                    "cpu_s": time.process_time() - spent, "said": said}  # fmt: skip
        budget_bytes //= 2


def largest(lowering: Lowering, options: Options, goal: Goal, budget_bytes: int) -> Json | None:
    start = time.monotonic()
    try:
        one = largest_batch(Limit.of_budget(budget_bytes), lowering, options, goal, Search(4.0), told=say)
    except DoesNotFit:
        return None
    return {"batch": one.batch, "ram_bytes": one.ram_bytes, "samples_per_s": one.samples_per_s,
            "page_bytes": one.page_bytes, "solve_s": time.monotonic() - start}  # fmt: skip


def measured(found: Sweep, kept: dict[tuple[str, int], Entries]) -> list[Json]:
    """Steps of each plan in turn with steps of the plan without a limit, so that both see the same machine: medians,
    and the median of their ratios. What is the plan without a limit is not measured again."""
    largest = max(budget for technique, budget in kept if technique == "none")
    free = kept["none", largest]
    rows: list[Json] = []
    page = OUT.with_suffix(".page")
    try:
        base = Steps(free, page)
        for (technique, budget), entries in kept.items():
            point = found.at(technique, budget)
            is_base = technique == "none" and budget == largest
            if (point.ram_bytes or 0) > MOST_MEASURED_BYTES or (entries is free and not is_base):
                continue
            say(len(rows), len(kept), f"measuring {technique}")
            pairs = turns(base, base if is_base else Steps(entries, page))
            rows.append({
                "technique": technique, "budget_bytes": budget, "predicted_s": point.seconds, "steps": len(pairs),
                "seconds": statistics.median(mine for _, mine in pairs),
                "base_s": statistics.median(free_s for free_s, _ in pairs),
                "extra": statistics.median(mine / free_s for free_s, mine in pairs) - 1,
            })  # fmt: skip
            page.unlink(missing_ok=True)
    finally:
        page.unlink(missing_ok=True)
    return rows


class Steps:
    """Steps of a plan with all samples, in micro-batches if it has them, on random numbers."""

    def __init__(self, entries: Entries, page: Path) -> None:
        from smidgen.train.job import Job

        self.job = Job(encode(entries, proven=False), kernels="fast", threads=1, page_to=page)
        self.job.lr = 1e-9  # the numbers stay what they are
        rng = np.random.default_rng(0)
        buffers = [b for b in self.job.program.entry_buffers("train") if b.direction == "input"]
        arrays = [np.zeros(b.shape(entries.step_samples or entries.batch), b.dtype.numpy) for b in buffers]
        for array in arrays:
            if array.dtype.kind == "f":
                array[...] = rng.standard_normal(array.shape)
        self.inputs, self.target = tuple(arrays[:-1]), arrays[-1]

    def seconds(self) -> float:
        start = time.perf_counter()
        self.job.train_step(self.inputs, self.target)
        return time.perf_counter() - start


def turns(base: Steps, other: Steps) -> list[tuple[float, float]]:
    base.seconds()
    other.seconds()  # also proves the extents and touches the memory
    start, pairs = time.monotonic(), list[tuple[float, float]]()
    least, most = TURNS
    while len(pairs) < least or (len(pairs) < most and time.monotonic() < start + TURNS_S):
        pairs.append((base.seconds(), other.seconds()))
    return pairs


def say(done: int, total: int, what: str) -> None:
    print(f"  {done}{f' of {total}' if total else ''}: {what}", file=sys.stderr, flush=True)


def tables(report: Json) -> str:
    lines = [
        "# Within a budget\n\n",
        "Made by `python -m benchmarks.fit` from [fit.json](fit.json). Batch 8, SGD, everything learns, batch-norm\n",
        "frozen, float32; images of 224 px, MCUNet 128 px, BERT 128 tokens. Base is the plan without a budget, which\n",
        "already computes again what costs next to nothing; floor is state and the runtime's own memory; a budget of\n",
        "50 % is floor + half of (base − floor). Extra time and energy are predicted, above base; `·` does not fit,\n",
        "`in 4` is a step in four parts. `joint` may compute again, page and split; `bound`: no step taken at once\n",
        "can take less. `ideal`, RAM without end, is base: 0. Paging is to a disk, by the prices of the host. Plans\n",
        "are for the least time; the energy is that of the same plans (`objective='energy'` looks for the least).\n\n",
        _summary(report["rows"]),
        "\n![extra time](fit.svg)\n",
    ]
    for row in report["rows"]:
        lines += [f"\n## {row['label']}\n\n", _points(row, "seconds", "base_s"), "\nEnergy:\n\n",
                  _points(row, "joules", "base_j")]  # fmt: skip
        if row["measured"]:
            how = "fast kernels, one thread, each plan step by step in turn with the one without a limit"
            lines += [f"\nMeasured on {row['machine']['cpu']}, {row['date']}, {how}:\n\n", _measured(row)]
    return "".join(lines)


def write_tables(report: Json) -> None:
    OUT.with_suffix(".md").write_text(tables(report))
    OUT.with_suffix(".svg").write_text(picture(report))


def picture(report: Json) -> str:
    """A panel for each network: budget to the right, from the floor to base; extra time upwards, in logarithms."""
    wide, high, left, top = 320, 230, 46, 26
    most = math.log1p(4.0)
    rows = report["rows"]
    size = (wide * min(3, max(1, len(rows))), high * max(1, -(-len(rows) // 3)) + 24)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{size[0]}" height="{size[1]}" fill="#ffffff"/>',
    ]
    for number, row in enumerate(rows):
        x0, y0 = number % 3 * wide + left, number // 3 * high + top
        w, h = wide - left - 14, high - top - 34

        def y(extra: float, y0: int = y0, h: int = h) -> float:
            return y0 + h - min(math.log1p(max(extra, 0.0)), most) / most * h

        parts.append(f'<text x="{x0}" y="{y0 - 8}" font-weight="bold">{row["label"]}</text>')
        for tick in (0, 0.1, 0.25, 0.5, 1, 2, 4):
            parts.append(f'<line x1="{x0}" x2="{x0 + w}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#dddddd"/>')
            said = f"+{tick * 100:.0f} %" if tick else "0"
            parts.append(f'<text x="{x0 - 4}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#555555">{said}</text>')
        for text, at, anchor in (("floor_bytes", x0, "start"), ("base_bytes", x0 + w, "end")):
            said = f"{text.partition('_')[0]} {bytes_text(row[text])}"
            parts.append(f'<text x="{at}" y="{y0 + h + 15}" text-anchor="{anchor}" fill="#555555">{said}</text>')
        span = row["base_bytes"] - row["floor_bytes"]
        for name, colour in COLOURS.items():
            points = sorted(
                (x0 + (p["budget_bytes"] - row["floor_bytes"]) / span * w, y(p["extra"]))
                for p in row["points"]
                if p["technique"] == name and p["extra"] is not None
            )
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            thick = 4 if name == "joint" else 1.5
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{thick}"/>')
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{thick}" fill="{colour}"/>' for a, b in points]
    for number, (name, colour) in enumerate(COLOURS.items()):
        at = left + number * 95
        parts.append(f'<circle cx="{at}" cy="{size[1] - 12}" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{at + 8}" y="{size[1] - 8}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _summary(rows: Sequence[Json]) -> str:
    head = ["network", "floor", "base", "step", "smallest", "its extra time", "slowest answer", "impossible said in",
            "largest at 64 MB", "at 256 MB", "joint is best"]  # fmt: skip
    found = []
    for row in rows:
        joint = [p for p in row["points"] if p["technique"] == "joint"]
        low = min((p for p in joint if p["extra"] is not None), key=lambda p: p["budget_bytes"])
        big = [row["largest"][k] for k in ("64MB", "256MB")]
        found.append([
            row["label"], bytes_text(row["floor_bytes"]), bytes_text(row["base_bytes"]), seconds_text(row["base_s"]),
            bytes_text(row["smallest_bytes"]), share_text(low["extra"]) if low["budget_bytes"] <= row["smallest_bytes"]
            else "–", seconds_text(max(p["solve_s"] for p in joint)), seconds_text(row["impossible"]["seconds"]),
            *[f"{b['batch']} ({b['samples_per_s']:.3g}/s)" if b else "–" for b in big],
            "FAIL" if row["broken"] else "yes",
        ])  # fmt: skip
    return table(head, found)


def _points(row: Json, figure: str, base: str) -> str:
    names = list(row["techniques"])
    budgets = sorted({p["budget_bytes"] for p in row["points"]}, reverse=True)
    at = {(p["technique"], p["budget_bytes"]): p for p in row["points"]}
    lines = []
    for budget in budgets:
        share = (budget - row["floor_bytes"]) / (row["base_bytes"] - row["floor_bytes"])
        cells = []
        for name in names:
            point = at[name, budget]
            extra = None if point[figure] is None else point[figure] / row[base] - 1
            cells.append(share_text(extra) + (f" in {point['parts']}" if point["parts"] > 1 else ""))
        bound = at["joint", budget]["bound_s"]
        if figure == "seconds":
            cells.append(share_text(None if bound is None else bound / row[base] - 1))
        lines.append([f"{bytes_text(budget)} ({share:.0%})", *cells])
    return table(["budget", *names, *(["bound"] if figure == "seconds" else [])], lines)


def _measured(row: Json) -> str:
    lines = [
        [one["technique"], bytes_text(one["budget_bytes"]), seconds_text(one["seconds"]), share_text(one["extra"]),
         share_text(one["predicted_s"] / row["base_s"] - 1)]
        for one in row["measured"]
    ]  # fmt: skip
    return table(["technique", "budget", "a step", "extra", "predicted extra"], lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Extra time of every technique within a budget.")
    parser.add_argument("--net", action="append", choices=list(CASES), help="default: all")
    parser.add_argument("--measure", action="store_true", help="run the plans too")
    parser.add_argument("--again", action="store_true", help="also rows that are there")
    parser.add_argument("--tables", action="store_true", help="only fit.md, from what is there")
    parser.add_argument("--effort", type=float, default=EFFORT_S, metavar="S", help="of search for each budget")
    args = parser.parse_args(argv)
    report: Json = json.loads(OUT.read_text()) if OUT.exists() else {"shares": list(SHARES), "rows": []}
    for name in () if args.tables else args.net or CASES:
        if any(row["net"] == name for row in report["rows"]) and not args.again:
            continue
        print(CASES[name].label, file=sys.stderr, flush=True)
        row = row_of(name, args.measure, args.effort)
        rows = [*(r for r in report["rows"] if r["net"] != name), row]
        report["rows"] = sorted(rows, key=lambda r: list(CASES).index(r["net"]))
        files.write(OUT, json.dumps(report, indent=1).encode() + b"\n")
        write_tables(report)
    write_tables(report)
    broken = [row["label"] for row in report["rows"] if row["broken"]]
    for label in broken:
        print(f"FAIL {label}: a technique alone is better than all together", file=sys.stderr)
    return 1 if broken else 0


__all__ = ["CASES", "OUT", "main", "picture", "row_of", "tables"]

if __name__ == "__main__":
    sys.exit(main())
