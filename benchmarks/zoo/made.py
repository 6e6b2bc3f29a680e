"""A model of a package with what it takes to train it: examples of its input, and a loss that suits its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

MOST_PARAMETERS = 30_000_000
Sizes = Sequence[int]


@dataclass(frozen=True)
class Made:
    model: torch.nn.Module
    inputs: Callable[[np.random.Generator, int], list[Any]]
    """Of so many samples."""
    loss: str = ""
    """As smidgen names it; by default what the output suggests."""

    def targets(self, output: torch.Tensor, rng: np.random.Generator) -> Any:
        """Classes for class scores (second axis), else numbers like the output."""
        shape = tuple(output.shape)
        if self.named_loss(output) == "cross_entropy":
            return rng.integers(0, shape[1], (shape[0], *shape[2:])).astype(np.int64)
        return rng.standard_normal(shape).astype(np.float32)

    def named_loss(self, output: torch.Tensor) -> str:
        scores = output.ndim == 2 and output.shape[1] > 1
        return self.loss or ("cross_entropy" if scores else "mse")


def images(side: int, channels: int = 3) -> Callable[[np.random.Generator, int], list[Any]]:
    return floats(channels, side, side)


def floats(*shape: int) -> Callable[[np.random.Generator, int], list[Any]]:
    return lambda rng, n: [rng.standard_normal((n, *shape)).astype(np.float32)]


def tokens(length: int, vocabulary: int) -> Callable[[np.random.Generator, int], list[Any]]:
    return lambda rng, n: [classes(rng, (n, length), 0, vocabulary)]


def classes(rng: np.random.Generator, shape: Sizes, least: int, end: int) -> Any:
    return rng.integers(least, end, tuple(shape)).astype(np.int64)


def parameters(make: Callable[[], Made]) -> int:
    """Without memory for them."""
    with torch.device("meta"):
        return sum(p.numel() for p in make().model.parameters())


def fitting(make: Callable[[], Made]) -> bool:
    """Small enough, and PyTorch runs it forward: a tensor of numbers comes out, one row for each sample and the same
    ones if asked again, and a step backwards from it reaches a parameter."""
    try:
        if parameters(make) > MOST_PARAMETERS:
            return False
    except Exception:  # what cannot be made on the meta device is counted when it is there
        pass
    try:
        made = make()
        if sum(p.numel() for p in made.model.parameters()) > MOST_PARAMETERS:
            return False
        model, rng = made.model.eval(), np.random.default_rng(0)
        for samples in (2, 3):
            xs = [torch.from_numpy(x) for x in made.inputs(rng, samples)]
            out = model(*xs)
            if not isinstance(out, torch.Tensor) or out.shape[0] != samples or not out.is_floating_point():
                return False
            if not torch.equal(out, model(*xs)):
                return False
        out.sum().backward()
        return any(p.grad is not None for p in model.parameters())
    except Exception:  # whatever the package or torch raises
        return False


__all__ = ["MOST_PARAMETERS", "Made", "Sizes", "classes", "fitting", "floats", "images", "parameters", "tokens"]
