"""Does a model do the same in evaluation mode and in its own? Then it need not be captured twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

DROPS: Final = {
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), "p"),
    **dict.fromkeys((nn.RNN, nn.GRU, nn.LSTM, nn.MultiheadAttention), "dropout"),
}
"""Modules that read their mode only in order to drop out, with this probability."""


class Watch:
    """`differs`: something was done that may differ between the modes, or that matters only in training."""

    def __init__(self, model: nn.Module) -> None:
        modules = [m for m in model.modules() if m.training and not isinstance(m, _BatchNorm)]
        self._learning = {id(m) for m in modules if not _drops_nothing(m)}
        self.differs = any(_has_own_way(m) for m in modules)

    def own_gradient(self) -> None:
        """It is judged where the model is captured for training."""
        self.differs = True

    def read(self, module: nn.Module) -> None:
        self.differs = self.differs or id(module) in self._learning


def _drops_nothing(module: nn.Module) -> bool:
    probability = DROPS.get(type(module))
    return probability is not None and getattr(module, probability) == 0


def _has_own_way(module: nn.Module) -> bool:
    """Reads of its mode cannot be seen."""
    own = [cls for cls in type(module).__mro__ if "training" in vars(cls)]
    return bool(own) or isinstance(module, torch.jit.ScriptModule)


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """While a model is captured in evaluation mode: note who asks for its mode."""

    def read(module: nn.Module) -> Any:
        watch.read(module)
        return vars(module)["training"]

    def write(module: nn.Module, value: bool) -> None:
        watch.read(module)
        vars(module)["training"] = value

    with mock.patch.object(nn.Module, "training", property(read, write), create=True):
        yield
