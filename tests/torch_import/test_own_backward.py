"""Functions with a backward of their own: taken where it is the derivative of the forward, refused where it is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen.errors import UnsupportedOp
from smidgen.report.parity import Reference, relative
from tests.support.torch_rows import Row, agrees_with_torch

Function: Any = torch.autograd.Function


def function(name: str, forward: Any, backward: Any, **more: Any) -> Any:
    """A Function that saves its inputs; `backward` gets them and the gradient."""

    def kept(ctx: Any, *xs: Any) -> Any:
        ctx.save_for_backward(*[x for x in xs if isinstance(x, torch.Tensor)])
        return forward(*xs)

    def back(ctx: Any, *gs: Any) -> Any:
        return backward(*ctx.saved_tensors, *gs)

    methods = {"forward": staticmethod(kept), "backward": staticmethod(back), **more}
    return type(name, (Function,), methods)


def _swish_back(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    s = torch.sigmoid(x)
    return g * (s * (1 + x * (1 - s)))


def _gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))


def _gelu_back(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """With constants rounded to ten digits, as bloom has them."""
    t = torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))
    return g * (0.5 * x * ((1 - t * t) * (0.79788456 + 0.1070322243 * x * x)) + 0.5 * (1 + t))


Swish = function("Swish", lambda x: x * torch.sigmoid(x), _swish_back)
BloomGelu = function("BloomGelu", _gelu, _gelu_back)
Scaled = function("Scaled", lambda x, w, by: (x * w) ** 2 * by, lambda x, w, g: (
    g * 2 * x * w * w * 3.0, (g * 2 * x * x * w * 3.0).sum(0), None))  # fmt: skip
Root = function("Root", lambda x: x.abs().sqrt(), lambda x, g: g * x.sign() / (2 * x.abs().sqrt()))


class NewStyle(Function):  # type: ignore[misc]
    """Two results; its context is set up apart from the computation."""

    @staticmethod
    def forward(x: torch.Tensor) -> Any:
        return x.sin(), x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        x = ctx.saved_tensors[0]
        return g * x.cos() + 2 * h * x


class InPlace(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        x.sigmoid_()
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        y = ctx.saved_tensors[0]
        return g * y * (1 - y)


class MaskedSoftmax(Function):  # type: ignore[misc]
    """Overwrites what the derivative of its softmax needs, as deberta does."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y = torch.softmax(x.masked_fill(mask, torch.finfo(x.dtype).min), -1)
        y.masked_fill_(mask, 0)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        y = ctx.saved_tensors[0]
        return y * (g - (g * y).sum(-1, keepdim=True)), None


class Largest(Function):  # type: ignore[misc]
    """Creates a tensor of the default type and writes a number of its input's type into it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        top = torch.full((x.shape[0], 1), -torch.finfo(x.dtype).max)
        top.copy_(torch.maximum(top, x.amax(-1, keepdim=True)))
        ctx.save_for_backward(x, top)
        return top * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        x, top = ctx.saved_tensors
        return g * top + (x == top) * (g * x).sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self, apply: Any) -> None:
        super().__init__()
        self.a, self.b, self.w = nn.Linear(6, 5), nn.Linear(5, 3), nn.Parameter(torch.randn(5))
        self.apply_own = apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.b(self.apply_own(self.a(x), self.w))
        return y


RIGHT: dict[str, Any] = {
    "swish": lambda x, w: Swish.apply(x) + w * Swish.apply(x * w),
    "bloom-gelu": lambda x, w: BloomGelu.apply(x * w),
    "two-inputs": lambda x, w: Scaled.apply(x, w, 3.0),
    "one-input-learns": lambda x, w: Scaled.apply(x.detach(), w, 3.0),
    "kink-at-zero": lambda x, w: Root.apply(x * w),
    "two-results": lambda x, w: sum(NewStyle.apply(x * w)),
    "overwritten": lambda x, w: MaskedSoftmax.apply(x * w, torch.arange(5) > 3),
    "in-place": lambda x, w: (y := x * w) * 0 + InPlace.apply(y) + y,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_backward_that_is_the_derivative_trains_as_in_torch(name: str) -> None:
    agrees_with_torch(Row(name, lambda: Net(RIGHT[name]), ((6,),)))
    torch.manual_seed(0)
    model, optimizer = Net(RIGHT[name]), smidgen.SGD(0.1, momentum=0.9)
    x, y = torch.randn(4, 6).numpy(), np.arange(4) % 3
    job = smidgen.compile(model, x, optimizer=optimizer)
    reference = Reference(model, "cross_entropy", optimizer, job.plan.learns, "frozen", torch.float64)
    for _ in range(3):
        job.train_step(x, y)
        reference.step([x], y)
    for key, value in reference.values().items():
        assert relative(job.state_dict()[key], value) < 1e-5, key


def _hard_tanh(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-1, 1)


class Unchecked(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.log() * 0 + (-x.abs()).sqrt() * 0 + x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * torch.nan


class Broken(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("no way back")


WRONG: dict[str, tuple[Any, str]] = {
    "straight-through": (function("Step", lambda x: (x > 0).to(x), lambda x, g: g), "instead of 0 for its input 0"),
    "straight-through-sign": (function("Sign", torch.sign, lambda x, g: g * (x.abs() < 1)), "by up to"),
    "reversed": (function("Reversed", lambda x: x.view_as(x), lambda x, g: -g), "by up to"),
    "scaled": (function("Tenth", lambda x: x * 1.0, lambda x, g: g / 10), "by up to"),
    "slightly-wrong": (function("Off", lambda x: x.tanh(), lambda x, g: g * 1.001 * (1 - x.tanh() ** 2)), "by up to"),
    "wrong-when-large": (function("Clip", lambda x: x * 1.0, lambda x, g: g * (x.abs() < 100)), "by up to"),
    "wrong-at-zero": (function("Relu", torch.relu, lambda x, g: g * (x >= 0)), "by up to"),
    "clipped-gradient": (function("Hard", _hard_tanh, lambda x, g: g), "by up to"),
    "only-nan": (Unchecked, "cannot be checked"),
    "raises": (Broken, "ZeroDivisionError: no way back"),
}


@pytest.mark.parametrize("name", WRONG)
def test_any_other_backward_is_refused_with_the_difference(name: str) -> None:
    own, said = WRONG[name]
    with pytest.raises(UnsupportedOp, match=said) as caught:
        smidgen.compile(Net(lambda x, w: own.apply(x * w)), torch.randn(4, 6))
    assert f"'{own.__name__}' defines itself is not supported" in caught.value.what
    assert "test_own_backward.py" in caught.value.at
    assert "torch.export keeps only the forward computation; " in caught.value.why


def test_a_parameter_that_its_function_leaves_out_is_noticed() -> None:
    """`apply` is taken long before the model is captured, as at the top of a file."""
    leaves_out = function("LeavesOut", lambda x, w: x * w, lambda x, w, g: (g * w, None))
    with pytest.raises(UnsupportedOp, match="for its input 1"):
        smidgen.compile(Net(leaves_out.apply), torch.randn(4, 6))


def test_a_function_may_create_tensors_of_the_default_type() -> None:
    """Only a model in float32 runs it; its backward is checked in float64 all the same."""
    model, x = Net(lambda x, w: Largest.apply(x * w)), torch.randn(4, 6)
    with pytest.raises(RuntimeError, match="overflow"):
        Net(lambda x, w: Largest.apply(x * w)).double()(x.double())
    job = smidgen.compile(model, x)
    np.testing.assert_allclose(job.predict(x), model(x).detach().numpy(), rtol=1e-5, atol=1e-5)
    assert torch.get_default_dtype() is torch.float32
