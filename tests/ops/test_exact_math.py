"""exact_math.h through the kernels that use it: error in ulp, special values, the same bits from every compiler."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smidgen import ops
from smidgen.ir import Array, Tensor
from smidgen.ops.elementwise import erf
from smidgen.runtime import library
from smidgen.runtime.build import EXACT, HERE, STRICT, table_source

INF, NAN = np.inf, np.nan
LARGEST = float(np.finfo(np.float32).max)
FAMILIES = ("elementwise", "activation")


def run(op: str, *arrays: Array, **attrs: float) -> Array:
    """One elementwise op on float32 arrays, in C."""
    record = ops.get(op)
    tensor = Tensor("x", arrays[0].shape)
    params = record.params(ops.Call((tensor,) * len(arrays), (tensor,), attrs))
    y = np.full_like(arrays[0], 77)
    assert library.run_kernel(record.kernels["f32"], [y, *arrays], [*params]) is None  # type: ignore[list-item]
    return y


def floats(lo: float, hi: float, count: int = 300_000) -> Array:
    """Floats spread evenly over the bit patterns between two numbers of the same sign, so dense at every scale."""
    first, last = (int(np.float32(v).view(np.uint32)) for v in (abs(lo), abs(hi)))
    step = max(1, abs(last - first) // count)
    found = np.arange(min(first, last), max(first, last) + 1, step, dtype=np.uint32).view(np.float32)
    return -found if lo < 0 or hi < 0 else found


def ulps(got: Array, want: Array) -> Array:
    """|got - want| in units of the distance of floats at want; infinity counts as the largest float."""
    want = np.clip(want, -LARGEST, LARGEST)
    unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    return np.asarray(np.abs(np.clip(got.astype(np.float64), -LARGEST, LARGEST) - want) / unit)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


# op, attributes, meaning, ranges, largest error in ulp as exact_math.h states it
ACCURACY: list[tuple[str, dict[str, float], Callable[[Array], Array], list[tuple[float, float]], float]] = [
    ("sqrt", {}, np.sqrt, [(0, LARGEST)], 0.5),
    ("exp", {}, np.exp, [(0, 100), (-0.0, -110)], 0.96),
    ("log", {}, np.log, [(1e-45, LARGEST), (0.5, 2)], 0.83),
    ("tanh", {}, np.tanh, [(0, 30), (-0.1, -10)], 1.35),
    ("sigmoid", {}, sigmoid, [(0, 100), (-0.0, -110)], 2.41),
    ("erf", {}, erf, [(0, 5), (-0.1, -5)], 1.22),
    ("sin", {}, np.sin, [(0, LARGEST), (-0.1, -1e4)], 1.56),
    ("cos", {}, np.cos, [(0, LARGEST), (-0.1, -1e4)], 1.56),
    ("elu", {"alpha": 1.0}, np.expm1, [(-0.0, -110)], 0.85),
    ("softplus", {"beta": 1.0, "threshold": 200.0}, lambda x: np.logaddexp(x, 0), [(0, 100), (-0.0, -80)], 1.65),
    *[
        ("pow_scalar", {"exponent": e}, lambda x, e=e: np.power(x, float(np.float32(e))), [(1e-45, LARGEST)], 0.51)
        for e in (1.7, -2.5, 10.0, 100.5, 0.001)
    ],
]  # fmt: skip


@pytest.mark.parametrize(("op", "attrs", "meaning", "ranges", "limit"), ACCURACY, ids=[a[0] for a in ACCURACY])
def test_error_stays_below_what_the_header_states(
    op: str,
    attrs: dict[str, float],
    meaning: Callable[[Array], Array],
    ranges: list[tuple[float, float]],
    limit: float,
) -> None:
    for lo, hi in ranges:
        x = floats(lo, hi)
        with np.errstate(over="ignore", under="ignore", divide="ignore"):
            error = ulps(run(op, x, **attrs), meaning(x.astype(np.float64)))
        worst = int(np.argmax(error))
        assert error[worst] <= limit, f"{op}({x[worst]!r}) is off by {error[worst]:.3f} ulp"


SPECIAL: list[tuple[str, dict[str, float], list[float], list[float]]] = [
    ("exp", {}, [NAN, INF, -INF, 0, 88.73, -104, 1e-45], [NAN, INF, 0, 1, INF, 0, 1]),
    ("log", {}, [NAN, INF, -INF, 0, -0.0, -1, 1], [NAN, INF, NAN, -INF, -INF, NAN, 0]),
    ("sqrt", {}, [NAN, INF, -INF, 0, -0.0, -1, 4], [NAN, INF, NAN, 0, -0.0, NAN, 2]),
    ("tanh", {}, [NAN, INF, -INF, -0.0, 1e-45, -3e38], [NAN, 1, -1, -0.0, 1e-45, -1]),
    ("erf", {}, [NAN, INF, -INF, -0.0, 3e38], [NAN, 1, -1, -0.0, 1]),
    ("sigmoid", {}, [NAN, INF, -INF, 0, -200], [NAN, 1, 0, 0.5, 0]),
    ("sin", {}, [NAN, INF, -INF, -0.0, 1e-45], [NAN, NAN, NAN, -0.0, 1e-45]),
    ("cos", {}, [NAN, INF, 0], [NAN, NAN, 1]),
    ("elu", {"alpha": 1.0}, [NAN, INF, -INF, -1e-45], [NAN, INF, -1, -1e-45]),
    ("softplus", {"beta": 1.0, "threshold": 20.0}, [NAN, INF, -INF, 1e30], [NAN, INF, 0, 1e30]),
    ("log_sigmoid", {}, [NAN, INF, -INF, -1e30], [NAN, 0, -INF, -1e30]),
    ("relu", {}, [NAN, INF, -INF, 0], [NAN, INF, 0, 0]),
    ("clamp", {"lo": -1, "hi": 2}, [NAN, INF, -INF, 0], [NAN, 2, -1, 0]),
    ("leaky_relu", {"slope": 0.5}, [NAN, INF, -INF, -1], [NAN, INF, -INF, -0.5]),
    ("mish", {}, [NAN, INF, 1e30, -1e30], [NAN, INF, 1e30, 0]),
    ("gelu", {"approximate": True}, [NAN, INF, 1e30, -1e30], [NAN, INF, 1e30, 0]),
    ("gelu", {"approximate": False}, [NAN, INF, 1e30, -1e30], [NAN, INF, 1e30, 0]),
    ("pow_scalar", {"exponent": 7}, [NAN, INF, -INF, 0, -0.0, -2, 1e30], [NAN, INF, -INF, 0, -0.0, -128, INF]),
    ("pow_scalar", {"exponent": -4}, [NAN, INF, -INF, 0, -0.0, -2], [NAN, 0, 0, INF, INF, 0.0625]),
    ("pow_scalar", {"exponent": 1.5}, [NAN, INF, -INF, 0, -0.0, -2, 4], [NAN, INF, INF, 0, 0, NAN, 8]),
    ("pow_scalar", {"exponent": 0}, [NAN, INF, -INF, 0, -2], [1, 1, 1, 1, 1]),
    ("pow_scalar", {"exponent": INF}, [NAN, INF, -INF, 0, 1, -1, 0.5, -2], [NAN, INF, INF, 0, 1, 1, 0, INF]),
    ("pow_scalar", {"exponent": NAN}, [1, -1, 0], [1, NAN, NAN]),
]  # fmt: skip


@pytest.mark.parametrize(("op", "attrs", "x", "want"), SPECIAL, ids=[s[0] for s in SPECIAL])
def test_special_values(op: str, attrs: dict[str, float], x: list[float], want: list[float]) -> None:
    got = run(op, np.array(x, np.float32), **attrs)
    np.testing.assert_array_equal(got, np.array(want, np.float32))
    for value, wanted in zip(got, want, strict=True):
        if wanted == 0 and np.signbit(wanted):
            assert np.signbit(value), "a negative zero lost its sign"


def test_integer_powers_that_are_floats_are_exact() -> None:
    x = np.arange(-40, 41).astype(np.float32)
    for exponent in range(2, 16):
        want = x.astype(np.float64) ** exponent
        exact = np.abs(want) < 2**24
        assert np.array_equal(run("pow_scalar", x, exponent=exponent)[exact], want[exact])


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("relu_dx", {}),
        ("leaky_relu_dx", {"slope": 0.2}),
        ("hardsigmoid_dx", {}),
        ("clamp_dx", {"lo": 0, "hi": 6, "closed": False}),
        ("clamp_dx", {"lo": -3, "hi": 3, "closed": True}),
    ],
)
def test_a_gradient_from_bits_equals_the_gradient_from_the_value(op: str, attrs: dict[str, float]) -> None:
    rng = np.random.default_rng(3)
    dy, x = sample(rng, 4 * 37), sample(rng, 4 * 37)
    x[::5] = rng.choice(np.array([-3, 0, 3, 6], np.float32), x[::5].size)
    rule = ops.get(op).bits
    assert rule is not None
    r = rule(attrs)
    bits, dx = np.zeros((4, 5), np.uint8), np.empty_like(dy)
    library.run_kernel("range_bits_u8", [bits, x], [4, 37, float(r.lo), float(r.hi), int(r.closed)])
    library.run_kernel("bits_dx_f32", [dx, dy, bits], [4, 37, float(r.inside), float(r.outside)])
    assert np.array_equal(canonical(dx), canonical(run(op, dy, x, **attrs)))


def sample(rng: np.random.Generator, count: int) -> Array:
    """Half ordinary numbers, half arbitrary bits: NaN, infinities, denormals."""
    wild = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    return np.where(rng.random(count) < 0.5, wild, (3 * rng.standard_normal(count)).astype(np.float32))


def canonical(y: Array) -> Array:
    """The bits, with one NaN for all: which NaN a sum or product gives differs between processors."""
    return np.where(np.isnan(y), np.uint32(0x7FC00000), y.view(np.uint32))


def all_results() -> dict[str, Array]:
    rng = np.random.default_rng(5)
    x, dy = sample(rng, 5000), sample(rng, 5000)
    found = {}
    for op in ops.all_ops().values():
        if op.ref.__module__.rpartition(".")[2] not in FAMILIES or op.name in ("range_bits", "bits_dx"):
            continue
        for case in op.cases:
            operands = [dy, x][-len(case.inputs) :]
            found[f"{op.name} {dict(case.attrs)}"] = canonical(run(op.name, *operands, **case.attrs))
    return found


def built(folder: Path, command: list[str]) -> ctypes.CDLL:
    """The kernels of these families alone, from another compiler."""
    sources = [HERE / "kernels" / f"{name}.c" for name in FAMILIES]
    text = "".join(
        subprocess.run([command[0], "-E", str(s)], check=True, capture_output=True, text=True).stdout for s in sources
    )
    table = folder / "table.c"
    table.write_text(table_source(sorted(set(re.findall(r"const SmgKernel smg_kernel_(\w+)\s*=", text))), {}))
    files = [*map(str, sources), str(HERE / "probe.c"), str(table)]
    done = subprocess.run(
        [*command, *EXACT, *STRICT, f"-I{HERE}", "-shared", *files, "-o", str(folder / "lib.so")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "warning" not in done.stderr, done.stderr
    lib = ctypes.CDLL(str(folder / "lib.so"))
    lib.smg_probe_run.argtypes = [
        ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, library.CRun,
    ]  # fmt: skip
    return lib


@pytest.mark.parametrize(
    "command",
    [
        "gcc -O0",
        "gcc -O3 -mavx2 -mfma -fno-trapping-math",
        "gcc -O1 -U__SSE__",  # the square root by integers
        "gcc -O1 -fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all",
        "clang -O2",
        "tcc",
    ],
)
def test_every_compiler_gives_the_same_bits(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = command.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    if "-mavx2" in words and "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("this processor has no AVX2")
    want = all_results()
    lib = built(tmp_path, words)
    monkeypatch.setattr(library, "library", lambda: lib)
    for name, bits in all_results().items():
        assert np.array_equal(bits, want[name]), name
