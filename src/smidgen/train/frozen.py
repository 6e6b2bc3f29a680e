"""A program with other values for what it does not learn: constants that are a parameter of the model as it is, in the
layout that the program wants. Needs numpy only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BadProgram, CannotSet
from ..ir import Array
from ..program.arrays import as_state, laid, laid_shape, of_whole, steps_of
from ..program.program import Program

HELP = "let its norm learn too, or use a program that learns it: --method full with a budget"


def with_frozen(program: Program, values: Mapping[str, Any]) -> Program:
    """`values` by the model's names, whole and in its layout; of what learns, a part that is constant is set. Nothing
    is set unless everything fits."""
    state, frozen = program.meta["state"], program.meta.get("frozen", {})
    const = bytearray(program.const)
    for name, value in values.items():
        if name in state:
            fact = state[name]
            if "rest" in fact:
                fits = not {"rest_scale", "map"} & fact.keys() and frozen.get(name, fact) is not None
                _check(name, fits, "the part of it that does not learn is merged into another constant, or is int8")
                _put(const, name, as_state(value, name, fact["shape"]), of_whole(steps_of(fact)), fact["rest"])
            continue
        _check(name, name in frozen, "the program does not have it")
        fact = frozen[name]
        _check(name, fact is not None, "it is merged into another constant, or stored as int8")
        _put(const, name, as_state(value, name, fact["shape"]), steps_of(fact), fact["base"])
    return replace(program, const=bytes(const))


def _put(const: bytearray, name: str, value: Array, steps: Sequence[Any], base: int) -> None:
    """A good checksum does not say that what the file says makes sense."""
    count = 4 * math.prod(laid_shape(value.shape, steps))
    if type(base) is not int or not 0 <= base <= len(const) - count or base % 4:
        raise BadProgram(f"'{name}' lies outside the program's constants")
    const[base : base + count] = np.ascontiguousarray(laid(value, steps), np.float32).tobytes()


def _check(name: str, fits: bool, why: str) -> None:
    if not fits:
        raise CannotSet(f"this program cannot be given another '{name}'", why=why, help=HELP)


__all__ = ["with_frozen"]
