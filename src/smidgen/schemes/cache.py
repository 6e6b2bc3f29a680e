"""Schemes that were found before: the same network, samples and limit are searched once a machine.

They are files in $SMIDGEN_CACHE, else in the user's folder for caches. What cannot be read or written is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import files
from ..compiler.options import Options
from ..compiler.pipeline import Lowering
from ..devices.room import Limit
from ..errors import CannotWrite
from ..ir import Array

VERSION: Final = 3  # of what a search does


def folder() -> Path:
    named = os.environ.get("SMIDGEN_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smidgen"


def key_of(lowering: Lowering, options: Options, limit: Limit, data: tuple[Array, Array]) -> str:
    """Of everything that a search depends on."""
    graph = lowering.imported.train
    asked = options.batch, repr(options.optimizer), options.bn, *([options.replay] if options.replay else [])
    learns = [p.name for p in lowering.imported.parameters if p.requires_grad], options.spare_classes
    key = hashlib.sha256(repr((VERSION, limit.ram_bytes, *asked, *learns)).encode())
    for node in graph.nodes:
        key.update(repr((node.op, node.ins, node.outs, sorted(node.attrs.items()))).encode())
    for name in sorted(graph.data):
        key.update(name.encode() + np.ascontiguousarray(graph.data[name]).tobytes())
    for array in data:
        key.update(repr((array.shape, array.dtype.str)).encode() + np.ascontiguousarray(array).tobytes())
    return key.hexdigest()[:32]


def known(key: str) -> dict[str, Any]:
    """What is known of a search: {} if nothing."""
    try:
        found = json.loads(files.read(_path(key)))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def keep(key: str, what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, CannotWrite):
        _path(key).parent.mkdir(parents=True, exist_ok=True)
        files.write(_path(key), json.dumps(what).encode())


def _path(key: str) -> Path:
    return folder() / "schemes" / f"{key}.json"


__all__ = ["folder", "keep", "key_of", "known"]
