"""Parameters that a method added beside a weight of the model, merged into it, as the model has it: W + left·right, or
of a layer beside, whose input is standardised, W + weight / deviation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
            stored = _is_there(program, state, fact)
            fits = left[0] * right[-1] == math.prod(stored) and math.prod(left[1:]) == math.prod(right[:-1])
        except _MALFORMED as error:
            raise BadProgram("what the program says of merged weights is malformed", why=f"{error!r:.80}") from error
        if not fits:
            raise BadProgram(OUTSIDE, why=f"{fact!r:.80}")
    return found


OUTSIDE: Final = "a weight that is merged lies outside the program, or does not fit"
_MALFORMED: Final = (KeyError, TypeError, ValueError, IndexError, AttributeError)


def _is_there(program: Program, state: Mapping[str, Mapping[str, Any]], fact: Mapping[str, Any]) -> tuple[int, ...]:
    """The stored shape of the weight that the fact is about, a constant or one that learns itself; BadProgram unless
    the program has it."""
    stored = laid_shape(tuple(fact["shape"]), steps_of(fact))
    if "base" in fact:
        places = [(fact["base"], (1 if "scales" in fact else 4) * math.prod(stored))]
        places += [(fact["scales"], 4 * stored[0])] if "scales" in fact else []
        inside = all(type(at) is int and 0 <= at <= program.const_bytes - count for at, count in places)
    else:
        inside = state[fact["into"]]["role"] == "param" and tuple(state[fact["into"]]["shape"]) == tuple(fact["shape"])
    if not inside or not all(type(name) is str for name in (fact["into"], *fact["aliases"])):
        raise BadProgram(OUTSIDE, why=f"{fact!r:.80}")
    return stored


def checked_beside(program: Program, state: Mapping[str, Mapping[str, Any]]) -> Merges:
    """As `checked_merges`, of layers beside one of the model."""
    found: Merges = program.meta.get("beside", [])
    for fact in found:
        try:
            _is_there(program, state, fact["into"]), _is_there(program, state, fact["into_bias"])
            weight, bias, moments, seen = (
                tuple(state[fact[k]]["shape"]) for k in ("weight", "bias", "moments", "seen")
            )
            laid = laid_shape(tuple(fact["into"]["shape"]), steps_of({"steps": fact["laid"]}))
            fits = weight == laid and fact["axis"] > 0 and moments[1:] == (weight[fact["axis"]],)
            fits = fits and moments[0] >= 3 <= seen[0] and type(fact["eps"]) is float
            fits = fits and bias == (weight[0],) == tuple(fact["into_bias"]["shape"])
        except _MALFORMED as error:
            raise BadProgram("what the program says of merged weights is malformed", why=f"{error!r:.80}") from error
        if not fits:
            raise BadProgram(OUTSIDE, why=f"{fact!r:.80}")
    return found


def merged(learned: Mapping[str, Array], merges: Merges, const: bytes) -> dict[str, Array]:
    """What was learned, with whole weights in place of what was added beside them."""
    gone = {fact[side] for fact in merges for side in ("left", "right")}
    found = {name: value for name, value in learned.items() if name not in gone}
    for fact in merges:
        left, right = (learned[fact[side]].astype(np.float64) for side in ("left", "right"))
        product = left.reshape(left.shape[0], -1) @ right.reshape(-1, right.shape[-1])
        added = product.reshape(laid_shape(tuple(fact["shape"]), steps_of(fact)))
        whole = _base(fact, learned, const) + unlaid(added, fact["shape"], steps_of(fact))
        found |= dict.fromkeys((fact["into"], *fact["aliases"]), whole.astype(np.float32))
    return found


def merged_beside(learned: Mapping[str, Array], layers: Merges, const: bytes) -> dict[str, Array]:
    """What was learned, with whole layers in place of those beside them. Without a reference the standardised input is
    0, and only the bias counts."""
    gone = {fact[key] for fact in layers for key in ("weight", "bias", "moments", "seen")}
    found = {name: value for name, value in learned.items() if name not in gone}
    for fact in layers:
        weight, bias, moments = (learned[fact[key]].astype(np.float64) for key in ("weight", "bias", "moments"))
        center, mean, var = moments[:3]
        along = [1] * weight.ndim
        along[fact["axis"]] = -1
        scaled = weight / np.sqrt(var + fact["eps"]).reshape(along) * (learned[fact["seen"]][2] != 0)
        shift = bias - (scaled * (center + mean).reshape(along)).sum(axis=tuple(range(1, weight.ndim)))
        for into, value, steps in (
            (fact["into"], scaled, steps_of({"steps": fact["laid"]})),
            (fact["into_bias"], shift, []),
        ):
            whole = _base(into, learned, const) + unlaid(value, into["shape"], steps)
            found |= dict.fromkeys((into["into"], *into["aliases"]), whole.astype(np.float32))
    return found


def all_merged(
    program: Program, state: Mapping[str, Mapping[str, Any]], learned: Mapping[str, Array]
) -> dict[str, Array]:
    """What was learned, as the model has it."""
    merges, layers = checked_merges(program, state), checked_beside(program, state)
    return merged_beside(merged(learned, merges, program.const), layers, program.const)


def _base(fact: Mapping[str, Any], learned: Mapping[str, Array], const: bytes) -> Array:
    """The weight without what was added, in the user's layout."""
    if "base" not in fact:
        return learned[fact["into"]].astype(np.float64)
    shape = laid_shape(tuple(fact["shape"]), steps_of(fact))
    kind = np.int8 if "scales" in fact else np.float32
    base = np.frombuffer(const, kind, math.prod(shape), fact["base"]).reshape(shape)
    if "scales" in fact:
        scale = np.frombuffer(const, np.float32, shape[0], fact["scales"])
        base = base.astype(np.float32) * scale.reshape(-1, *(1,) * (len(shape) - 1))
    return unlaid(base.astype(np.float64), fact["shape"], steps_of(fact))


__all__ = ["Merges", "all_merged", "checked_beside", "checked_merges", "merged", "merged_beside"]
