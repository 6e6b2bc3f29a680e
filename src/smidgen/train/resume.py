"""The state of a job, from a checkpoint of `fit` or from what a device saved. Nothing is set unless everything fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import BadCheckpoint
from ..files import mapped
from . import checkpoint, flash_slots
from .engine import Engine
from .validate import run_of


def resume(engine: Engine, path: Path, position: bool) -> None:
    """With the `position` of the run that wrote it."""
    found = checkpoint.read(path)
    if found.program != engine.fingerprint or len(found.state) != engine.program.saved_bytes:
        raise BadCheckpoint(
            "the checkpoint is of another program", at=str(path),
            help="load the program that wrote it; the same model, options and versions compile to the same program",
        )  # fmt: skip
    run = run_of(found, str(path)) if position else None
    if run is not None and run.position.best is not None and found.best is not None:
        engine.check_replay(found.best)
        best = replace(run.position.best, state=engine.kept(given=found.best).data())
        run = replace(run, position=replace(run.position, best=best))
    engine.set_all(found.state)
    engine.resumed = engine.last_run = run


def restore(engine: Engine, path: Path) -> None:
    try:
        data = mapped(path)
    except OSError as error:
        raise BadCheckpoint(f"cannot read '{path}'", why=error.strerror or str(error)) from error
    engine.set_all(flash_slots.newest_state(data, engine.program))


__all__ = ["restore", "resume"]
