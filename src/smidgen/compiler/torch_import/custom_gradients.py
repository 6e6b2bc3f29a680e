"""What changes gradients behind the back of torch.export, which keeps the forward computation only: functions with a
backward of their own that is not the derivative, hooks, and parameters that are one memory. Each would silently train
something else."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import _functorch, nn
from torch.autograd import function as autograd_function

from ...errors import UnsupportedOp
from .aten.source import library_of, line_of_frame
from .own_backward import Call, disagreement

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
def refused(training: bool, noticed: Callable[[], None] = lambda: None) -> Iterator[None]:
    """While a model is captured: functions whose own gradient is another than that of their forward, and hooks on
    values. `noticed` is called for each of them, also where gradients do not matter."""
    real_hook, real_unwrap = torch.Tensor.register_hook, _functorch.utils.unwrap_dead_wrappers
    real_call = autograd_function.custom_function_call
    calls: list[tuple[Call, str]] = []  # each kind once, with its first place

    def note(function: Any, args: Sequence[Any], at: str) -> None:
        if function.__module__.startswith("torch."):
            return
        noticed()
        if training:
            call = Call.of(function, args)
            if not any(call.is_like(known) for known, _ in calls):
                calls.append((call, at))

    # Function.apply itself cannot be replaced: `act = Swish.apply` at the top of a file has long taken it. It calls one
    # of these two, the first with its arguments complete, the second within torch.func's transforms.
    def unwrap(args: Any) -> Any:
        frame = inspect.currentframe()
        caller = frame.f_back if frame else None
        if caller is not None and "cls" in caller.f_locals:
            note(caller.f_locals["cls"], args, line_of_frame(frame))
        return real_unwrap(args)

    def call_function(function: Any, *args: Any, **kwargs: Any) -> Any:
        note(function, args, line_of_frame(inspect.currentframe()))
        return real_call(function, *args, **kwargs)

    def register_hook(tensor: torch.Tensor, hook: Any) -> Any:
        noticed()
        if not training:
            return real_hook(tensor, hook)
        raise _hook(line_of_frame(inspect.currentframe()), "scale * x + ((1 - scale) * x).detach() scales a gradient")

    with (
        mock.patch.object(_functorch.utils, "unwrap_dead_wrappers", unwrap),
        mock.patch.object(autograd_function, "custom_function_call", call_function),
        mock.patch.object(torch.Tensor, "register_hook", register_hook),
    ):
        yield
    for call, at in calls:  # now that torch no longer records what is computed
        if difference := disagreement(call):
            raise UnsupportedOp(
                f"the gradient that '{call.function.__name__}' defines itself is not supported",
                at=at, why=f"{WHY}; {difference}", help=_instead(at),
            )  # fmt: skip


def _instead(at: str) -> str:
    help = "write it with operators; hard.detach() + soft - soft.detach() passes gradients straight through"
    if package := library_of(at):
        help += (
            f"; the line is in {package}: subclass the module that it is in with forward() written so, then "
            "model.set_submodule(its path in model.named_modules(), yours)"
        )
    return help


def _hook(at: str, help: str) -> UnsupportedOp:
    return UnsupportedOp("a hook that may change gradients is not supported", at=at, why=WHY, help=help)
