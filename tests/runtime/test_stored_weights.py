"""Weights that are stored as int8, with a slice beside them, or both: exact kernels give the bits of the whole weight
in f32, fast kernels agree with them on any number of threads, and bad lists of indices are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from smidgen import ops
from smidgen.ir import Array, DType, at
from smidgen.ops.build import Builder
from smidgen.ops.conv import Window
from smidgen.ops.stored_weights import FORMS, Form, dequantized
from smidgen.runtime import library
from smidgen.runtime.work import has_fast
from tests.support.op_cases import SAMPLES, inputs_of

RUN = (SAMPLES, SAMPLES, 0)
READERS = [
    op for op in ops.all_ops().values()
    if op.stored and op.stored.slice and all(op.name + form.suffix in ops.all_ops() for form in FORMS)
]  # fmt: skip
"""Of weights in f32; those of layers in int8 have one form, whose meaning is its record's."""
LAYERS: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "wide": ((2, 5, 6, 50), (70, 1, 1, 50), {}),
    "deep": ((1, 4, 3, 330), (21, 1, 1, 330), {}),
    "window": ((2, 9, 7, 24), (35, 3, 3, 24), {"padding": ((1, 1), (1, 1)), "stride": (2, 2)}),
    "few-inputs": ((2, 12, 11, 3), (20, 5, 3, 3), {"padding": ((2, 2), (1, 1)), "stride": (2, 1)}),
    "groups": ((2, 6, 5, 36), (48, 3, 3, 12), {"groups": 3, "padding": ((1, 1), (1, 1)), "dilation": (2, 1)}),
    "depthwise": ((2, 8, 9, 43), (43, 3, 3, 1), {"groups": 43, "padding": ((1, 1), (1, 1)), "stride": (2, 2)}),
    "two-filters": ((2, 6, 5, 20), (40, 5, 5, 1), {"groups": 20, "padding": ((2, 2), (2, 2))}),
    "long-filters": ((1, 5, 4, 9), (18, 70, 60, 1), {"groups": 9, "padding": ((35, 35), (30, 30))}),
    "longest-filter": ((1, 4, 5, 3), (3, 140, 141, 1), {"groups": 3, "padding": ((70, 70), (70, 70))}),
    "crop": ((1, 9, 9, 20), (17, 2, 2, 20), {"padding": ((-1, 0), (1, -2)), "stride": (1, 3)}),
}


def operands(op: ops.Op, arrays: list[Array], attrs: Mapping[str, Any]) -> tuple[str, list[Array], list[int]]:
    """Kernel, what it works on (the result first, filled with nonsense), and its parameters."""
    b = Builder()
    stored = [np.ascontiguousarray(a, np.float32 if a.dtype.kind == "f" else a.dtype) for a in arrays]
    names = [b.tensor(f"in{i}", a.shape, _dtype(a)) for i, a in enumerate(stored)]
    out = b.add(op.name, *names, **attrs)
    call = ops.Call(tuple(b[n] for n in names), (b[out],), dict(attrs))
    result = np.full([int(d) for d in at(b[out].shape, 1)], np.nan, np.float32)
    room = int(at(op.scratch(call), 1))
    scratch = [np.full(room // 4, np.nan, np.float32)] if room else []
    return op.kernel(call), [result, *stored, *scratch], [int(p) for p in at(tuple(op.params(call)), 1)]


def _dtype(array: Array) -> Any:
    return DType.of_numpy(array.dtype)


def run(op: ops.Op, arrays: list[Array], attrs: Mapping[str, Any]) -> Array:
    kernel, given, params = operands(op, arrays, attrs)
    assert library.kernel_needs(kernel, params, len(given), RUN) == [a.nbytes for a in given]
    assert library.run_kernel(kernel, given, params, RUN) is None
    return given[0]


def whole(form: Form, arrays: list[Array], attrs: Mapping[str, Any]) -> tuple[list[Array], dict[str, Any]]:
    """Inputs and attributes of the op with the same weight, whole and in f32."""
    x, *rest = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]
    weight, after = rest[: len(form.types)], rest[len(form.types) :]
    w = dequantized(*weight[:2]) if form.int8 else np.array(weight[0])
    assert w.dtype == np.float32
    if form.slice:
        w[(slice(None),) * attrs["axis"] + (weight[-1],)] = weight[-2]
    return [x, w, *after], {k: v for k, v in attrs.items() if k != "axis"}


def agree(reader: ops.Op, form: Form, arrays: list[Array], attrs: Mapping[str, Any]) -> None:
    op = ops.get(reader.name + form.suffix)
    got = run(op, arrays, attrs)
    want = run(reader, *whole(form, arrays, attrs))
    np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))
    if not has_fast():
        return
    results = []
    for threads in (1, 3):
        kernel, given, params = operands(op, arrays, attrs)
        assert library.FastProbe(threads=threads).run(kernel, given, params, RUN) == (True, None)
        scale = float(np.abs(want).max(initial=1e-30))
        assert np.abs(given[0].astype(np.float64) - want).max() <= 1e-5 * scale, (kernel, params, threads)
        results.append(given[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.suffix[1:])
@pytest.mark.parametrize("reader", READERS, ids=lambda op: op.name)
def test_the_cases_of_the_records_have_the_bits_of_the_whole_weight(reader: ops.Op, form: Form) -> None:
    op = ops.get(reader.name + form.suffix)
    for case in op.cases:
        agree(reader, form, inputs_of(op, case), dict(case.attrs))


def given(form: Form, w: tuple[int, ...], axis: int, share: float, rng: np.random.Generator) -> list[Array]:
    """What is in the place of a weight of shape w."""
    fixed = [rng.integers(-128, 128, w).astype(np.int8), rng.standard_normal(w[0])]
    weight = fixed if form.int8 else [rng.standard_normal(w)]
    if not form.slice:
        return weight
    count = max(1, round(share * w[axis]))
    index = np.sort(rng.permutation(w[axis])[:count]).astype(np.int32)
    return [*weight, rng.standard_normal((*w[:axis], count, *w[axis + 1 :])), index]


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.suffix[1:])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_of_every_kind_have_the_bits_of_the_whole_weight(layer: str, form: Form, share: float) -> None:
    """Forward, backward and transposed; outputs, inputs and the window's axes."""
    x, w, attrs = LAYERS[layer]
    y = (x[0], *Window.of(attrs).out_hw(x[1:3], w[1:3]), w[0])
    rng = np.random.default_rng(len(layer))
    for axis in range(4) if form.slice else [0]:
        own = attrs | ({"axis": axis} if form.slice else {})
        bias = rng.standard_normal(max(w[0], x[3]))
        for name, source, size, width in (
            ("conv2d", x, {}, w[0]), ("conv2d_dx", y, {"in_hw": x[1:3]}, 0),
            ("conv_transpose2d", y, {"out_hw": x[1:3]}, x[3]),
        ):  # fmt: skip
            arrays = [
                rng.standard_normal(source),
                *given(form, w, axis, share, rng),
                *([bias[:width]] if width else []),
            ]
            agree(ops.get(name), form, arrays, own | size)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.suffix[1:])
@pytest.mark.parametrize(("rows", "w"), [(1, (70, 130)), (2, (33, 400)), (9, (5, 17)), (70, (200, 90))], ids=str)
def test_rows_of_any_number_have_the_bits_of_the_whole_weight(rows: int, w: tuple[int, int], form: Form) -> None:
    rng = np.random.default_rng(rows)
    for axis in range(2) if form.slice else [0]:
        attrs = {"axis": axis} if form.slice else {}
        weight = given(form, w, axis, 0.4, rng)
        agree(ops.get("linear"), form, [rng.standard_normal((rows, w[1])), *weight, rng.standard_normal(w[0])], attrs)
        agree(ops.get("linear_dx"), form, [rng.standard_normal((rows, w[0])), *weight], attrs)


@pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
@pytest.mark.parametrize("index", [[0, 3, 2], [-1, 0, 1], [0, 1, 9]], ids=str)
def test_a_list_that_does_not_ascend_within_the_axis_is_refused(index: list[int], fast: bool) -> None:
    if fast and not has_fast():
        pytest.skip("no fast kernels")
    w = np.zeros((9, 4))
    arrays = [np.zeros((2, 4)), w, w[:3], np.array(index, np.int32), np.zeros(9)]
    kernel, given, params = operands(ops.get("linear_put"), arrays, {"axis": 0})
    fault = (
        library.FastProbe().run(kernel, given, params, RUN)[1] if fast else library.run_kernel(kernel, given, params)
    )
    assert fault
    assert "index" in fault


def test_sizes_of_a_slice_that_cannot_be_are_refused() -> None:
    index, w = np.arange(2, dtype=np.int32), np.zeros((4, 6))
    arrays = [np.zeros((2, 6)), w, w[:, :2], index, np.zeros(4)]
    kernel, given, params = operands(ops.get("linear_put"), arrays, {"axis": 1})
    assert params[-3:] == [6, 2, 1]
    assert library.kernel_needs(kernel, params, len(given), RUN)
    for V, K, D in (
        (6, 7, 1),
        (0, 0, 1),
        (6, 2, 0),
        (5, 2, 1),
        (6, 2, 2),
        (4, 2, 3),
        (6, -1, 1),
        (1 << 20, 2, 1 << 20),
    ):
        assert library.kernel_needs(kernel, [*params[:-3], V, K, D], len(given), RUN) is None, (V, K, D)
