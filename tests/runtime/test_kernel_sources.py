"""How the C kernels are written: external names, who includes whom, parameters by name."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from smidgen.runtime import build

KERNELS = sorted((build.HERE / "kernels").glob("*.[ch]"))
FAST = sorted((build.HERE / "fast").glob("*.[ch]"))


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("nm") is None, reason="no C compiler")
@pytest.mark.parametrize("path", [p for p in KERNELS if p.suffix == ".c"], ids=lambda p: p.stem)
def test_all_that_a_kernel_exports_carries_the_name_of_its_instruction_set(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "kernel.o"
    subprocess.run(["cc", *build.EXACT, "-w", "-DSMG_ISA=xyz", "-c", str(path), "-o", str(out)], check=True)
    symbols = subprocess.run(["nm", "-g", "--defined-only", str(out)], check=True, capture_output=True, text=True)
    names = [line.split()[2] for line in symbols.stdout.splitlines()]
    assert names
    assert [name for name in names if "_xyz_" not in name] == []


@pytest.mark.parametrize("path", KERNELS, ids=lambda p: p.name)
def test_exact_kernels_know_nothing_of_the_fast_ones(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if re.match(r'#include ".*fast/', line)] == []


@pytest.mark.parametrize("path", [*KERNELS, *FAST], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_parameters_have_names(path: Path) -> None:
    """A family unpacks its block into a struct: no parameter is known by its number."""
    code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
    assert re.findall(r"(?:\bp|->p)\[\w+\]|\bPF?\(", code) == []


@pytest.mark.parametrize("path", sorted(build.HERE.rglob("*.[ch]")), ids=lambda p: str(p.relative_to(build.HERE)))
def test_lines_fit_120_columns(path: Path) -> None:
    assert [line for line in path.read_text().splitlines() if len(line.encode()) > 120] == []


def test_nothing_is_decided_by_the_name_of_a_kernel() -> None:
    """What the runtime has to know of a kernel is a flag in the table."""
    names = re.findall(r"\bKERNEL(?:_FLAGS)?\((\w+),", "".join(path.read_text() for path in KERNELS))
    assert "page_start" in names
    for path in sorted(build.HERE.rglob("*.[ch]")):
        code = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
        assert [name for name in re.findall(r'"(\w+)"', code) if name in names] == [], path.name
