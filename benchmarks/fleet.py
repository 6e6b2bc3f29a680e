"""Fleets whose devices differ, on real data → docs/results/fleet.json; needs `../shared/data`.

python -m benchmarks.fleet                       # all of it; goes on where it was interrupted
python -m benchmarks.fleet --only wisdm --arms planned heterofl --rounds 5 --seeds 0   # a part; --out FILE
python -m benchmarks.fleet --table               # what is known so far

Keywords by speaker, activities by subject, pictures over 30 devices by a Dirichlet distribution of 0.3. A third of the
devices holds the plain step of the model, a third half of its bytes, a third a quarter of them. Of each device, every
fifth sample is for evaluation; the accuracy is that of the last round's model on all of these.

drop: FedAvg of the devices that hold the plain step. planned: all, each with a plan of its own. sparse: the smallest
ones learn the biases and the last layer instead. heterofl, splitmix, fedepth: the published methods, as many channels,
base networks or blocks as the bytes of a device hold.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from flwr.serverapp.strategy import FedAvg, Strategy
from torch import nn

import smidgen
from smidgen import files, fleet
from smidgen.errors import DoesNotFit
from smidgen.fleet.records import unpacked

from .methods.intervals import half_width
from .methods.tasks import DATA, GRAVITY, _scaled
from .peers.machine import describe

OUT: Final = Path(__file__).parents[1] / "docs" / "results" / "fleet.json"
ARMS: Final = ("drop", "planned", "sparse", "heterofl", "splitmix", "fedepth")
SHARES: Final = (1.0, 0.5, 0.25)  # of the plain step's bytes, by class of device
ROUNDS: Final = 50
SEEDS: Final = (0, 1, 2)
BATCH: Final = 16
RATE: Final = 0.05
BASES: Final = 8
HELD_OUT: Final = 0.2
Array = np.ndarray[Any, np.dtype[Any]]
Json = dict[str, Any]
Build = Callable[[float], nn.Module]
"""A network with this share of its channels."""


# -- tasks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    build: Build
    data: Callable[[int], tuple[Array, Array, Array]]  # of a seed: x, y, device
    epochs: int = 1


def _channels(count: int, width: float) -> int:
    """As HeteroFL has it: the first ⌈width · C⌉."""
    return max(1, int(np.ceil(count * width)))


def keyword_net(width: float) -> nn.Module:
    c = _channels(64, width)
    layers: list[nn.Module] = [nn.ZeroPad2d((1, 1, 4, 5)), nn.Conv2d(1, c, (10, 4), 2), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(c, c, 3, padding=1, groups=c), nn.ReLU(), nn.Conv2d(c, c, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 40))


def motion_net(width: float) -> nn.Module:
    a, b, c = (_channels(n, width) for n in (16, 32, 32))
    return nn.Sequential(
        nn.Conv1d(3, a, 7, 1, 3), nn.ReLU(), nn.Conv1d(a, b, 5, 2, 2), nn.ReLU(), nn.Conv1d(b, c, 5, 2, 2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(c, 6),
    )  # fmt: skip


def picture_net(width: float) -> nn.Module:
    a, b, c = (_channels(n, width) for n in (16, 32, 64))
    return nn.Sequential(
        nn.Conv2d(3, a, 3, padding=1), nn.ReLU(), nn.Conv2d(a, b, 3, 2, 1), nn.ReLU(), nn.Conv2d(b, c, 3, 2, 1),
        nn.ReLU(), nn.Conv2d(c, c, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10),
    )  # fmt: skip


def words(seed: int) -> tuple[Array, Array, Array]:
    found = np.load(DATA / "signal" / "arabic_kws40_mfcc.npz")
    x = found["mfcc"].astype(np.float32)[:, None]
    return (x - x.mean()) / x.std(), found["label"].astype(np.int64), found["speaker"]


def activities(seed: int) -> tuple[Array, Array, Array]:
    found = np.load(DATA / "signal" / "wisdm_watch_accel6.npz")
    x = np.ascontiguousarray(found["x"].astype(np.float32).transpose(0, 2, 1)) / GRAVITY
    return x, found["label"].astype(np.int64), found["subject"]


def pictures(seed: int, devices: int = 30, alpha: float = 0.3) -> tuple[Array, Array, Array]:
    """Of each kind, a share for each device that is drawn from a Dirichlet distribution (Hsu et al. 2019)."""
    found = np.load(DATA / "vision" / "cifar10_32.npz")
    rows = np.flatnonzero(~found["is_test"])
    x, y = _scaled(found["images"][rows]), found["label"][rows].astype(np.int64)
    rng = np.random.default_rng(seed)
    while True:
        device = np.zeros(len(y), np.int64)
        for kind in np.unique(y):
            own = rng.permutation(np.flatnonzero(y == kind))
            cuts = (np.cumsum(rng.dirichlet([alpha] * devices))[:-1] * len(own)).astype(int)
            for number, part in enumerate(np.split(own, cuts)):
                device[part] = number
        if np.bincount(device, minlength=devices).min() >= 10:
            return x, y, device


TASKS: Final = {
    "words": Task(keyword_net, words), "wisdm": Task(motion_net, activities), "cifar10": Task(picture_net, pictures),
}  # fmt: skip


# -- arms --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Built:
    """Programs of one arm by class of device; None where the class takes no part."""

    server: Path
    programs: tuple[tuple[Path, ...] | None, ...]
    says: tuple[str, ...]
    ram_bytes: tuple[int, ...]


class Programs:
    """All arms begin with the same weights."""

    def __init__(self, folder: Path, task: Task, x: Array, seed: int) -> None:
        self.folder, self.task, self.x, self.seed = folder, task, x[:BATCH], seed
        self.full = self.net(1.0)
        self.plain = self.compiled(self.full)
        self.budgets = [int(share * self.plain.plan.ram_bytes) for share in SHARES]

    def net(self, width: float, seed: int | None = None) -> nn.Module:
        torch.manual_seed(self.seed if seed is None else seed)
        model = self.task.build(width)
        if seed is None and width < 1:
            wide = self.full.state_dict()
            model.load_state_dict(
                {n: wide[n][tuple(map(slice, v.shape))].clone() for n, v in model.state_dict().items()}
            )
        return model

    def compiled(self, model: nn.Module, **options: Any) -> smidgen.Job:
        sgd = smidgen.SGD(lr=RATE, momentum=0.0)
        return smidgen.compile(model, self.x, optimizer=sgd, kernels="exact", **options)

    def saved(self, name: str, job: smidgen.Job) -> Path:
        path = self.folder / f"{name}.smg"
        job.save(path)
        return path

    def within(self, budget: int, **options: Any) -> smidgen.Job:
        """In micro-batches, recomputing, or to a file, as it takes."""
        memory = smidgen.Memory(page_to=self.folder / "page.bin", effort=0.5)
        try:
            return self.compiled(self.full, budget=budget, **options)
        except DoesNotFit:
            return self.compiled(self.full, budget=budget, memory=memory, **options)

    def arm(self, name: str) -> Built:
        return {"drop": self._drop, "planned": self._planned, "sparse": self._sparse, "heterofl": self._heterofl,
                "splitmix": self._split_mix, "fedepth": self._fedepth}[name]()  # fmt: skip

    def _each(self, name: str, make: Callable[[int, int], tuple[str, list[smidgen.Job]] | None], server: smidgen.Job
              ) -> Built:  # fmt: skip
        programs: list[tuple[Path, ...] | None] = []
        says, rams = [], []
        for number, budget in enumerate(self.budgets):
            made = make(number, budget)
            if made is None:
                programs.append(None)
                says.append("takes no part")
                rams.append(0)
                continue
            says.append(made[0])
            rams.append(max(job.plan.ram_bytes for job in made[1]))
            programs.append(tuple(self.saved(f"{name}-{number}-{i}", job) for i, job in enumerate(made[1])))
        return Built(self.saved(f"{name}-server", server), tuple(programs), tuple(says), tuple(rams))

    def _drop(self) -> Built:
        return self._each("drop", lambda i, b: ("plain", [self.plain]) if i == 0 else None, self.plain)

    def _plan(self, number: int, budget: int) -> tuple[str, list[smidgen.Job]] | None:
        try:
            job = self.plain if number == 0 else self.within(budget)
        except DoesNotFit:
            return None
        kinds = sorted({d.kind for d in job.plan.decisions if d.is_to_fit} - {"fill"})
        return ", ".join(kinds) or "plain", [job]

    def _planned(self) -> Built:
        return self._each("planned", self._plan, self.plain)

    def _sparse(self) -> Built:
        head = ["bias", "last_layer"]

        def made(number: int, budget: int) -> tuple[str, list[smidgen.Job]] | None:
            if number < len(SHARES) - 1:
                return self._plan(number, budget)
            return "biases and the last layer", [self.within(budget, method=head)]

        return self._each("sparse", made, self.plain)

    def _heterofl(self) -> Built:
        def made(number: int, budget: int) -> tuple[str, list[smidgen.Job]] | None:
            try:
                width, job = fleet.width_within(self.net, self.x, budget, optimizer=smidgen.SGD(lr=RATE, momentum=0.0))
            except DoesNotFit:
                return None
            return f"width {width:g}", [job]

        return self._each("heterofl", made, self.plain)

    def _split_mix(self) -> Built:
        bases = [self.compiled(self.net(1 / BASES, 1000 * self.seed + i)) for i in range(BASES)]
        for number, job in enumerate(bases):
            self.saved(f"base-{number}", job)
        ram = bases[0].plan.ram_bytes
        counts = [BASES, *(min(BASES, max(1, budget // ram)) for budget in self.budgets[1:])]
        return self._each("splitmix", lambda i, b: (f"{counts[i]} of {BASES} bases", [bases[0]]), bases[0])

    def _fedepth(self) -> Built:
        head = [name for name, _ in self.full.named_parameters()][-2:]

        def made(number: int, budget: int) -> tuple[str, list[smidgen.Job]] | None:
            if number == 0:
                return "1 block", [self.plain]
            try:
                found = fleet.blocks_within(self.full, self.x, budget, head=head,
                                            optimizer=smidgen.SGD(lr=RATE, momentum=0.0))  # fmt: skip
            except DoesNotFit:
                return None
            return f"{len(found)} blocks", [job for _, job in found]

        return self._each("fedepth", made, self.plain)


def measure(task_name: str, arm: str, seed: int, rounds: int) -> Json:
    """One federation, in this process."""
    task = TASKS[task_name]
    x, y, device = task.data(seed)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        programs = Programs(Path(folder), task, x, seed)
        built = programs.arm(arm)
        ids = np.unique(device)
        kinds = np.random.default_rng(seed).permutation(np.arange(len(ids)) % len(SHARES))
        data = Path(folder) / "d.npz"
        np.savez(data, x=x, y=y, device=device)
        clients: dict[int, fleet.Client] = {}
        for part in range(len(ids)):
            own = built.programs[kinds[part]]
            share = fleet.share(data, "device", part=part, of=len(ids), held_out=HELD_OUT)
            options: Json = {"eval": share.eval, "part": part, "kernels": "exact"}
            options["budget_bytes"] = programs.budgets[kinds[part]] if kinds[part] else None  # the largest hold all
            if own is not None:
                several = arm == "fedepth" and len(own) > 1
                clients[part] = (fleet.BlockClient(own, share.x, share.y, **options) if several
                                 else fleet.Client(own[0], share.x, share.y, **options))  # fmt: skip
        judges = [fleet.share(data, "device", part=p, of=len(ids), held_out=HELD_OUT) for p in range(len(ids))]
        return _run(arm, built, list(clients.values()), judges, programs, seed, rounds, task.epochs, began)


def _run(
    arm: str, built: Built, clients: list[fleet.Client], judges: list[fleet.Share], programs: Programs, seed: int,
    rounds: int, epochs: int, began: float,
) -> Json:  # fmt: skip
    grid = fleet.LocalGrid(fleet.client_app(lambda c: clients[int(c.node_config["partition-id"])]), len(clients))
    test = np.concatenate([s.x_test[0] for s in judges]), np.concatenate([s.y_test for s in judges])
    options: Json = {"fraction_evaluate": 0.0}
    sent = fleet.Terms.of(smidgen.load(built.server)).sent_bytes
    if arm == "splitmix":
        bases = [programs.folder / f"base-{i}.smg" for i in range(BASES)]
        mix = fleet.SplitMix(bases, seed=seed, **options)
        checked = fleet.Checked(mix, mix.terms)
        config = fleet.train_config(bases[0], epochs=epochs, seed=seed)
        result = checked.start(grid, mix.initial_arrays(), num_rounds=rounds, train_config=config)
        values = unpacked(result.arrays)
        scores: Any = 0.0
        for number, path in enumerate(bases):
            job = smidgen.load(path)
            terms = fleet.Terms.of(job)
            terms.put(job, {n: values[f"{number}/{n}"] for n in terms})
            scores = scores + np.asarray(job.predict(test[0]), np.float64)
        accuracy = float((scores.argmax(1) == test[1]).mean())
        sent = int(sent * np.mean([len(b) for r in mix.chosen.values() for b in r.values()]))
    else:
        head = [name for name, _ in programs.full.named_parameters()][-2:]
        strategy: Strategy = FedAvg(**options)
        if arm == "heterofl":
            strategy = fleet.HeteroFL(head=head, **options)
        elif arm == "sparse":
            strategy = fleet.Elementwise(**options)
        save = programs.folder / "learned.smg"
        result, checked = fleet.federate(
            grid, strategy, built.server, rounds=rounds, epochs=epochs, seed=seed, save=save
        )
        accuracy = smidgen.load(save).evaluate(*test)["accuracy"]
    return {
        "accuracy": accuracy, "devices": len(clients), "refused": len(checked.refused), "says": list(built.says),
        "plain_bytes": programs.plain.plan.ram_bytes, "budgets": programs.budgets, "ram_bytes": list(built.ram_bytes),
        "server_to_device_bytes": sent, "client_s": grid.seconds, "seconds": time.perf_counter() - began,
    }  # fmt: skip


# -- results -----------------------------------------------------------------------------------------------------------


class Results:
    """What is known, kept after each federation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs: dict[str, Json] = json.loads(path.read_text())["runs"] if path.exists() else {}

    def of(self, given: Json) -> Json:
        key = json.dumps(given)
        if key not in self.runs:
            self.runs[key] = measure(**given)
            report = {"command": "python -m benchmarks.fleet", "date": str(datetime.date.today()),
                      "machine": describe(), "runs": self.runs}  # fmt: skip
            files.write(self.path, (json.dumps(report, indent=1) + "\n").encode())
            print(f"{key}: {json.dumps(self.runs[key])[:300]}", flush=True)
        return self.runs[key]


def table(runs: Mapping[str, Json]) -> str:
    """Accuracy by task and arm, with the half width of its interval over seeds."""
    found: dict[tuple[str, str, int], list[Json]] = {}
    for key, run in runs.items():
        given = json.loads(key)
        found.setdefault((given["task_name"], given["arm"], given["rounds"]), []).append(run)
    lines = ["| task | method | rounds | accuracy | devices by class | seconds |", "|---|---|---|---|---|---|"]
    for (task, arm, rounds), group in sorted(found.items()):
        values = [100 * run["accuracy"] for run in group]
        wide = f" ± {half_width(values):.1f}" if len(values) > 1 else ""
        seconds = statistics.fmean(run["seconds"] for run in group)
        lines.append(f"| {task} | {arm} | {rounds} | {statistics.fmean(values):.1f}{wide} | "
                     f"{'; '.join(group[0]['says'])} | {seconds:.0f} |")  # fmt: skip
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args(argv)
    results = Results(args.out)
    if not args.table:
        for seed in args.seeds:
            for task in args.only:
                for arm in args.arms:
                    results.of({"task_name": task, "arm": arm, "seed": seed, "rounds": args.rounds})
    print(table(results.runs))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
