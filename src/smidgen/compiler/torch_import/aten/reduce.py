"""Torch ops that reduce axes, or normalise along one; over the samples of a batch only sum and mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....ir import Batch, Dim, size
from .emit import Emit
from .writer import MOST_PIECES, Operand, Unsupported, Value, aten, axis_of


def _axes(axes: Any) -> Sequence[int]:
    return [axes] if isinstance(axes, int) else list(axes or ())


@aten("sum.default", "sum.dim_IntList")
def sum_(t: Emit, x: Operand, *args: Any) -> Operand:
    axes, keep = _bound(args)
    return t.reduce("sum", x, axes, keep)


@aten("mean.default", "mean.dim")
def mean(t: Emit, x: Operand, *args: Any) -> Operand:
    axes, keep = _bound(args)
    return t.reduce("mean", x, axes, keep)


def _bound(args: Sequence[Any]) -> tuple[Sequence[int], bool]:
    """(axes, keepdim) of (axes, keepdim, dtype) or of (dtype)."""
    return (_axes(args[0]), bool(args[1])) if len(args) == 3 else ([], False)


@aten("amax")
def amax(t: Emit, x: Operand, axes: Any = (), keep: bool = False) -> Operand:
    return t.reduce("amax", x, _axes(axes), keep)


@aten("amin")
def amin(t: Emit, x: Operand, axes: Any = (), keep: bool = False) -> Operand:
    return t.reduce("amin", x, _axes(axes), keep)


@aten("max.default")
def max_all(t: Emit, x: Operand) -> Operand:
    return amax(t, x)


@aten("min.default")
def min_all(t: Emit, x: Operand) -> Operand:
    return amin(t, x)


def _own_axis(t: Emit, x: Operand, axis: int) -> int:
    axis = axis_of(axis, t.rank(x))
    if isinstance(t.shape(x)[axis], Batch):
        raise Unsupported("it mixes the samples of a batch", "work along another axis")
    return axis


@aten("max.dim")
def max_dim(t: Emit, x: Operand, axis: int, keep: bool = False) -> Sequence[Operand]:
    return t.add_many("max_index", t.f32(x), axis=_own_axis(t, x, axis), keepdim=bool(keep))


@aten("min.dim")
def min_dim(t: Emit, x: Operand, axis: int, keep: bool = False) -> Sequence[Operand]:
    least, index = max_dim(t, t.add("neg", t.f32(x)), axis, keep)
    return t.add("neg", least), index


@aten("aminmax")
def aminmax(t: Emit, x: Operand, axis: int | None = None, keep: bool = False) -> Sequence[Operand]:
    return amin(t, x, axis, keep), amax(t, x, axis, keep)


@aten("prod.dim_int")
def prod(t: Emit, x: Operand, axis: int, keep: bool = False, *_: Any) -> Any:
    axis = _own_axis(t, x, axis)
    factors = t.length(x, axis)
    if factors > MOST_PIECES:
        raise Unsupported(f"a product of {factors} factors", f"at most {MOST_PIECES} factors, or exp of a sum of logs")
    total = t.slice(x, axis, 0, 1)
    for k in range(1, factors):
        total = t.times(total, t.slice(x, axis, k, k + 1))
    return t.reshape(total, t.out_shape)


@aten("argmax")
def argmax(t: Emit, x: Operand, axis: int | None = None, keep: bool = False) -> Operand:
    if axis is None:
        x, axis = t.reshape(x, (size(t.shape(x)),)), 0
    return t.add("argmax", t.f32(x), axis=_own_axis(t, x, axis), keepdim=bool(keep))


@aten("argmin")
def argmin(t: Emit, x: Operand, axis: int | None = None, keep: bool = False) -> Operand:
    return argmax(t, t.add("neg", t.f32(x)), axis, keep)


@aten("all")
def all_(t: Emit, x: Operand, axes: Any = (), keep: bool = False) -> Operand:
    return t.truth(t.reduce("amin", t.truth(x), _axes(axes), keep))


@aten("any")
def any_(t: Emit, x: Operand, axes: Any = (), keep: bool = False) -> Operand:
    return t.truth(t.reduce("amax", t.truth(x), _axes(axes), keep))


def spread(t: Emit, x: Operand, axes: Sequence[int], correction: float, keep: bool) -> tuple[Operand, Operand]:
    """(variance, mean) over axes."""
    over = [axis_of(a, t.rank(x)) for a in axes] or list(range(t.rank(x)))
    count: Dim = size([t.shape(x)[a] for a in over])
    center = t.reduce("mean", x, over, True)
    squares = t.reduce("mean", t.add("square", t.minus(x, center)), over, keep)
    if correction and isinstance(count, Batch):
        raise Unsupported("an unbiased variance over the batch", "var(…, correction=0)")
    if correction and not isinstance(count, Batch):
        squares = t.times(squares, count / (count - correction) if count > correction else math.nan)
    shape = [d for a, d in enumerate(t.shape(x)) if a not in over]
    return squares, center if keep else t.reshape(center, shape)


def _spread_args(args: Sequence[Any], names: Sequence[str]) -> tuple[Sequence[int], float, bool]:
    """(axes, correction, keepdim) of the overloads (unbiased), (dim, unbiased, keepdim), (dim, correction, keepdim)."""
    given = dict(zip(names, args, strict=True))
    correction = given.get("correction", 1 if given.get("unbiased", True) else 0)
    return _axes(given.get("dim")), 1 if correction is None else correction, bool(given.get("keepdim"))


for _overload, _names in {
    "": ("unbiased",), "dim": ("dim", "unbiased", "keepdim"), "correction": ("dim", "correction", "keepdim"),
}.items():  # fmt: skip
    _suffix = _overload or "default"

    def _var(t: Emit, x: Operand, *args: Any, names: Sequence[str] = _names) -> Operand:
        return spread(t, x, *_spread_args(args, names))[0]

    def _std(t: Emit, x: Operand, *args: Any, names: Sequence[str] = _names) -> Operand:
        return root(t, spread(t, x, *_spread_args(args, names))[0])

    def _var_mean(t: Emit, x: Operand, *args: Any, names: Sequence[str] = _names) -> Sequence[Operand]:
        return spread(t, x, *_spread_args(args, names))

    def _std_mean(t: Emit, x: Operand, *args: Any, names: Sequence[str] = _names) -> Sequence[Operand]:
        squares, center = spread(t, x, *_spread_args(args, names))
        return root(t, squares), center

    aten(f"var.{_suffix}")(_var)
    aten(f"std_mean.{_suffix}")(_std_mean)
    aten(f"std.{_suffix}")(_std)
    aten(f"var_mean.{_suffix}")(_var_mean)


def root(t: Emit, squares: Operand) -> Value:
    """√x whose gradient at 0 is 0, as torch defines the gradient of norms."""
    zero = t.add("eq", squares, t.constant(0.0))
    return t.add("where", zero, t.constant(0.0), t.add("sqrt", t.add("where", zero, t.constant(1.0), squares)))


@aten("linalg_vector_norm")
def vector_norm(t: Emit, x: Operand, order: Any = 2, axes: Any = None, keep: bool = False, *_: Any) -> Any:
    p, over = t.number(order), _axes(axes)
    if p == 2:
        return root(t, t.reduce("sum", t.add("square", t.f32(x)), over, keep))
    sizes = t.add("abs", t.f32(x))
    if p in (1, math.inf, -math.inf):
        return t.reduce({1: "sum", math.inf: "amax", -math.inf: "amin"}[p], sizes, over, keep)
    if not p:
        raise Unsupported("a norm of order 0", "orders 1, 2, inf and other positive ones")
    total = t.reduce("sum", t.add("pow_scalar", sizes, exponent=float(p)), over, keep)
    return t.add("pow_scalar", total, exponent=1 / float(p))


@aten("norm.Scalar")
def norm_all(t: Emit, x: Operand, order: Any = 2) -> Any:
    return vector_norm(t, x, order)


@aten("norm.ScalarOpt_dim")
def norm_dim(t: Emit, x: Operand, order: Any, axes: Any, keep: bool = False) -> Any:
    return vector_norm(t, x, 2 if order is None else order, axes, keep)


@aten("cdist")
def cdist(t: Emit, x: Operand, y: Operand, order: float = 2.0, *_: Any) -> Any:
    rows, columns = t.shape(x), t.shape(y)
    apart = t.minus(t.reshape(x, (*rows[:-1], 1, rows[-1])), t.reshape(y, (*columns[:-2], 1, *columns[-2:])))
    return vector_norm(t, apart, order, [-1])


@aten("softmax", "_softmax")
def softmax(t: Emit, x: Operand, axis: int, *_: Any) -> Operand:
    return t.add("softmax", t.f32(x), axis=_own_axis(t, x, axis))


@aten("log_softmax", "_log_softmax")
def log_softmax(t: Emit, x: Operand, axis: int, *_: Any) -> Operand:
    return t.add("log_softmax", t.f32(x), axis=_own_axis(t, x, axis))


@aten("logsumexp")
def logsumexp(t: Emit, x: Operand, axes: Any, keep: bool = False) -> Any:
    top = t.reduce("amax", x, _axes(axes), True)
    total = t.reduce("sum", t.add("exp", t.minus(x, top)), _axes(axes), keep)
    return t.plus(t.add("log", total), t.reshape(top, t.out_shape))


@aten("cumsum")
def cumsum(t: Emit, x: Operand, axis: int, *_: Any) -> Operand:
    return t.add("cumsum", t.f32(x), axis=_own_axis(t, x, axis))
