"""Recurrent layers as one operator each while a model is captured.

Torch captures them as one too, but runs every one of their time steps in order to find the shapes of the results: many
thousand operators in a network of such layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

import torch

NAMES: Final = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_REST: Final = "Tensor[] params, bool biased, int layers, float dropout, bool train, bool both_ways, bool batch_first"
_OPS: Final = torch.library.Library("smidgen", "DEF")


def _shapes(x: torch.Tensor, start: torch.Tensor | Sequence[torch.Tensor], *options: Any) -> tuple[torch.Tensor, ...]:
    """What the layer returns, without values; outputs lie in memory as those of torch do."""
    both_ways, batch_first = options[-2:]
    states = [start] if isinstance(start, torch.Tensor) else list(start)
    time, samples = (x.shape[1], x.shape[0]) if batch_first else (x.shape[0], x.shape[1])
    y = x.new_empty(time, samples, states[0].shape[-1] * (1 + both_ways))
    return y.transpose(0, 1) if batch_first else y, *[x.new_empty(s.shape) for s in states]


def _define(name: str) -> None:
    """With the overload that torch's own has, so that one rule translates both."""
    states = 2 if name == "lstm" else 1
    start = "Tensor[] start" if name == "lstm" else "Tensor start"
    results = ", ".join(["Tensor"] * (1 + states))
    _OPS.define(f"{name}.input(Tensor x, {start}, {_REST}) -> ({results})")
    _OPS.impl(f"{name}.input", getattr(torch, name), "CompositeExplicitAutograd")
    torch.library.register_fake(f"smidgen::{name}.input", _shapes, lib=_OPS)


for _name in NAMES:
    _define(_name)


def _whole(name: str) -> Callable[..., Any]:
    real, whole = getattr(torch._VF, name), getattr(torch.ops.smidgen, name).input

    def call(*args: Any) -> Any:
        """Packed sequences and projections of the state are left to torch."""
        padded = len(args) == 9 and isinstance(args[3], bool)
        if not padded:
            return real(*args)
        weights, biased, layers, both_ways = args[2], args[3], args[4], args[7]
        plain = len(weights) == layers * (1 + both_ways) * (4 if biased else 2)
        return whole(*args) if plain else real(*args)

    return call


@contextmanager
def as_one() -> Iterator[None]:
    with ExitStack() as patches:
        for name in NAMES:
            patches.enter_context(mock.patch.object(torch._VF, name, _whole(name)))
        yield
