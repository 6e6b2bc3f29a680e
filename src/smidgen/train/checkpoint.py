"""Checkpoint files: STATE with the position of a run, complete or not there at all.

docs/explain/checkpoint.md describes the bytes. Nothing in a file is executed, and no length in it is trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from .. import files
from ..errors import BadCheckpoint
from ..program.program import Program

MAGIC: Final = b"SMCK"
VERSION: Final = 1
HEAD: Final = struct.Struct("<4sII")  # magic, version, CRC-32 of everything after it
SIZES: Final = struct.Struct("<IQQ")  # bytes of the description, of STATE, of the best STATE
OLD: Final = "an older one may still be good"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`program` is a fingerprint; `run` says which run of `fit` it is and where that stands, if it is of one."""

    program: str
    step: int
    state: bytes | memoryview = field(repr=False)
    run: Mapping[str, Any] | None = None
    best: bytes | memoryview | None = field(default=None, repr=False)

    def to_bytes(self) -> tuple[bytes | memoryview, ...]:
        facts = {"program": self.program, "step": self.step, "run": self.run, "has_best": self.best is not None}
        text = json.dumps(facts, separators=(",", ":")).encode()
        best = b"" if self.best is None else self.best
        sizes = SIZES.pack(len(text), len(self.state), len(best))
        crc = 0
        for part in (sizes, text, self.state, best):
            crc = zlib.crc32(part, crc)
        return HEAD.pack(MAGIC, VERSION, crc), sizes, text, self.state, best

    @staticmethod
    def from_bytes(data: bytes | memoryview) -> Checkpoint:
        if len(data) < HEAD.size + SIZES.size:
            raise BadCheckpoint(f"the checkpoint has {len(data)} bytes, fewer than its header", help=OLD)
        magic, version, crc = HEAD.unpack_from(data)
        if magic != MAGIC:
            raise BadCheckpoint("the file is not a checkpoint", help='job.checkpoint("run.ckpt") writes one')
        if version != VERSION:
            raise BadCheckpoint(f"the checkpoint has version {version}, this smidgen reads {VERSION}")
        texts, states, bests = SIZES.unpack_from(data, HEAD.size)
        start = HEAD.size + SIZES.size
        whole = start + texts + states + bests
        if len(data) != whole:
            raise BadCheckpoint(f"the checkpoint has {len(data)} bytes, it says {whole}", why="it is cut off", help=OLD)
        if zlib.crc32(memoryview(data)[HEAD.size :]) != crc:
            raise BadCheckpoint("the checkpoint is damaged", why="its checksum does not fit", help=OLD)
        state, best = data[start + texts : start + texts + states], data[start + texts + states :]
        try:
            facts = json.loads(bytes(data[start : start + texts]))
            known = isinstance(facts["program"], str) and isinstance(facts["step"], int)
            run, has_best = facts["run"], facts["has_best"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise BadCheckpoint("the checkpoint does not describe itself", why=type(error).__name__) from error
        if not known or not isinstance(run, dict | None) or (len(best) and has_best is not True):
            raise BadCheckpoint("the checkpoint does not describe itself: fields are missing")
        return Checkpoint(facts["program"], facts["step"], state, run, best if has_best is True else None)


def write(path: str | os.PathLike[str], checkpoint: Checkpoint) -> None:
    """The old checkpoint is replaced when the new one is on the disk."""
    files.write(path, *checkpoint.to_bytes())


def read(path: Path) -> Checkpoint:
    try:
        data = files.mapped(path)
    except OSError as error:
        raise BadCheckpoint(f"cannot read '{path}'", why=error.strerror or str(error)) from error
    try:
        return Checkpoint.from_bytes(data)
    except BadCheckpoint as error:
        raise BadCheckpoint(error.what, at=str(path), why=error.why, help=error.help) from error


def fingerprint(program: Program) -> str:
    """Of everything that decides what a step computes but STATE: instructions, constants, where state lies."""
    bare = replace(program, const=b"", state=b"", page=b"", meta={"state": program.meta.get("state", {})})
    digest = hashlib.sha256(bare.to_bytes())
    digest.update(program.const)
    return digest.hexdigest()


__all__ = ["Checkpoint", "fingerprint", "read", "write"]
