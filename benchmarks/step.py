"""Time and memory of a whole training step: smidgen beside what a user would pick instead.

python -m benchmarks.step --setup      # environments of the other contestants, once (about 4 GB)
python -m benchmarks.step --prepare    # conversions and compilations of all contestants, which are kept
python -m benchmarks.step --quick      # a few rows in three minutes, printed
python -m benchmarks.step              # the whole table into docs/results/step.json; goes on where it was interrupted

All train the same network from the same weights on the same batch: float32, cross-entropy, SGD with momentum,
batch-norm statistics frozen. Each measurement is a fresh process; contestants take turns, round after round.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import machine, setup, spawn
from benchmarks.peers.table import BY_NAME, PEERS, ROOT, Peer
from smidgen import SmidgenError, files
from smidgen.errors import DoesNotFit
from smidgen.terminal import bytes_text, seconds_text

OUT = ROOT / "docs" / "results" / "step.json"
NETS = ("lenet5", "dscnn", "resnet8", "mcunet", "mobilenetv2_035", "mobilenetv2_100", "resnet18", "transformer")
SEQUENCES = ("transformer",)
GEMMS = ("gemm256", "gemm1024")
BATCHES = (1, 8, 32)
METHODS = ("full", "last_layer", "bias")
CONTENDS = 2.0  # who is slower than the fastest by more than this is not measured again
REPEATED_S = 20.0  # nor who takes longer than this for one step
SAME_LOSS = 2e-3
WITHIN = {"full": 0.30, "last_layer": 0.09, "bias": 0.09}  # of PyTorch's memory, as a budget
PARTLY = ("smidgen", "torch", "torch_channels_last")  # all that methods other than `full` are compared with
QUICK_PEERS = ("smidgen", "torch", "torch_channels_last", "onnxruntime", "litert")
MEANING = {
    "step_s": "median over rounds of the median, q1 and q3 of settled steps",
    "cold_s": "from the start of the process to the end of the first step; compilers' caches are warm",
    "anon_bytes": "peak of anonymous memory through settled steps, above what it was after the import of the library"
    " and of the batch",
    "file_bytes": "resident pages of files, for all of the process: code, and weights that are used in place",
    "installed_bytes": "the package and all that it requires",
    "peak_gflops": "fused multiply-adds in registers, best of the row's rounds, with the row's threads",
    "share_of_peak": "2 * macs / step_s / peak; macs are those that smidgen's plan counts, for everyone",
    "at_a_time": "samples that smidgen takes at a time; their gradients add up",
    "budget": "given to smidgen at batch 8 and 32 where it would take more by itself: 30 % of what PyTorch takes if all"
    " learns, 9 % if a part does; else none",
    "page_bytes": "of a file that smidgen pages to, where its budget is less than what has to stay in RAM without one",
    "ratio": "step_s of the fastest other contestant, fastest_s, / step_s of smidgen",
    "others": "processors that other programs kept busy meanwhile, largest of the rounds",
}

Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class Row:
    net: str
    batch: int
    method: str  # or `output`: not a step but the network's output alone
    threads: int

    def __str__(self) -> str:
        return f"{self.net} batch {self.batch} {self.method}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def all_rows() -> list[Row]:
    """In an order in which what is learned early saves time later: small batches and one thread first."""
    rows = [Row(net, 1, "output", 1) for net in GEMMS]
    for net in NETS:
        rows += [Row(net, b, "full", t) for t, b in itertools.product((1, 2), BATCHES)]
        rows += [Row(net, b, m, 1) for m, b in itertools.product(METHODS[1:], BATCHES)]
    return rows


QUICK = [Row("lenet5", 1, "full", 1), Row("mcunet", 1, "full", 1), Row("mcunet", 8, "full", 1)]


# -- who takes part --------------------------------------------------------------------------------------------------


def contestants(row: Row, peers: Sequence[Peer], given: bool = False) -> list[Peer]:
    """`given`: these very peers were asked for."""
    partly = row.method != "full" and not given
    return [p for p in peers if not (p.images_only and (row.net in SEQUENCES or row.method == "output"))
            and (p.name in PARTLY or not partly)]  # fmt: skip


def left_out(row: Row, peer: Peer, rows: Sequence[Json]) -> str:
    """Why an earlier row spares us this measurement, or nothing. smidgen and PyTorch are always measured."""
    if peer.name in PARTLY:
        return ""
    for other in rows:
        mine = other["results"].get(peer.name, {})
        near = {k: other[k] for k in ("net", "batch", "method", "threads")}
        here = asdict(row)
        if near == {**here, "threads": 1} and row.threads > 1:
            fastest = fastest_of(other["results"])
            if "step_s" not in mine:
                return f"with one thread: {mine.get('error') or mine.get('left_out', 'absent')}"
            if mine["step_s"] > CONTENDS * other["results"][fastest]["step_s"]:
                times = mine["step_s"] / other["results"][fastest]["step_s"]
                return f"{times:.1f} times as slow as {BY_NAME[fastest].label} with one thread"
        smaller = near["batch"] < row.batch and near == {**here, "batch": near["batch"]}
        if smaller and mine.get("step_s", 0) * row.batch / near["batch"] > 2 * REPEATED_S:
            return f"a step takes {seconds_text(mine['step_s'])} at batch {near['batch']}"
        if smaller and spawn.TOO_LONG in mine.get("error", ""):
            return f"at batch {near['batch']}, {mine['error']}"
    return ""


def repeated(name: str, results: Json, rounds: int) -> bool:
    """Whether a contestant is still measured, `rounds` rounds being done."""
    mine = results.get(name, {})
    if rounds == 0 or name == "smidgen":
        return "error" not in mine
    others = [r["step_s"] for k, r in results.items() if "step_s" in r and k != "smidgen"]
    if "step_s" not in mine or not others:
        return False
    return bool(mine["step_s"] <= min(CONTENDS * min(others), REPEATED_S))


# -- figures ---------------------------------------------------------------------------------------------------------


def combined(runs: Sequence[Json]) -> Json:
    """One contestant's rounds as one result."""
    good = [r for r in runs if "error" not in r]
    if not good:
        return {"error": runs[-1]["error"]}
    found: Json = {"rounds": len(good), "version": good[-1]["version"], "steps": sum(r["steps"] for r in good)}
    for ours, theirs in (("step_s", "median"), ("q1_s", "q1"), ("q3_s", "q3")):
        found[ours] = statistics.median(r["step_s"][theirs] for r in good)
    for key in ("cold_s", "anon_bytes", "anon_first_bytes", "file_bytes"):
        if key in good[0]:
            middle = statistics.median(r[key] for r in good)
            found[key] = int(middle) if key.endswith("bytes") else middle
    found["others"] = max(r["others"] for r in good)
    return found | {k: good[-1][k] for k in ("losses", "facts") if good[-1].get(k)}


def fastest_of(results: Json, without: str = "smidgen") -> str:
    """The fastest contestant of those that computed the same; nothing if there is none."""
    times = {k: r["step_s"] for k, r in results.items() if "step_s" in r and k != without and "differs" not in r}
    return min(times, key=lambda k: (times[k], k)) if times else ""


def mark_different(results: Json) -> None:
    """Who does not have PyTorch's losses before and after the first update is named, and counts for nothing."""
    wanted = results.get("torch", {}).get("losses")
    for result in results.values():
        found = result.get("losses")
        if wanted and found:
            gaps = [abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted, strict=True)]
            if not max(gaps) <= SAME_LOSS:
                result["differs"] = f"losses {found}, PyTorch has {wanted}"


def finished(row: Row, facts: Json, results: Json, peaks: Sequence[float], numpy_s: Sequence[float]) -> Json:
    mark_different(results)
    macs = facts["macs"]["infer" if row.method == "output" else "train"]
    peak = max(peaks)
    for result in results.values():
        if "step_s" in result:
            result["share_of_peak"] = 2e-9 * macs / result["step_s"] / peak
    fastest, ours = fastest_of(results), results.get("smidgen", {})
    ratio = results[fastest]["step_s"] / ours["step_s"] if fastest and "step_s" in ours else None
    return {
        **asdict(row), "macs": macs, "ram_bytes": facts["ram_bytes"], "at_a_time": facts["at_a_time"],
        "budget": facts["budget"], "page_bytes": facts["page_bytes"], "date": time.strftime("%Y-%m-%d %H:%M"),
        "sources": facts["stamp"], "machine": machine.describe()["cpu"], "peak_gflops": peak,
        "numpy_s": statistics.median(numpy_s), "fastest_other": fastest, "ratio": ratio, "results": results,
        **({"fastest_label": BY_NAME[fastest].label, "fastest_s": results[fastest]["step_s"]} if fastest else {}),
    }  # fmt: skip


# -- the run ---------------------------------------------------------------------------------------------------------


def measure(row: Row, peers: Sequence[Peer], rounds: int, seconds: float, before: Sequence[Json]) -> Json:
    from benchmarks.peers.prepare import case_folder, write_case, write_program

    method = "last_layer" if row.method == "output" else row.method
    facts = write_case(row.net, row.batch, method)
    case = case_folder(row.net, row.batch, method)
    results: Json = {}
    for peer in peers:
        why = left_out(row, peer, before)
        if why:
            results[peer.name] = {"left_out": why}
        else:
            problem = spawn.prepared(peer, case, row.threads).get("error")
            if problem:
                results[peer.name] = {"error": problem}
    taking = [p for p in peers if p.name not in results]
    program = write_program(row.net, row.batch, method, row.threads)
    if row.method in WITHIN and row.batch > 1 and BY_NAME["torch"] in taking:
        theirs = spawn.measured(BY_NAME["torch"], case, row.threads, seconds).get("anon_bytes", 0)
        limit = int(theirs * WITHIN[row.method])
        if 0 < limit < program["ram_bytes"]:
            program = within(row, method, limit) or program
    runs: dict[str, list[Json]] = {p.name: [] for p in taking}
    peaks, starts = [], []
    for number in range(rounds):
        peaks.append(machine.peak_gflops(row.threads))
        starts.append(machine.numpy_s())
        shift = number % max(1, len(taking))
        for peer in [*taking[shift:], *taking[:shift]]:  # nobody is always first
            if repeated(peer.name, results, number):
                what = "output" if row.method == "output" else "measure"
                runs[peer.name].append(spawn.measured(peer, case, row.threads, seconds, what))
        results |= {name: combined(found) for name, found in runs.items() if found}
    ordered = {p.name: results[p.name] for p in PEERS if p.name in results}
    return finished(row, {**facts, **program, "stamp": facts["stamp"]}, ordered, peaks, starts)


def within(row: Row, method: str, limit: int) -> Json | None:
    """The program for a budget; state alone may be more than that, so it pages if it must."""
    from benchmarks.peers.prepare import write_program

    for page in (False, True):
        with contextlib.suppress(DoesNotFit):
            return write_program(row.net, row.batch, method, row.threads, limit, page)
    return None


def prepare(row: Row, peers: Sequence[Peer]) -> str:
    """All that a contestant does before it is measured; what went wrong."""
    from benchmarks.peers.prepare import case_folder, write_case

    method = "last_layer" if row.method == "output" else row.method
    write_case(row.net, row.batch, method)
    found = {p.name: spawn.prepared(p, case_folder(row.net, row.batch, method), row.threads) for p in peers}
    return ", ".join(f"{name}: {r['error']}" for name, r in found.items() if "error" in r)


def said(row: Row, done: Json) -> str:
    lines = [f"{row}   peak {done['peak_gflops']:.0f} GFLOP/s"]
    for name, r in done["results"].items():
        if "step_s" not in r:
            lines.append(f"  {name:20} {r.get('error') or r.get('left_out')}"[:160])
            continue
        memory = ""
        if "cold_s" in r:
            memory = f"{bytes_text(max(0, r['anon_bytes'])):>9}  cold {seconds_text(r['cold_s']):>8}"
        mark = "  DIFFERS" if "differs" in r else ""
        lines.append(f"  {name:20} {seconds_text(r['step_s']):>9}  {r['share_of_peak']:6.1%} of peak  {memory}{mark}")
    ratio = done["ratio"]
    return "\n".join([*lines, f"  ratio {ratio:.2f} to {done['fastest_other']}" if ratio else "  no ratio"])


class Report:
    """The file, with rows that are done; written whole after each."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        old = json.loads(path.read_text()) if path and path.exists() else {}
        self.rows: list[Json] = old.get("rows", [])
        self.contestants: Json = old.get("contestants", {})

    def has(self, row: Row, sources: Json) -> bool:
        """Measured already, with the sources of now."""
        return any({**asdict(row), "sources": sources}.items() <= done.items() for done in self.rows)

    def add(self, row: Row, done: Json) -> None:
        kept = [r for r in self.rows if any(r[k] != v for k, v in asdict(row).items())]
        for name, result in done["results"].items():
            if result.get("version") == "":  # asking for it would have taken time
                result["version"] = self.contestants[name]["version"]
        self.rows = [*kept, done]
        self.write()

    def write(self) -> None:
        if self.path is None:
            return
        order = {row: i for i, row in enumerate(all_rows())}
        self.rows.sort(key=lambda r: order.get(Row(r["net"], r["batch"], r["method"], r["threads"]), len(order)))
        whole = {
            "command": " ".join(["python -m benchmarks.step", *sys.argv[1:]]), "date": time.strftime("%Y-%m-%d"),
            "machine": machine.describe(), "meaning": MEANING, "contestants": self.contestants, "rows": self.rows,
        }  # fmt: skip
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write(self.path, (json.dumps(whole, indent=1) + "\n").encode())


def present(peers: Sequence[Peer], report: Report) -> list[Peer]:
    """Those that are installed; all are noted in the report, the absent with their reason."""
    found = []
    for peer in peers:
        facts = spawn.installed(peer)
        note: Json = {"label": peer.label, "notes": list(peer.notes)}
        if "error" in facts:
            print(f"{peer.name} is absent: {facts['error']}", flush=True)
            report.contestants[peer.name] = {**note, "absent": facts["error"]}
        else:
            report.contestants[peer.name] = {**note, "version": facts["version"], "installed_bytes": facts["bytes"]}
            found.append(peer)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="install the other contestants into .venv-peers")
    parser.add_argument("--prepare", action="store_true", help="convert and compile for the rows; measure nothing")
    parser.add_argument("--quick", action="store_true", help="a few rows, printed; nothing is written without --out")
    parser.add_argument("--net", action="append", choices=[*NETS, *GEMMS])
    parser.add_argument("--batch", action="append", type=int, choices=BATCHES)
    parser.add_argument("--method", action="append", choices=[*METHODS, "output"])
    parser.add_argument("--threads", action="append", type=int, choices=(1, 2))
    parser.add_argument("--peer", action="append", choices=list(BY_NAME))
    parser.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timed steps in each measurement")
    parser.add_argument("--again", action="store_true", help="measure rows that are in the file already, too")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.setup:
        for name, why in setup.set_up().items():
            print(f"{name}: {why}")
        return 0
    rows = [r for r in (QUICK if args.quick else all_rows()) if wanted(r, args)]
    report = Report(args.out or (None if args.quick else OUT))
    names = args.peer or (QUICK_PEERS if args.quick else list(BY_NAME))
    peers = present([BY_NAME[name] for name in names], report)
    failed = 0
    from benchmarks.peers.prepare import lr_of, stamp_of  # PyTorch is needed from here on

    for number, row in enumerate(rows, 1):
        if report.has(row, stamp_of(lr_of(row.net))) and not args.again:
            continue
        taking = contestants(row, peers, bool(args.peer))
        begin = time.monotonic()
        if args.prepare:
            problem = prepare(row, taking)
            print(f"[{number}/{len(rows)}, {seconds_text(time.monotonic() - begin)}] {row} {problem}", flush=True)
            continue
        try:
            done = measure(row, taking, args.rounds or (1 if args.quick else 3), args.seconds, report.rows)
        except SmidgenError as error:  # the other rows are worth having
            print(f"[{number}/{len(rows)}] {row}\n{error}", flush=True)
            failed += 1
            continue
        report.add(row, done)
        print(f"[{number}/{len(rows)}, {seconds_text(time.monotonic() - begin)}] {said(row, done)}", flush=True)
    return 1 if failed else 0


def wanted(row: Row, args: argparse.Namespace) -> bool:
    pairs = ((row.net, args.net), (row.batch, args.batch), (row.method, args.method), (row.threads, args.threads))
    return all(not chosen or value in chosen for value, chosen in pairs)


if __name__ == "__main__":
    sys.exit(main())
