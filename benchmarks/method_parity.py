"""Networks × methods × {SGD with momentum, Adam} × batch {1, 8} against PyTorch → docs/results/method_parity.json.

python -m benchmarks.method_parity                            # the whole table; goes on where it was interrupted
python -m benchmarks.method_parity --net dscnn --method tinytl
python -m benchmarks.method_parity --seconds 150              # as many rows as begin in that time

Rules (a) and (b) of docs/explain/parity.md with PyTorch's mask on what learns; exact kernels = interpreter, gradient by
gradient; everything else has the bits it had. A network that a method changed is the changed one in PyTorch, too.
Status 1 if a row fails.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from benchmarks.method_memory import SPARSE
from benchmarks.nets import NETS
from benchmarks.pairwise import meeting
from benchmarks.parity import MOST_TRIES, figures_of, imported, machine
from smidgen import SGD, Adam, Update, files
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.graph import interp
from smidgen.compiler.options import checked_options
from smidgen.compiler.pipeline import Lowering
from smidgen.program.arrays import unlaid
from smidgen.report import parity, proof
from smidgen.train.job import Job

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "method_parity.json"
METHODS: Final = (
    "last_layer", "last:2", "bias", "bn", "bn+last", "tinytl", "tinytl:bias", "tinytl:residual", "lora:4", "sparse",
    "mixed", "full",
)  # fmt: skip
OPTIMIZERS, BATCHES = ("momentum", "adam"), (1, 8)
WEIGHTS_IN_PARTS: Final = 5
Json = dict[str, Any]


@dataclass(frozen=True, order=True)
class Row:
    net: str
    method: str
    optimizer: str
    batch: int

    def __str__(self) -> str:
        return f"{self.net}-{self.method}-{self.optimizer}-{self.batch}"


def rows(nets: Sequence[str] = tuple(SPARSE)) -> list[Row]:
    """The whole table; without a norm there is none to train."""
    found = []
    for net in nets:
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in _model(net).modules())
        methods = [m for m in METHODS if normed or not m.startswith("bn")]
        found += [Row(net, *rest) for rest in itertools.product(methods, OPTIMIZERS, BATCHES)]
    return found


def pairwise(nets: Sequence[str]) -> list[Row]:
    """A part in which any two settings meet."""
    return meeting(rows(nets))


def mixed(model: nn.Module) -> list[Any]:
    """Slices and names: of weights from the first to the last two slices each, along the first axis or the second; a
    slice of a vector; the last bias and a weight whole."""
    params = dict(model.named_parameters())
    weights = [name for name, p in params.items() if p.ndim > 1]
    vectors = [name for name, p in params.items() if p.ndim == 1]
    places = np.linspace(0, len(weights) - 2, min(WEIGHTS_IN_PARTS, len(weights) - 1)).astype(int)
    found: list[Any] = []
    for k, place in enumerate(dict.fromkeys(int(i) for i in places)):
        name = weights[place]
        axis = k % 2 if params[name].shape[1] > 1 else 0
        size = params[name].shape[axis]
        first = Update(name, axis, range(0, max(1, size // 4)))
        found += [first, Update(name, axis, sorted({size // 2, size - 1}))]
    middle = vectors[len(vectors) // 2]
    found.append(Update(middle, 0, range(0, len(params[middle]), 3)))
    return [*found, vectors[-1], weights[-1]]


@functools.cache
def _model(net: str) -> nn.Module:
    return NETS[net].model().eval()


@functools.cache
def _lowering(net: str) -> Lowering:
    return Lowering(imported(net, "frozen"))


def entries_of(row: Row) -> tuple[Entries, Any]:
    net, model = NETS[row.net], _model(row.net)
    wanted = {"sparse": SPARSE[row.net], "mixed": mixed(model)}.get(row.method, row.method)
    optimizer: Any = SGD(net.lr, momentum=0.9, weight_decay=1e-4) if row.optimizer == "momentum" else Adam(1e-3)
    options = checked_options(model, batch=row.batch, method=wanted, optimizer=optimizer)
    return _lowering(row.net).entries(options), optimizer


def measure(row: Row, steps: int = proof.STEPS) -> Json:
    torch.set_num_threads(1)
    start = time.monotonic()
    net, model = NETS[row.net], _model(row.net)
    entries, optimizer = entries_of(row)
    twin, masks = proof.torch_twin(model, entries), parity.masks_of(entries)
    entries = proof.away_from_zero(entries, twin)
    program = encode(entries)

    def reference(dtype: torch.dtype) -> parity.Reference:
        return parity.Reference(twin, net.loss, optimizer, entries.learns, "frozen", dtype, masks)

    pair = [net.batch(row.batch, seed) for seed in (1, 2)]
    batches = [pair[k % 2] for k in range(steps)]
    verdicts = [
        parity.free_run(entries, reference, batches),
        parity.restarted(Job(program, kernels="exact"), reference(torch.float64), optimizer, batches, MOST_TRIES),
    ]
    trained = Job(program, kernels="exact")
    const = bytes(program.const)
    for batch in batches[:2]:
        trained.train_step(*batch)
    interpreter = as_interpreter(entries, program, optimizer, pair[0])
    home = proof.goes_home(trained, model, pair[0][0], entries) and exports_the_same(trained, model, entries)
    untouched = bytes(trained.program.const) == const and only_learned(trained, entries)
    passed = all(v.passed for v in verdicts) and interpreter <= parity.B_LIMIT and home and untouched
    return {
        **asdict(row), "learns": len(entries.learns), "slices": len(masks), **figures_of(*verdicts),
        "interpreter": interpreter, "goes_home": home, "untouched": untouched, "steps": steps,
        "seconds": round(time.monotonic() - start, 1), "passed": passed,
    }  # fmt: skip


def as_interpreter(entries: Entries, program: Any, optimizer: Any, batch: Any) -> float:
    """The worst gradient of exact kernels beside the interpreter's, from the same state."""
    graph, rng = entries.graphs["train"], np.random.default_rng(0)
    inputs, target = batch
    best: dict[str, float] = {}
    for attempt in range(MOST_TRIES):
        moved = inputs if attempt == 0 else [parity.nudge(x, rng) for x in inputs]
        job = Job(program, kernels="exact")
        before, facts = job.state_dict(), job.engine.state.facts
        zeros = {p: {s: np.zeros_like(before[p]) for s in optimizer.slots} for p in entries.learns}
        job.train_step(tuple(moved), target)
        feeds = dict(zip(graph.inputs, [*moved, target], strict=True))
        _, after = interp.advance(graph, interp.initial_state(graph), feeds, n=len(target))
        slots: dict[str, dict[str, np.ndarray]] = {p: {} for p in entries.learns}
        for name, fact in facts.items():
            if fact["role"] == "optim":
                owner = fact["owner"]
                value = unlaid(after[name], facts[owner]["shape"], graph.layouts.get(owner, ()))
                slots[owner][fact["slot"]] = value
        ours = parity.seen_gradients(optimizer, before, zeros, job.state_dict(), job.optimizer_state())
        want = parity.seen_gradients(optimizer, before, zeros, before, slots)
        sizes = {p: float(np.abs(g).max(initial=0.0)) for p, g in want.items()}
        for name, error in parity.gradient_errors(ours, want, sizes).items():
            best[name] = min(best.get(name, float("inf")), error)
        if max(best.values()) <= parity.B_LIMIT:
            break
    return max(best.values())


def exports_the_same(job: Job, model: nn.Module, entries: Entries) -> bool:
    """The file of weights has what learned and no more, with the bits that the job has."""
    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        job.export_weights(path, merge=False)
        written = load_file(path)
    learned = job.state_dict()
    same = all(proof.same_bits(written[name], learned[name]) for name in written)
    return same and set(written) == set(learned) and proof.beside_untouched(job, model, entries)


def only_learned(job: Job, entries: Entries) -> bool:
    """Nothing is state but what the method says, and of that no more than its slices."""
    sizes = {p: int(np.prod(entries.shapes[p])) for p in entries.learns}
    sizes |= {p: int(mask.sum()) for p, mask in parity.masks_of(entries).items()}
    found = {name: part.value.size for name, part in job.state_dict(learned=True).items()}
    aliases = {alias for names in entries.aliases.values() for alias in names}
    return {name: size for name, size in found.items() if name not in aliases} == sizes


def written(path: Path) -> dict[Row, Json]:
    """Rows of earlier runs."""
    if not path.exists():
        return {}
    return {Row(r["net"], r["method"], r["optimizer"], r["batch"]): r for r in json.loads(path.read_text())["rows"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="append", choices=list(SPARSE))
    parser.add_argument("--method", action="append", choices=METHODS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no row begins later")
    parser.add_argument("--steps", type=int, default=proof.STEPS)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    start, found = time.monotonic(), written(args.out)
    table = [row for row in rows(args.net or list(SPARSE)) if args.method is None or row.method in args.method]
    for row in table:
        if row in found and found[row]["passed"] and found[row]["steps"] >= args.steps:
            continue
        if time.monotonic() - start > args.seconds:
            break
        result = found[row] = measure(row, args.steps)
        write(args.out, found)
        figures = {k: f"{result[k]['worst']:.2g}" for k in "ab"} | {"e": f"{result['interpreter']:.2g}"}
        print("pass" if result["passed"] else "FAIL", row, figures, f"{result['seconds']} s", flush=True)
    failed = [str(row) for row, result in found.items() if not result["passed"]]
    print(f"{len(found)} rows in {args.out.name}; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def write(path: Path, found: dict[Row, Json]) -> None:
    """In the order of the table."""
    result = [found[row] for row in rows() if row in found]
    report = {"command": "python -m benchmarks.method_parity", "machine": machine(), "rows": result}
    files.write(path, (json.dumps(report, indent=1) + "\n").encode())


if __name__ == "__main__":
    sys.exit(main())
