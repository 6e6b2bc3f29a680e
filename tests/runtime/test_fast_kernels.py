"""Fast kernels against exact ones: every case of the op records, many random shapes, one to three threads with the same
bits, every compiler and instruction set at hand, and no step outside any operand."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.fast_library import HERE, RUNTIME, FastLibrary, best_set, build
from smidgen import ops
from smidgen.ir import Array, at
from smidgen.runtime import library as native
from tests.support.op_cases import SAMPLES, built, inputs_of

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fast_kernels")]  # the kernels are compiled once for all
RUN = (1, 1, 0)
SHARED = ("-DSMG_ALONE=1",)  # threads share anything, however small
SINKS = ("", "_acc", "_sgd", "_momentum", "_adam")
OPS = ("conv2d", "conv2d_dx", "conv2d_dw", "conv_transpose2d", "linear", "linear_dx", "linear_dw", "bias_dw", "matmul")
Case = tuple[str, list[tuple[int, ...]], list[Any]]
"""Kernel without its sink, shapes of output 0 and the inputs, parameters."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fast")


@pytest.fixture(scope="module")
def libraries(folder: Path) -> Iterator[list[FastLibrary]]:
    """The same kernels with one, two (and the memory that they have beside a large program) and three threads."""
    path = build(folder / "libfast.so", best_set(), flags=SHARED)
    opened = [FastLibrary(path, threads, wide=threads == 2) for threads in (1, 2, 3)]
    yield opened
    for library in opened:
        library.close()


def exactly(array: Array) -> Array:
    """A copy in memory of its own."""
    return np.array(array, np.float32, order="C")


def operands_of(case: Case, sink: str, rng: np.random.Generator) -> tuple[str, list[Array], list[int | float]]:
    name, (out, *ins), params = case
    outs = {"_momentum": 2, "_adam": 3}.get(sink, 1)
    arrays = [exactly(rng.standard_normal(out)) for _ in range(outs)]
    if sink == "_adam":
        arrays[2] = np.abs(arrays[2])  # a mean of squares
    arrays += [exactly(rng.standard_normal(shape)) for shape in ins]
    words: list[int | float] = list(params)
    if sink in ("_sgd", "_momentum", "_adam"):
        arrays.append(np.array([0.05], np.float32))
    if sink == "_adam":
        arrays.append(np.array([0, 7], np.int32))
        betas = [int(w) for b in (0.9, 0.999) for w in np.array([b], np.float64).view(np.int32)]
        words += [*betas, 1e-8, 0.02, int(rng.integers(2))]
    words += {"_sgd": [0.01], "_momentum": [0.9, 0.01, int(rng.integers(2))]}.get(sink, [])
    return f"{name}{sink}_f32", arrays, words


def agree(libraries: Sequence[FastLibrary], case: Case, sink: str = "", seed: int = 0) -> None:
    kernel, arrays, params = operands_of(case, sink, np.random.default_rng(seed))
    outs = {"_momentum": 2, "_adam": 3}.get(sink, 1)
    exact = [exactly(a) if a.dtype == np.float32 else a for a in arrays]
    needs = native.kernel_needs(kernel, params, len(arrays), RUN)
    assert needs == [a.nbytes for a in arrays], (kernel, params)
    assert native.run_kernel(kernel, exact, params, RUN) is None
    results = []
    for library in libraries:
        mine = [exactly(a) if a.dtype == np.float32 else a for a in arrays]
        if not sink:
            mine[0][...] = np.nan
        assert library.run(kernel, mine, params, RUN) is None
        results.append(mine)
        for i in range(outs):
            scale = float(np.abs(exact[i]).max(initial=1e-30))
            error = float(np.abs(mine[i].astype(np.float64) - exact[i]).max(initial=0.0)) / scale
            assert error <= 1e-5, (kernel, params, library.threads, i, error)
        for i in range(outs, len(arrays)):
            np.testing.assert_array_equal(mine[i], arrays[i])
    for other in results[1:]:
        for i in range(outs):
            np.testing.assert_array_equal(other[i], results[0][i])


RECORDS = [pytest.param(name, i, id=f"{name}-{i}") for name in OPS for i in range(len(ops.all_ops()[name].cases))]


@pytest.mark.parametrize(("name", "index"), RECORDS)
def test_every_case_of_the_op_records_agrees_with_the_exact_kernel(
    name: str, index: int, libraries: list[FastLibrary]
) -> None:
    op = ops.all_ops()[name]
    case = op.cases[index]
    arrays = inputs_of(op, case)
    b, ins, outs = built(op, case, arrays)
    call = ops.Call(tuple(b[i] for i in ins), tuple(b[o] for o in outs), dict(case.attrs))
    params = [int(p) for p in at(tuple(op.params(call)), SAMPLES)]
    out = tuple(int(d) for d in at(b[outs[0]].shape, SAMPLES))
    for sink in SINKS if op.sink else [""]:
        agree(libraries, (name, [out, *[a.shape for a in arrays]], params), sink, index)


def random_conv(rng: np.random.Generator, kind: str) -> dict[str, Any]:
    """Parameters of a convolution: small, odd and mean."""

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    while True:
        k, s, d = (
            (pick(1, 2, 3, 3, 5, 7, 4), pick(1, 2, 3, 3, 5, 7, 8)),
            (pick(1, 1, 2, 3), pick(1, 1, 2, 2, 3)),
            (1, 1),
        )
        if rng.random() < 0.2:
            d = (pick(1, 2, 3), pick(1, 2, 3))
        if kind == "pointwise":
            k, s, d = (1, 1), (pick(1, 1, 1, 2), pick(1, 1, 1, 2)), (1, 1)
        h, w = int(rng.integers(1, 20)), int(rng.integers(1, 24))
        pads = [int(p) for p in rng.integers(-1, 4, 4)] if kind != "pointwise" or rng.random() < 0.2 else [0] * 4
        if kind == "depthwise":
            g = c = int(rng.integers(2, 70))
            o = c * pick(1, 1, 1, 1, 2, 3)
        elif kind == "grouped":
            g = pick(2, 3, 4)
            c, o = g * int(rng.integers(1, 20)), g * int(rng.integers(1, 24))
        else:
            g, c, o = 1, int(rng.integers(1, 70)), int(rng.integers(1, 70))
            if rng.random() < 0.2:
                c = pick(1, 3, 16, 130, 350)
        oh, ow = ((n + pads[2 * i] + pads[2 * i + 1] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i, n in enumerate((h, w)))
        if oh >= 1 and ow >= 1:
            n = pick(1, 1, 2, 3)
            return {"p": [n, h, w, c, o, oh, ow, *k, *s, pads[0], pads[2], *d, g]}


def conv_cases(p: list[int]) -> list[Case]:
    n, h, w, c, o, oh, ow, kh, kw, *_, g = p
    x, weight, y = (n, h, w, c), (o, kh, kw, c // g), (n, oh, ow, o)
    return [
        ("conv2d", [y, x, weight, (o,)], p), ("conv2d", [y, x, weight], p), ("conv2d_dx", [x, y, weight], p),
        ("conv2d_dw", [weight, y, x], p), ("conv_transpose2d", [x, y, weight, (c,)], p),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["dense", "pointwise", "grouped", "depthwise"])
def test_random_convolutions_agree_with_the_exact_kernels(kind: str, libraries: list[FastLibrary]) -> None:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        for case in conv_cases(random_conv(rng, kind)["p"]):
            sink = SINKS[seed % 5] if case[0] == "conv2d_dw" else ""
            agree(libraries, case, sink, seed)


def matrix_cases(rng: np.random.Generator) -> list[Case]:
    def size() -> int:
        return int(rng.integers(1, 9)) if rng.random() < 0.4 else int(rng.integers(1, int(rng.choice([40, 150, 700]))))

    r, o, k, m, n, b = size(), size(), size(), size(), size(), int(rng.integers(0, 4))
    split = [1, r, 1]
    cases: list[Case] = [
        ("linear", [(r, o), (r, k), (o, k), (o,)], [r, o, k]), ("linear", [(r, o), (r, k), (o, k)], [r, o, k]),
        ("linear_dx", [(r, k), (r, o), (o, k)], [r, o, k]),
        ("linear_dw", [(o, k), (r, o), (r, k)], [*split, o, k]), ("bias_dw", [(o,), (r, o)], [*split, o]),
    ]  # fmt: skip
    for ta, tb in ((0, 0), (0, 1), (1, 0), (1, 1)):
        left, right = ((b, k, m) if ta else (b, m, k)), ((b, n, k) if tb else (b, k, n))
        cases.append(("matmul", [(b, m, n), left, right], [b, m, k, n, ta, tb]))
    return cases


def test_random_products_agree_with_the_exact_kernels(libraries: list[FastLibrary]) -> None:
    for seed in range(40):
        for case in matrix_cases(np.random.default_rng(seed)):
            agree(libraries, case, SINKS[seed % 5] if case[0].endswith("_dw") else "", seed)


def row_cases(rng: np.random.Generator) -> list[Case]:
    o, n, inner = (int(rng.integers(1, int(rng.choice([3, 40, 300])))) for _ in range(3))
    if rng.random() < 0.5:
        inner = 1
    n += 1  # of one element alone nothing but rounding is left
    lines, rows, form = (o, n, inner), (o, n), [o * n, float(rng.integers(2))]
    return [
        ("softmax", [lines] * 2, [*lines]), ("softmax_dx", [lines] * 3, [*lines]),
        ("layer_norm", [rows, rows, (n,), (n,)], [o, n, 1e-2]), ("layer_norm_dx", [rows] * 3 + [(n,)], [o, n, 1e-2]),
        ("gelu", [rows] * 2, form), ("gelu_dx", [rows] * 3, form),
    ]  # fmt: skip


def test_random_rows_agree_with_the_exact_kernels(libraries: list[FastLibrary]) -> None:
    for seed in range(40):
        for case in row_cases(np.random.default_rng(seed)):
            agree(libraries, case, seed=seed)
    agree(libraries, ("softmax", [(2, 20011, 1)] * 2, [2, 20011, 1]))
    agree(libraries, ("layer_norm", [(2, 20011)] * 2 + [(20011,)] * 2, [2, 20011, 1e-5]))


def test_a_row_with_a_value_that_is_not_a_number_has_no_softmax(libraries: list[FastLibrary]) -> None:
    for library in libraries:
        for place in (0, 5, 39):
            x = np.zeros((3, 40), np.float32)
            x[1, place] = np.nan
            library.run("softmax_f32", [x, x], [3, 40, 1])
            assert np.isnan(x[1]).all()
            np.testing.assert_allclose(x[[0, 2]], 1 / 40, rtol=1e-6)


def test_long_sums_over_many_rows_agree_whatever_memory_there_is(libraries: list[FastLibrary]) -> None:
    r, o, k = 211, 101, 701
    agree(libraries, ("linear", [(r, o), (r, k), (o, k), (o,)], [r, o, k]))
    agree(libraries, ("linear_dx", [(r, k), (r, o), (o, k)], [r, o, k]))
    agree(libraries, ("matmul", [(2, r, o), (2, r, k), (2, k, o)], [2, r, k, o, 0, 0]))
    for case in conv_cases([1, 15, 16, 90, 70, 15, 16, 3, 3, 1, 1, 1, 1, 1, 1, 1]):
        agree(libraries, case)


def test_sums_over_nothing_are_zero(libraries: list[FastLibrary]) -> None:
    for library in libraries:
        y = np.full((2, 3, 4), np.nan, np.float32)
        library.run("matmul_f32", [y, np.zeros(1, np.float32), np.zeros(1, np.float32)], [2, 3, 0, 4, 0, 0])
        assert not y.any()
        w = np.full((3, 5), 2, np.float32)
        empty = np.zeros(1, np.float32)
        library.run("linear_dw_f32", [w, empty, empty], [1, 0, 1, 3, 5])
        assert not w.any()


def test_a_value_that_is_not_finite_reaches_the_outputs_it_belongs_to(libraries: list[FastLibrary]) -> None:
    rng = np.random.default_rng(0)
    x, w = exactly(rng.standard_normal((9, 21))), exactly(rng.standard_normal((19, 21)))
    x[4, 7] = np.inf
    for library in libraries:
        y = np.zeros((9, 19), np.float32)
        library.run("linear_f32", [y, x, w], [9, 19, 21])
        assert np.isinf(y[4]).all()
        assert np.isfinite(np.delete(y, 4, 0)).all()


def tall_cases() -> list[Case]:
    """Weight gradients that fill the blocks in a thread's memory."""
    sizes = [(r, o) for r in (192, 256) for o in (64, 72, 200)]
    return [("linear_dw", [(o, 70), (r, o), (r, 70)], [1, r, 1, o, 70]) for r, o in sizes]


def sanitizer_cases() -> str:
    lines = []
    for seed in range(30):
        rng = np.random.default_rng(1000 + seed)
        kind = ("dense", "pointwise", "grouped", "depthwise")[seed % 4]
        for case in [
            *(tall_cases() if seed < 3 else []),
            *conv_cases(random_conv(rng, kind)["p"]),
            *matrix_cases(rng),
            *row_cases(rng),
        ]:
            sink = SINKS[seed % 5] if case[0].endswith("_dw") else ""
            kernel, arrays, params = operands_of(case, sink, rng)
            if sum(a.nbytes for a in arrays) > 1 << 19:
                continue
            words = native.param_words(params)
            sizes = " ".join(str(a.nbytes) for a in arrays)
            lines.append(f"{kernel} {1 + seed % 3} {len(arrays)} {sizes} {len(words)} {' '.join(map(str, words))}")
    return "\n".join(lines)


def test_no_kernel_steps_outside_its_operands(folder: Path) -> None:
    flags = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *SHARED]
    program = build(folder / "cases", best_set(), flags=flags, main=[HERE / "c" / "fast_cases.c"])
    text = sanitizer_cases()
    done = subprocess.run([program], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-1] == str(len(text.splitlines()))


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_threads_do_every_piece_of_a_job_once(threads: int, folder: Path) -> None:
    program = folder / f"threads_{threads}"
    sources = [RUNTIME / "fast" / "threads.c", Path(__file__).parents[1] / "c" / "threads.c"]
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=thread", "-DSMG_ISA=plain", f"-I{RUNTIME}"]
    subprocess.run(["cc", *flags, *map(str, sources), "-o", str(program), "-lpthread"], check=True)
    done = subprocess.run([program, str(threads), "20000"], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-2000:]


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_a_range_is_split_into_one_part_a_thread_and_no_piece_is_lost(threads: int, folder: Path) -> None:
    program = folder / f"split_{threads}"
    sources = [RUNTIME / "fast" / "threads.c", Path(__file__).parents[1] / "c" / "split.c"]
    flags = ["-std=c11", "-O1", "-g", "-fsanitize=thread", "-Wall", "-DSMG_ISA=plain", f"-I{RUNTIME}"]
    subprocess.run(["cc", *flags, *map(str, sources), "-o", str(program), "-lpthread"], check=True)
    done = subprocess.run([program, str(threads)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"{threads} 2\n"), done.stderr[-2000:]


COMPILERS = [
    ("gcc", "sse2", ()),
    ("gcc", "avx2", ("-DVL=16", "-Wno-psabi")),  # as wide as avx512, on any machine
    ("gcc", "avx512", ()),
    ("clang", "sse2", ()),
    ("clang", "avx2", ()),
]


@pytest.mark.parametrize(("cc", "isa", "flags"), COMPILERS, ids=lambda v: "".join(v) if isinstance(v, tuple) else v)
def test_other_compilers_and_vectors_build_without_a_warning_and_agree(
    cc: str, isa: str, flags: tuple[str, ...], folder: Path
) -> None:
    if shutil.which(cc) is None or best_set() == "neon":
        pytest.skip(f"no {cc} for {isa} here")
    path = build(folder / f"lib_{cc}_{isa}_{len(flags)}.so", isa, cc, ["-O1", *flags, *SHARED])
    if isa == "avx512" and best_set() != "avx512":
        return
    library = FastLibrary(path, 2)
    for seed in range(8):
        rng = np.random.default_rng(500 + seed)
        kind = ("dense", "pointwise", "grouped", "depthwise")[seed % 4]
        for case in [*conv_cases(random_conv(rng, kind)["p"]), *matrix_cases(rng), *row_cases(rng)]:
            agree([library], case, SINKS[seed % 5] if case[0].endswith("_dw") else "", seed)
    library.close()
