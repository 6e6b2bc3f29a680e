"""Files that nobody at smidgen wrote: the loader answers with a message, never with a crash or a touch outside memory.

Checksums are recomputed after each change, so that the checks behind them are the ones under test. The runtime is built
with the address and undefined-behaviour sanitizers and runs whatever it accepts.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import struct
import subprocess
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from smidgen.errors import BadProgram
from smidgen.ir import DType
from smidgen.native import Machine
from smidgen.program import HEADER, SECTIONS, Program
from smidgen.runtime.compile import HERE, compile_runtime
from tests.test_ops import SAMPLES, inputs_of
from tests.test_program import RUNNABLE, chain, encoded, looped, one_op

C = Path(__file__).parent / "c"
SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")


def built(name: str, factory: pytest.TempPathFactory, flags: Sequence[str] = SANITIZE) -> Path:
    """The C program of that name; one build serves all test processes."""
    digest = hashlib.sha256("".join(flags).encode())
    for path in [*sorted(HERE.rglob("*.[ch]")), *sorted(C.glob("*.c"))]:
        digest.update(path.read_bytes())
    out = factory.getbasetemp().parent / f"{name}-{digest.hexdigest()[:16]}"
    return out if out.exists() else compile_runtime(out, "gcc", flags, main=[C / f"{name}.c"])


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("hostile", tmp_path_factory)


def answers(harness: Path, files: Iterable[bytes], folder: Path) -> list[str]:
    """The harness's line for each file; fails with the sanitizer's report if it crashes."""
    files = list(files)
    stream = folder / "stream"
    stream.write_bytes(b"".join(struct.pack("<I", len(f)) + f for f in files))
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    with stream.open("rb") as source:
        done = subprocess.run([harness], stdin=source, capture_output=True, env=environment)
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode:
        guilty = folder / "guilty.smg"
        guilty.write_bytes(files[len(lines)])
        pytest.fail(f"file {len(lines)} ({guilty}) crashed the runtime:\n{done.stderr.decode()[-3000:]}")
    assert len(lines) == len(files)
    return lines


def sealed(data: bytes | bytearray) -> bytes:
    """With the size and the checksum that belong to these bytes."""
    if len(data) < 16:
        return bytes(data)
    rest = bytes(data[16:])
    return bytes(data[:8]) + struct.pack("<2I", len(data), zlib.crc32(rest)) + rest


def sections(data: bytes) -> dict[str, tuple[int, int]]:
    """Name → (start, end)."""
    found = {}
    for i, name in enumerate(SECTIONS):
        start, count = struct.unpack_from("<2I", data, HEADER.size + 8 * i)
        found[name] = (start, start + count)
    return found


def sample() -> bytes:
    return encoded({"infer": chain(), "bytes": looped(DType.U8, 1)}, 3, {"note": "x"}).to_bytes()


def accepted_by_python(data: bytes) -> bool:
    try:
        Program.from_bytes(data)
    except BadProgram:
        return False
    return True


def test_a_whole_file_runs(hostile: Path, tmp_path: Path) -> None:
    files = [sample(), *(program.to_bytes() for program in one_op_programs())]
    for line, _ in zip(answers(hostile, files, tmp_path), files, strict=True):
        assert line.startswith("ran: "), line
        assert line.count(":") < 2 or "instruction" in line  # random labels may be out of range


def test_a_file_cut_anywhere_is_refused(hostile: Path, tmp_path: Path) -> None:
    data = sample()
    # Bytes behind the last section are not the program's; so the last cut that hurts is that of the last section.
    cut = [data[:i] for i in range(len(data))] + [sealed(data[:i]) for i in range(len(data))]
    for line in answers(hostile, cut, tmp_path):
        assert line.startswith("refused: "), line
    assert not any(accepted_by_python(c) for c in cut)


def test_no_flipped_byte_outside_data_goes_unnoticed_without_a_new_checksum(hostile: Path, tmp_path: Path) -> None:
    data = sample()
    flipped = [data[:i] + bytes([data[i] ^ 0x10]) + data[i + 1 :] for i in range(len(data))]
    for line in answers(hostile, flipped, tmp_path):
        assert line.startswith("refused: "), line


def test_any_flipped_byte_is_survived(hostile: Path, tmp_path: Path) -> None:
    data = sample()
    end = sections(data)["meta"][0]
    flipped = []
    for i in [*range(12), *range(16, end)]:
        for bits in (0x01, 0x80, 0xFF):
            flipped.append(sealed(data[:i] + bytes([data[i] ^ bits]) + data[i + 1 :]))
    lines = answers(hostile, flipped, tmp_path)
    assert sum(line.startswith("refused") for line in lines) > len(lines) // 2
    for f in flipped:
        accepted_by_python(f)  # raises nothing but BadProgram


def one_op_programs() -> list[Program]:
    programs = []
    for op in RUNNABLE:
        for case in op.cases[:2]:
            graph, _ = one_op(op, case, inputs_of(op, case))
            programs.append(encoded({"step": graph}, SAMPLES))
    return programs


VALUES = (
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    16,
    0x7F,
    0x100,
    0xFFFF,
    0x10000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    0xFFFFFFFE,
    0x3FFFFFFF,
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few words of code, parameters and tables changed, as someone would who knows the format."""
    out = bytearray(data)
    where = sections(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(
            ("code", "code", "code", "params", "params", "params", "params", "buffers", "entries", "sizes")
        )
        start, end = (16, HEADER.size) if name == "sizes" else where[name]
        if start == end:
            continue
        at = start + 4 * rng.randrange((end - start) // 4)
        (old,) = struct.unpack_from("<I", out, at)
        kind = rng.randrange(7)
        if kind == 0:
            new = rng.choice(VALUES)
        elif kind == 1:
            new = old + rng.choice((-4, -2, -1, 1, 2, 4))
        elif kind == 2:
            new = old ^ 1 << rng.randrange(32)
        elif kind == 3:
            new = old * rng.choice((2, 3, 1000, 0x10001))
        elif kind == 4:  # another word of the same table
            (new,) = struct.unpack_from("<I", out, start + 4 * rng.randrange((end - start) // 4))
        elif kind == 5:  # an operand elsewhere in some region
            new = rng.choice((0, 1, 2, 3, 4, 5, 7)) << 29 | rng.randrange(64)
        else:
            new = rng.randrange(1, 40)
        struct.pack_into("<I", out, at, new & 0xFFFFFFFF)
    return sealed(out)


def mutations(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    seeds = [sample(), *(p.to_bytes() for p in one_op_programs())]
    return [mutated(rng.choice(seeds), rng) for _ in range(count)]


def test_thousands_of_altered_programs_are_survived(hostile: Path, tmp_path: Path) -> None:
    lines = answers(hostile, mutations(int(os.environ.get("SMIDGEN_MUTATIONS", "6000")), 1), tmp_path)
    slow = [line for line in lines if line.startswith("slow")]
    assert not slow, slow
    assert any(line.startswith("ran") for line in lines)
    assert len({line.split(": ")[-1] for line in lines if line.startswith("refused")}) > 20


def test_python_reads_altered_programs_without_surprise() -> None:
    for data in mutations(800, 2):
        accepted_by_python(data)


def test_the_machine_maps_and_refuses_what_it_cannot_run() -> None:
    data = bytearray(sample())
    code, end = sections(bytes(data))["code"]
    for at in range(code, end, 4):
        changed = bytearray(data)
        struct.pack_into("<I", changed, at, 0xFFFFFFFE)
        with pytest.raises(BadProgram):
            Machine(sealed(changed))
