"""Predictions of more samples than a program takes at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import BadData
from ..ir import Array, batch_axis
from ..program.arrays import rows
from ..program.buffer import Buffer

Run = Callable[..., None]
"""An entry point with inputs, outputs, samples and those of the whole batch, as a Machine has it."""


def predict_in_parts(
    run: Run, inputs: Sequence[Array], outs: Sequence[Buffer], results: Sequence[Array], n: int, batch: int
) -> None:
    """Into `results`, `batch` samples at a time; BadData if the parts cannot be joined."""
    parts = f"{n} samples given, the program takes {batch} at a time", f"give up to {batch} samples"
    for out in outs:
        if batch_axis(out.dims) is None:
            raise BadData(parts[0], why=f"'{out.name}' is one result for all of them", help=parts[1])
    for first in range(0, n, batch):
        part = [a[first : first + batch] for a in inputs]
        count = len(part[0])
        pieces = [np.empty(b.shape(count), b.dtype.numpy) for b in outs]
        run("infer", part, pieces, count, count)
        if first == 0 or any(b.per_sample != 1 for b in outs):
            mixed = _mixed(run, part, outs, pieces, count, batch)
            if mixed:
                raise BadData(parts[0], why=mixed, help=parts[1])
        for out, piece, result in zip(outs, pieces, results, strict=True):
            rows(result, out, first, count)[...] = piece


def _mixed(
    run: Run, part: Sequence[Array], outs: Sequence[Buffer], pieces: Sequence[Array], count: int, batch: int
) -> str | None:
    """Why parts cannot be joined: an output of a sample depends on the others, or rows of several samples are not
    in their order. The shape does not tell (n, k) from (k, n), both flattened, so the first sample runs alone."""
    several = [b.name for b in outs if b.per_sample != 1]
    if batch == 1:  # one sample at a time shows no order
        return f"in '{several[0]}' the rows of a sample are not together" if several else None
    if count == 1:  # the last part, and those before were looked at
        return None
    alone = [np.empty(b.shape(1), b.dtype.numpy) for b in outs]
    run("infer", [a[:1] for a in part], alone, 1, 1)
    for out, piece, one in zip(outs, pieces, alone, strict=True):
        near = float(np.abs(one).max(initial=0.0)) * 1e-3 if out.per_sample == 1 else 1e-6
        if not np.allclose(rows(piece, out, 0, 1), one, rtol=1e-4, atol=near, equal_nan=True):
            if out.name in several:
                return f"in '{out.name}' the rows of a sample are not together"
            return f"'{out.name}' of a sample depends on the others"
    return None


__all__ = ["predict_in_parts"]
