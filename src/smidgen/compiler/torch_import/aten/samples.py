"""Numbers of samples: `torch.arange(batch)` and what is computed from it. They are no values of the graph, because a
sample must not know its place in the batch; they are for picking, from each sample, something of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ....ir import Batch, Shape, batch_axis
from . import movement
from .emit import Emit
from .writer import TABLE, Operand, Unsupported, Value, Virtual, aten, is_tensor, static

WHY = "it counts the samples of a batch"
HELP = "use the count only as an index beside others: y[torch.arange(len(y)), places]"
BY_SHAPE = ("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty")
CASTS = ("to", "_to_copy", "type_as", "to_copy", "detach", "detach_copy")
BAGS = ("embedding_bag", "_embedding_bag")
INDEXED = ("index", "index_put", "scatter", "scatter_add", "scatter_reduce", "index_add")
SPREADS = ("expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave")
MOVES = (*movement.RESHAPES, *movement.COPIES, *movement.PERMUTES, *CASTS, *SPREADS, "slice", "narrow", "select")


@dataclass(frozen=True, slots=True, eq=False)
class Samples(Virtual):
    """times · (the sample an element belongs to) + rest. Along an axis of k·n elements, the first k are sample 0."""

    shape: Shape
    times: int = 1
    rest: Operand | None = None  # broadcasts to the shape
    is_count: bool = False  # 0, 1, 2, … as they stand


def has_samples(args: Any) -> bool:
    return any(isinstance(a, Samples) for a in pytree.tree_leaves(args))


@aten("arange")
def arange(t: Emit, *args: Any) -> Samples:
    """Of a fixed number it is a constant, and no rule is asked."""
    given = args[: {5: 1, 6: 2, 7: 3}[len(args)]]  # end; start, end; start, end, step
    start, step = given[0] if len(given) > 1 else 0, given[2] if len(given) > 2 else 1
    [count] = t.out_shape
    if not isinstance(count, Batch) or not isinstance(start, int) or not isinstance(step, int):
        raise Unsupported(WHY, HELP)
    k = count.times
    own = torch.arange(k) * step + start
    rest = t.reshape(t.expand(own, (Batch(1), k)), (count,)) if k > 1 else own if start else None
    return Samples(t.out_shape, step * k, rest, is_count=(start, step) == (0, 1))


def counted(t: Emit, name: str, args: Sequence[Any]) -> Any:
    """The result of an op with numbers of samples among its arguments."""
    if name in (*BY_SHAPE, *INDEXED, *BAGS):
        return TABLE[name](t, *args)
    if name in MOVES and isinstance(args[0], Samples):
        return _moved(t, name, args[0], args[1:])
    if name in ("add", "sub", "subtract", "rsub"):
        return _sum(t, name, *args)
    if name in ("mul", "multiply"):
        a, b = args if isinstance(args[0], Samples) else reversed(args)
        return _scaled(t, a, b, t.out_shape)
    raise Unsupported(WHY, HELP)


def _moved(t: Emit, name: str, x: Samples, args: Sequence[Any]) -> Samples:
    shape, kind = t.out_shape, t.node_dtypes[0]
    was, now = batch_axis(x.shape), batch_axis(shape)
    if was is None or now is None or kind.is_floating_point or kind is torch.bool:
        raise Unsupported(WHY, HELP)
    if name in movement.RESHAPES:
        apart = math.prod(static(x.shape[:was])) != math.prod(static(shape[:now]))
    else:
        apart = x.shape[was] != shape[now] and name != "repeat_interleave"
    if apart:
        raise Unsupported("it mixes the numbers of samples with other axes", HELP)
    if x.rest is None:
        return Samples(shape, x.times)
    rest = t.expand(x.rest, x.shape)
    rule = TABLE[f"{name}.self_int" if name == "repeat_interleave" else name]
    return Samples(shape, x.times, rest if name in CASTS else rule(t, rest, *args))


def _sum(t: Emit, name: str, a: Any, b: Any, alpha: Any = 1) -> Any:
    if name == "rsub":
        a, b = b, a
    signed = _scaled(t, b, alpha if name == "add" else -alpha, _shape(t, b))
    parts = [p if isinstance(p, Samples) else Samples((), 0, _integers(p)) for p in (a, signed)]
    rests = [p.rest for p in parts if p.rest is not None]
    total = None if not rests else rests[0] if len(rests) == 1 else t.plus(*rests)
    return _plain(t, Samples(t.out_shape, parts[0].times + parts[1].times, total))


def _scaled(t: Emit, x: Any, by: Any, shape: Shape) -> Any:
    if by == 1 and not is_tensor(by):
        return x
    factor = t.number(by)
    if not isinstance(factor, int):
        raise Unsupported(WHY, HELP)
    if not isinstance(x, Samples):
        return t.times(x, factor)
    rest = None if x.rest is None else t.times(x.rest, factor)
    return _plain(t, Samples(shape, x.times * factor, rest))


def _plain(t: Emit, x: Samples) -> Any:
    """Where the number of the sample is not in it any more, a value like others."""
    if x.times:
        return x
    return t.fill(x.shape, 0) if x.rest is None else t.expand(x.rest, x.shape)


def _shape(t: Emit, x: Any) -> Shape:
    return x.shape if isinstance(x, Samples) else t.shape(x) if is_tensor(x) else ()


def _integers(x: Any) -> Operand | None:
    if isinstance(x, Value) or (isinstance(x, torch.Tensor) and x.any()):
        return x
    if isinstance(x, (torch.Tensor, int)) and not isinstance(x, bool):
        return torch.tensor(x) if isinstance(x, int) and x else None
    raise Unsupported(WHY, HELP)
