"""Every network × optimizer × batch × method × batch-norm mode against PyTorch, by the rules of smidgen.report.parity.

python -m benchmarks.parity --all --out docs/results/parity.json     # what `make parity` runs
python -m benchmarks.parity --all --fast --out docs/results/parity_fast.json     # gradients of fast kernels
python -m benchmarks.parity --large                                  # deep networks of the field, reduced
python -m benchmarks.parity --net lenet5 --method bias               # a part of it, printed
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import itertools
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.nets import NETS, Net
from benchmarks.nets.large import REDUCED
from benchmarks.pairwise import meeting
from smidgen.compiler.assemble import encode
from smidgen.compiler.pipeline import lower

OPTIMIZERS = ("momentum", "adam")
BATCHES = (1, 8)
METHODS = ("full", "last_layer", "bias")
MOST_TRIES = 32  # of ten thousand values at a threshold, one or the other is near it in many a try
TABLE = {**NETS, **REDUCED}
ROW_KEYS = ("net", "optimizer", "batch", "method", "bn")


@dataclass(frozen=True, order=True)
class Row:
    net: str
    optimizer: str
    batch: int
    method: str
    bn: str

    def __str__(self) -> str:
        return f"{self.net}-{self.optimizer}-{self.batch}-{self.method}-{self.bn}"


def rows(names: list[str] | None = None) -> list[Row]:
    """The whole table."""
    found = []
    for name in names or NETS:
        modes = ("frozen", "batch") if TABLE[name].has_norm else ("frozen",)
        for o, b, m, bn in itertools.product(OPTIMIZERS, BATCHES, METHODS, modes):
            found.append(Row(name, o, b, m, bn))
    return found


def pairwise(names: list[str] | None = None) -> list[Row]:
    """A part in which every two settings, of the network too, meet at least once; of equals the smaller batch."""
    return meeting(rows(names))


@dataclass(frozen=True)
class Case:
    """What a row is measured on."""

    model: Any
    net: Net
    optimizer: Any
    batches: list[Any]
    entries: Any
    bn: str

    def reference(self, dtype: Any) -> Any:
        from smidgen.report import parity

        return parity.Reference(self.model, self.net.loss, self.optimizer, self.entries.learns, self.bn, dtype)


def case_of(row: Row) -> Case:
    import torch

    from smidgen import SGD, Adam
    from smidgen.report import proof

    torch.set_num_threads(1)
    net: Net = TABLE[row.net]
    # A parameter in front of a norm with batch statistics has no gradient but rounding, which Adam's default eps of
    # 1e-8 turns into steps of any direction; the norm's running mean then follows that noise.
    # Batch statistics make small batches chaotic at rates where frozen ones are not, most of all if everything learns.
    # Of one sample they are statistics of four to nine values in the last layers, fifty norms deep; and where a norm
    # stands right in front of global pooling, its output's mean is its bias: no gradient passes at all.
    calm = 1.0 if row.bn == "frozen" else 0.005 if row.batch == 1 else 0.05 if row.method == "full" else 0.2
    adam = Adam(1e-3 * calm, eps=1e-8 if row.bn == "frozen" else 1e-3 if row.batch == 1 else 1e-6)
    optimizer = SGD(net.lr * calm, momentum=0.9, weight_decay=1e-4) if row.optimizer == "momentum" else adam
    pair = [net.batch(row.batch, seed) for seed in (1, 2)]
    # Two batches again and again, so that the loss can fall.
    batches = [pair[k % 2] for k in range(proof.FREE_STEPS)]
    entries = lower(imported(row.net, row.bn), optimizer=optimizer, method=row.method, batch=row.batch)
    return Case(net.model().eval(), net, optimizer, batches, entries, row.bn)


def refusals(case: Case, program: Any) -> dict[str, Any]:
    """Where torch raises, so must we; empty where it does not."""
    import torch

    from smidgen.train.job import Job

    refused = raises(lambda: case.reference(torch.float64).step(*case.batches[0]))
    if not refused:
        return {}
    ours = raises(lambda: Job(program).train_step(*case.batches[0]))
    return {"torch_raises": refused, "we_raise": ours, "passed": bool(ours)}


def figures_of(*verdicts: Any) -> dict[str, Any]:
    facts = {v.rule: {"worst": v.worst, "limit": v.limit, "where": v.where} for v in verdicts}
    return {**facts, "beyond": sum(v.beyond for v in verdicts)}


def measure(row: Row) -> dict[str, Any]:
    """One row: the three figures, and what the plan says of memory."""
    return _measured(row, _exact_figures)


def measure_fast(row: Row) -> dict[str, Any]:
    """One row: gradients of fast kernels, two threads, by the rule that holds for exact ones."""
    return _measured(row, _fast_figures)


def _measured(row: Row, figures: Callable[[Case, Any], dict[str, Any]]) -> dict[str, Any]:
    start = time.monotonic()
    case = case_of(row)
    program = encode(case.entries)
    refused = refusals(case, program)
    if refused:
        return asdict(row) | refused
    found = figures(case, program)
    passed = found.pop("passed")
    return {**asdict(row), **found, "seconds": round(time.monotonic() - start, 1), "passed": passed}


def _exact_figures(case: Case, program: Any) -> dict[str, Any]:
    import torch

    from smidgen.report import parity, proof
    from smidgen.train.job import Job

    few = case.batches[: proof.STEPS]
    a = parity.free_run(case.entries, case.reference, few)
    c, losses, job = parity.distance(program, case.reference, case.batches)
    exact = Job(program, kernels="exact")
    b = parity.restarted(exact, case.reference(torch.float64), case.optimizer, few, MOST_TRIES)
    plan = job.plan
    home = proof.goes_home(job, case.model, few[0][0], case.entries)
    gap = plan.arena_bytes / plan.lower_bound_bytes - 1
    first, last = sum(losses[:2]) / 2, sum(losses[-2:]) / 2  # over both batches
    passed = all(v.passed for v in (a, b, c)) and home and gap <= 0.05 and last < first
    return {
        **figures_of(a, b, c), "goes_home": home, "loss_first": first, "loss_last": last,
        "ram_bytes": plan.ram_bytes, "arena_bytes": plan.arena_bytes, "state_bytes": plan.state_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes, "gap": gap, "macs": plan.cost.macs["train"], "passed": passed,
    }  # fmt: skip


def _fast_figures(case: Case, program: Any) -> dict[str, Any]:
    import torch

    from smidgen.report import parity, proof
    from smidgen.train.job import Job

    job = Job(program, kernels="fast", threads=2)
    few = case.batches[: proof.STEPS]
    b = parity.restarted(job, case.reference(torch.float64), case.optimizer, few, MOST_TRIES)
    return {**figures_of(b), "kernels": job.engine.machine.instruction_set, "passed": b.passed}


@functools.cache
def imported(name: str, bn: str) -> Any:
    """Exporting takes longer than everything else, and does not depend on the other settings."""
    from smidgen.compiler.torch_import.capture import import_model

    net = TABLE[name]
    return import_model(net.model().eval(), net.batch(2)[0], loss=net.loss, bn=bn)


def raises(run: Any) -> str:
    try:
        run()
    except Exception as error:  # any refusal counts, of torch's or of ours
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def machine() -> dict[str, str]:
    model = next((line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), platform.machine())  # fmt: skip
    return {"cpu": model, "cores": str(os.cpu_count()), "python": platform.python_version()}


def write(path: Path, found: list[dict[str, Any]]) -> None:
    """After every row, so that a run that is interrupted can go on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m benchmarks.parity", *sys.argv[1:]])
    report = {"command": command, "date": time.strftime("%Y-%m-%d"), "machine": machine(), "rows": found}
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(partial, path)


def finished(path: Path | None, table: list[Row]) -> list[dict[str, Any]]:
    """Rows of an interrupted run that passed; `make parity` removes the file first."""
    if path is None or not path.exists():
        return []
    wanted = {str(row) for row in table}
    rows = json.loads(path.read_text())["rows"]
    return [r for r in rows if r["passed"] and str(Row(**{k: r[k] for k in ROW_KEYS})) in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the whole table, not the pairwise part")
    parser.add_argument("--net", action="append", choices=list(TABLE))
    parser.add_argument("--large", action="store_true", help="deep networks of the field at reduced size")
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--fast", action="store_true", help="fast kernels, rule (b) only")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    names = args.net or list(REDUCED if args.large else NETS)
    table = rows(names) if args.all else pairwise(names)
    table = [row for row in table if args.method in (None, row.method)]
    found = finished(args.out, table)
    done = {str(Row(**{k: r[k] for k in ROW_KEYS})) for r in found}
    table = [row for row in table if str(row) not in done]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each worker has one core
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(args.jobs, mp_context=context) as pool:
        for row, result in zip(
            table, pool.map(measure_fast if args.fast else measure, table, chunksize=6), strict=True
        ):
            found.append(result)
            figures = {k: f"{result[k]['worst']:.2g}" for k in "abc" if k in result}
            if args.out:
                write(args.out, found)
            print(f"{len(found):4}/{len(done) + len(table)} {'pass' if result['passed'] else 'FAIL'} {row} {figures} "
                  f"{result.get('torch_raises', '')}", flush=True)  # fmt: skip
    failed = [r for r in found if not r["passed"]]
    print(f"{len(found) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
