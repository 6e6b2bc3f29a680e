"""Parameters that a method added beside a weight of the model, merged into it: W + left·right, as the model has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import BadProgram
from ..ir import Array
from ..program.arrays import laid_shape, steps_of, unlaid
from ..program.program import Program

Merges = Sequence[Mapping[str, Any]]


def checked_merges(program: Program, state: Mapping[str, Mapping[str, Any]]) -> Merges:
    """What the file says of them; its checksum does not say that it makes sense."""
    found: Merges = program.meta.get("merges", [])
    for fact in found:
        try:
            left, right = (state[fact[side]]["stored"] for side in ("left", "right"))
            stored = laid_shape(tuple(fact["shape"]), steps_of(fact))
            fits = left[0] * right[-1] == math.prod(stored) and math.prod(left[1:]) == math.prod(right[:-1])
            bytes_each = 1 if "scales" in fact else 4
            places = [(fact["base"], bytes_each * math.prod(stored))]
            places += [(fact["scales"], 4 * stored[0])] if "scales" in fact else []
            inside = all(type(at) is int and 0 <= at <= program.const_bytes - count for at, count in places)
            named = all(type(name) is str for name in (fact["into"], *fact["aliases"]))
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise BadProgram("what the program says of merged weights is malformed", why=f"{error!r:.80}") from error
        if not fits or not inside or not named:
            raise BadProgram("a weight that is merged lies outside the program, or does not fit", why=f"{fact!r:.80}")
    return found


def merged(learned: Mapping[str, Array], merges: Merges, const: bytes) -> dict[str, Array]:
    """What was learned, with whole weights in place of what was added beside them."""
    gone = {fact[side] for fact in merges for side in ("left", "right")}
    found = {name: value for name, value in learned.items() if name not in gone}
    for fact in merges:
        left, right = (learned[fact[side]].astype(np.float64) for side in ("left", "right"))
        product = left.reshape(left.shape[0], -1) @ right.reshape(-1, right.shape[-1])
        shape = laid_shape(tuple(fact["shape"]), steps_of(fact))
        whole = _base(fact, shape, const).astype(np.float64) + product.reshape(shape)
        value = unlaid(whole.astype(np.float32), fact["shape"], steps_of(fact))
        found |= dict.fromkeys((fact["into"], *fact["aliases"]), value)
    return found


def _base(fact: Mapping[str, Any], shape: tuple[int, ...], const: bytes) -> Array:
    kind = np.int8 if "scales" in fact else np.float32
    base = np.frombuffer(const, kind, math.prod(shape), fact["base"]).reshape(shape)
    if "scales" not in fact:
        return base
    scale = np.frombuffer(const, np.float32, shape[0], fact["scales"])
    return base.astype(np.float32) * scale.reshape(-1, *(1,) * (len(shape) - 1))


__all__ = ["Merges", "checked_merges", "merged"]
