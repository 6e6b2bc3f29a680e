"""Own detection of instruction sets: as Linux tells them, only with the system's support, linked by any compiler."""

from __future__ import annotations

import ctypes
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from smidgen.runtime.build import HERE, SETS, compile_runtime

FEATURES = ("fma", "avx2", "avx512f", "avx512dq", "avx512bw", "avx512vl")  # bits of posix_cpu.h, in order
FMA, AVX2, AVX512F, AVX512DQ, AVX512BW, AVX512VL = (1 << i for i in range(6))
# What a processor tells that has all of it: bits of CPUID leaf 1 ecx, leaf 7 ebx, and XCR0.
LEAF1 = 1 << 12 | 1 << 27 | 1 << 28
LEAF7 = 1 << 5 | 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31
ALL_SAVED = 0xE7

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="cpuid is of x86-64")


ZIG = (sys.executable, "-m", "ziglang", "cc")


def built(out: Path, cc: Sequence[str]) -> ctypes.CDLL:
    """The detection alone, with nothing left for another library to define."""
    flags = ("-std=c11", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-z,defs")
    subprocess.run([*cc, *flags, str(HERE / "ports" / "posix_cpu.c"), "-o", str(out)], check=True)
    return _signed(ctypes.CDLL(str(out)))


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return built(tmp_path_factory.mktemp("cpu") / "cpu.so", ["cc"])


def _signed(lib: ctypes.CDLL) -> ctypes.CDLL:
    lib.smg_cpu_features.restype = lib.smg_cpu_needs.restype = lib.smg_cpu_features_of.restype = ctypes.c_uint32
    lib.smg_cpu_features_of.argtypes = [ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint64]
    lib.smg_cpu_needs.argtypes = lib.smg_cpu_runs.argtypes = [ctypes.c_char_p]
    return lib


def names(bits: int) -> set[str]:
    return {name for i, name in enumerate(FEATURES) if bits >> i & 1}


def linux_flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next(line for line in lines if line.startswith("flags")).split(":")[1].split())


@needs_x86
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="Linux tells the processor's features there")
def test_features_are_those_that_linux_tells(cpu: ctypes.CDLL) -> None:
    assert names(cpu.smg_cpu_features()) == linux_flags() & set(FEATURES)


@pytest.mark.parametrize(
    ("leaf1", "leaf7", "xcr0", "found"),
    [
        (LEAF1, LEAF7, ALL_SAVED, set(FEATURES)),
        (LEAF1, LEAF7, 0, set()),  # a system without XSAVE
        (LEAF1, LEAF7, 0x3, set()),  # ymm registers are not saved
        (LEAF1, LEAF7, 0x7, {"fma", "avx2"}),  # zmm and opmask registers are not saved
        (LEAF1, LEAF7, 0xC7, {"fma", "avx2"}),  # opmask registers are not saved
        (LEAF1 & ~(1 << 28), LEAF7, ALL_SAVED, set()),  # a virtual machine that hides AVX
        (LEAF1 & ~(1 << 12), LEAF7, ALL_SAVED, set(FEATURES) - {"fma"}),
        (LEAF1, LEAF7 & ~(1 << 16), ALL_SAVED, {"fma", "avx2"}),  # the rest of AVX-512 builds on F
        (LEAF1, LEAF7 & ~(1 << 31), ALL_SAVED, set(FEATURES) - {"avx512vl"}),  # Xeon Phi
        (LEAF1, 0, ALL_SAVED, {"fma"}),  # no leaf 7
    ],
)
def test_a_feature_needs_the_processor_and_the_system(
    cpu: ctypes.CDLL, leaf1: int, leaf7: int, xcr0: int, found: set[str]
) -> None:
    assert names(cpu.smg_cpu_features_of(leaf1, leaf7, xcr0)) == found


@pytest.mark.parametrize("one", [one for sets in SETS.values() for one in sets], ids=lambda one: str(one.name))
def test_a_set_needs_what_the_compiler_may_use_for_it(cpu: ctypes.CDLL, one: object) -> None:
    flags, name = one.flags, one.name  # type: ignore[attr-defined]
    assert names(cpu.smg_cpu_needs(name.encode())) == {f[2:] for f in flags if not f.startswith("-mno-")}


def test_an_unknown_set_never_runs(cpu: ctypes.CDLL) -> None:
    assert not cpu.smg_cpu_runs(b"sve2")


def test_detection_built_by_zig_links_and_agrees(cpu: ctypes.CDLL, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    other = built(tmp_path / "zig.so", ZIG)
    assert other.smg_cpu_features() == cpu.smg_cpu_features()


@needs_x86
@pytest.mark.slow
def test_a_library_built_by_zig_links_and_picks_the_best_set(cpu: ctypes.CDLL, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")
    made = compile_runtime(tmp_path / "zig.so", cc=shlex.join(ZIG), flags=("-O0",), fast=True)
    lib = _signed(ctypes.CDLL(str(made)))
    lib.smg_posix_empty.restype = ctypes.c_void_p
    lib.smg_posix_set.restype = lib.smg_posix_use_fast.restype = ctypes.c_char_p
    lib.smg_posix_set.argtypes = lib.smg_posix_close.argtypes = [ctypes.c_void_p]
    lib.smg_posix_use_fast.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
    assert lib.smg_cpu_features() == cpu.smg_cpu_features()
    opened = lib.smg_posix_empty()
    assert lib.smg_posix_use_fast(opened, b"", 1) is None
    best = next(one.name for one in SETS["x86_64"] if cpu.smg_cpu_runs(one.name.encode()))
    assert lib.smg_posix_set(opened) == best.encode()
    lib.smg_posix_close(opened)
