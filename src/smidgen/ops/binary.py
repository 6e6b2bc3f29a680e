"""Elementwise operations of two inputs (and `where` of three), with numpy's broadcasting in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadShape
from ..ir import Array, DType, Node, Tensor
from .fixed_point import of_product, of_sum
from .movement import KIND, sum_to
from .registry import (
    NOT_DIFFERENTIABLE,
    Builder,
    Call,
    Case,
    Infer,
    N,
    Param,
    Spec,
    Vjp,
    case,
    define,
    out_size,
)
from .strides import broadcast, broadcast_params, show
from .traits import EACH, Int16, Integer

Dys = Sequence[str | None]


def _broadcast(what: str, *allowed: DType, out: DType | None = None, like: int = 0) -> Infer:
    """All inputs have one of the `allowed` types; the output has type `out` or that of input `like`."""

    def infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
        kinds = {x.dtype for x in ins}
        if len(kinds) != 1 or ins[0].dtype not in allowed:
            raise BadShape(
                f"{what} of {' and '.join(sorted(k.value for k in kinds))}",
                why=f"it takes {' or '.join(d.value for d in allowed)}, the same for all inputs", help="cast first",
            )  # fmt: skip
        return [(broadcast(what, *[x.shape for x in ins]), out or ins[like].dtype)]

    return infer


def _params(call: Call) -> Sequence[Param]:
    return broadcast_params(call.outs[0].shape, *[x.shape for x in call.ins])


def _vjp(*rules: Callable[[Builder, Node, str], str]) -> Vjp:
    """One rule per input: the gradient in the output's shape, summed here to the input's."""

    def vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
        dy = str(dys[0])
        pairs = zip(rules, node.ins, strict=True)
        return [sum_to(b, rule(b, node, dy), b[x].shape) if b.need(x) else None for rule, x in pairs]

    return vjp


def _sub_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    da, db = (sum_to(b, str(dys[0]), b[x].shape) if b.need(x) else None for x in node.ins)
    return [da, db and b.add("neg", db)]  # summed first: fewer elements to negate


Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.uniform(0.3, 3.0, shape))


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.asarray(rng.standard_normal(shape))


def _away_from_zero(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return _positive(rng, shape) * np.where(rng.random(shape) < 0.5, -1, 1)


def _few(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-1, 2, shape).astype(np.float64)  # many equal pairs


def _few_i32(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-1, 2, shape).astype(np.int32)


def _bool(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 2, shape).astype(np.uint8)


def _byte(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(0, 3, shape).astype(np.uint8)


def _of(draw: Draw, *shape: int) -> Any:
    """An input with values drawn by `draw`."""
    return lambda rng, n: draw(rng, shape)


def _drawn(a: Draw, b: Draw, smooth: bool = True) -> Case:
    """Two inputs that broadcast each other."""
    return case(_of(a, 3, 1, 5), _of(b, 4, 1), smooth=smooth)


PAIRS = [
    case((3, 4), (3, 4)), case((N, 5, 3), (N, 5, 3)), case((N, 2, 3, 4), (4,)), case((5,), (N, 2, 5)),
    case((N, 3, 2), (1, 3, 2)), case((N, 1, 4), (3, 1)), case((N, 2, 1, 3), (N, 1, 5, 1)), case((), (N, 3)),
    case((2, 3), ()), case((1,), (1,)), case((N, 4), (1, 1)), case((3, 1), (N, 1, 7)), case((4, 3), (3,)),
]  # fmt: skip

define(
    "add", doc="y = a + b",
    infer=_broadcast("add", DType.F32), ref=lambda a, b: (a + b,),
    vjp=_vjp(lambda b, node, dy: dy, lambda b, node, dy: dy),
    kernels={"f32": "add_f32"}, params=_params, layout=EACH, inplace=(0, 1), cases=PAIRS,
    int16=Int16("add16", (0, 1)),
    linear_in=((0, 1),), operands={0: "bias", 1: "bias"}, integer=Integer("rescaled", "qadd", of_sum(1)),
)  # fmt: skip

define(
    "sub", doc="y = a - b",
    infer=_broadcast("sub", DType.F32), ref=lambda a, b: (a - b,), vjp=_sub_vjp,
    kernels={"f32": "sub_f32"}, params=_params, layout=EACH, inplace=(0, 1), cases=PAIRS, linear_in=((0, 1),),
    integer=Integer("rescaled", "qadd", of_sum(-1)),
)  # fmt: skip

define(
    "mul", doc="y = a · b",
    infer=_broadcast("mul", DType.F32), ref=lambda a, b: (a * b,),
    vjp=_vjp(lambda b, node, dy: b.add("mul", dy, node.ins[1]), lambda b, node, dy: b.add("mul", dy, node.ins[0])),
    kernels={"f32": "mul_f32"}, params=_params, layout=EACH, inplace=(0, 1), cases=PAIRS,
    linear_in=((0,), (1,)), operands={0: "scale", 1: "scale"}, integer=Integer("rescaled", "qmul", of_product),
)  # fmt: skip

define(
    "div", doc="y = a / b",
    infer=_broadcast("div", DType.F32), ref=lambda a, b: (a / b,),
    vjp=_vjp(lambda b, node, dy: b.add("div", dy, node.ins[1]),
             lambda b, node, dy: b.add("div_db", dy, node.outs[0], node.ins[1])),
    kernels={"f32": "div_f32"}, params=_params, layout=EACH, inplace=(0, 1), linear_in=((0,),),
    cases=[*PAIRS, _drawn(_normal, _away_from_zero)],
)  # fmt: skip

define(
    "div_db", doc="db = -dy·y / b, before the sum over broadcast axes",
    infer=_broadcast("div_db", DType.F32), ref=lambda dy, y, b: (-(dy * y) / b,), vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "div_db_f32"}, params=_params, layout=EACH, inplace=(0, 1),
    cases=[case((N, 3, 4), (N, 3, 4), (4,)), case((3,), (3,), (3,))],
)  # fmt: skip


def _quiet(f: Callable[..., Array]) -> Callable[..., Sequence[Array]]:
    def ref(*xs: Array) -> Sequence[Array]:
        with np.errstate(all="ignore"):
            return (f(*xs),)

    return ref


# An integer power of a negative number is real, but not next to it.
_POWERS = [
    _drawn(_positive, _normal), case(_of(_positive, 3, 4), (4,)),
    _drawn(_away_from_zero, lambda rng, shape: rng.integers(-3, 4, shape).astype(np.float64), smooth=False),
]  # fmt: skip

define(
    "pow", doc="y = a to the power b",
    infer=_broadcast("pow", DType.F32), ref=_quiet(np.power),
    vjp=_vjp(lambda b, node, dy: b.add("pow_da", dy, *node.ins), lambda b, node, dy: b.add("pow_db", dy, *node.ins)),
    kernels={"f32": "pow_f32"}, params=_params, layout=EACH, inplace=(0, 1), cases=_POWERS,
)  # fmt: skip


def _with_dy(cases: Sequence[Case]) -> list[Case]:
    """Cases of (a, b) with a dy of the broadcast shape in front."""
    found = []
    for old in cases:
        a, b = (x(np.random.default_rng(0), 3).shape if callable(x) else x for x in old.inputs)
        found.append(Case((broadcast("", a, b), *old.inputs), tolerance=old.tolerance))
    return found


define(
    "pow_da", doc="da = dy · b·a^(b-1), 0 where b = 0",
    infer=_broadcast("pow_da", DType.F32),
    ref=_quiet(lambda dy, a, b: np.where(b == 0, 0, dy * (b * np.power(a, b - 1)))), vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "pow_da_f32"}, params=_params, layout=EACH, inplace=(0, 1, 2), cases=_with_dy(_POWERS),
)  # fmt: skip

define(
    "pow_db", doc="db = dy · a^b·log a, 0 where a = 0 and b ≥ 0",
    infer=_broadcast("pow_db", DType.F32),
    ref=_quiet(lambda dy, a, b: np.where((a == 0) & (b >= 0), 0, dy * (np.power(a, b) * np.log(a)))),
    vjp=NOT_DIFFERENTIABLE,
    kernels={"f32": "pow_db_f32"}, params=_params, layout=EACH, inplace=(0, 1, 2),
    cases=[*_with_dy(_POWERS[:2]), case((3,), lambda rng, n: np.array([0.0, 1.0, 2.0]), (3,))],
)  # fmt: skip


def _define_extreme(name: str, f: Callable[..., Array], loses: Callable[..., Array], sign: str) -> None:
    """maximum and minimum; equal inputs get half the gradient each, as in torch."""
    dx = f"{name}_dx"
    define(
        name, doc=f"y = the {'larger' if sign == '<' else 'smaller'} of a and b; NaN if one of them is",
        infer=_broadcast(name, DType.F32), ref=lambda a, b: (f(a, b),),
        vjp=_vjp(lambda b, node, dy: b.add(dx, dy, *node.ins), lambda b, node, dy: b.add(dx, dy, *node.ins[::-1])),
        kernels={"f32": f"{name}_f32"}, params=_params, layout=EACH, inplace=(0, 1),
        cases=[*PAIRS, _drawn(_few, _few, smooth=False)],
    )  # fmt: skip
    define(
        dx, doc=f"da = 0 where a {sign} b, dy/2 where a = b, else dy",
        infer=_broadcast(dx, DType.F32),
        ref=lambda dy, a, b: (np.where(loses(a, b), 0, np.where(a == b, dy / 2, dy)),), vjp=NOT_DIFFERENTIABLE,
        kernels={"f32": f"{dx}_f32"}, params=_params, layout=EACH, inplace=(0, 1, 2),
        cases=_with_dy([_drawn(_few, _few), case((N, 3, 4), (4,)), case((5,), (5,))]),
    )  # fmt: skip


_define_extreme("maximum", np.maximum, np.less, "<")
_define_extreme("minimum", np.minimum, np.greater, ">")


def _compare_params(call: Call) -> Sequence[Param]:
    return [KIND[call.ins[0].dtype], *_params(call)]


for _name, _sign, _f in (
    ("eq", "=", np.equal), ("ne", "≠", np.not_equal), ("lt", "<", np.less),
    ("le", "≤", np.less_equal), ("gt", ">", np.greater), ("ge", "≥", np.greater_equal),
):  # fmt: skip
    define(
        _name, doc=f"y = 1 where a {_sign} b, else 0",
        infer=_broadcast(_name, DType.F32, DType.I32, out=DType.U8),
        ref=lambda a, b, f=_f: (f(a, b).astype(np.uint8),), vjp=NOT_DIFFERENTIABLE,
        kernels={"u8": f"{_name}_u8"}, params=_compare_params, layout=EACH,
        cases=[case((N, 3, 4), (4,)), case((), (N, 2)), _drawn(_few, _few), _drawn(_few_i32, _few_i32),
               case(lambda rng, n: np.array([np.nan, 1.0, np.inf, np.nan, 0.0]),
                    lambda rng, n: np.array([1.0, np.nan, np.inf, np.nan, -0.0]))],
    )  # fmt: skip

for _name, _logic in (("logical_and", np.logical_and), ("logical_or", np.logical_or)):
    define(
        _name, doc=f"y = a {_name[8:]} b; anything but 0 counts as true",
        infer=_broadcast(_name, DType.U8), ref=lambda a, b, f=_logic: (f(a, b).astype(np.uint8),),
        vjp=NOT_DIFFERENTIABLE, kernels={"u8": f"{_name}_u8"}, params=_params, layout=EACH, inplace=(0, 1),
        cases=[_drawn(_bool, _bool), case(_of(_byte, 7), _of(_bool, 7))],
    )  # fmt: skip

define(
    "logical_not", doc="y = 1 where x is 0, else 0",
    infer=_broadcast("logical_not", DType.U8), ref=lambda x: ((x == 0).astype(np.uint8),), vjp=NOT_DIFFERENTIABLE,
    kernels={"u8": "logical_not_u8"}, params=out_size, layout=EACH, inplace=(0,),
    cases=[case(_of(_byte, 3, 5)), case(_of(_bool))],
)  # fmt: skip


def _where_infer(ins: Sequence[Tensor], attrs: Mapping[str, Any]) -> Sequence[Spec]:
    cond, a, b = ins
    if cond.dtype is not DType.U8 or a.dtype is not b.dtype:
        kinds = ", ".join(f"{x.dtype.value}{show(x.shape)}" for x in ins)
        raise BadShape(f"where of {kinds}", why="the condition must be u8 and both choices of one type")
    return [(broadcast("where", *[x.shape for x in ins]), a.dtype)]


def _where_vjp(b: Builder, node: Node, dys: Dys) -> Sequence[str | None]:
    cond, a, other = node.ins
    if b[a].dtype is not DType.F32:
        return [None, None, None]
    zero = b.add("fill", shape=(), value=0.0)
    da = sum_to(b, b.add("where", cond, str(dys[0]), zero), b[a].shape) if b.need(a) else None
    db = sum_to(b, b.add("where", cond, zero, str(dys[0])), b[other].shape) if b.need(other) else None
    return [None, da, db]


define(
    "where", doc="y = a where cond is not 0, else b",
    infer=_where_infer, ref=lambda cond, a, b: (np.asarray(np.where(cond != 0, a, b)),), vjp=_where_vjp,
    kernels={"f32": "where_b4", "i32": "where_b4", "u8": "where_b1"}, params=_params, layout=EACH, inplace=(1, 2),
    cases=[case(_of(_bool, 3, 4), (3, 4), (3, 4)), case(_of(_bool, 4, 4), (N, 2, 4, 4), ()),
           case(_of(_byte, 3, 1), (5,), (1, 5)), case(_of(_bool), (N, 3), (3,)),
           case(_of(_bool, 4), _of(_few_i32, 2, 4), _of(_few_i32, 4)),
           case(_of(_bool, 4), _of(_bool, 4), _of(_byte, 1))],
)  # fmt: skip
