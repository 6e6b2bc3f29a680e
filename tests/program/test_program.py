"""The encoded program and the machine that runs it: round trips, fixed bytes, and small graphs run equal to interp."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smidgen import ops
from smidgen.compiler import assemble
from smidgen.compiler.encode import encode
from smidgen.compiler.graph import interp
from smidgen.compiler.optimizers import Adam
from smidgen.compiler.place.layout import Layout, Slot
from smidgen.errors import BadData, BadProgram, CannotWrite, Internal, RunFailed
from smidgen.ir import Array, DType, Graph, Role, at
from smidgen.ops import N
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program import lazy_json
from smidgen.program.program import Program, trimmed
from smidgen.runtime import library
from smidgen.runtime.machine import Machine
from tests.support import small
from tests.support.encoded import ALIGN, RUNNABLE, Placer, chain, encoded, looped, one_op
from tests.support.libraries import compiled
from tests.support.op_cases import SAMPLES, inputs_of

C = Path(__file__).parents[1] / "c"


def run_machine(machine: Machine, graph: Graph, entry: str, values: Mapping[str, Array], n: int) -> dict[str, Array]:
    outputs = {o: np.full(at(graph[o].shape, n), 99, graph[o].dtype.numpy) for o in graph.outputs}
    inputs = [np.array(values[i], dtype=graph[i].dtype.numpy, order="C") for i in graph.inputs]
    machine.run(entry, inputs, list(outputs.values()), n)
    return outputs


# -- bytes ---------------------------------------------------------------------------------------------------------


def test_a_program_survives_its_bytes() -> None:
    program = encoded({"infer": chain(), "loop": looped()}, 4, {"a": [1, 2.5, "ü"], "b": {"c": (1, 2)}})
    again = Program.from_bytes(program.to_bytes())
    assert again == program
    assert again.meta["b"]["c"] == [1, 2]
    assert [b.name for b in again.entry_buffers("infer")] == ["x", "y", "z", "g"]
    assert again.entry_buffers("loop")[0].shape(3) == (6, 3, 5)
    assert again.entry_code("loop")[0].is_loop


def test_the_same_graphs_give_the_same_bytes() -> None:
    first, second = (encoded({"infer": chain(), "loop": looped()}, 4, {"z": 1, "a": 2}).to_bytes() for _ in "ab")
    assert first == second


def test_saving_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "p.smg"
    program = encoded({"infer": chain()}, 2)
    program.save(path)
    assert Program.load(path) == program
    with pytest.raises(CannotWrite):
        program.save(tmp_path / "missing" / "p.smg")
    assert [p.name for p in tmp_path.iterdir()] == ["p.smg"]
    path.write_bytes(b"")
    with pytest.raises(BadProgram, match=r"p\.smg"):
        Program.load(path)


def test_floats_are_rounded_to_f32_and_zeros_at_the_end_of_state_cost_nothing() -> None:
    b = Builder()
    b.stored("w", np.array([0.1]), Role.PARAM)
    b.stored("m", np.zeros(1000), Role.OPTIM)
    fetch(b, b.add("relu", "w"), "y")
    fetch(b, b.add("relu", "m"), "z")
    program = encoded({"infer": b.graph()}, 1)
    assert program.state == np.float32(0.1).tobytes()
    assert program.state_bytes == 16 + 4000
    machine = Machine(program.to_bytes())
    assert machine.state.view(np.float32)[0] == np.float32(0.1)
    assert not machine.state[4:].any()
    trained = program.with_state(np.full(4016, 7, np.uint8).tobytes())
    assert (Machine(trained.to_bytes()).state == 7).all()


def test_instructions_of_a_training_program_are_small() -> None:
    program = assemble.encode(small.entries(accumulate=True))
    count = sum(len(e.code) for e in program.entries.values())
    tables = program.flash_bytes - program.const_bytes - len(program.state)
    assert tables <= 64 * count  # names, parameters and entry points included


def test_parameters_are_shared_between_instructions() -> None:
    b = Builder()
    x = feed(b, "x", (N, 4))
    for i in range(3):
        x = b.add("relu", x, name=f"r{i}")
    fetch(b, x, "y")
    program = encoded({"infer": b.graph()}, 2)
    assert len(program.blocks) == 2  # the copies and the relus
    assert program.kernels == ("copy_b4", "relu_f32")


def test_encode_refuses_layouts_that_break_its_rules() -> None:
    graph = chain()
    layout = Placer().place(graph, 2)
    short = {**layout.slots, "v.relu": Slot("arena", 0, 8)}
    with pytest.raises(Internal, match="needs 480 bytes"):
        encode({"infer": (graph, Layout(short, {}, 64, 64, 9999, 0, ALIGN))}, 2, {})
    moved = {**layout.slots, "w": Slot("state", 64, 28)}
    with pytest.raises(Internal, match="different places"):
        encode({"a": (graph, layout), "b": (graph, Layout(moved, {}, 64, 128, 9999, 0, ALIGN))}, 2, {})


# -- running -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["end", "start"])
@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_graph_runs_like_interp(n: int, guard: Any) -> None:
    graph = chain()
    machine = Machine(encoded({"infer": graph}, 4).to_bytes(), guard=guard)
    x = np.random.default_rng(0).standard_normal((n, 3, 4, 5)).astype(np.float32)
    want = interp.run(graph, {"x": x}, n=n, dtype=np.float32)
    for name, got in run_machine(machine, graph, "infer", {"x": x}, n).items():
        np.testing.assert_array_equal(got, want[name])


@pytest.mark.parametrize("dtype", [DType.F32, DType.U8])
@pytest.mark.parametrize("per_sample", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_loop_runs_once_per_sample_with_strides(n: int, per_sample: int, dtype: DType) -> None:
    graph = looped(dtype, per_sample)
    machine = Machine(encoded({"infer": graph}, 5).to_bytes())
    x = np.random.default_rng(1).standard_normal((n * per_sample, 3, 5)) * 100
    x = x.astype(np.uint8 if dtype is DType.U8 else np.float32)
    want = interp.run(graph, {"x": x}, n=n, dtype=np.float32)
    for name, got in run_machine(machine, graph, "infer", {"x": x}, n).items():
        np.testing.assert_array_equal(got, want[name])


@pytest.mark.parametrize("op", RUNNABLE, ids=lambda op: op.name)
def test_every_op_runs_in_a_program(op: ops.Op) -> None:
    for case in op.cases:
        n = SAMPLES
        arrays = inputs_of(op, case)
        graph, fed = one_op(op, case, arrays)
        program = encoded({"step": graph}, n)
        assert Program.from_bytes(program.to_bytes()) == program
        machine = Machine(program.to_bytes())
        got = run_machine(machine, graph, "step", fed, n)
        want = interp.run(graph, fed, n=n)
        for name, value in got.items():
            scale = max(1e-30, float(np.abs(np.nan_to_num(np.asarray(want[name], np.float64))).max(initial=0.0)))
            np.testing.assert_allclose(
                value, want[name], rtol=case.tolerance * 10, atol=case.tolerance * scale, err_msg=f"{op.name} {case}"
            )


def test_entries_share_state_and_reset_restores_it() -> None:
    graph = chain()
    machine = Machine(encoded({"one": graph, "two": graph}, 2).to_bytes())
    before = machine.state.copy()
    machine.state.view(np.float32)[:7] = 5
    x = np.zeros((2, 3, 4, 5), np.float32)
    assert run_machine(machine, graph, "two", {"x": x}, 2)["z"].tolist() == [5] * 7
    machine.reset()
    np.testing.assert_array_equal(machine.state, before)
    assert not machine.arena.any()


def test_a_file_is_used_where_it_lies(tmp_path: Path) -> None:
    graph = chain()
    program = encoded({"infer": graph}, 2)
    program.save(tmp_path / "p.smg")
    machine = Machine(tmp_path / "p.smg")
    assert machine.mapped_bytes == program.state_bytes + program.arena_bytes
    x = np.ones((1, 3, 4, 5), np.float32)
    assert run_machine(machine, graph, "infer", {"x": x}, 1)["y"].sum() == 60
    view = machine.state
    machine.close()
    assert view.view(np.float32)[0] == -3  # a view keeps its memory
    with pytest.raises(RunFailed, match="closed"):
        machine.run("infer", [], [], 1)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", 'a "quoted" one', "]}[{", "ends with \\", ',"facts":{', "new\nline"])
def test_figures_of_a_plan_are_read_without_its_facts(tmp_path: Path, name: str, monkeypatch: Any) -> None:
    plan = {"a": 1, "facts": {"rows": [[1, 2], [], [3, [4]]], "strings": [name, "}"]}, "ram_bytes": 7, "z": [name]}
    meta = {"loss": {name: 1}, "plan": plan, "state": {name: {"facts": {"a": []}}}}
    path = tmp_path / "net.smg"
    encoded({"infer": chain()}, 4, meta).save(path)
    seen: list[bytes] = []
    read = lazy_json.decoded

    def decoded(text: bytes) -> Any:
        seen.append(text)
        return read(text)

    monkeypatch.setattr(lazy_json, "decoded", decoded)
    found = Program.open(path)
    assert found.figures == {key: value for key, value in plan.items() if key != "facts"}
    assert "plan" in found.meta
    assert found.meta["state"] == meta["state"]
    assert not any(b"rows" in text for text in seen)
    assert dict(found.meta) == meta
    assert found.to_bytes() == path.read_bytes()
    assert Program.load(path).figures == plan


@pytest.mark.parametrize(
    "text", ["", "1", "{}", '{"a":1', '{"a":}', '{"a":1,}', '{"a":1}}', '{"a":[1}', "{1:2}", '{"a"']
)
def test_what_is_not_written_as_smidgen_does_is_no_list_of_pieces(text: str) -> None:
    with pytest.raises(lazy_json.Unusual):
        lazy_json.pieces(text.encode())


def test_pieces_are_the_values_of_an_object() -> None:
    value = {
        "a": 1.5,
        "b": [1, [2, {"c": "]"}]],
        "ü\\": {"x": {}, "y": []},
        "d": None,
        "e": 'a"b',
        "f": True,
        "g": -1e-9,
    }
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    assert {key: json.loads(piece) for key, piece in lazy_json.pieces(text).items()} == value
    assert dict(lazy_json.Pieces(text)) == value


def test_wrong_arrays_are_refused_with_their_names() -> None:
    graph = chain()
    machine = Machine(encoded({"infer": graph}, 2).to_bytes())
    outs = [np.zeros(at(graph[o].shape, 2), np.float32) for o in graph.outputs]
    x = np.zeros((2, 3, 4, 5), np.float32)
    with pytest.raises(BadData, match=r"'x' is float64"):
        machine.run("infer", [x.astype(np.float64)], outs, 2)
    with pytest.raises(BadData, match=r"'x' is float32\[1, 3, 4, 5\]"):
        machine.run("infer", [x[:1]], outs, 2)
    with pytest.raises(BadData, match="contiguous"):
        machine.run("infer", [np.zeros((5, 4, 3, 2), np.float32).T], outs, 2)
    with pytest.raises(BadData, match="takes 4 arrays"):
        machine.run("infer", [x], outs[:1], 2)
    with pytest.raises(BadData, match="1 to 2"):
        machine.run("infer", [x], outs, 3)
    with pytest.raises(BadData, match="did you mean 'infer'"):
        machine.run("inferr", [x], outs, 2)
    with pytest.raises(BadData, match="fewer samples"):
        machine.run("infer", [x], outs, 2, 1)
    with pytest.raises(BadData, match="fewer samples"):
        machine.run("infer", [x], outs, 2, 4, 3)
    machine.run("infer", [x], outs, 2, 4, 2)


def test_a_missing_kernel_is_refused_by_name() -> None:
    data = encoded({"infer": chain()}, 2).to_bytes()
    renamed = Program.from_bytes(data)
    assert "relu_f32" in renamed.kernels
    code = tuple(
        type(i)(i.kernel.replace("relu_f32", "relu_f64"), i.operands, i.params) for i in renamed.entry_code("infer")
    )
    entry = type(renamed.entries["infer"])(renamed.entry_buffers("infer"), code)
    bad = Program(
        renamed.batch, renamed.align, {"infer": entry}, renamed.const, renamed.state, renamed.state_bytes,
        renamed.arena_bytes, {},
    )  # fmt: skip
    with pytest.raises(BadProgram, match="no kernel 'relu_f64'"):
        Machine(bad.to_bytes())


def test_a_complaint_of_a_kernel_names_entry_instruction_and_kernel() -> None:
    b = Builder()
    w = b.const("w", np.ones((4, 2)))
    index = feed(b, "index", (N,), DType.I32)
    fetch(b, b.add("embedding", w, index), "y")
    machine = Machine(encoded({"look": b.graph()}, 2).to_bytes())
    with pytest.raises(RunFailed, match=r"look, instruction 1, embedding_f32: "):
        machine.run("look", [np.array([1, 4], np.int32)], [np.zeros((2, 2), np.float32)], 2)


# -- cost ----------------------------------------------------------------------------------------------------------


def test_a_call_takes_few_steps_of_python() -> None:
    """Microseconds, that is; counted, because a clock would tell of what else the machine does."""
    graph = chain()
    machine = Machine(encoded({"infer": graph}, 2).to_bytes())
    x = np.zeros((2, 3, 4, 5), np.float32)
    outs = [np.zeros(at(graph[o].shape, 2), np.float32) for o in graph.outputs]
    machine.run("infer", [x], outs, 2)  # looks up what later calls know
    calls: list[str] = []
    sys.setprofile(lambda _, event, __: calls.append(event) if event in ("call", "c_call") else None)
    try:
        machine.run("infer", [x], outs, 2)
    finally:
        sys.setprofile(None)
    assert len(calls) < 20, len(calls)


def test_the_context_is_small() -> None:
    assert library.context_bytes() <= 2048
    assert library.stack_bytes() <= 4096


@pytest.fixture(scope="session", params=["as installed", "cc -O0", "tcc"])
def some_library(request: pytest.FixtureRequest) -> Path:
    if request.param == "as installed":
        return library.library_path()
    cc, *flags = request.param.split()
    if shutil.which(cc) is None:
        pytest.skip(f"needs {cc}")
    return compiled(cc, flags)


def test_no_kernel_needs_more_stack_than_declared(some_library: Path) -> None:
    used = {}
    for op in RUNNABLE:
        for case in op.cases:
            graph, fed = one_op(op, case, inputs_of(op, case))
            machine = Machine(encoded({"step": graph}, SAMPLES).to_bytes(), some_library)
            inputs = [np.array(fed[i], dtype=graph[i].dtype.numpy, order="C") for i in graph.inputs]
            outputs = [np.zeros(at(graph[o].shape, SAMPLES), graph[o].dtype.numpy) for o in graph.outputs]
            used[op.name] = max(used.get(op.name, 0), machine.stack_used("step", inputs, outputs, SAMPLES))
    assert min(used.values()) > 200
    assert {name: count for name, count in used.items() if count > library.stack_bytes()} == {}


def test_checking_another_number_of_samples_stays_within_the_declared_stack(some_library: Path) -> None:
    machine = Machine(encoded({"infer": looped()}, 2).to_bytes(), some_library)
    x, y, z = (np.zeros(shape, np.float32) for shape in ((2, 3, 5), (2, 5, 3), (2, 3, 5)))
    assert 0 < machine.stack_used("infer", [x], [y, z], 1) <= library.stack_bytes()


def test_training_allocates_nothing_and_every_compiler_gives_the_same_bits(tmp_path: Path) -> None:
    entries = small.entries(optimizer=Adam(0.01), accumulate=True, dropout=0.3)
    program = assemble.encode(entries)
    program.save(tmp_path / "p.smg")
    printed = {}
    for command in ("cc -O0", "tcc"):
        cc, *flags = command.split()
        if shutil.which(cc) is None:
            continue
        harness = compiled(cc, flags, [C / "harness.c"])
        done = subprocess.run([harness, tmp_path / "p.smg", "7"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed[command] = done.stdout
        assert f"mapped_bytes {program.state_bytes + program.arena_bytes}\n" in done.stdout
    assert len(set(printed.values())) == 1


@pytest.mark.parametrize("length", [0, 4, 1 << 16, (1 << 16) + 4, 3 << 16, (3 << 16) + 12])
def test_zeros_at_the_end_of_state_are_not_stored(length: int) -> None:
    for last in {k for k in (-1, 0, 3, 5, length // 2, length - (1 << 16), length - 1) if k < length}:
        state = bytearray(length)
        if last >= 0:
            state[last] = 1
        assert trimmed(memoryview(state)) == trimmed(bytes(state)) == bytes(state[: last // 4 * 4 + 4])


def test_the_library_is_bound_once() -> None:
    assert library.library() is library.library(None) is library.library(library.library_path())
