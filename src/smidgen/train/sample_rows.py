"""A target with several rows for each sample can be cut into parts only if the rows of a sample stand together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import BadData
from ..ir import Array
from ..program.arrays import rows
from ..program.buffer import Buffer
from ..program.program import Program


def check_rows(
    program: Program,
    run: Callable[..., None],
    arrays: Sequence[Array],
    buffers: Sequence[Buffer],
    n: int,
    most: int | None = None,
) -> None:
    """Raise unless n samples, the target last, may be taken in micro-batches of `most` (default: the program's batch),
    or in another order if that is 0. The shape does not tell (n, k) from (k, n), both flattened: the model's output
    does, whose first sample runs alone and beside another."""
    target, most = buffers[-1], program.batch if most is None else most
    if target.per_sample == 1 or n == 1 or 0 < n <= most:
        return
    outs = [b for b in program.entry_buffers("infer") if b.direction == "output"]
    if program.batch > 1 and any(b.per_sample == target.per_sample for b in outs):
        results = []
        for count in (1, 2):
            part = [rows(a, b, 0, count) for a, b in zip(arrays[:-1], buffers[:-1], strict=True)]
            results.append([np.empty(b.shape(count), b.dtype.numpy) for b in outs])
            run("infer", part, results[-1], count, count)
        pairs = [(alone, rows(beside, b, 0, 1)) for alone, beside, b in zip(*results, outs, strict=True)]
        if all(np.allclose(alone, first, rtol=1e-3, atol=1e-5, equal_nan=True) for alone, first in pairs):
            return
    raise BadData(
        f"{n} samples given, {f'of which {most} are taken at a time' if most else 'to be shuffled'}",
        why=f"'{target.name}' has {target.per_sample} rows for each sample, in an unknown order",
        help=f"give up to {most} samples" if most else "shuffle=False",
    )


__all__ = ["check_rows"]
