"""Writes what contestants start from: weights, data, the list of layers, smidgen's program. Made once, kept in
build/step until the networks or smidgen change."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import smidgen
from benchmarks.nets.neutral import layers_of
from benchmarks.nets.workloads import find, with_weights

from .table import ROOT

FOLDER = ROOT / "build" / "step"
SMIDGEN = Path(smidgen.__file__).parent
LR, MOMENTUM = 1e-3, 0.9  # small, so that weights stay where they are however many steps are timed
SMALLER_LR = {"resnet18": 1e-4}  # whose loss would rise


def case_folder(net: str, batch: int, method: str, base: Path = FOLDER) -> Path:
    return base / net / f"b{batch}" / method


def lr_of(net: str) -> float:
    return SMALLER_LR.get(net, LR)


def write_case(net: str, batch: int, method: str, lr: float | None = None, base: Path = FOLDER) -> dict[str, Any]:
    """The case's facts, as in its case.json; files that are there and up to date are used."""
    lr = lr or lr_of(net)
    folder = case_folder(net, batch, method, base)
    stamp = stamp_of(lr)
    facts = folder / "case.json"
    if facts.exists() and json.loads(facts.read_text())["stamp"] == stamp:
        found: dict[str, Any] = json.loads(facts.read_text())
        return found
    model = _with_files(net, base)
    _write_batch(net, batch, folder.parent, model)
    folder.mkdir(parents=True, exist_ok=True)
    one = _one_sample(net, method, lr, stamp, base)
    found = {
        "net": net, "batch": batch, "method": method, "lr": lr, "momentum": MOMENTUM, "classes": find(net).classes,
        "learns": one["learns"], "macs": {entry: batch * count for entry, count in one["macs"].items()}, "stamp": stamp,
    }  # fmt: skip
    facts.write_text(json.dumps(found, indent=1))  # last: its presence says that the rest is there
    return found


def _one_sample(net: str, method: str, lr: float, stamp: dict[str, Any], base: Path) -> dict[str, Any]:
    """What learns, and the multiply-accumulates of one sample, which are those of any."""
    path = base / net / f"{method}.json"
    if path.exists() and json.loads(path.read_text())["stamp"] == stamp:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    plan = _compiled(net, 1, method, lr, _model(net)).plan
    found = {"learns": list(plan.learns), "macs": dict(plan.cost.macs), "stamp": stamp}
    path.write_text(json.dumps(found, indent=1))
    return found


def write_program(
    net: str,
    batch: int,
    method: str,
    threads: int,
    budget: int | None = None,
    page: bool = False,
    lr: float | None = None,
    base: Path = FOLDER,
) -> dict[str, Any]:
    """smidgen's program beside its case, and what is to be said of it. `page`: it may keep a part in a file."""
    lr = lr or lr_of(net)
    folder = case_folder(net, batch, method, base)
    facts = folder / f"program_{threads}.json"
    stamp = {**stamp_of(lr), "budget": budget, "page": page}
    if facts.exists() and json.loads(facts.read_text())["stamp"] == stamp:
        found: dict[str, Any] = json.loads(facts.read_text())
        return found
    memory = smidgen.Memory(budget, folder / f"program_{threads}.pages" if page else None)
    job = _compiled(net, batch, method, lr, _model(net), kernels=f"fast:{threads}", memory=memory)
    job.save(folder / f"program_{threads}.smg")
    plan = job.plan
    found = {
        "ram_bytes": plan.ram_bytes, "page_bytes": plan.page_bytes, "budget": budget, "at_a_time": plan.batch,
        "stamp": stamp,
    }  # fmt: skip
    facts.write_text(json.dumps(found, indent=1))
    return found


def stamp_of(lr: float = LR) -> dict[str, Any]:
    """Of everything that a case is made from."""
    return {"nets": hash_of(ROOT / "benchmarks" / "nets"), "smidgen": hash_of(SMIDGEN), "lr": lr}


def _compiled(net: str, batch: int, method: str, lr: float, model: torch.nn.Module, **asked: Any) -> smidgen.Job:
    example = torch.from_numpy(find(net).data(2)[0])
    optimizer = smidgen.SGD(lr=lr, momentum=MOMENTUM)
    return smidgen.compile(model, example, optimizer=optimizer, method=method, batch=batch, bn="frozen", **asked)


def _with_files(net: str, base: Path) -> torch.nn.Module:
    """The network; its weights are written if they are not there or are others."""
    model = _model(net)
    values = {k: v.numpy() for k, v in model.state_dict().items() if not k.endswith("num_batches_tracked")}
    path = base / net / "weights.npz"
    if path.exists():
        with np.load(path) as old:
            if set(old.files) == set(values) and all(np.array_equal(old[k], v) for k, v in values.items()):
                return model
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, allow_pickle=False, **values)
    return model


@functools.lru_cache(maxsize=1)
def _model(net: str) -> torch.nn.Module:
    return with_weights(find(net))


def _write_batch(net: str, batch: int, folder: Path, model: torch.nn.Module) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    x, y = find(net).data(batch)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    (folder / "layers.json").write_text(json.dumps(layers_of(model, torch.from_numpy(x))))


@functools.cache
def hash_of(folder: Path) -> str:
    """Of all sources below a folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".c", ".h"):
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


__all__ = ["FOLDER", "case_folder", "lr_of", "stamp_of", "write_case", "write_program"]
