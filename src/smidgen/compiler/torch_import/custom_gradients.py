"""What changes gradients behind the back of torch.export, which keeps the forward computation only: functions with a
backward of their own, hooks, and parameters that are one memory. Each would silently train something else."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn

from ...errors import UnsupportedOp
from .aten.source import line_of_frame

WHY = "torch.export keeps only the forward computation"


def check_gradients(model: nn.Module) -> None:
    """Refuses hooks on gradients, and parameters that share memory without being the same."""
    for path, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            raise _hook(path or type(module).__name__, "remove it, or scale the loss instead")
    seen: dict[int, str] = {}  # address → name
    for name, parameter in model.named_parameters():  # each once, however many names it has
        if not parameter.requires_grad:
            continue
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise _hook(name, "remove it, or scale the loss instead")
        if not parameter.numel() or parameter.is_meta:
            continue
        other = seen.setdefault(parameter.untyped_storage().data_ptr(), name)
        if other != name:
            raise UnsupportedOp(
                f"the parameters '{other}' and '{name}' are one memory", at=name,
                why="an optimizer would change it twice in a step", help="one parameter, used in both places",
            )  # fmt: skip


@contextmanager
def refused(training: bool) -> Iterator[None]:
    """While a model is captured: functions that define their own gradient, and hooks on values."""
    real, real_hook = torch.autograd.Function.apply, torch.Tensor.register_hook

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if training and not cls.__module__.startswith("torch."):
            raise UnsupportedOp(
                f"the gradient that '{cls.__name__}' defines itself is not supported",
                at=line_of_frame(inspect.currentframe()), why=WHY,
                help="write it with operators; hard.detach() + soft - soft.detach() passes gradients straight through",
            )  # fmt: skip
        return real.__func__(cls, *args, **kwargs)

    def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
        if not training:
            return real_hook(tensor, hook)
        raise _hook(line_of_frame(inspect.currentframe()), "scale * x + ((1 - scale) * x).detach() scales a gradient")

    with (
        mock.patch.object(torch.autograd.Function, "apply", classmethod(apply)),
        mock.patch.object(torch.Tensor, "register_hook", register_hook),
    ):
        yield


def _hook(at: str, help: str) -> UnsupportedOp:
    return UnsupportedOp("a hook that may change gradients is not supported", at=at, why=WHY, help=help)
