"""What was learned in files: safetensors, under the model's own names.

Nothing in a file is executed; a file is read whole and checked before anything is taken from it.
"""

from __future__ import annotations

import importlib.metadata
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import files
from ..errors import BadData, MissingPart, did_you_mean
from ..ir import Array

DTYPES: Final = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
    "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip
STRICT: Final = "strict=False takes what this program learns and leaves the rest"


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ModuleNotFoundError as error:
        help = "pip install 'smidgen[weights]'"
        raise MissingPart("weights files need safetensors", why=str(error), help=help) from error
    return safetensors


def export(path: Path, values: Mapping[str, Array], *, method: str, step: int) -> None:
    """The file appears complete or not at all; the same values give the same bytes."""
    facts = {"format": "pt", "smidgen": _version(), "method": method, "step": str(step)}
    tensors = {name: np.asarray(value, order="C") for name, value in values.items()}
    files.write(path, *_sorted(_safetensors().numpy.save(tensors, facts)))


def _sorted(data: bytes) -> tuple[bytes, bytes, bytes]:
    """With the header's facts in the order of their names; the library's is random."""
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)), text, data[8 + size :]


def read(path: Path, facts: Mapping[str, Mapping[str, Any]], strict: bool) -> dict[str, Array]:
    """What a file has for a state with these `facts`, under the names that it has there."""
    library = _safetensors()
    try:
        data = files.read(path)
    except OSError as error:
        raise BadData(f"cannot read '{path}'", why=error.strerror or str(error)) from error
    try:
        tensors = dict(library.deserialize(data))
    except Exception as error:  # whatever the library makes of a hostile file
        why = str(error).partition("\n")[0][:200]
        raise BadData(f"'{path}' is not a safetensors file", why=why) from error
    groups = {n: (n, *f["aliases"]) for n, f in facts.items() if f["role"] in ("param", "stat")}
    if strict:
        _check_names(tensors, groups, path)
    values = {n: _array(n, tensors[n], path) for group in groups.values() for n in group if n in tensors}
    if not values:
        raise BadData("nothing in the file belongs to this program", at=str(path), why=f"it learns {', '.join(groups)}")
    _check_tied(values, groups, path)
    return values


def _array(name: str, tensor: Mapping[str, Any], path: Path) -> Array:
    kind, shape, data = tensor["dtype"], tensor["shape"], tensor["data"]
    if kind == "BF16":  # the upper half of a float32
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    if kind not in DTYPES:
        raise BadData(f"'{name}' has dtype {kind}, the program wants numbers", at=str(path), help="convert it to F32")
    return np.frombuffer(data, DTYPES[kind]).reshape(shape)


def _check_names(names: Iterable[str], groups: Mapping[str, tuple[str, ...]], path: Path) -> None:
    given, known = set(names), {alias for group in groups.values() for alias in group}
    for name in sorted(given - known):
        raise BadData(f"this program does not learn '{name}'", at=str(path), why=did_you_mean(name, known), help=STRICT)
    missing = [name for name, group in groups.items() if not given.intersection(group)]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise BadData(f"'{missing[0]}'{more} not in the file", at=str(path), help=STRICT)


def _check_tied(values: Mapping[str, Array], groups: Mapping[str, tuple[str, ...]], path: Path) -> None:
    """Names of one tensor that come with different values leave open which is meant."""
    for group in groups.values():
        given = [name for name in group if name in values]
        for other in given[1:]:
            if not np.array_equal(values[given[0]], values[other], equal_nan=values[other].dtype.kind == "f"):
                raise BadData(f"'{given[0]}' and '{other}' are one tensor, but differ in the file", at=str(path))


def _version() -> str:
    try:
        return importlib.metadata.version("smidgen")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


__all__ = ["export", "read"]
