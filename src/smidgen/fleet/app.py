"""A Flower app of a program and a file of samples: three short files that are the user's to edit."""

from __future__ import annotations

import json
import os
import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import files
from ..errors import BadData, BadOption, CannotWrite
from ..train.batches import Arrays, located
from ..train.settings import checked_batch
from .client import opened
from .share import ids_of, share
from .terms import Terms

TEMPLATE: Final = Path(__file__).with_name("template")
SAVE: Final = "learned.smg"


@dataclass(frozen=True, slots=True)
class App:
    """What was written. `samples` of each simulated device, in the order of their ids."""

    folder: str
    devices: int
    samples: tuple[int, ...]
    version: str
    sent_bytes: int  # of a round, in each direction
    command: str  # that runs it

    def to_json(self) -> dict[str, Any]:
        return {"app": self.folder, "devices": self.devices, "samples": list(self.samples), "version": self.version,
                "sent_bytes": self.sent_bytes, "command": self.command}  # fmt: skip


def new_app(folder: str, program: str, data: str, by: str) -> App:
    """Everything that a run would stumble over is looked at first."""
    place = files.checked_path(folder, "smidgen fleet new app/ --program net.smg --data d.npz --by speaker")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise BadOption(f"'{folder}' is there already", help="name a folder that does not exist, or is empty")
    job = opened(program)
    if "train" not in job.program.entries:
        raise BadOption(f"'{program}' does not train", help="smidgen build nets.py:build --input 8x16 -o net.smg")
    batch = checked_batch(None, job.program)
    everyone = share(data, held_out=0.0)
    located(lambda: Arrays(everyone.x, everyone.y, job.engine.sample_buffers, job.engine.loss, batch), data)
    ids = ids_of(data, by)
    parts = [share(data, by, part=i, of=len(ids)) for i in range(len(ids))]
    if len(ids) < 2:
        raise BadData(f"'{by}' in '{data}' is the same for all samples", why="a fleet has two devices or more")
    terms = Terms.of(job)
    facts = {
        "name": re.sub(r"[^a-z0-9]+", "-", place.resolve().name.lower()).strip("-") or "app", "publisher": "me",
        "program": _text(program), "data": _text(data), "by": json.dumps(by, ensure_ascii=False),
        "save": _text(place / SAVE), "batch": str(batch), "lr": str(np.float32(job.lr)),
    }  # fmt: skip
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"cannot make '{folder}'", why=error.strerror or str(error), help=files.HELP) from error
    for path in sorted(TEMPLATE.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        made = string.Template(text).substitute(facts) if path.stem.endswith(".toml") else text
        files.write(place / path.stem, made.encode())
    command = f'flwr run {folder} --stream --federation-config "num-supernodes={len(ids)} client-resources-num-cpus=1"'
    return App(os.fspath(folder), len(ids), tuple(len(p.y) + len(p.y_test) for p in parts), terms.version,
               terms.sent_bytes, command)  # fmt: skip


def _text(path: str | os.PathLike[str]) -> str:
    """As a string of TOML: Flower runs the app somewhere else, so the path is absolute."""
    return json.dumps(str(Path(path).resolve()), ensure_ascii=False)


__all__ = ["App", "new_app"]
