"""Headers that users include work in C++ (Arduino is C++): they compile, and name the functions that C defines."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from smidgen.runtime.build import HERE

HEADERS = (
    "smidgen_train.h", "slots.h", "classes.h", "blocks.h", "ports/posix.h", "ports/posix_cpu.h", "ports/posix_pager.h",
    "ports/cortex_m/board.h", "runner/data.h", "runner/npz.h", "runner/store.h", "runner/tail.h",
)  # fmt: skip
FUNCTION = re.compile(r"^[A-Za-z_][\w *]*?[ *](\w+)\((?:[^()]|\([^()]*\))*\);", re.MULTILINE)


def functions(header: Path) -> list[str]:
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    return FUNCTION.findall(text)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@pytest.mark.parametrize("header", HEADERS)
def test_cpp_calls_the_functions_that_c_defines(header: str, tmp_path: Path) -> None:
    names = functions(HERE / header)
    assert names
    source, made = tmp_path / "user.cpp", tmp_path / "user.o"
    uses = ", ".join(f"reinterpret_cast<void *>(&{name})" for name in names)
    source.write_text(
        f'#include "{header}"\n#include "{header}"\nvoid *const used[] = {{{uses}}};\nvoid *const *all = used;\n'
    )
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{HERE}"]
    subprocess.run(["g++", *flags, "-c", str(source), "-o", str(made)], check=True)
    symbols = subprocess.run(["nm", "-u", str(made)], check=True, capture_output=True, text=True).stdout
    assert sorted(line.split()[-1] for line in symbols.splitlines()) == sorted(names)
