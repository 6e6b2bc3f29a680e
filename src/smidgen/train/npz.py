"""Data files: `.npz` with x (or x0, x1, … for several inputs) and y. Nothing in them is executed."""

from __future__ import annotations

import io
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from .. import files
from ..errors import BadData
from ..ir import Array

NPY: Final = b"\x93NUMPY"
ZIP: Final = b"PK"
DAMAGED: Final = (
    ValueError, EOFError, KeyError, OverflowError, RuntimeError, zipfile.BadZipFile, zlib.error, tokenize.TokenError,
)  # fmt: skip
"""What numpy and zipfile raise for archives and headers that are not what they should be."""
HOW: Final = "np.savez('{name}', x=inputs, y=targets)"


@dataclass(frozen=True, slots=True)
class Samples:
    x: tuple[Array, ...]
    y: Array | None

    def __len__(self) -> int:
        return len(self.x[0]) if self.x[0].ndim else 0


def read_npz(path: str, *, needs_y: bool = True) -> Samples:
    """All samples of a file; shapes and values are checked by whoever uses them."""
    how = HOW.format(name=Path(path).with_suffix(".npz").name if path else "train.npz")
    try:
        with files.opened(path) as raw:
            start = raw.read(len(NPY))
            if start == NPY:
                raise BadData(f"'{path}' holds one array", why="inputs and targets are needed by name", help=how)
            if not start.startswith(ZIP):  # numpy would take it for a pickle
                raise BadData(f"'{path}' is not an .npz file", help=how)
            raw.seek(0)
            file = np.load(raw, allow_pickle=False)
            names = set(file.files)
            inputs = ["x"] if "x" in names else _numbered(names)
            if not inputs:
                raise BadData(f"'{path}' has no array 'x'", why=f"it has {_listed(names)}", help=how)
            if needs_y and "y" not in names:
                raise BadData(f"'{path}' has no array 'y'", why=f"it has {_listed(names)}", help=how)
            return Samples(tuple(file[k] for k in inputs), file["y"] if "y" in names else None)
    except FileNotFoundError:
        raise BadData(f"no file '{path}'", help=how) from None
    except OSError as error:
        raise BadData(f"cannot read '{path}'", why=error.strerror or str(error), help=how) from error
    except MemoryError:
        raise BadData(f"cannot read '{path}'", why="its arrays are larger than the memory", help=how) from None
    except DAMAGED as error:
        why = "it holds Python objects, which are never loaded" if "allow_pickle" in str(error) else "it is damaged"
        raise BadData(f"'{path}' is not an .npz file of numbers", why=why, help=how) from error


def write_npz(path: str, arrays: Mapping[str, Array]) -> None:
    """The file appears complete or not at all."""
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    files.write(path, packed.getbuffer())


def _numbered(names: set[str]) -> list[str]:
    """x0, x1, … as far as they go."""
    count = next(k for k in range(len(names) + 1) if f"x{k}" not in names)
    return [f"x{k}" for k in range(count)]


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
