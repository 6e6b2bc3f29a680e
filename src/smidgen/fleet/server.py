"""The server's side of a fleet on a strategy of Flower's: what it begins with, what it asks for, what it keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from .. import files
from .checked import Checked
from .client import opened
from .records import packed, unpacked
from .terms import Terms


def initial_arrays(program: str | os.PathLike[str]) -> ArrayRecord:
    """What learns, as the program has it now: `strategy.start(grid, initial_arrays(program), …)`."""
    job = opened(program)
    return packed(Terms.of(job).values_of(job))


def train_config(
    program: str | os.PathLike[str],
    *,
    epochs: int = 1,
    batch: int | None = None,
    lr: float | None = None,
    seed: int = 0,
) -> ConfigRecord:
    """What clients are asked to do each round, and of which version their program has to be: for `train_config` and
    `evaluate_config` of `strategy.start`."""
    asked = {"epochs": epochs, "batch": batch, "lr": lr, "seed": seed, "version": Terms.of(opened(program)).version}
    return ConfigRecord({key: value for key, value in asked.items() if value is not None})


def federate(
    grid: Grid,
    strategy: Strategy,
    program: str | os.PathLike[str],
    *,
    rounds: int,
    epochs: int = 1,
    batch: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    save: str | os.PathLike[str] | None = None,
    eval: tuple[Any, Any] | None = None,
    timeout: float = 3600,
) -> tuple[Result, Checked]:
    """All rounds. After each, `save` is the program with what was learned so far, and `save`.json what happened.
    `eval`, samples and targets that the server has, is measured after each round."""
    job = opened(program)
    terms = Terms.of(job)
    checked = strategy if isinstance(strategy, Checked) else Checked(strategy, terms)
    config = train_config(program, epochs=epochs, batch=batch, lr=lr, seed=seed)
    if save is not None:
        files.check(save)
    rows: list[dict[str, Any]] = []

    def after(round: int, arrays: ArrayRecord) -> MetricRecord | None:
        terms.put(job, unpacked(arrays, terms))
        found = job.evaluate(*eval) if eval is not None else None
        rows.append({"round": round, **({} if found is None else found)})
        if save is not None:
            job.save(save)
            refused = [{"round": r.round, "client": r.client, "code": r.code, "why": r.why} for r in checked.refused]
            said = {"version": terms.version, "rounds": rows, "refused": refused}
            files.write(_beside(save), json.dumps(said, indent=2).encode())
        return None if found is None else MetricRecord(dict(found))

    begin: Callable[..., Result] = checked.start
    result = begin(
        grid, initial_arrays=initial_arrays(program), num_rounds=rounds, timeout=timeout, train_config=config,
        evaluate_config=ConfigRecord({"version": terms.version}), evaluate_fn=after,
    )  # fmt: skip
    return result, checked


def _beside(save: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(save)}.json")


__all__ = ["federate", "initial_arrays", "train_config"]
