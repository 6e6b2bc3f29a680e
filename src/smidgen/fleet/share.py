"""The samples of one simulated device: a file has an id for each sample (of a speaker, a subject), and each id is one
device. Needs numpy only."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

import numpy as np

from ..errors import BadData, BadOption
from ..ir import Array
from ..train.npz import Samples, read_npz


@dataclass(frozen=True, slots=True)
class Share:
    """What a device learns from, and what it is judged by, which it does not learn from."""

    x: tuple[Array, ...]
    y: Array
    x_test: tuple[Array, ...]
    y_test: Array
    ids: tuple[str, ...]  # whose samples these are

    @property
    def eval(self) -> tuple[tuple[Array, ...], Array] | None:
        """For Client(eval=…)."""
        return (self.x_test, self.y_test) if len(self.y_test) else None


def share(path: str | os.PathLike[str], by: str = "", *, part: int = 0, of: int = 1, held_out: float = 0.2) -> Share:
    """The samples of device `part` of `of`. The file has x (or x0, x1, …), y and the array `by`; with fewer devices
    than ids, a device has those of several. Without `by`, all of the file. The share `held_out`, at even distances, is
    for evaluation."""
    if not 0 <= held_out < 1:
        raise BadOption(f"held_out={held_out!r} is not a share of the samples", help="held_out=0.2")
    data, ids = _read(os.fspath(path), os.stat(path).st_mtime_ns if os.path.exists(path) else 0, by)
    assert data.y is not None
    known = np.unique(ids)
    if not 0 <= part < of or of > len(known):
        raise BadOption(
            f"device {part} of {of} has no samples", why=f"'{path}' has {len(known)} different ids in '{by}'",
            help=f"flwr run app --federation-config 'num-supernodes={len(known)}'",
        )  # fmt: skip
    own = np.flatnonzero(np.isin(ids, known[part::of]))
    count = int(len(own) * held_out)
    test = np.zeros(len(own), bool)
    test[np.linspace(0, len(own) - 1, count).round().astype(int)] = True
    train, test = own[~test], own[test]
    names = tuple(map(str, known[part::of]))
    return Share(tuple(a[train] for a in data.x), data.y[train], tuple(a[test] for a in data.x), data.y[test], names)


def ids_of(path: str, by: str) -> list[str]:
    """The different ids of a file."""
    _, ids = _read(path, 0, by)
    return list(map(str, np.unique(ids)))


@functools.lru_cache(maxsize=1)  # a simulation has many devices of one file in one process
def _read(path: str, changed: int, by: str) -> tuple[Samples, Array]:
    data = read_npz(path)
    assert data.y is not None
    if not by:
        return data, np.zeros(len(data.y), np.int8)
    with np.load(path, allow_pickle=False) as file:
        if by not in file.files:
            why = f"it has {', '.join(sorted(file.files))}"
            raise BadData(f"'{path}' has no array '{by}'", why=why, help=f"np.savez(…, x=x, y=y, {by}=ids)")
        try:
            ids = file[by]
        except ValueError:
            raise BadData(f"'{by}' in '{path}' holds Python objects", help=f"{by}=np.asarray(ids, str)") from None
    if ids.ndim != 1 or len(ids) != len(data.y) or len(ids) != len(data):
        shape = f"{list(ids.shape)} for {len(data)} samples and {len(data.y)} targets"
        raise BadData(f"'{by}' in '{path}' is not one id a sample", why=f"it is {shape}")
    return data, ids


__all__ = ["Share", "ids_of", "share"]
