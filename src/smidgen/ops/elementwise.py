"""Elementwise arithmetic of one input. Gradients read whichever of input and output is cheaper to keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..ir import Array, Node
from .registry import NOT_DIFFERENTIABLE, Builder, Call, Case, Infer, N, Param, Vjp, case, define, same_shape
from .traits import EACH, Attrs, LinearIn

Formula = Callable[..., Array]
Settings = Sequence[Mapping[str, Any]]
Draw = Callable[[np.random.Generator, int], Array]


def unary(
    name: str, doc: str, formula: Formula, vjp: Vjp, *, infer: Infer = same_shape,
    constants: Sequence[str] = (), settings: Settings = ({},), draw: Draw | None = None,
    identity: Callable[[Attrs], bool] | None = None, linear_in: LinearIn = (),
    factor: Callable[[Attrs], float] | None = None, bounds: Callable[[Attrs], tuple[float, float]] | None = None,
) -> None:  # fmt: skip
    """Define y = formula(x, **attrs). `constants` names the attributes that the kernel takes, as floats."""
    define(
        name, doc=doc, infer=infer, ref=lambda x, **attrs: (_like(x, formula(x, **attrs)),), vjp=vjp,
        kernels={"f32": f"{name}_f32"}, params=size_and(constants), inplace=(0,), cases=cases(1, settings, draw),
        layout=EACH, identity=identity, linear_in=linear_in, factor=factor, bounds=bounds,
    )  # fmt: skip


def differentiable(
    name: str, doc: str, formula: Formula, slope_doc: str, slope: Formula, *,
    reads: Literal["x", "y"] = "x", infer: Infer = same_shape,
    constants: Sequence[str] = (), settings: Settings = ({},), draw: Draw | None = None,
    identity: Callable[[Attrs], bool] | None = None,
) -> None:  # fmt: skip
    """Define the op and its gradient op `<name>_dx`, dx = dy · slope(v), where v is the op's input or output."""
    unary(
        name, doc, formula, reading(reads, f"{name}_dx"),
        infer=infer, constants=constants, settings=settings, draw=draw, identity=identity,
    )  # fmt: skip
    define(
        f"{name}_dx", doc=f"dx = dy · ({slope_doc})", infer=same_shape, vjp=NOT_DIFFERENTIABLE,
        ref=lambda dy, v, **attrs: (_like(dy, dy * slope(v, **attrs)),),
        kernels={"f32": f"{name}_dx_f32"}, params=size_and(constants), inplace=(0, 1),
        cases=cases(2, settings, draw), layout=EACH,
    )  # fmt: skip


def reading(which: Literal["x", "y"], dx_op: str) -> Vjp:
    """The gradient rule dx_op(dy, x or y), with the op's own attributes."""

    def vjp(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
        if not b.need(node.ins[0]):
            return [None]
        return [b.add(dx_op, str(dys[0]), (node.ins if which == "x" else node.outs)[0], **node.attrs)]

    return vjp


def cases(inputs: int, settings: Settings, draw: Draw | None = None) -> list[Case]:
    """For every setting: a fixed, a batched and a one-element shape; with `draw`, its values instead of normal ones."""
    if draw:
        return [case(*[draw] * inputs, **attrs) for attrs in settings]
    return [case(*[shape] * inputs, **attrs) for attrs in settings for shape in ((3, 4), (N, 5, 3), (1,))]


def size_and(constants: Sequence[str]) -> Callable[[Call], Sequence[Param]]:
    return lambda call: [call.outs[0].size, *(float(call[name]) for name in constants)]


def _like(x: Array, y: Array) -> Array:
    """`y` in the precision of x: Python numbers in a formula must not change it."""
    return np.asarray(y, dtype=x.dtype)


def _positive(rng: np.random.Generator, n: int) -> Array:
    return rng.uniform(0.2, 3.0, (3, 4))


def _zero(b: Builder, node: Node, dys: Sequence[str | None]) -> Sequence[str | None]:
    return [None]


erf = np.vectorize(math.erf, otypes=[np.float64])


unary("neg", "y = -x", np.negative, lambda b, node, dys: [b.add("neg", str(dys[0]))], linear_in=((0,),))
unary(
    "scale", "y = x · by", lambda x, by: x * by,
    lambda b, node, dys: [b.add("scale", str(dys[0]), by=node.attrs["by"])],
    constants=["by"], settings=[{"by": 0.3}, {"by": -2}], identity=lambda attrs: attrs["by"] == 1, linear_in=((0,),),
    factor=lambda attrs: float(attrs["by"]),
)  # fmt: skip
unary(
    "shift", "y = x + by", lambda x, by: x + by, lambda b, node, dys: [dys[0]],
    constants=["by"], settings=[{"by": 0.3}, {"by": -2}], identity=lambda attrs: attrs["by"] == 0,
)  # fmt: skip
unary("sign", "y = 1, 0 or -1; 0 for NaN; its gradient is zero", lambda x: 1.0 * (x > 0) - (x < 0), _zero)
unary("exp", "y = exp(x)", np.exp, lambda b, node, dys: [b.add("mul", str(dys[0]), node.outs[0])])
unary(
    "log", "y = natural logarithm of x", np.log, lambda b, node, dys: [b.add("div", str(dys[0]), node.ins[0])],
    draw=_positive,
)  # fmt: skip
differentiable("abs", "y = |x|", np.abs, "sign(x)", np.sign)
differentiable("square", "y = x²", np.square, "2x", lambda x: 2 * x)
differentiable("reciprocal", "y = 1 / x", np.reciprocal, "-y²", lambda y: -y * y, reads="y", draw=_positive)
differentiable("sqrt", "y = √x", np.sqrt, "1 / 2y", lambda y: 0.5 / y, reads="y", draw=_positive)
differentiable(
    "rsqrt", "y = 1 / √x", lambda x: 1 / np.sqrt(x), "-y³ / 2", lambda y: -(y**3) / 2, reads="y", draw=_positive,
)  # fmt: skip
differentiable("sin", "y = sin(x)", np.sin, "cos(x)", np.cos)
differentiable("cos", "y = cos(x)", np.cos, "-sin(x)", lambda x: -np.sin(x))
differentiable(
    "erf", "y = erf(x), the error function", erf,
    "2/√π · exp(-x²)", lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
)  # fmt: skip
differentiable(
    "pow_scalar", "y = x ^ exponent", lambda x, exponent: np.power(x, exponent),
    "exponent · x ^ (exponent - 1)", lambda x, exponent: exponent * np.power(x, exponent - 1.0) if exponent else 0 * x,
    constants=["exponent"], settings=[{"exponent": e} for e in (2, 3, 0.5, -1, 1.7, -2.5, 5, 1, 0)], draw=_positive,
    identity=lambda attrs: attrs["exponent"] == 1,
)  # fmt: skip
