"""Parts of a fleet's tensors, for devices that differ: a slice, or the first elements along every axis (a narrower
network). Needs numpy only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BrokenUpdate
from ..ir import Array
from .terms import Held, Terms

Where = tuple[Any, ...]
"""An index that picks a part out of a whole tensor."""


def first_of(whole: Sequence[int], part: Sequence[int]) -> Where | None:
    """The first elements along every axis; None if it is no part of the whole."""
    if len(whole) != len(part) or any(p > w for p, w in zip(part, whole, strict=True)):
        return None
    return tuple(slice(0, p) for p in part)


def taken(values: Mapping[str, Array], terms: Terms, client: str = "") -> dict[str, Array]:
    """What a device with these terms is given of the fleet's whole tensors."""
    found = {}
    for name, held in terms.items():
        if name not in values:
            raise BrokenUpdate(
                f"the fleet has no '{name}'", at=client, help="build the server's program to learn it too"
            )
        whole = values[name]
        where = held.where if whole.shape == held.shape else first_of(whole.shape, held.sent_shape)
        if where is None or (held.axis is not None and whole.shape != held.shape):
            what = f"'{name}' is {list(whole.shape)} in the fleet, which has no part like {list(held.sent_shape)}"
            raise BrokenUpdate(
                what, at=client, help="build narrower networks with the first channels of the widest one"
            )
        found[name] = np.ascontiguousarray(whole[where])
    return found


def place(name: str, held: Held, shape: tuple[int, ...], said: Sequence[int] | None, client: str = "") -> Where:
    """Where what a device sent belongs in the whole tensor; `said` are its axis and indices, if it is a slice."""
    if said is None:
        found = first_of(held.shape, shape)
        if found is None:
            raise BrokenUpdate(f"'{name}' is {list(shape)}, no part of {list(held.shape)}", at=client)
        return found
    axis, indices = (said[0], list(said[1:])) if len(said) > 1 else (-1, [])
    fits = all(type(i) is int for i in said) and 0 <= axis < len(held.shape)
    fits = fits and len(set(indices)) == len(indices) and all(0 <= i < held.shape[axis] for i in indices)
    if not fits or Held(held.shape, axis, tuple(indices)).sent_shape != shape:
        raise BrokenUpdate(f"'{name}' is {list(shape)}, which is not the slice that it is said to be", at=client)
    return Held(held.shape, axis, tuple(indices)).where


def mean_of(
    whole: Mapping[str, Array], parts: Sequence[tuple[float, Mapping[str, tuple[Where, Array]]]]
) -> dict[str, Array]:
    """Each element the weighted mean over those who hold it; who nobody holds stays as it was."""
    found = {}
    for name, before in whole.items():
        total, weight = np.zeros(before.shape), np.zeros(before.shape)
        for share, held in parts:
            if name in held:
                where, value = held[name]
                total[where] += share * value.astype(np.float64)
                weight[where] += share
        met = weight > 0
        found[name] = np.where(met, total / np.where(met, weight, 1), before).astype(np.float32)
    return found


__all__ = ["Where", "first_of", "mean_of", "place", "taken"]
