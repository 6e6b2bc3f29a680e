"""Graphs of one model share what they store, so that what is made of it is made once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...ir import Array, Graph


def shared(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    """What graphs store under one name is one array."""
    known: dict[str, Array] = {}

    def first_of(name: str, value: Array) -> Array:
        first = known.setdefault(name, value)
        alike = (first.shape, first.dtype) == (value.shape, value.dtype)
        return first if first is value or (alike and np.array_equal(bits(first), bits(value))) else value

    def bits(value: Array) -> Array:
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    return {key: g.with_(data={name: first_of(name, v) for name, v in g.data.items()}) for key, g in graphs.items()}
