"""Is the backward of a user's `torch.autograd.Function` the derivative of its forward?

torch.export keeps the forward computation, and smidgen differentiates that. So both gradients are computed, in float64
and at the shapes of the call, and compared: what the function defines, and what autograd makes of its forward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

SAMPLES = 2  # stands for the batch size
TOLERANCE = 1e-5  # of a gradient and of a typical one: far above float32's rounding within a function, far below a flaw
SEED = 20


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that a function is called with."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    learns: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A function and what it is called with: `Given` in place of tensors."""

    function: Any
    leaves: tuple[Any, ...]
    structure: Any

    @staticmethod
    def of(function: Any, args: Sequence[Any]) -> Call:
        leaves, structure = pytree.tree_flatten(tuple(args))
        return Call(function, tuple(_given(leaf) for leaf in leaves), structure)

    def is_like(self, other: Call) -> bool:
        if self.function is not other.function or self.structure != other.structure:
            return False
        pairs = list(zip(self.leaves, other.leaves, strict=True))
        return all(a is b or (isinstance(a, (Given, int, float, str)) and type(a) is type(b) and a == b)
                   for a, b in pairs)  # fmt: skip


def _given(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return Given(tuple(_number(d) for d in leaf.shape), leaf.dtype, leaf.requires_grad)
    return _number(leaf) if isinstance(leaf, torch.SymInt) else leaf


def _number(size: int | torch.SymInt) -> int:
    """A size, with SAMPLES for the batch."""
    if not isinstance(size, torch.SymInt):
        return size
    expression = size.node.expr
    return int(expression.subs(dict.fromkeys(expression.free_symbols, SAMPLES)))


def _mixed(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Small and large, of both signs, some of them zero."""
    x, scale = _normal(shape, generator), torch.tensor([0.0, 1e-3, 1.0, 10.0, 1e3], dtype=torch.float64)
    return x * scale[torch.randint(len(scale), tuple(shape), generator=generator)]


def _normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float64)


def _positive(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """For what is defined on probabilities or lengths only."""
    return torch.rand(tuple(shape), generator=generator, dtype=torch.float64) * 0.98 + 0.01


def disagreement(call: Call) -> str | None:
    """How the function's own gradient differs from the derivative of its forward; None if it does not."""
    worst, compared = Difference(), set[int]()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), warnings.catch_warnings(), _in_float64():
            warnings.simplefilter("ignore")
            for k, draw in enumerate((_normal, _mixed, _positive)):
                for i, (own, right) in enumerate(_gradients(call, draw, SEED + k)):
                    found, finite = Difference.of(own, right, i)
                    worst = max(worst, found, key=lambda d: d.size)
                    compared |= {i} if finite else set()
    except Exception as error:  # of the user's code
        return (
            f"checking its backward failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
    if worst.size:
        return (
            f"its backward differs from the derivative of that by up to {worst.size:.3g}: "
            f"{worst.own:.3g} instead of {worst.right:.3g} for its input {worst.place}"
        )
    missing = set(range(sum(_learn(call)))) - compared
    return f"no gradient of its input {min(missing)} is a finite number, so it cannot be checked" if missing else None


@contextmanager
def _in_float64() -> Iterator[None]:
    """What a function creates without naming a type fits to its inputs, as it does in the model; and it may overwrite
    what autograd would need for the derivative, which keeps copies."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x.detach().clone(), lambda x: x):
            yield
    finally:
        torch.set_default_dtype(before)


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest one that rounding does not explain."""

    size: float = 0.0
    own: float = 0.0
    right: float = 0.0
    place: int = 0  # of the input, among those with gradients

    @staticmethod
    def of(own: torch.Tensor, right: torch.Tensor, place: int) -> tuple[Difference, bool]:
        """And: is there anything finite to compare?"""
        own, right = own.flatten().double(), right.flatten().double()
        alike = (own == right) | (own.isnan() & right.isnan())
        apart = torch.where(alike, 0.0, (own - right).abs()).nan_to_num(nan=torch.inf)
        sizes = right.abs()
        some = sizes[(sizes > 0) & sizes.isfinite()]
        allowed = TOLERANCE * (sizes + (some.median() if some.numel() else 0.0)).nan_to_num(nan=0.0)
        apart = torch.where(apart > allowed, apart, 0.0)
        finite = not own.numel() or bool((own.isfinite() & right.isfinite()).any())
        if not bool((apart > 0).any()):
            return Difference(), finite
        at = int(apart.argmax())
        return Difference(float(apart[at]), float(own[at]), float(right[at]), place), finite


def _learn(call: Call) -> list[bool]:
    """Which tensors of floats get a gradient; all, if no parameter is behind any."""
    floats = [leaf for leaf in call.leaves if isinstance(leaf, Given) and leaf.dtype.is_floating_point]
    return [leaf.learns or not any(f.learns for f in floats) for leaf in floats]


def _gradients(call: Call, draw: Callable[..., torch.Tensor], seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """For each input with gradients: the function's own, and the derivative of its forward."""
    generator = torch.Generator().manual_seed(seed)
    values = [_drawn(leaf, draw, generator) if isinstance(leaf, Given) else leaf for leaf in call.leaves]
    floats = [i for i, v in enumerate(values) if isinstance(call.leaves[i], Given) and v.is_floating_point()]
    learn = [i for i, wanted in zip(floats, _learn(call), strict=True) if wanted]
    pulls: list[torch.Tensor] = []
    found = []
    for run in (call.function.apply, _taken_apart(call.function, [i in learn for i in range(len(values))])):
        torch.manual_seed(seed)  # the same random numbers within both
        leaf = {i: values[i].clone().requires_grad_() for i in learn}
        filled = [leaf[i].clone() if i in leaf else v.clone() if isinstance(v, torch.Tensor) else v
                  for i, v in enumerate(values)]  # fmt: skip
        results = pytree.tree_leaves(run(*pytree.tree_unflatten(filled, call.structure)))
        outs = [y for y in results if isinstance(y, torch.Tensor) and y.is_floating_point()]
        pulls = pulls or [_normal(y.shape, generator) for y in outs]
        given = [(y, g.to(y.dtype)) for y, g in zip(outs, pulls, strict=True) if y.requires_grad]
        grads = torch.autograd.grad([y for y, _ in given], list(leaf.values()), [g for _, g in given],
                                    allow_unused=True) if given else [None] * len(leaf)  # fmt: skip
        found.append([torch.zeros_like(x) if g is None else g for x, g in zip(leaf.values(), grads, strict=True)])
    return list(zip(*found, strict=True))


def _drawn(given: Given, draw: Callable[..., torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    if given.dtype.is_floating_point:
        return draw(given.shape, generator)
    return torch.randint(0, 2, given.shape, generator=generator).to(given.dtype)


class _Context:
    """What a forward is given as `ctx` where autograd itself watches it."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)

    def save_for_backward(self, *tensors: Any) -> None: ...

    def save_for_forward(self, *tensors: Any) -> None: ...

    def mark_dirty(self, *tensors: Any) -> None: ...

    def mark_non_differentiable(self, *tensors: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


def _taken_apart(function: Any, needs: Sequence[bool]) -> Callable[..., Any]:
    """The forward as ordinary torch code, which autograd differentiates."""
    if function.setup_context is torch.autograd.Function.setup_context:
        return lambda *args: function.forward(_Context(needs), *args)
    return lambda *args: function.forward(*args)
