"""Files that nobody at smidgen wrote: the loader answers with a message, never with a crash or a touch outside memory.

Checksums are recomputed after each change, so that the checks behind them are the ones under test. The runtime is built
with the address and undefined-behaviour sanitizers and runs whatever it accepts.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.compiler.assemble import encode
from smidgen.errors import BadProgram
from smidgen.ir import LR, Batch, DType
from smidgen.ops.strides import copy_params
from smidgen.program.buffer import Buffer
from smidgen.program.instructions import Entry, Instruction, Operand, OperandRegion
from smidgen.program.program import Program
from smidgen.program.writer import HEADER, SECTIONS
from smidgen.runtime.machine import Machine
from smidgen.train.job import Job
from tests.support import small
from tests.support.encoded import RUNNABLE, chain, encoded, looped, one_op, sealed
from tests.support.libraries import compiled
from tests.support.op_cases import SAMPLES, inputs_of

C = Path(__file__).parents[1] / "c"
COUNT = int(os.environ.get("SMIDGEN_MUTATIONS", "8000"))
SANITIZE = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc and its sanitizers")


@pytest.fixture(scope="session")
def hostile() -> Path:
    """Runtime and harness in one program."""
    return compiled("gcc", SANITIZE, [C / "hostile.c", C / "extents.c"])


def asked(command: Sequence[str | Path], items: Sequence[bytes], folder: Path) -> list[str]:
    """The harness's line for each item; fails with the sanitizer's report if it crashes."""
    stream = folder / "stream"
    stream.write_bytes(b"".join(items))
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}
    with stream.open("rb") as source:
        done = subprocess.run(command, stdin=source, capture_output=True, env=environment)
    lines = done.stdout.decode(errors="replace").splitlines()
    if done.returncode:
        guilty = folder / "guilty"
        guilty.write_bytes(items[len(lines)])
        pytest.fail(f"item {len(lines)} ({guilty}) crashed the runtime:\n{done.stderr.decode()[-3000:]}")
    assert len(lines) == len(items)
    return lines


def answers(harness: Path, files: Iterable[bytes], folder: Path) -> list[str]:
    return asked([harness], [struct.pack("<I", len(f)) + f for f in files], folder)


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
    127,
    256,
    0xFFFF,
    0x10000,
    0x3FFFFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFE,
    0xFFFFFFFF,
)
TABLES = ("code",) * 3 + ("params",) * 4 + ("buffers", "entries", "sizes")


def another(old: int, others: Sequence[int], rng: random.Random) -> int:
    """A 32-bit word that could stand where `old` stands."""
    kind = rng.randrange(6)
    if kind == 0:
        new = rng.choice(VALUES)
    elif kind == 1:
        new = old + rng.choice((-4, -2, -1, 1, 2, 4))
    elif kind == 2:
        new = old ^ 1 << rng.randrange(32)
    elif kind == 3:
        new = old * rng.choice((2, 3, -1, 1000, 0x10001))
    elif kind == 4:
        new = rng.choice(others)
    else:
        new = rng.randrange(1, 40)
    return new & 0xFFFFFFFF


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few words of code, parameters and tables changed, as someone would who knows the format."""
    out = bytearray(data)
    where = sections(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        name = rng.choice(TABLES)
        start, end = (16, HEADER.size) if name == "sizes" else where[name]
        if start == end:
            continue
        words = struct.unpack_from(f"<{(end - start) // 4}I", out, start)
        at = rng.randrange(len(words))
        new = another(words[at], words, rng)
        if name == "code" and rng.random() < 0.2:  # an operand elsewhere in some region
            new = rng.choice((0, 1, 2, 3, 4, 5, 7)) << 29 | rng.randrange(64)
        struct.pack_into("<I", out, start + 4 * at, new)
    return sealed(out)


def mutations(count: int, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    seeds = [sample(), *(p.to_bytes() for p in one_op_programs())]
    return [mutated(rng.choice(seeds), rng) for _ in range(count)]


def test_thousands_of_altered_programs_are_survived(hostile: Path, tmp_path: Path) -> None:
    lines = answers(hostile, mutations(COUNT, 1), tmp_path)
    ran = sum(line.startswith("ran") for line in lines)
    slow = sum(line.startswith("slow") for line in lines)
    assert ran > len(lines) // 20
    assert slow <= 3  # a large product of small sizes is work, not a trap
    assert len({line.split(": ")[-1] for line in lines if line.startswith("refused")}) > 20


def calls() -> list[tuple[str, int, list[int]]]:
    """(kernel, operands, parameters) of every op's cases."""
    found = {}
    for program in one_op_programs():
        for step in program.entry_code("step"):
            call = (step.kernel, len(step.operands), step.params_at(SAMPLES))
            found[repr(call)] = call
    return list(found.values())


def test_kernels_touch_no_byte_that_their_extents_do_not_declare(hostile: Path, tmp_path: Path) -> None:
    rng = random.Random(3)
    known, items = calls(), []
    for _ in range(COUNT):
        kernel, operands, words = rng.choice(known)
        params = [w & 0xFFFFFFFF for w in words]
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4)) if params else 0):
            at = rng.randrange(len(params))
            params[at] = another(params[at], params, rng)
        if rng.random() < 0.05:
            params = params[:-1] if rng.random() < 0.5 else [*params, 1]
        operands += rng.choice((-1, 1)) if rng.random() < 0.05 else 0
        name = kernel.encode()
        head = struct.pack("<I", len(name)) + name + struct.pack("<2I", operands, len(params))
        items.append(head + struct.pack(f"<{len(params)}I", *params) + struct.pack("<i", SAMPLES))
    lines = asked([hostile, "extents"], items, tmp_path)
    assert sum(line.startswith("ran") for line in lines) > len(lines) // 4
    assert sum(line.startswith("slow") for line in lines) <= 3


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


# -- one rule at a time --------------------------------------------------------------------------------------------

X = Buffer("x", DType.F32, (Batch(3),), "input")
Y = Buffer("y", DType.F32, (Batch(3),), "output")
B = Buffer("b", DType.U8, (Batch(5),), "input")
THREE = Batch(3)


def at(region: OperandRegion, offset: int = 0, stride: int = 0) -> Operand:
    return Operand(region, offset, stride)


def relu(out: Operand, source: Operand, count: int | Batch = 4) -> Instruction:
    return Instruction("relu_f32", (out, source), (count,))


def copy(out: Operand, source: Operand, count: int | Batch = THREE, kernel: str = "copy_b4") -> Instruction:
    return Instruction(kernel, (out, source), tuple(copy_params([count], [1], [1])))  # type: ignore[arg-type]


def by_hand(*code: Instruction) -> bytes:
    """Batch 4; 64 bytes of CONST, 64 of STATE, 128 of ARENA; buffers x 3n floats, b 5n bytes, y 3n floats."""
    entry = Entry((X, B, Y), code)
    return Program(4, 16, {"go": entry}, bytes(range(64)), b"", 64, 128).to_bytes()


LOOP = Instruction("", body=1)
EMBEDDING = (3, 1, 3)  # rows, width, indices
GOOD = {
    "copies through": [copy(at("arena"), at("input", 0)), copy(at("output", 2), at("arena"))],
    "in place": [relu(at("arena", 16), at("arena", 16))],
    "next to each other": [relu(at("arena", 0), at("arena", 16))],
    "no elements at the very end": [relu(at("arena", 128), at("arena", 128), 0)],
    "a loop": [LOOP, copy(at("arena", 0, 12), at("input", 0, 12), 3)],
    "a loop with a count": [Instruction("", body=1, count=5), relu(at("arena", 0, 24), at("const", 0, 8), 4)],
    "a loop in place": [LOOP, relu(at("arena", 0, 32), at("arena", 0, 32))],
    "bytes at odd strides": [LOOP, copy(at("arena", 0, 5), at("input", 1, 5), 5, "copy_b1")],
}
BAD = {
    "operand 0 overlaps operand 1": [relu(at("arena", 0), at("arena", 12))],
    "operand 0 overlaps operand 1 ": [relu(at("arena", 12), at("arena", 0))],
    "copy_b4: operand 0 overlaps operand 1": [copy(at("arena"), at("arena"))],
    "embedding_f32: operand 0 overlaps operand 2": [
        Instruction("embedding_f32", (at("arena"), at("const"), at("arena")), EMBEDDING)
    ],
    "instruction 1, relu_f32: operand 0 must not be written there": [
        relu(at("arena"), at("const")),
        relu(at("const"), at("arena")),
    ],
    "operand 0 is no such buffer": [copy(at("input", 0), at("arena"))],
    "operand 1 is no such buffer": [copy(at("arena"), at("output", 2))],
    "operand 1 must not be absent": [relu(at("arena"), at("none"))],
    "operand 1 needs 20 bytes and has 16": [relu(at("arena"), at("state", 48), 5)],
    "operand 0 needs 140 bytes and has 128": [LOOP, relu(at("arena", 0, 44), at("const"), 2)],
    "operand 1 needs 60 bytes and has 48": [LOOP, copy(at("arena"), at("input", 0, 16), 3)],
    "advances by an odd stride": [LOOP, relu(at("arena", 0, 17), at("const"))],
    "operand 0 overlaps operand 1  ": [LOOP, relu(at("arena", 0, 16), at("arena", 48))],
    "operand 1 is not aligned for this kernel": [copy(at("arena"), at("input", 1))],
    "strides outside a loop": [relu(at("arena", 0, 4), at("const"))],
    "a loop inside a loop": [Instruction("", body=2), LOOP, relu(at("arena"), at("const"))],
    "ends within a loop": [Instruction("", body=2), relu(at("arena"), at("const"))],
    "a loop around nothing": [Instruction("")],
    "operand 0 needs 268 bytes and has 128": [
        Instruction("", body=1, count=6),
        relu(at("arena", 0, 52), at("const"), 2),
    ],
    "operand 0 overlaps operand 1   ": [Instruction("", body=1, count=2), relu(at("arena", 0, 16), at("arena", 16))],
    "writes nothing new in a loop with a count": [
        Instruction("", body=1, count=2**31 - 1),
        relu(at("arena"), at("const"), 2),
    ],
    "writes nothing new in a loop with a count ": [
        Instruction("", body=1, count=8),
        relu(at("arena", 0, 4), at("const"), 2),
    ],
    "writes nothing new in a loop with a count  ": [
        Instruction("", body=1, count=2**31 - 1),
        relu(at("arena"), at("const"), 0),
    ],
    "wrong number of operands": [Instruction("relu_f32", (at("arena"),), (4,))],
    "wrong number of parameters": [Instruction("relu_f32", (at("arena"), at("const")), (4, 4))],
    "the parameters are out of range": [relu(at("arena"), at("const"), -1)],
    "does not fit 32 bits": [relu(at("arena"), at("const"), Batch(2**30))],
    "no kernel 'melt_f32'": [Instruction("melt_f32")],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_is_in_order_is_accepted(name: str) -> None:
    Machine(by_hand(*GOOD[name]))


@pytest.mark.parametrize("why", BAD)
def test_each_rule_refuses_with_its_own_words(why: str) -> None:
    with pytest.raises(BadProgram, match=why.strip()):
        Machine(by_hand(*BAD[why]))


def test_extents_are_proved_again_for_every_number_of_samples() -> None:
    machine = Machine(by_hand(copy(at("arena"), at("input", 0), 12)))

    def run(n: int) -> None:
        floats, raw = np.zeros(3 * n, np.float32), np.zeros(5 * n, np.uint8)
        machine.run("go", [floats, raw], [floats.copy()], n)

    run(4)
    with pytest.raises(BadProgram, match="operand 1 needs 48 bytes and has 36"):
        run(3)
    run(4)


# -- what a program says of its state ----------------------------------------------------------------------------------

NOT_STATE: dict[str, tuple[str, str, object]] = {
    "an optimizer's tensor without a name": ("w1:momentum", "slot", None),
    "an optimizer's tensor with a list as its name": ("w1:momentum", "slot", ["momentum"]),
    "an optimizer's tensor of the learning rate": ("w1:momentum", "owner", LR),
    "another name that is a list": ("w1", "aliases", [[]]),
}


@pytest.mark.parametrize("name", NOT_STATE)
def test_a_description_of_state_is_checked_when_it_is_read(name: str) -> None:
    program = encode(small.entries())
    Job(program)
    tensor, key, value = NOT_STATE[name]
    fact = {**program.meta["state"][tensor], key: value}
    if value is None:
        del fact[key]
    state = {**program.meta["state"], tensor: fact}
    with pytest.raises(BadProgram, match="the program does not describe its plan and state"):
        Job(replace(program, meta={**program.meta, "state": state}))
