"""Headers for users work from C++, alone and with the others; exact kernels keep their bits in every build system."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from smidgen.runtime.build import HERE, LIBRARY

HEADERS = (
    "smidgen.h", "smidgen_train.h", "smidgen_learn.h", "slots.h", "classes.h", "replay.h", "blocks.h",
    "frames.h", "fleet.h", "ports/posix.h",
    "ports/posix_cpu.h", "ports/posix_pager.h", "ports/cortex_m/board.h", "ports/cortex_m/serial.h", "runner/data.h",
    "runner/npz.h", "runner/store.h", "runner/tail.h",
)  # fmt: skip
LIBRARY_HEADERS = HEADERS[: HEADERS.index("ports/cortex_m/board.h")]
FUNCTION = re.compile(r"^[A-Za-z_][\w *]*?[ *](\w+)\((?:[^()]|\([^()]*\))*\);", re.MULTILINE)
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
CALLS = """
int main() {
    static SmgContext x;
    static SmgBlocks blocks;
    const SmgPager pager = smg_block_pager(&blocks);
    const SmgClasses classes = {0, 0, 0, 0, 0};
    const uint32_t file[1] = {0};
    if (smg_measure(&x, file, sizeof file) != SMG_BAD_PROGRAM) { return 1; }
    if (smg_fault(&x, 0) != SMG_FAULT_PROGRAM) { return 2; }
    if (smg_train_step(&x, 0, 0, 1, 0, 0) != SMG_BAD_CALL || smg_set_pager(&x, &pager) != SMG_BAD_CALL) { return 3; }
    if (smg_learn(&x, 0, 0, 1, 0) != SMG_BAD_CALL || smg_calibrate(&x, 0) != SMG_BAD_CALL) { return 5; }
    if (smg_judge(&x, 0, 0, 1, 0) != SMG_BAD_CALL) { return 6; }
    if (smg_save(&x, 0) != SMG_BAD_CALL || smg_class_count(&x, &classes) != -1) { return 4; }
    smg_posix_close(smg_posix_empty());
    return 0;
}
"""


def functions(header: Path) -> list[str]:
    text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
    return FUNCTION.findall(text)


@needs_gxx
@pytest.mark.parametrize("header", HEADERS)
def test_cpp_calls_the_functions_that_c_defines(header: str, tmp_path: Path) -> None:
    names = functions(HERE / header)
    assert names
    source, made = tmp_path / "user.cpp", tmp_path / "user.o"
    uses = ", ".join(f"reinterpret_cast<void *>(&{name})" for name in names)
    source.write_text(
        f'#include "{header}"\n#include "{header}"\nvoid *const used[] = {{{uses}}};\nvoid *const *all = used;\n'
    )
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{HERE}"]
    subprocess.run(["g++", *flags, "-c", str(source), "-o", str(made)], check=True)
    symbols = subprocess.run(["nm", "-u", str(made)], check=True, capture_output=True, text=True).stdout
    assert sorted(line.split()[-1] for line in symbols.splitlines()) == sorted(names)


@needs_gxx
def test_a_cpp_program_links_with_the_runtime(tmp_path: Path) -> None:
    source, made = tmp_path / "main.cpp", tmp_path / "main"
    source.write_text("".join(f'#include "{header}"\n' for header in LIBRARY_HEADERS) + CALLS)
    subprocess.run(["g++", "-std=c++11", f"-I{HERE}", source, LIBRARY, f"-Wl,-rpath,{HERE}", "-o", made], check=True)
    assert subprocess.run([made]).returncode == 0


@pytest.mark.parametrize(
    ("command", "fused"),
    [
        ("gcc -O2 -mfma", r"\bvfn?m(add|sub)"),
        ("gcc -O2 -mfma -std=c11", r"\bvfn?m(add|sub)"),
        ("clang -O2 -mfma", r"\bvfn?m(add|sub)"),
        ("arm-none-eabi-gcc -O2 -mcpu=cortex-m4 -mthumb -mfloat-abi=hard -mfpu=fpv4-sp-d16", r"\bvfn?m[as]"),
        ("arm-none-eabi-gcc -Os -mcpu=cortex-m7 -mthumb -mfloat-abi=hard -mfpu=fpv5-d16", r"\bvfn?m[as]"),
    ],
)
@pytest.mark.parametrize("kernel", ["matrix.c", "loss.c", "sum.c"])
def test_exact_kernels_are_not_contracted_without_any_flags(command: str, fused: str, kernel: str) -> None:
    """As a build system compiles them that knows nothing of us. The same code is fused where it may be."""
    words = command.split()
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    source = HERE / "kernels" / kernel
    made = [
        subprocess.run([*words, *more, "-S", "-o", "-", source], check=True, capture_output=True, text=True).stdout
        for more in ((), ("-DSMG_CONTRACTION_H", "-ffp-contract=fast"))
    ]
    assert [bool(re.search(fused, text)) for text in made] == [False, True]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86 compiler")
def test_no_exact_kernel_is_contracted_without_any_flags() -> None:
    sources = sorted((HERE / "kernels").glob("*.c"))
    for source in sources:
        made = subprocess.run(
            ["gcc", "-O1", "-mfma", "-S", "-o", "-", source], check=True, capture_output=True, text=True
        )
        assert not re.search(r"\bvfn?m(add|sub)", made.stdout), source.name


def test_exact_kernels_refuse_fast_math() -> None:
    source = HERE / "kernels" / "matrix.c"
    done = subprocess.run(["gcc", "-ffast-math", "-fsyntax-only", source], capture_output=True, text=True)
    assert done.returncode
    assert "exact kernels need IEEE arithmetic" in done.stderr
