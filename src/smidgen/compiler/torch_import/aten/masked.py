"""x[mask]: as many rows as the mask is true. A size that depends on values is no size of a graph; what can be had of
such rows is the first or the last one of each sample, as models that classify a text by its end mark ask for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ....ir import Batch, DType, Shape
from .emit import Emit
from .movement import COPIES, LAST, RESHAPES
from .writer import Operand, Unsupported, Value, Virtual, is_tensor, static

WHY = "the size of its result depends on values"
HELP = (
    "torch.where(mask, x, 0) keeps the size; of x[mask].view(len(x), -1, width) only [:, 0] and [:, -1], the first and "
    "the last in each sample, can be used"
)


@dataclass(frozen=True, slots=True, eq=False)
class Hits(Virtual):
    """Rows of x[samples, rows, width] where mask[samples, rows]; `apart`: with an axis of samples."""

    shape: Shape
    x: Value
    mask: Operand
    apart: bool = False


def hits(t: Emit, x: Any, indices: Sequence[Any]) -> Hits:
    """x[mask, …]"""
    mask = indices[0]
    own = len(indices) == 1 or all(i is None for i in indices[1:])
    if not own or not is_tensor(mask) or not isinstance(x, Value) or t.dtype(mask) is not DType.U8:
        raise Unsupported(WHY, HELP)
    covered = t.shape(mask)
    if t.batch_axis(x) != 0 or covered != t.shape(x)[: len(covered)] or covered[0] != Batch(1) or len(covered) < 2:
        raise Unsupported(WHY, HELP)
    rows = math.prod(static(covered[1:]))
    behind = t.shape(x)[len(covered) :]
    flat = t.reshape(x, (Batch(1), rows, math.prod(static(behind))))
    assert isinstance(flat, Value)
    return Hits(behind, flat, t.reshape(mask, (Batch(1), rows)))


def of_hits(t: Emit, name: str, x: Hits, args: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The result of an op on such rows; `sizes` of the result, None where they depend on values."""
    if name in COPIES:
        return x
    if name in RESHAPES and not x.apart and sizes[0] == Batch(1) and tuple(sizes[2:]) == x.shape and sizes[1] is None:
        return replace(x, apart=True)
    if name == "slice" and args[1] in (None, 0) and args[2] in (None, LAST) and args[3] == 1:
        return x
    if name == "select" and x.apart and args[0] == 1 and args[1] in (0, -1):
        return t.reshape(_one(t, x, last=args[1] == -1), (Batch(1), *x.shape))
    raise Unsupported(WHY, HELP)


def _one(t: Emit, x: Hits, last: bool) -> Operand:
    """The first or last hit of each sample. Where there is none, PyTorch fails; here the index is outside."""
    rows = t.length(x.x, 1)
    marked = t.f32(x.mask)
    place = t.add(
        "argmax", t.times(marked, torch.arange(1, rows + 1).double()) if last else marked, axis=1, keepdim=True
    )
    any_ = t.add("gt", t.reduce("amax", marked, [1], keepdim=True), t.constant(0.0))
    at = t.add("where", any_, t.f32(place), t.constant(float(rows)))
    return t.add("gather", x.x, t.i32(at))
