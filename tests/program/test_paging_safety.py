"""Pages and memory: the verifier refuses planted faults, the loader refuses programs in which a page could arrive where
memory is in use, and a runner without Python pages too."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from smidgen.compiler import assemble, verify
from smidgen.compiler.encode import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD
from smidgen.compiler.place import arena as place
from smidgen.compiler.place.layout import Layout, Slot
from smidgen.deploy import linux_binary
from smidgen.errors import BadProgram, SmidgenError, UnsafeLayout
from smidgen.program.instructions import Entry, Instruction, Operand
from smidgen.program.program import Program
from smidgen.program.writer import HEADER, PAGES, SECTIONS
from smidgen.runtime.machine import Machine
from smidgen.train.job import Job
from tests.support import small
from tests.support.encoded import sealed
from tests.support.paged import optimizer_state, paged

# -- the verifier ------------------------------------------------------------------------------------------------------


def planned() -> tuple[Entries, dict[str, Layout]]:
    entries = small.entries()
    entries = paged(entries, ahead=4, state=optimizer_state(entries.graphs))
    stored, const_bytes, state_bytes = place.place_state(entries.graphs.values())
    return entries, {
        name: place.place(graph, entries.batch, stored, const_bytes, state_bytes)
        for name, graph in entries.graphs.items()
    }


def prove(entries: Entries, layouts: dict[str, Layout]) -> None:
    made = encode({n: (g, layouts[n]) for n, g in entries.graphs.items()}, entries.batch, {})
    verify.verify(made, entries.graphs, layouts)


def test_pages_alive_together_do_not_share_bytes() -> None:
    entries, layouts = planned()
    prove(entries, layouts)
    graph, layout = entries.graphs["train"], layouts["train"]
    pages = [t for t, slot in layout.slots.items() if slot.region == "page"]
    life = {
        t: [i for i, node in enumerate(graph.nodes) if t in (*node.ins, *node.outs)] for t in pages
    }  # fmt: skip
    kept = {t.name for t in graph.tensors.values() if t.role.is_state}
    refused = 0
    for one in pages:
        for other in pages:
            if one == other or layout.slots[one].offset == layout.slots[other].offset or one in kept:
                continue
            apart = life[one][-1] < life[other][0] or life[other][-1] < life[one][0]
            if apart and other not in kept:
                continue
            moved = {**layout.slots, one: replace(layout.slots[one], offset=layout.slots[other].offset)}
            with pytest.raises((UnsafeLayout, SmidgenError)):
                prove(entries, {**layouts, "train": replace(layout, slots=moved)})
            refused += 1
    assert refused > 20


def test_memory_that_a_page_is_on_its_way_to_is_nobody_elses() -> None:
    """Each buffer, moved onto each tensor that is used between its start and its wait."""
    entries, layouts = planned()
    graph, layout = entries.graphs["train"], layouts["train"]
    room = replace(layout, arena_bytes=2 * layout.arena_bytes)
    refused = 0
    for i, node in enumerate(graph.nodes):
        if node.op != "page_start":
            continue
        buffer = node.outs[0]
        end = next(k for k, n in enumerate(graph.nodes) if n.op == "page_wait" and n.ins[0] == buffer)
        (arrived,) = graph.nodes[end].outs
        used = {t for n in graph.nodes[i + 1 : end] for t in (*n.ins, *n.outs)}
        for other in sorted(used):
            slot = layout.slots.get(other)
            if slot is None or slot.region != "arena" or graph[other].size == 0:
                continue
            here = {name: Slot("arena", slot.offset, layout.slots[name].bytes) for name in (buffer, arrived)}
            # What the buffer becomes afterwards shares its memory, and moves with it.
            later = {o for n in graph.nodes if arrived in n.ins for o in n.outs}
            here |= {o: here[arrived] for o in later if layout.slots.get(o) == layout.slots[arrived]}
            with pytest.raises(SmidgenError):
                prove(entries, {**layouts, "train": replace(room, slots={**layout.slots, **here})})
            refused += 1
    assert refused > 20


def test_a_page_region_one_unit_smaller_is_refused() -> None:
    entries, layouts = planned()
    small_one = {n: replace(v, page_bytes=max(0, v.page_bytes - 512)) for n, v in layouts.items()}
    with pytest.raises(SmidgenError):
        prove(entries, small_one)


# -- the loader --------------------------------------------------------------------------------------------------------


def arena(at: int) -> Operand:
    return Operand("arena", at)


def leaf(at: int) -> Operand:
    return Operand("page", at)


def start(to: int, page: int, count: int = 64) -> Instruction:
    return Instruction("page_start", (arena(to), leaf(page)), (count,))


def wait(to: int, page: int, count: int = 64) -> Instruction:
    return Instruction("page_wait", (arena(to), leaf(page)), (count,))


def relu(to: int, at: int) -> Instruction:
    return Instruction("relu_f32", (arena(to), arena(at)), (16,))


OUT = Instruction("page_out", (leaf(512), arena(0)), (64,))
IN = Instruction("page_in", (arena(0), leaf(512)), (64,))
PROGRAMS: dict[str, tuple[list[Instruction], str]] = {
    "good": ([OUT, start(0, 512), relu(64, 128), wait(0, 512), relu(64, 0), IN], ""),
    "read too early": ([start(0, 512), relu(64, 0), wait(0, 512)], "is used by a page that is on its way"),
    "written too early": ([start(0, 512), relu(0, 64), wait(0, 512)], "is used by a page that is on its way"),
    "touched at its end": ([start(0, 512), relu(60, 128), wait(0, 512)], "is used by a page that is on its way"),
    "page written": ([start(64, 512), OUT, wait(64, 512)], "is used by a page that is on its way"),
    "two to one place": ([start(0, 512), start(32, 1024), wait(0, 512)], "is used by a page that is on its way"),
    "never waited for": ([start(0, 512)], "a page was started that nobody waits for"),
    "never started": ([wait(0, 512)], "no such page was started"),
    "another page": ([start(0, 512), wait(0, 1024)], "no such page was started"),
    "another size": ([start(0, 512), wait(0, 512, 60)], "no such page was started"),
    "waited for twice": ([start(0, 512), wait(0, 512), wait(0, 512)], "no such page was started"),
    "too many": ([start(64 * i, 512 * i) for i in range(5)], "too many pages are on their way"),
    "behind the region": ([Instruction("page_in", (arena(0), leaf(4096)), (4,))], "needs 4 bytes and has 0"),
    "too long": ([Instruction("page_in", (arena(0), leaf(3584)), (516,))], "needs 516 bytes and has 512"),
    "negative": ([Instruction("page_in", (arena(0), leaf(0)), (-4,))], "the parameters are out of range"),
    "odd place": ([Instruction("page_in", (arena(0), leaf(256)), (4,))], "does not start where pages start"),
    "kernel on a page": ([Instruction("relu_f32", (arena(0), leaf(0)), (16,))], "is not where pages are"),
    "page in the arena": ([Instruction("page_in", (arena(0), arena(128)), (16,))], "is not where pages are"),
    "into state": ([Instruction("page_start", (Operand("state", 0), leaf(0)), (16,))], "must be in the arena"),
    "in a loop": ([Instruction("", body=1), IN], "pages inside a loop"),
    "loop over it": ([start(0, 512), Instruction("", body=1), relu(128, 0), wait(0, 512)], "on its way"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_loader_refuses_pages_that_could_hurt(name: str, tmp_path: Path) -> None:
    code, why = PROGRAMS[name]
    program = Program(2, 16, {"train": Entry((), tuple(code))}, b"", b"", 64, 512, {}, b"", 512, 4096)
    data = program.to_bytes()
    assert Program.from_bytes(data) == program
    if not why:
        machine = Machine(data, page_to=tmp_path / "page")
        machine.run("train", [], [], 2)
        machine.run("train", [], [], 1)
        return
    with pytest.raises(BadProgram, match=why):
        Machine(data, page_to=tmp_path / "page")


def changed(data: bytes, change: Callable[[bytearray, int], None]) -> bytes:
    """With something done to the section on pages, and the checksum that belongs to it."""
    file = bytearray(data)
    (at,) = struct.unpack_from("<I", file, HEADER.size + 8 * len(SECTIONS))
    change(file, at)
    return sealed(file)


@pytest.mark.parametrize(
    ("page_bytes", "state_bytes", "why"),
    [
        (2**31, 512, "larger than 2 GB"), (256, 512, "larger than its region"), (4096, 8192, "larger than its region"),
        (4096, 0, "larger than its region"), (512, 512, "needs 64 bytes and has 0"), (0, 0, "has no pages"),
    ],
)  # fmt: skip
def test_sizes_of_pages_are_not_believed(page_bytes: int, state_bytes: int, why: str, tmp_path: Path) -> None:
    program = Program(1, 16, {"train": Entry((), (OUT,))}, b"", b"", 64, 512, {}, bytes(range(8)), 512, 4096)
    wrong = changed(program.to_bytes(), lambda file, at: PAGES.pack_into(file, at, page_bytes, state_bytes))
    with pytest.raises(BadProgram, match=why):
        Machine(wrong, page_to=tmp_path / "page")
    if why != "needs 64 bytes and has 0":  # extents are the runtime's business
        with pytest.raises(BadProgram):
            Program.from_bytes(wrong)


@pytest.mark.parametrize("count", [0, 64])
def test_a_program_that_pages_without_pages_is_refused(count: int) -> None:
    """Even if it moves nothing: without a section there is no pager, so no entry point that pages could run."""
    code = Instruction("page_out", (leaf(0), arena(0)), (count,))
    data = Program(1, 16, {"train": Entry((), (code,))}, b"", b"", 64, 512).to_bytes()
    with pytest.raises(BadProgram, match=r"train, instruction 0, page_out: operand 0 pages, and .* has no pages"):
        Machine(data)
    with pytest.raises(BadProgram, match="an operand pages, and the program has no pages"):
        Program.from_bytes(data)


def test_a_file_cut_within_its_pages_is_refused(tmp_path: Path) -> None:
    data = Program(1, 16, {"train": Entry((), (OUT,))}, b"", b"", 64, 512, {}, bytes(range(8)), 512, 4096).to_bytes()
    for size in range(len(data) - 24, len(data)):
        with pytest.raises(BadProgram):
            Machine(sealed(data[:size]), page_to=tmp_path / "page")
        with pytest.raises(BadProgram):
            Program.from_bytes(sealed(data[:size]))


def test_programs_that_do_not_page_have_the_bytes_they_had() -> None:
    data = assemble.encode(small.entries()).to_bytes()
    assert struct.unpack_from("<I", data, 36) == (len(SECTIONS),)
    assert b"page" not in data


# -- runners -----------------------------------------------------------------------------------------------------------


def test_a_runner_pages_and_leaves_the_same_bits(tmp_path: Path) -> None:
    from tests.support.runner import (
        command,  # which needs torch
        fnv,  # which needs torch
        ready,  # which needs torch
    )

    run = ready("x86_64-linux")
    entries = small.entries(optimizer=SGD(0.1, momentum=0.9))
    program = assemble.encode(paged(entries, ahead=3, state=optimizer_state(entries.graphs)))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, 10).astype(np.int32)
    np.savez(tmp_path / "d.npz", x=x, y=y)
    runner, state, page = tmp_path / "runner", tmp_path / "s.bin", tmp_path / "page"
    linux_binary.build_binary(program, "x86_64-linux", runner)
    told = command(run, runner, "train", "--data", tmp_path / "d.npz", "--epochs", "2", "--state", state,
                   "--page-to", page, "--json")  # fmt: skip
    here, plain = (
        Job(program, kernels="exact", page_to=tmp_path / "own"),
        Job(assemble.encode(entries), kernels="exact"),
    )
    written = here.paged
    for job in (here, plain):
        job.fit(x, y, epochs=2, progress=False)
    found = json.loads(told)
    assert found["state_hash"] == fnv(here.engine.state.copy().tobytes())
    home = Job(program, kernels="exact", page_to=tmp_path / "home")
    home.restore(state)
    for job in (home, here):
        assert job.engine.state.copy().tobytes() == here.engine.state.copy().tobytes()
        np.testing.assert_array_equal(job.predict(x), plain.predict(x))
    steps = 2 * 3
    traffic = here.plan.paged["train"]
    # Steps of fewer samples bring less; saving the state brings what of it lives in pages.
    most = steps * traffic.in_bytes + 2 * program.page_state_bytes
    assert most >= found["paged_in_bytes"] > (steps - 1) * traffic.in_bytes > 0
    assert found["paged_out_bytes"] > written.out_bytes
    # It goes on from the state file; and says what is wrong.
    command(run, runner, "train", "--data", tmp_path / "d.npz", "--state", state, "--page-to", page)
    before = state.read_bytes()
    for words, status, said in (
        ((), 2, "error: the program pages: --page-to FILE is missing\n"),
        (("--page-to", tmp_path / "d.npz"), 1, f"error: {tmp_path / 'd.npz'}: it exists, and is not a page file\n"),
        (("--page-to", tmp_path / "none" / "p"), 1, f"error: {tmp_path / 'none' / 'p'}: No such file or directory\n"),
    ):
        done = subprocess.run([*run, runner, "train", "--data", tmp_path / "d.npz", "--state", state, *words],
                              capture_output=True, text=True)  # fmt: skip
        assert (done.returncode, done.stderr) == (status, said)
    full = subprocess.run(
        [*run, runner, "train", "--data", tmp_path / "d.npz", "--state", state, "--page-to", tmp_path / "new"],
        capture_output=True, text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048)),
    )  # fmt: skip
    assert (full.returncode, full.stderr) == (1, f"error: {tmp_path / 'new'}: File too large\n")
    assert state.read_bytes() == before
