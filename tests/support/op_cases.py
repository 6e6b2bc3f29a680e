"""The cases of op records as arrays and graphs."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from smidgen import ops
from smidgen.ir import Array, DType, at
from smidgen.ops import registry
from smidgen.ops.build import Builder

SAMPLES = 3


def inputs_of(op: ops.Op, case: ops.Case) -> list[Array]:
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    arrays = []
    for spec in case.inputs:
        value = spec(rng, SAMPLES) if callable(spec) else rng.standard_normal(at(spec, SAMPLES))
        value = np.asarray(value)
        arrays.append(value.astype(np.float32).astype(np.float64) if value.dtype.kind == "f" else value)
    return arrays


def declared(case: ops.Case, arrays: list[Array]) -> list[tuple[Any, ...]]:
    return [registry.declared(spec, value) for spec, value in zip(case.inputs, arrays, strict=True)]


def dtype_of(array: Array) -> DType:
    return DType.of_numpy(array.dtype)


def built(op: ops.Op, case: ops.Case, arrays: list[Array]) -> tuple[Builder, list[str], tuple[str, ...]]:
    b = Builder()
    names = [
        b.tensor(f"in{i}", tuple(s), dtype_of(a))
        for i, (s, a) in enumerate(zip(declared(case, arrays), arrays, strict=True))
    ]
    return b, names, b.add_many(op.name, *names, **case.attrs)
