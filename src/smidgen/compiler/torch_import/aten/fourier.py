"""Complex numbers as pairs of real tensors, and Fourier transforms as products with constant matrices.

A value that torch says is complex is a `Complex` here. Ops that are linear over the reals work on both parts alike;
gradients are torch's, whose gradient of a complex number is that of its real part + i · that of its imaginary part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from ....ir import Batch
from . import movement
from .emit import Emit
from .matrix import linear
from .writer import COMPLEX, TABLE, Complex, Operand, Rule, Unsupported, Value, aten, axis_of

COMPLEX_TABLE: dict[str, Rule] = {}
"""Torch op → its rule where an argument is complex."""


def complex_op(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        COMPLEX_TABLE.update(dict.fromkeys(names, rule))
        return rule

    return register


def is_complex(x: object) -> bool:
    return isinstance(x, (Complex, complex)) or (isinstance(x, torch.Tensor) and x.is_complex())


def any_complex(args: Sequence[Any]) -> bool:
    return any(is_complex(leaf) for leaf in pytree.tree_leaves(list(args)))


def parts(x: Any) -> tuple[Any, Any]:
    """Real and imaginary part; the imaginary part of what is real is 0."""
    if isinstance(x, torch.Tensor) and x.is_complex():
        return x.real.contiguous(), x.imag.contiguous()
    return (x.real, x.imag) if isinstance(x, (Complex, complex)) else (x, 0)


# Arithmetic. Parts may be plain numbers.


def _plus(t: Emit, a: Any, b: Any) -> Any:
    return _unless_zero(a, b) if _is_zero(a) or _is_zero(b) else t.plus(a, b)


def _minus(t: Emit, a: Any, b: Any) -> Any:
    return a if _is_zero(b) else t.times(b, -1) if _is_zero(a) else t.minus(a, b)


def _times(t: Emit, a: Any, b: Any) -> Any:
    return 0 if _is_zero(a) or _is_zero(b) else t.times(a, b)


def _is_zero(x: Any) -> bool:
    return isinstance(x, (int, float)) and x == 0


def _unless_zero(a: Any, b: Any) -> Any:
    return b if _is_zero(a) else a


def _whole(t: Emit, re: Any, im: Any) -> Complex:
    """Both parts as tensors of the shape of torch's result."""
    made = []
    for part in (re, im):
        tensor = part if isinstance(part, (Value, torch.Tensor)) else t.fill(t.out_shape, float(part))
        made.append(t.expand(t.f32(tensor), t.out_shape))
    return Complex(*made)


@complex_op("add")
def add(t: Emit, a: Any, b: Any, alpha: Any = 1) -> Complex:
    return _whole(t, *(_plus(t, x, _times(t, y, alpha)) for x, y in zip(parts(a), parts(b), strict=True)))


@complex_op("sub", "subtract")
def sub(t: Emit, a: Any, b: Any, alpha: Any = 1) -> Complex:
    return add(t, a, b, -alpha)


@complex_op("rsub")
def rsub(t: Emit, a: Any, b: Any, alpha: Any = 1) -> Complex:
    return sub(t, b, a, alpha)


@complex_op("mul", "multiply")
def mul(t: Emit, a: Any, b: Any) -> Complex:
    return _bilinear(t, a, b, lambda x, y: _times(t, x, y))


def _bilinear(t: Emit, a: Any, b: Any, product: Callable[[Any, Any], Any]) -> Complex:
    """(a + ib)(c + id) = (ac − bd) + i(ad + bc)"""
    (ar, ai), (br, bi) = parts(a), parts(b)

    def of(x: Any, y: Any) -> Any:
        return 0 if _is_zero(x) or _is_zero(y) else product(x, y)

    return _whole(t, _minus(t, of(ar, br), of(ai, bi)), _plus(t, of(ar, bi), of(ai, br)))


@complex_op("matmul", "mm", "bmm", "mv", "dot")
def matmul(t: Emit, a: Any, b: Any) -> Complex:
    return _bilinear(t, a, b, lambda x, y: TABLE["matmul"](t, x, y))


@complex_op("div", "divide", "true_divide")
def div(t: Emit, a: Any, b: Any) -> Complex:
    re, im = parts(b)
    if _is_zero(im):
        return _whole(t, *(0 if _is_zero(x) else t.over(x, re) for x in parts(a)))
    top, square = mul(t, a, Complex(re, _times(t, im, -1))), _plus(t, _times(t, re, re), _times(t, im, im))
    return _whole(t, t.over(top.real, square), t.over(top.imag, square))


@complex_op("neg", "negative")
def neg(t: Emit, x: Any) -> Complex:
    return mul(t, x, -1)


@complex_op("conj", "_conj", "conj_physical", "_conj_physical")
def conj(t: Emit, x: Any) -> Complex:
    re, im = parts(x)
    return _whole(t, re, _times(t, im, -1))


@complex_op("exp")
def exp(t: Emit, x: Any) -> Complex:
    re, im = parts(x)
    size = t.add("exp", t.f32(re))
    return Complex(t.times(size, t.add("cos", im)), t.times(size, t.add("sin", im)))


@complex_op("abs")
def abs_(t: Emit, x: Any) -> Operand:
    """The gradient at 0 is 0, as in torch."""
    squares = [t.add("square", t.f32(part)) for part in parts(x)]
    total, one, none = t.plus(*squares), t.constant(1.0), t.constant(0.0)
    empty = t.add("eq", total, none)
    return t.add("where", empty, none, t.add("sqrt", t.add("where", empty, one, total)))


# Parts.


@complex_op("real")
def real(t: Emit, x: Any) -> Operand:
    return parts(x)[0]


@complex_op("imag")
def imag(t: Emit, x: Any) -> Operand:
    return parts(x)[1]


@complex_op("view_as_real", "view_as_real_copy")
def view_as_real(t: Emit, x: Any) -> Operand:
    return t.concat([t.reshape(part, (*t.shape(part), 1)) for part in parts(x)], t.rank(parts(x)[0]))


@aten("view_as_complex", "view_as_complex_copy")
def view_as_complex(t: Emit, x: Operand) -> Complex:
    last = t.rank(x) - 1
    re, im = (t.reshape(t.slice(t.f32(x), last, k, k + 1), t.out_shape) for k in (0, 1))
    return Complex(re, im)


@aten("complex")
def complex_of(t: Emit, re: Operand, im: Operand) -> Complex:
    return _whole(t, re, im)


@aten("polar")
def polar(t: Emit, size: Operand, angle: Operand) -> Complex:
    return _whole(t, t.times(size, t.add("cos", t.f32(angle))), t.times(size, t.add("sin", t.f32(angle))))


@complex_op("to", "_to_copy", "type_as")
def to(t: Emit, x: Any, *_: Any) -> Any:
    if not t.node_dtypes[0].is_complex:
        raise Unsupported("it drops the imaginary part", "x.real, or x.abs()")
    return x


def _on_both(name: str) -> Rule:
    """For ops that are linear over the reals: the rule of real tensors, on one part after the other."""
    rule = TABLE[name]

    def both(t: Emit, *args: Any) -> Any:
        leaves, structure = pytree.tree_flatten(list(args))
        if any(
            isinstance(leaf, Value) or (isinstance(leaf, torch.Tensor) and not leaf.is_complex()) for leaf in leaves
        ):
            raise Unsupported("it joins real and complex numbers", COMPLEX[1])
        done = [
            rule(t, *pytree.tree_unflatten([parts(x)[k] if is_complex(x) else x for x in leaves], structure))
            for k in (0, 1)
        ]
        if isinstance(done[0], (list, tuple)):
            return [Complex(re, im) for re, im in zip(*done, strict=True)]
        return Complex(*done)

    return both


LINEAR = (
    *movement.RESHAPES, *movement.COPIES, *movement.PERMUTES, *movement.SLICES, "detach", "expand", "expand_as",
    "broadcast_to", "repeat", "cat", "concat", "concatenate", "stack", "flip", "roll", "sum.default",
    "sum.dim_IntList", "mean.default", "mean.dim",
)  # fmt: skip
for _name in LINEAR:
    COMPLEX_TABLE.setdefault(_name, _on_both(_name))


# Fourier transforms. θ = 2π·k·j/n, with k·j taken modulo n, which is exact.


class Waves(NamedTuple):
    """Matrices of cos θ and sin θ for k and j below `rows` and `columns`, times a factor for each column."""

    rows: int
    columns: int
    n: int
    factors: tuple[float, ...] | float

    def matrix(self, wave: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        turns = torch.arange(self.rows).outer(torch.arange(self.columns)) % self.n
        return wave(turns.double() * (2 * math.pi / self.n)) * torch.tensor(self.factors, dtype=torch.float64)


def _transformed(t: Emit, x: Any, axis: int, waves: Waves, wave: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """x with its axis multiplied by a matrix [rows, columns]."""
    if _is_zero(x):
        return 0
    rank, width = t.rank(x), waves.columns
    matrix = t.table((waves, wave), lambda: waves.matrix(wave))
    back = (*range(axis), rank - 1, *range(axis, rank - 1))
    lines = t.permute(t.slice(x, axis, 0, width), (*range(axis), *range(axis + 1, rank), axis))
    return t.permute(linear(t, lines, matrix), back)


def _scale(n: int, norm: str | None, inverse: bool) -> float:
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if inverse == (norm in (None, "backward")) else 1.0


def _along(t: Emit, x: Any, axis: int, n: int | None, norm: str | None, inverse: bool, half: bool = False) -> Complex:
    """The transform of one axis to n elements; with half, only the first n // 2 + 1 of them."""
    re, im = parts(x)
    length = _length(t, re, axis)
    n = n or length
    scale = _scale(n, norm, inverse)
    even = Waves(n // 2 + 1 if half else n, min(length, n), n, scale)
    odd = even if inverse else even._replace(factors=-scale)
    new_re = _minus(t, _transformed(t, re, axis, even, torch.cos), _transformed(t, im, axis, odd, torch.sin))
    new_im = _plus(t, _transformed(t, re, axis, odd, torch.sin), _transformed(t, im, axis, even, torch.cos))
    return Complex(new_re, new_im)


def _back_to_real(t: Emit, x: Any, axis: int, n: int | None, norm: str | None) -> Operand:
    """From half a spectrum to n real elements: what is left out are the conjugates of the others."""
    re, im = parts(x)
    length = _length(t, re, axis)
    n = n or 2 * (length - 1)
    used = min(length, n // 2 + 1)
    scale = _scale(n, norm, inverse=True)
    waves = Waves(n, used, n, tuple(scale if k == 0 or 2 * k == n else 2 * scale for k in range(used)))
    even, odd = _transformed(t, re, axis, waves, torch.cos), _transformed(t, im, axis, waves, torch.sin)
    return _minus(t, even, odd)


def _length(t: Emit, x: Operand, axis: int) -> int:
    length = t.shape(x)[axis]
    if isinstance(length, Batch):
        raise Unsupported("it transforms over the samples of a batch", "name other axes in dim=…")
    return length


def _axes(t: Emit, x: Any, sizes: Any, axes: Any) -> list[tuple[int, int | None]]:
    """(axis, size or None), in the order in which torch names them."""
    rank = t.rank(parts(x)[0])
    if axes is None:
        axes = range(rank - len(sizes), rank) if sizes else range(rank)
    named = [axis_of(a, rank) for a in ([axes] if isinstance(axes, int) else axes)]
    given = [sizes] * len(named) if sizes is None or isinstance(sizes, int) else list(sizes)
    return [(a, None if n == -1 else n) for a, n in zip(named, given, strict=True)]


def _to_complex(inverse: bool, half: bool) -> Rule:
    def rule(t: Emit, x: Any, sizes: Any = None, axes: Any = -1, norm: str | None = None) -> Complex:
        found: Any = t.f32(x) if not is_complex(x) else x
        for k, (axis, n) in enumerate(reversed(_axes(t, x, sizes, axes))):
            found = _along(t, found, axis, n, norm, inverse, half and k == 0)
        return _whole(t, *parts(found))

    return rule


def _to_real(t: Emit, x: Any, sizes: Any = None, axes: Any = -1, norm: str | None = None) -> Operand:
    *others, (last, n) = _axes(t, x, sizes, axes)
    found: Any = t.f32(x) if not is_complex(x) else x
    for axis, size in others:
        found = _along(t, found, axis, size, norm, inverse=True)
    return _back_to_real(t, found, last, n, norm)


for _suffix in ("", "2", "n"):
    for _name, _rule in {
        f"fft_fft{_suffix}": _to_complex(inverse=False, half=False),
        f"fft_ifft{_suffix}": _to_complex(inverse=True, half=False),
        f"fft_rfft{_suffix}": _to_complex(inverse=False, half=True),
        f"fft_irfft{_suffix}": _to_real,
    }.items():
        aten(_name)(_rule)
        COMPLEX_TABLE[_name] = _rule
