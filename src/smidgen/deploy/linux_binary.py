"""Binaries for other machines: a program with the runtime as one static Linux executable (runtime/runner), or as a
shared library for Android. The compiler is zig, from PyPI; nothing else has to be installed."""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .. import files
from ..devices.overhead import replay_shape
from ..errors import BadOption, Internal, MissingPart, did_you_mean
from ..ir import COUNTER, LR
from ..program.program import Program
from ..runtime.build import EXACT, HERE, inplace_inputs, table_source
from ..train.replay import c_initializer

PUBLIC: Final = (
    "smidgen.h", "smidgen_train.h", "smidgen_learn.h", "slots.h", "classes.h", "replay.h", "blocks.h",
)  # fmt: skip
"""Headers whose functions a shared library offers."""
HOST_ONLY: Final = ("probe", "first_fit", "kernel_at")
"""Sources that tests and the compiler use."""
TAIL_ALIGN: Final = 65536  # as in runner/tail.h
CODE: Final = (*EXACT, "-O3", "-g0", "-fno-sanitize=undefined", "-ffunction-sections", "-fdata-sections", "-Wall")


@dataclass(frozen=True, slots=True)
class Target:
    """`zig` is what -target names; a library is for programs that bring their own `main`."""

    zig: str
    flags: tuple[str, ...] = ()
    is_library: bool = False


TARGETS: Final = {
    "aarch64-linux": Target("aarch64-linux-musl"),
    "armv6-linux": Target("arm-linux-musleabihf", ("-mcpu=arm1176jzf_s",)),
    "armv7-linux": Target("arm-linux-musleabihf", ("-mcpu=cortex_a7",)),
    "riscv64-linux": Target("riscv64-linux-musl"),
    "x86_64-linux": Target("x86_64-linux-musl", ("-mcpu=x86_64",)),
    "aarch64-android": Target("aarch64-linux-android", is_library=True),
}


def checked_target(name: str) -> Target:
    if name not in TARGETS:
        raise BadOption(f"there is no target '{name}'", help=did_you_mean(name, TARGETS))
    return TARGETS[name]


def zig() -> str:
    try:
        import ziglang  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ModuleNotFoundError as error:
        help = "pip install 'smidgen[cross]'"
        raise MissingPart("building for another machine needs zig", why=str(error), help=help) from error
    return str(Path(ziglang.__file__).parent / "zig")


def build_binary(program: Program, target: str, path: str | os.PathLike[str]) -> None:
    """Write the executable, or for Android the library, to `path`: complete or not at all."""
    chosen, compiler, out = checked_target(target), zig(), files.checked_path(path, "the binary")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # What differs from program to program is in files of its own: zig keeps the objects of all others.
        own = {"kernel_table.c": table_source(list(program.kernels), inplace_inputs())}
        if chosen.is_library:
            (folder / "net.smg").write_bytes(program.to_bytes())
            text = (HERE / "runner" / "program.S.in").read_text()
            own["program.S"] = f'#define PROGRAM "{folder / "net.smg"}"\n{text}'
        else:
            own["places.c"] = _places(program)
        for file, text in own.items():
            (folder / file).write_text(text)
        made = folder / "made"
        command = [compiler, "cc", "-target", chosen.zig, *chosen.flags, *CODE, f"-I{HERE}"]
        command += [*(str(folder / file) for file in own), *map(str, runtime_sources())]
        command += _library(compiler, chosen, folder) if chosen.is_library else _executable()
        _run([*command, "-Wl,--gc-sections", "-o", str(made)])
        files.write(out, made.read_bytes() if chosen.is_library else with_tail(made.read_bytes(), program.to_bytes()))
    if not chosen.is_library:
        out.chmod(out.stat().st_mode | 0o111)


def with_tail(code: bytes, program: bytes) -> bytes:
    """An executable that finds its program behind itself (runner/tail.h)."""
    start = -(-len(code) // TAIL_ALIGN) * TAIL_ALIGN
    return code.ljust(start, b"\0") + program + struct.pack("<8sQQ", b"SMDGTAIL", start, len(program))


def runtime_sources() -> list[Path]:
    """What every target needs: the runtime without ports and what only a host needs."""
    return [p for p in sorted(HERE.glob("*.c")) if p.stem not in HOST_ONLY] + sorted(HERE.glob("kernels/*.c"))


def _executable() -> list[str]:
    sources = [*sorted((HERE / "runner").glob("*.c")), HERE / "ports" / "posix_pager.c"]
    return ["-static", "-s", *map(str, sources), "-lm"]


def _library(compiler: str, target: Target, folder: Path) -> list[str]:
    """Linked against a stand-in of Android's C library, of which memcpy and the like are taken when it is loaded."""
    port = HERE / "ports" / "android"
    libc = folder / "libc.so"
    _run([compiler, "cc", "-target", target.zig, "-shared", "-nostdlib", "-ffreestanding", "-fno-builtin",
          "-Wl,-soname,libc.so", str(port / "libc.c"), "-o", str(libc)])  # fmt: skip
    names = ["smg_program", "smg_program_end", *public_functions()]
    exports = folder / "exports"
    exports.write_text("{ global: " + " ".join(f"{name};" for name in names) + " local: *; };\n")
    # Pages of 16 KB: what Android asks for since version 15.
    return ["-shared", "-nostdlib", "-ffreestanding", f"-isystem{port}", str(libc), "-Wl,-soname,libsmidgen.so",
            f"-Wl,--version-script={exports}", "-Wl,-z,max-page-size=16384", "-Wl,-z,defs"]  # fmt: skip


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        target = command[command.index("-target") + 1]
        raise Internal(f"zig cannot build for {target}", why=done.stderr.strip()[:500])


def public_functions() -> list[str]:
    text = "\n".join((HERE / header).read_text() for header in PUBLIC)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return sorted(set(re.findall(r"^[A-Za-z_][\w \t*]*?\b(smg_\w+)\(", text, re.MULTILINE)))


def _places(program: Program) -> str:
    """Where in STATE the runner finds the learning rate and the seed; how many samples a step has; what it replays."""
    state = program.meta.get("state", {})
    lr, counter = (state[name]["offset"] if name in state else -1 for name in (LR, COUNTER))
    samples = max(program.meta.get("plan", {}).get("step_samples", 0), program.batch)
    numbers = f"net_lr = {lr}, net_counter = {counter}, net_samples = {samples}"
    shape = replay_shape(program)
    replay = "{0}" if shape is None else c_initializer(shape)
    return f'#include "runner/places.h"\nconst int {numbers};\nconst SmgReplay net_replay = {replay};\n'


def emulator(target: str) -> Sequence[str]:
    """The command that runs a binary of `target` here; empty if none is needed."""
    machine = {"armv6": "arm", "armv7": "arm"}.get(target.partition("-")[0], target.partition("-")[0])
    if os.uname().machine == machine:
        return ()
    found = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    if found is None:
        raise MissingPart(f"running {target} here needs qemu-{machine}", help="apt-get install qemu-user-static")
    return (found,)
