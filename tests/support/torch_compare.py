"""Values of torch beside those of imported graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from smidgen.compiler.imported import Imported
from smidgen.ir import Array

SAMPLES = 3


def leaves(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = torch.utils._pytree.tree_leaves(value)
    return found


def spread_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Every element of every float output pulls with another weight."""
    total = target.mean() * 0
    for y in leaves(output):
        if y.is_floating_point():
            total = total + ((y - 0.3) * (y + 0.1)).mean()
    return total


def close(got: Array, want: torch.Tensor, tolerance: float = 1e-10) -> None:
    reference = want.detach().double().numpy()
    assert got.shape == reference.shape
    scale = max(1.0, float(np.abs(reference).max(initial=0)))
    np.testing.assert_allclose(got.astype(np.float64), reference, rtol=0, atol=tolerance * scale)


def feeds(imported: Imported, inputs: Sequence[torch.Tensor], *more: torch.Tensor) -> dict[str, Array]:
    names = imported.train.inputs
    return {name: x.numpy() for name, x in zip(names, [*inputs, *more], strict=True)}


def ops_of(graph: Any) -> list[str]:
    return [node.op for node in graph.nodes]
