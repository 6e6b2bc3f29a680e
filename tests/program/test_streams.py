"""Streams in the file format: written and read, run row by row with the bits of the whole, and refused by name where
one would not find its rows."""

from __future__ import annotations

import itertools
import struct
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD
from smidgen.compiler.options import Memory
from smidgen.errors import BadOption, BadProgram
from smidgen.ir import Batch
from smidgen.program.instructions import (
    EACH,
    FORGETS,
    PLACED,
    WINDOW,
    Entry,
    Instruction,
    Operand,
    OperandRegion,
    StreamTable,
)
from smidgen.program.plan import Plan
from smidgen.program.program import Program
from smidgen.program.writer import HEADER, SECTIONS, STREAM
from smidgen.runtime.machine import Machine
from tests.support.channels import InOrder
from tests.support.encoded import sealed
from tests.support.streams import Restored, Signal, Varied, with_all_streams

LOOP = Instruction("", body=2)
ROW = (4, 1, 1, 0, 0, 8)  # four rows of two floats, one an iteration, none kept
WHOLE = (4, 0, 1, 4, 0, 8)
BY_ROWS = (EACH | FORGETS, 1, 1, 1, 0, 0, 0, 0)
SEES_THREE = (WINDOW | FORGETS, 3, 1, 1, 1, 0, 1, 2)


def at(region: OperandRegion, offset: int = 0, rows: int = 0, stride: int = 0) -> Operand:
    return Operand(region, offset, stride, rows=rows)


def stream(
    *values: tuple[int, ...], rule: tuple[int, ...] = BY_ROWS, iterations: int = 4, body: int = 1
) -> Instruction:  # fmt: skip
    return Instruction("", body=body, table=StreamTable(iterations, values or (ROW, WHOLE), (rule,) * body).words)


def relu(out: Operand, source: Operand, count: int | Batch = Batch(2)) -> Instruction:  # noqa: B008
    return Instruction("relu_f32", (out, source), (count,))


STEP = relu(at("arena", 0, 1), at("const", 0, 2))


STAYS = (4, 1, 1, 0, -4, 8)  # all rows are there in the end


def program(*code: Instruction) -> Program:
    """Batch 4; 64 bytes of CONST, 64 of STATE, 128 of ARENA."""
    return Program(4, 16, {"go": Entry((), code)}, bytes(range(64)), b"", 64, 128)


# -- what is in order ----------------------------------------------------------------------------------------------

GOOD = {
    "row by row": [LOOP, stream(), STEP],
    "in place": [LOOP, stream(WHOLE, (4, 1, 1, 0, -4, 8)), relu(at("arena", 0, 2), at("arena", 0, 2))],
    "rows that stay": [LOOP, stream((4, 1, 1, 0, -2, 8), WHOLE), STEP],
    "the last rows later": [LOOP, stream((4, 1, 1, -2, -2, 8), WHOLE, iterations=6), STEP],
    "in place of what is there as a whole": [LOOP, stream(STAYS, WHOLE), relu(at("arena", 0, 1), at("arena", 0, 2))],
    "a row behind what is read": [LOOP, stream(STAYS, WHOLE), relu(at("arena", 0, 1), at("arena", 8, 2))],
    "smaller rows behind what is read": [
        LOOP,
        stream((4, 1, 1, 0, -4, 4), WHOLE),
        relu(at("arena", 0, 1), at("arena", 4, 2), Batch(1)),
    ],
    "larger rows behind what is read": [
        LOOP,
        stream((4, 1, 1, 0, -4, 16), WHOLE),
        relu(at("arena", 0, 1), at("arena", 40, 2)),
    ],
    "one behind the other": [
        Instruction("", body=3),
        stream(ROW, WHOLE, body=2),
        STEP,
        relu(at("arena", 16, 1), at("arena", 0, 1)),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_stream_is_written_and_read_and_opened(name: str) -> None:
    made = program(*GOOD[name])
    assert Program.from_bytes(made.to_bytes()) == made
    Machine(made.to_bytes()).run("go", [], [], 2)


def test_rows_that_are_still_needed_move_to_the_front() -> None:
    """Of four rows the last three are kept."""
    machine = Machine(program(LOOP, stream((4, 1, 1, 0, -2, 8), WHOLE), STEP).to_bytes())
    machine.run("go", [], [], 1)
    given = np.arange(64, dtype=np.uint8).view(np.float32)
    assert np.array_equal(machine.arena.view(np.float32)[:6], np.maximum(given[2:8], 0))


# -- what is refused -----------------------------------------------------------------------------------------------

BAD = {
    "a stream outside a loop over samples": [stream(), STEP],
    "a stream outside a loop over samples ": [Instruction("", body=2, count=3), stream(), STEP],
    "a stream outside a loop over samples  ": [Instruction("", body=3), stream(body=2), stream(), STEP],
    "a stream that ends behind its loop": [Instruction("", body=1), stream(), STEP],
    "the table of the stream is wrong": [LOOP, stream(iterations=5), STEP],
    "the table of the stream is wrong ": [LOOP, stream((4, 1, 0, 0, 0, 8), WHOLE), STEP],
    "a loop inside a loop": [Instruction("", body=3), stream(body=2), Instruction("", body=1), STEP],
    "a stream around what makes no rows": [LOOP, stream(), relu(at("arena"), at("const", 0, 2))],
    "a stream around what makes no rows ": [LOOP, stream(), relu(at("arena"), at("const"))],
    "a window over no rows": [LOOP, stream(rule=SEES_THREE), relu(at("arena", 0, 1), at("const"))],
    "operand 1 is a value that does not exist": [LOOP, stream(), relu(at("arena", 0, 1), at("const", 0, 3))],
    "operand 1 cannot be in a stream": [
        LOOP,
        stream(),
        Instruction("batch_stats_f32", (at("arena", 0, 1), at("arena", 64), at("const")), (2, 2)),
    ],
    "operand 1 does not have the rows that are needed": [LOOP, stream(ROW, (4, 1, 1, -1, -1, 8), iterations=5), STEP],
    "makes rows that are there already": [LOOP, stream(WHOLE, ROW), relu(at("arena", 0, 1), at("const"))],
    "is not told so where its rows are": [LOOP, stream(rule=(PLACED, 1, 1, 1, 0, 0, 0, 8)), STEP],
    "a window with parameters that do not exist": [LOOP, stream((4, 1, 1, -1, -1, 8), WHOLE, rule=SEES_THREE), STEP],
    "operand 0 has rows of an odd size": [LOOP, stream((4, 1, 1, 0, 0, 6), WHOLE), STEP],
    "operand 1 advances by an odd stride": [LOOP, stream(), relu(at("arena", 0, 1), at("const", 0, 2, 3))],
    "operand 1 needs 80 bytes and has 64": [LOOP, stream(ROW, (4, 0, 1, 4, 0, 24)), STEP],
    "operand 0 needs 160 bytes and has 128": [LOOP, stream((4, 1, 1, 0, -3, 40), WHOLE), STEP],
    "operand 0 needs 400 bytes and has 128": [  # forgetting moves whole rows, whatever the kernel writes of them
        LOOP,
        stream((4, 4, 1, 0, -3, 100), WHOLE, iterations=1),
        relu(at("arena", 0, 1), at("const", 0, 2), 2),
    ],
    "operand 0 overlaps operand 1": [LOOP, stream((4, 1, 1, 0, -1, 8), WHOLE),
                                     relu(at("arena", 24, 1), at("arena", 0, 2))],
    "operand 0 overlaps operand 1 ": [LOOP, stream(), relu(at("arena", 0, 1), at("arena", 0, 2))],
    "operand 0 overlaps operand 1  ": [LOOP, stream(STAYS, WHOLE), relu(at("arena", 0, 1), at("arena", 4, 2))],
    "operand 0 overlaps operand 1   ": [LOOP, stream(STAYS, WHOLE), relu(at("arena", 8, 1), at("arena", 0, 2))],
    "operand 0 overlaps operand 1    ": [  # the last row would be written over rows that are still read
        LOOP, stream((4, 1, 1, 0, -4, 16), WHOLE), relu(at("arena", 0, 1), at("arena", 36, 2))],
    "operand 0 overlaps operand 1     ": [  # two rows at a time
        LOOP, stream((4, 2, 1, 0, -4, 8), WHOLE, iterations=2), relu(at("arena", 0, 1), at("arena", 8, 2))],
    "operand 0 overlaps operand 1      ": [  # rows that move
        LOOP, stream((4, 1, 1, 0, -1, 8), WHOLE), relu(at("arena", 0, 1), at("arena", 8, 2))],
    "operand 0 overlaps operand 1       ": [  # in place, but each row is larger than the one it is made from
        LOOP, stream((4, 1, 1, 0, -4, 16), WHOLE), relu(at("arena", 0, 1), at("arena", 0, 2))],
    "operand 0 overlaps operand 1        ": [  # the kernel writes behind its row
        LOOP, stream((4, 1, 1, 0, -4, 4), WHOLE), relu(at("arena", 0, 1), at("arena", 4, 2))],
    "operand 0 overlaps operand 1         ": [  # samples move, rows do not
        LOOP, stream(STAYS, WHOLE), relu(at("arena", 0, 1, 4), at("arena", 8, 2))],
    "does not fit 32 bits": [LOOP, stream((4, 4, 1, 0, 0, 8), WHOLE, iterations=1),
                             relu(at("arena", 0, 1), at("const", 0, 2), Batch(2**30))],
    "rows outside a stream": [Instruction("", body=1), STEP],
    "rows outside a stream ": [LOOP, relu(at("arena"), at("const"), 2), STEP],
    "ends within a loop": [Instruction("", body=4), stream(), STEP],
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
def test_each_rule_refuses_with_its_own_words(why: str) -> None:
    with pytest.raises(BadProgram, match=why.strip()):
        Machine(program(*BAD[why]).to_bytes())


def upsampled(tall: int, above: int = 8) -> list[Instruction]:
    """Of a row of two floats four, in a stream whose rule tells parameters from `above` on which rows there are."""
    params = (1, 2, 1, 2, 4, 1, 2, 4, 0, 0, 1, 1, 0, 0, 1056964608, 1065353216)  # 0.5 and 1.0
    rows = stream((4, 1, 1, 0, 0, 8), (2, 0, 1, 2, 0, 8), rule=(PLACED, 1, 2, 1, 0, tall, 4, above))
    return [LOOP, rows, Instruction("upsample_nearest2d_f32", (at("arena", 0, 1), at("const", 0, 2)), params)]


def test_only_parameters_that_change_no_size_say_where_rows_are() -> None:
    Machine(program(*upsampled(1)).to_bytes()).run("go", [], [], 1)
    for above in (0, 3, 7, 9, 13):
        with pytest.raises(BadProgram, match="is not told so where its rows are"):
            Machine(program(*upsampled(1, above)).to_bytes())


@pytest.mark.parametrize("word", [STREAM, STREAM | 2 << 16, STREAM | 1 << 16 | 1 << 24])
def test_a_stream_has_a_body_and_a_table_and_nothing_else(word: int) -> None:
    data = bytearray(program(LOOP, stream(), STEP).to_bytes())
    (start,) = struct.unpack_from("<I", data, HEADER.size + 8 * SECTIONS.index("code"))
    assert struct.unpack_from("<I", data, start + 8) == (STREAM | 1 << 16,)
    struct.pack_into("<I", data, start + 8, word)
    with pytest.raises(BadProgram, match="a stream with fields it cannot have"):
        Machine(sealed(data))
    with pytest.raises(BadProgram):
        _ = Program.from_bytes(sealed(data)).entries


def test_python_refuses_a_table_of_another_length() -> None:
    whole = stream()
    made = program(LOOP, replace(whole, table=whole.table[:-1]), STEP)
    with pytest.raises(BadProgram, match="the table of a stream is not understood"):
        _ = Program.from_bytes(made.to_bytes()).entries


# -- networks ------------------------------------------------------------------------------------------------------

NETS = {
    "image": (Varied, (2, 1, 10, 6)),
    "colour": (lambda: Varied(3), (2, 3, 8, 8)),
    "restored": (Restored, (2, 1, 16, 12)),
    "signal": (Signal, (2, 1, 37)),
}


def built(name: str, **options: object) -> Entries:
    torch.manual_seed(0)
    make, shape = NETS[name]
    return api.build(make(), (torch.zeros(shape),), optimizer=SGD(0.1), method="last_layer", **options)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_network_learns_the_same_bits_row_by_row(name: str, rows: int) -> None:
    entries, rng = built(name), np.random.default_rng(0)
    streaming = encode(with_all_streams(entries, rows))
    assert any(i.is_stream for i in streaming.entry_code("train"))
    machines = [Machine(encode(entries).to_bytes()), Machine(streaming.to_bytes())]
    for n in (2, 1, 2):
        x = rng.standard_normal((n, *NETS[name][1][1:])).astype(np.float32)
        y, found = rng.integers(0, 3, n, np.int32), []
        for machine in machines:
            loss, out = np.zeros((), np.float32), np.zeros((n, 3), np.float32)
            machine.run("train", [x, y], [loss], n)
            machine.run("infer", [x], [out], n)
            found.append((loss.tobytes(), out.tobytes(), machine.state.tobytes()))
        assert found[0] == found[1]


@pytest.mark.parametrize("name", ["image", "restored", "signal"])
@pytest.mark.parametrize("rows", [1, 3])
def test_an_input_with_one_channel_is_read_in_order_row_by_row(name: str, rows: int) -> None:
    made = encode(with_all_streams(built(name), rows))
    through, shape = InOrder(made), (2, *NETS[name][1][1:])
    x, y = np.random.default_rng(1).standard_normal(shape).astype(np.float32), np.zeros(2, np.int32)
    losses = [np.zeros((), np.float32), np.zeros((), np.float32)]
    assert through.run("train", [x, y, losses[0]], (True, False, False), 2) == (0, "")
    Machine(made.to_bytes()).run("train", [x, y], [losses[1]], 2)
    assert losses[0].tobytes() == losses[1].tobytes()
    ends = np.cumsum([count for _, count in through.read])
    assert [offset for offset, _ in through.read] == [0, *ends[:-1]]
    assert ends[-1] == x.nbytes
    assert max(count for _, count in through.read) < x.nbytes // 2  # of a sample: never all of it at once


@pytest.mark.parametrize("name", NETS)
def test_a_plan_shows_the_instructions_of_streams_and_no_two_values_in_one_place(name: str) -> None:
    made = encode(with_all_streams(built(name)))
    plan = Plan.from_json(made.meta["plan"])
    for entry, timeline in plan.facts.entries.items():
        code = made.entry_code(entry)
        assert [m.op == "stream" for m in timeline.moments] == [step.is_stream for step in code]
        assert timeline.loop == next(((i, s.body) for i, s in enumerate(code) if s.is_loop), None)
        for a, b in itertools.combinations(timeline.spans, 2):
            together = a.first <= b.last and b.first <= a.last
            assert not together or a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset, (entry, a, b)
        for i, step in enumerate(code):
            for operand in step.operands:
                alive = [s for s in timeline.spans if s.first <= i <= s.last]
                around = [s for s in alive if s.offset <= operand.offset < s.offset + s.bytes]
                assert operand.region != "arena" or len(around) == 1, (entry, i, step)
    assert max(t.peak()[1] for t in plan.facts.entries.values()) == plan.lower_bound_bytes
    kinds = {s.kind for s in plan.facts.entries["infer"].spans}
    assert "rows" in kinds


def test_compile_streams_where_that_takes_less_memory() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip
    example = (torch.zeros(2, 1, 32, 32),)
    made = api.compile(model, example, optimizer=SGD(0.1), method="last_layer", kernels="exact")
    assert any(i.is_stream for i in made.program.entry_code("train"))
    assert made.program.arena_bytes < 32 * 32 * 8 * 4


def test_whole_inputs_come_at_once_and_are_written_over() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 2, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(2 * 16 * 16, 3),
    )  # fmt: skip
    example, x = (torch.zeros(1, 3, 64, 64),), np.random.default_rng(0).standard_normal((1, 3, 64, 64), np.float32)
    image, found = 3 * 64 * 64 * 4, []
    for memory in (Memory(), Memory(whole_inputs=True), Memory(stream=False)):
        made = api.compile(model, example, optimizer=SGD(0.1), method="last_layer", kernels="exact", memory=memory)
        code = made.program.entry_code("infer")
        at_once = bool(code[1].operands) and code[1].operands[1].region == "input"
        found.append((at_once, made.predict(x).tobytes(), made.program.arena_bytes, any(s.is_stream for s in code)))
    rows, whole, layers = found
    assert (rows[0], whole[0]) == (False, True)
    assert rows[1] == whole[1] == layers[1]
    assert (rows[3], whole[3], layers[3]) == (True, True, False)
    assert rows[2] < image < whole[2] < image + image // 3
    assert layers[2] > 2 * image  # a layer and the one before


@pytest.mark.parametrize("name", ["stream", "whole_inputs"])
def test_a_flag_is_true_or_false(name: str) -> None:
    wrong = Memory(**{name: 1})  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=f"{name}=1 is not understood"):
        api.compile(nn.Linear(2, 2), (torch.zeros(1, 2),), memory=wrong)
