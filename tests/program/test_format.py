"""File format 2: what is new round-trips, runs where the runtime does it, and is refused by a named fault where it is
reserved for later. One table of types in Python, one in C."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen.errors import BadProgram, BatchStatistics, DoesNotFit
from smidgen.ir import Batch, DType, Quant
from smidgen.ops.strides import copy_params
from smidgen.program.buffer import Buffer
from smidgen.program.instructions import Entry, Instruction, Operand
from smidgen.program.program import Program
from smidgen.program.writer import BUFFER, HEADER, SECTIONS, VERSION
from smidgen.runtime.library import Fault, library
from smidgen.runtime.machine import Machine
from tests.support.encoded import sealed

X = Buffer("x", DType.U8, (Batch(4),), "input", scale=0.00390625, offset=-0.5)
Y = Buffer("y", DType.U8, (Batch(4),), "output")


def at(region: str, offset: int = 0, stride: int = 0, outer: tuple[int, ...] = ()) -> Operand:
    return Operand(region, offset, stride, outer)  # type: ignore[arg-type]


def relu(out: Operand, source: Operand, count: int = 4, guard: int = 0, unit: int = 0) -> Instruction:
    return Instruction("relu_f32", (out, source), (count,), guard=guard, unit=unit)


def program(*code: Instruction, buffers: tuple[Buffer, ...] = ()) -> Program:
    """Batch 4; 64 bytes of CONST, 64 of STATE, 128 of ARENA."""
    return Program(4, 16, {"go": Entry(buffers, code)}, bytes(range(64)), b"", 64, 128)


def fault_of(data: bytes) -> tuple[Fault, str]:
    """What the runtime says of a file."""
    lib = library()
    context, state, arena = (np.zeros(count + 64, np.uint8) for count in (lib.smg_context_bytes(), 64, 128))
    file = np.zeros(len(data) + 64, np.uint8)
    starts = [a.ctypes.data + -a.ctypes.data % 64 for a in (context, file, state, arena)]
    ctypes.memmove(starts[1], data, len(data))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    lib.smg_open(pointer(starts[0]), pointer(starts[1]), size(len(data)), pointer(starts[2]), size(64),
                 pointer(starts[3]), size(128))  # fmt: skip
    return Fault(lib.smg_fault(starts[0], None)), lib.smg_error(starts[0]).decode()


# -- types ---------------------------------------------------------------------------------------------------------


class CType(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 5), ("bytes", ctypes.c_uint8)]


def test_python_and_c_have_the_same_types() -> None:
    rows = (CType * len(DType)).in_dll(library(), "smg_types")
    assert [(t.value, t.bytes) for t in sorted(DType, key=lambda t: t.code)] == [
        (row.name.decode(), row.bytes) for row in rows
    ]
    header = (Path(__file__).parents[2] / "src/smidgen/runtime/smidgen.h").read_text()
    assert all(f"SMG_{t.name} = {t.code}," in header for t in DType)
    assert [t.code for t in DType] == list(range(len(DType)))
    assert all(t.numpy.itemsize == t.bytes and DType.of_code(t.code) is t and DType(t.value) is t for t in DType)
    assert DType.of_code(len(DType)) is None


def test_a_file_lists_the_types_of_its_buffers() -> None:
    data = program(buffers=(X, replace(X, name="z", dtype=DType.F32, scale=None, offset=0), Y)).to_bytes()
    at, count = struct.unpack_from("<2I", data, HEADER.size + 8 * SECTIONS.index("types"))
    assert struct.unpack_from(f"<{count // 4}I", data, at) == (0 | 4 << 8, 2 | 1 << 8)
    for word in (7 | 4 << 8, 2 | 4 << 8, 2):
        changed = bytearray(data)
        struct.pack_into("<I", changed, at + 4, word)
        fault, said = fault_of(sealed(changed))
        assert (fault, said) == (Fault.LATER, "the program has a type that this runtime does not know")
        with pytest.raises(BadProgram):
            Program.from_bytes(sealed(changed))


F32, I32, U8 = (t.code | t.bytes << 8 for t in (DType.F32, DType.I32, DType.U8))


@pytest.mark.parametrize("words", [(U8, F32), (F32, F32), (F32, I32), (), (F32, I32, U8)])
def test_the_table_of_types_is_that_of_the_buffers(words: tuple[int, ...]) -> None:
    """Three types are listed, two if the third word counts no longer; a buffer may then be of the third type."""
    f32 = replace(X, name="z", dtype=DType.F32, scale=None, offset=0)
    listed = program(buffers=(X, f32, replace(f32, name="i", dtype=DType.I32), Y)).to_bytes()
    changed = bytearray(listed)
    place = HEADER.size + 8 * SECTIONS.index("types")
    (at,) = struct.unpack_from("<I", changed, place)
    struct.pack_into("<I", changed, place + 4, 4 * len(words))
    struct.pack_into(f"<{len(words)}I", changed, at, *words)
    if words == (F32, I32, U8):  # the buffer of the type I32 becomes another f32
        (buffers,) = struct.unpack_from("<I", changed, HEADER.size + 8 * SECTIONS.index("buffers"))
        changed[buffers + 2 * BUFFER.size + 4] = DType.F32.code
    for read in (Machine, Program.from_bytes):
        with pytest.raises(BadProgram, match="the table of types is not that of the buffers"):
            read(sealed(changed))  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [t for t in DType if t.bytes < 4])
def test_bytes_of_any_small_type_can_be_copied(dtype: DType) -> None:
    x, y = replace(X, dtype=dtype, scale=None, offset=0.0), replace(Y, dtype=dtype)
    params = tuple(copy_params([Batch(4 * dtype.bytes)], [1], [1]))
    made = program(Instruction("copy_b1", (at("output", 1), at("input", 0)), params), buffers=(x, y))
    machine = Machine(made.to_bytes())
    given = np.arange(12).astype(dtype.numpy)
    back = np.zeros(12, dtype.numpy)
    machine.run("go", [given], [back], 3)
    assert np.array_equal(given, back)
    with pytest.raises(BadProgram, match="operand 0 is not aligned for this kernel"):
        Machine(program(replace(made.entry_code("go")[0], kernel="copy_b4"), buffers=(x, y)).to_bytes())


# -- buffers with scale and offset ---------------------------------------------------------------------------------


def test_scale_and_offset_of_a_buffer_come_back_everywhere() -> None:
    made = program(buffers=(X, Y))
    data = made.to_bytes()
    assert Program.from_bytes(data) == made
    one, other = Machine(data).entries["go"]
    assert (one.scale, one.offset, one.dims) == (X.scale, X.offset, (4,))
    assert (other.scale, other.offset) == (1.0, 0.0)
    assert len(data) == len(program(buffers=(replace(X, scale=None, offset=0.0), Y)).to_bytes())


def test_a_scale_that_is_no_number_is_refused() -> None:
    data = program(buffers=(X, Y)).to_bytes()
    (start,) = struct.unpack_from("<I", data, HEADER.size + 8 * SECTIONS.index("buffers"))
    for place in (start + BUFFER.size - 8, start + BUFFER.size - 4):
        for bits in (0x7F800000, 0x7FC00000, 0xFF800000):
            changed = bytearray(data)
            struct.pack_into("<I", changed, place, bits)
            for read in (Machine, Program.from_bytes):
                with pytest.raises(BadProgram, match="a buffer cannot have its scale"):
                    read(sealed(changed))  # type: ignore[operator]


@pytest.mark.parametrize("bits", [0, 0x80000000, 0xBF800000], ids=["0", "-0", "-1"])
def test_a_scale_that_is_not_above_zero_is_refused(bits: int) -> None:
    changed = bytearray(program(buffers=(X, Y)).to_bytes())
    (start,) = struct.unpack_from("<I", changed, HEADER.size + 8 * SECTIONS.index("buffers"))
    struct.pack_into("<I", changed, start + BUFFER.size - 8, bits)
    for read in (Machine, Program.from_bytes):
        with pytest.raises(BadProgram, match="a buffer cannot have its scale"):
            read(sealed(changed))  # type: ignore[operator]


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_only_integers_have_a_scale(dtype: DType) -> None:
    changed = bytearray(program(buffers=(X, replace(Y, dtype=dtype))).to_bytes())
    (start,) = struct.unpack_from("<I", changed, HEADER.size + 8 * SECTIONS.index("buffers"))
    changed[start + 4] = dtype.code
    for read in (Machine, Program.from_bytes):
        with pytest.raises(BadProgram, match="a buffer cannot have its scale"):
            read(sealed(changed))  # type: ignore[operator]


@pytest.mark.parametrize(
    "wrong", [{"scale": 0.0}, {"scale": -1.0}, {"scale": float("nan")}, {"offset": float("inf")}, {"dtype": DType.F32}],
    ids=str,
)  # fmt: skip
def test_a_scale_that_no_reader_takes_is_not_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(DoesNotFit, match="'x' cannot have scale"):
        program(buffers=(replace(X, **wrong),)).to_bytes()


def test_a_scaled_buffer_has_at_most_six_axes() -> None:
    with pytest.raises(DoesNotFit, match="'x' has a scale and 7 axes"):
        program(buffers=(replace(X, dims=(1,) * 7),)).to_bytes()
    most = program(buffers=(replace(X, dims=(1, 2, 3, 4, 5, 6)),))
    assert Program.from_bytes(most.to_bytes()) == most
    assert Machine(most.to_bytes()).entries["go"][0].dims == (1, 2, 3, 4, 5, 6)


# -- loops ---------------------------------------------------------------------------------------------------------


def test_a_loop_runs_as_often_as_it_says() -> None:
    """Whatever the number of samples; sizes inside it are those of all of them."""
    body = Instruction("relu_f32", (at("arena", 0, 32), at("const", 0, 8)), (Batch(2),))
    machine = Machine(program(Instruction("", body=1, count=3), body).to_bytes())
    for n in (1, 2, 4):
        machine.reset()
        machine.run("go", [], [], n)
        found, given = machine.arena.view(np.float32), np.arange(64, dtype=np.uint8).view(np.float32)
        want = np.zeros(32, np.float32)
        for i in range(3):
            want[8 * i : 8 * i + 2 * n] = np.maximum(given[2 * i : 2 * i + 2 * n], 0)
        assert np.array_equal(found, want)


LATER = {
    "a loop inside a loop": [Instruction("", body=2), Instruction("", body=1, count=2), relu(at("arena"), at("const"))],
    "a loop with a period": [Instruction("", body=1, count=4, period=2, phase=1), relu(at("arena"), at("const"))],
    "an instruction with a guard, or for another unit": [relu(at("arena"), at("const"), guard=3)],
    "an instruction with a guard, or for another unit ": [relu(at("arena"), at("const"), unit=1)],
    "operand 1 is an index list": [relu(at("arena"), at("list", 8))],
}


@pytest.mark.parametrize("why", LATER)
def test_what_is_reserved_is_written_and_read_and_refused_by_name(why: str) -> None:
    made = program(*LATER[why])
    assert Program.from_bytes(made.to_bytes()) == made
    fault, said = fault_of(made.to_bytes())
    assert (fault, said.rpartition(": ")[2]) == (Fault.LATER, why.strip())


@pytest.mark.parametrize(("period", "phase"), [(0, 1), (2, 2)])
def test_a_phase_outside_its_period_is_not_written(period: int, phase: int) -> None:
    loop = Instruction("", body=1, count=4, period=period, phase=phase)
    with pytest.raises(DoesNotFit, match=f"a loop has phase {phase} and period {period}"):
        program(loop, relu(at("arena"), at("const"))).to_bytes()


def test_strides_of_nested_loops_are_written_from_the_innermost_on() -> None:
    inner = relu(at("arena", 0, 0, (32,)), at("const", 0, 16, (0,)))
    made = program(Instruction("", body=2, count=2), Instruction("", body=1, count=2), inner)
    again = Program.from_bytes(made.to_bytes())
    assert again.entry_code("go")[2].operands == (at("arena", 0, 0, (32,)), at("const", 0, 16))
    assert again.to_bytes() == made.to_bytes()


def test_where_statistics_of_one_value_stopped_is_no_text_of_the_message() -> None:
    """However long the name of the entry is, for which a message in C has no room."""
    name = "x" * 300
    one = Instruction("batch_stats_f32", (at("arena"), at("arena", 16), at("const")), (1, 1))
    made = Program(4, 16, {name: Entry((), (one,))}, bytes(64), b"", 64, 128)
    with pytest.raises(BatchStatistics) as caught:
        Machine(made.to_bytes()).run(name, [], [], 1)
    assert caught.value.at == f"{name}, instruction 0, batch_stats_f32"
    assert caught.value.what == "batch statistics need more than one value per channel"


# -- versions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "help"), [(1, "compile the model again with this smidgen"), (3, "a newer smidgen")]
)
def test_files_of_another_version_are_refused_by_name(version: int, help: str) -> None:
    data = bytearray(program().to_bytes())
    struct.pack_into("<I", data, 4, version)
    with pytest.raises(BadProgram, match=f"format version {version}, this smidgen reads version {VERSION}") as caught:
        Program.from_bytes(bytes(data))
    assert help in caught.value.help
    fault, said = fault_of(bytes(data))
    assert (fault, said) == (
        Fault.VERSION, f"the file has format version {version}, this runtime reads version {VERSION}",
    )  # fmt: skip


# -- quantized tensors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quant", "why"),
    [
        (Quant((0.5,), (3,)), ""), (Quant((0.5, 0.25), (0, -128), 1), ""),
        (Quant((0.5,), (0,), 0), "1 scales, 3 needed"),
        (Quant((0.0,), (0,)), "a scale is not above zero"), (Quant((float("inf"),), (0,)), "a scale is not above zero"),
        (Quant((0.5,), (128,)), "a zero point is outside i8"), (Quant((0.5,), (0,), 2), "there is no axis 2"),
        (Quant((0.5,), ()), "1 scales and 0 zero points"),
    ],
)  # fmt: skip
def test_a_quantization_fits_its_tensor_or_says_why_not(quant: Quant, why: str) -> None:
    assert quant.wrong((3, 2), DType.I8) == why
    assert quant.wrong((3, 2), DType.F32) == "f32 numbers are not quantized"


def test_a_quantized_axis_moves_with_the_layout() -> None:
    quant = Quant((0.5, 0.25), (0, 0), 1)
    assert quant.permuted((1, 0)).axis == 0
    assert quant.reshaped((3, 2, 4), (3, 2, 2, 2)) == quant
    assert quant.reshaped((1, 2, 4), (2, 4)) == replace(quant, axis=0)
    assert quant.reshaped((3, 2, 4), (6, 4)) is None
    assert Quant((0.5,), (0,)).reshaped((3, 2), (6,)) == Quant((0.5,), (0,))
