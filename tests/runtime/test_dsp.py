"""Kernels for cores with Arm's DSP extension, built for this machine with the plain-C twins of their instructions
(kernels/dsp.h), give the bits of the plain kernels and touch no byte outside their operands."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from smidgen.ir import Array
from smidgen.runtime import library
from tests.support.libraries import compiled

Case = tuple[str, list[Array], list[int]]
GUARD = 64
ENDS = (
    (-3, 40, 5, -128, 127),
    (-128, 37, -128, -128, 127),
    (127, 41, 0, 0, 120),
    (7, 30, 1, -128, 127),
    (0, 60, 9, -90, 127),
)
"""Zero point of x; shift, zero point and bounds of y: whole ones and others, shifts that take the short way or not."""


def layer(rng: np.random.Generator, outputs: int, terms: int) -> list[Array]:
    """w, b, m of a layer."""
    w = rng.integers(-128, 128, (outputs, terms)).astype(np.int8)
    b = rng.integers(-9000, 9000, outputs).astype(np.int32)
    m = (rng.integers(1 << 30, (1 << 31) - 1, outputs) >> rng.integers(0, 6, outputs)).astype(np.int32)
    return [w, b, m]


def with_guard(values: Array, rng: np.random.Generator) -> Array:
    """The same numbers in front of random ones: what is behind an operand must not matter, nor be written."""
    return np.concatenate([values.reshape(-1).view(np.uint8), rng.integers(0, 256, GUARD).astype(np.uint8)])


def cases(seed: int) -> Iterator[Case]:
    """Convolutions with and without a slice, of any kind, and a linear layer."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    kind = r.choice(["dense", "dense", "pointwise", "grouped", "depthwise", "depthwise", "several"])
    groups = 1 if kind in ("dense", "pointwise") else r.choice([2, 3])
    c = groups * r.randint(1, 9) if kind == "grouped" else r.randint(1, 21)
    if kind in ("depthwise", "several"):
        groups = c
    o = c * (r.randint(2, 3) if kind == "several" else 1) if groups == c else groups * r.randint(1, 7)
    kh, kw = (1, 1) if kind == "pointwise" else (r.randint(1, 7), r.randint(1, 8))
    sh, sw = (1, 1) if kind == "pointwise" else (r.choice([1, 1, 2, 3]), r.choice([1, 1, 2, 3, 5, 7, 20]))
    dh, dw = r.choice([(1, 1), (1, 1), (1, 1), (2, 1), (1, 2)])
    n, h, w = r.randint(1, 2), r.randint(1, 12), r.randint(1, 45)
    top, left = (0, 0) if kind == "pointwise" else (r.randint(-1, kh), r.randint(-1, kw))
    oh, ow = (h, w) if kind == "pointwise" else (r.randint(1, 5), r.randint(1, 40))
    x = rng.integers(-128, 128, (n, h, w, c)).astype(np.int8)
    terms = kh * kw * (c // groups)
    params = [n, h, w, c, o, oh, ow, kh, kw, sh, sw, top, left, dh, dw, groups, *r.choice(ENDS)]
    weights, b, m = layer(rng, o, terms)
    y = np.zeros(n * oh * ow * o, np.int8)
    yield "qconv2d_i8", [y, x, weights, b, m], params
    for axis, size, depth in ((0, o, terms), (1, kw * (c // groups), 1)):
        count = r.randint(1, size)
        index = np.sort(rng.choice(size, count, replace=False)).astype(np.int32)
        length = count * terms if axis == 0 else o * terms // size * count
        learned = rng.integers(-127, 128, length).astype(np.int8)
        yield "qconv2d_put_i8", [y.copy(), x, weights, learned, index, b, m], [*params, size, count, depth]
    rows, inputs, outputs = r.randint(1, 9), r.randint(1, 40), r.randint(1, 20)
    weights, b, m = layer(rng, outputs, inputs)
    x = rng.integers(-128, 128, (rows, inputs)).astype(np.int8)
    yield "qlinear_i8", [np.zeros(rows * outputs, np.int8), x, weights, b, m], [rows, outputs, inputs, *r.choice(ENDS)]


def run(kernel: str, given: list[Array], params: list[int], seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    needs = library.kernel_needs(kernel, params, len(given) + 1)
    assert needs is not None
    assert needs[:-1] == [a.nbytes for a in given]
    room = np.zeros(needs[-1], np.uint8)
    operands = [with_guard(a, rng) for a in (*given, room)]
    before = [a[-GUARD:].copy() for a in operands]
    assert library.run_kernel(kernel, operands, params) is None
    assert all(np.array_equal(a[-GUARD:], b) for a, b in zip(operands, before, strict=True))
    return [a[:-GUARD].tobytes() for a in operands[:-1]]


@pytest.mark.parametrize("flags", [("-O1",), ("-Os",)], ids=["O1", "Os"])
def test_kernels_for_dsp_have_the_bits_of_plain_ones(flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {}
    made = [case for seed in range(400) for case in cases(seed)]
    for i, case in enumerate(made):
        plain[i] = run(*case, seed=i)
    monkeypatch.setenv("SMIDGEN_LIBRARY", str(compiled(flags=(*flags, "-DSMG_DSP=1"))))
    for i, case in enumerate(made):
        assert run(*case, seed=i + 1) == plain[i], (case[0], case[2])


def test_what_the_cases_above_reach() -> None:
    """All ways through the kernels: rows left over, inputs that are no fours, both ways to round."""
    params = [case[2] for seed in range(400) for case in cases(seed) if case[0] == "qconv2d_i8"]
    depthwise = [p for p in params if p[3] == p[15] == p[4]]
    assert {min(p[10], 4) for p in depthwise} == {1, 2, 3, 4}
    assert {(p[8] + 1) // 2 for p in depthwise} >= {1, 2, 3, 4}
    assert {p[7] * p[8] * p[3] // p[15] % 4 for p in params if p[15] != p[3]} == {0, 1, 2, 3}
    assert {tuple(p[16:]) for p in params} == set(ENDS)
    assert any(p[0] * p[5] * p[6] % 4 for p in params)
