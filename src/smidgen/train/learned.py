"""What learned of each parameter, of which only a slice may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..ir import Array


@dataclass(frozen=True, slots=True)
class Learned:
    """What learned of a parameter: all of it, or `indices` along `axis`."""

    value: Array
    axis: int | None = None
    indices: tuple[int, ...] | None = None


def learned_parts(whole: Mapping[str, Array], slices: Mapping[str, tuple[int, tuple[int, ...]]]) -> dict[str, Learned]:
    """What learned of each parameter, of which only a slice may."""
    found = {name: Learned(value) for name, value in whole.items()}
    for name, (axis, indices) in slices.items():
        found[name] = Learned(np.take(whole[name], indices, axis), axis, indices)
    return found


__all__ = ["Learned", "learned_parts"]
