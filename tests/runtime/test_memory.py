"""Memory at run time: STATE and ARENA between guard pages, nothing allocated after open, RAM exactly as planned.

The loader and the verifier prove this on paper; here the operating system watches whole networks train.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import multiprocessing
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from smidgen import api
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD, Adam
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.passes.train_graph import lowered, train_graph
from smidgen.compiler.place import arena as place
from smidgen.deploy.linux_binary import HOST_ONLY
from smidgen.errors import BadProgram, UnsafeLayout
from smidgen.ir import Array, Batch, DType, Role
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.plan import Plan
from smidgen.program.program import Program
from smidgen.runtime import library
from smidgen.runtime.build import EXACT, HERE, sources
from smidgen.runtime.machine import Machine
from tests.support import small
from tests.support.layouts import planned, prove
from tests.support.libraries import compiled

C = Path(__file__).parents[1] / "c"
BATCH = 3
NAMES = ["small", "lenet5", "dscnn", "encoder"]
ENTRIES = ["infer", "train", "zero", "grad", "apply", "evaluate"]
Guard = Literal["end", "start"]


@functools.cache
def entries(name: str) -> Entries:
    """Graphs of a network with every entry point; DS-CNN measures its batch-norm statistics, LeNet-5 uses Adam."""
    if name == "small":
        return small.entries(batch=BATCH, accumulate=True, dropout=0.2, evaluate=True)
    from benchmarks.nets import NETS

    net = NETS[name]
    optimizer = Adam(1e-3) if name == "lenet5" else SGD(0.01, momentum=0.9)
    bn = "batch" if name == "dscnn" else "frozen"
    x, _ = net.data(BATCH)
    return api.build(net.model(), x, loss=net.loss, optimizer=optimizer, bn=bn, accumulate=True)


@functools.cache
def program(name: str) -> Program:
    return encode(entries(name))


@pytest.fixture(params=NAMES)
def made(request: pytest.FixtureRequest) -> Program:
    return program(request.param)


def calls(machine: Machine, n: int, seed: int) -> Iterator[tuple[str, list[Array], list[Array]]]:
    """Every entry with arrays for n samples. Integers are 0 or 1: valid labels and tokens of every network here."""
    rng = np.random.default_rng(seed)
    for entry, wanted in machine.entries.items():
        arrays = []
        for w in wanted:
            whole = w.dtype.kind != "f"
            value = rng.integers(0, 2, w.shape(n)) if whole else rng.standard_normal(w.shape(n))
            arrays.append(np.array(value, w.dtype, order="C"))
        yield (
            entry,
            [a for a, w in zip(arrays, wanted, strict=True) if not w.is_output],
            [a for a, w in zip(arrays, wanted, strict=True) if w.is_output],
        )


def spawned(function: Callable[..., None], *args: Any) -> int:
    """Exit status of a process of its own; minus the signal that ended it."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=args)
    process.start()
    process.join(120)
    assert process.exitcode is not None, "the process hangs"
    return process.exitcode


# Guard pages.


def train(path: Path, guard: Guard, report: Path) -> None:
    """Five rounds of all entries, with full and partial batches; writes a hash of STATE and ARENA."""
    machine = Machine(path, guard=guard)
    for seed, n in enumerate((BATCH, 1, BATCH - 1, BATCH, 1)):
        for entry, inputs, outputs in calls(machine, n, seed):
            machine.run(entry, inputs, outputs, n)
    report.write_text(hashlib.sha256(machine.state.tobytes() + machine.arena.tobytes()).hexdigest())


@pytest.mark.parametrize("name", ["small", "lenet5", "dscnn"])
def test_training_stays_between_guard_pages_flush_with_either_end(name: str, tmp_path: Path) -> None:
    program(name).save(tmp_path / "p.smg")
    seen = set()
    guards: tuple[Guard, Guard] = ("end", "start")
    for guard in guards:
        assert spawned(train, tmp_path / "p.smg", guard, tmp_path / guard) == 0
        seen.add((tmp_path / guard).read_text())
    assert len(seen) == 1, "the bits depend on where memory lies"


def touch(path: Path, guard: Guard, region: str, report: Path) -> None:
    """Write the first and the last byte of a region, then read the one beyond the guarded end."""
    machine = Machine(path, guard=guard)
    view = getattr(machine, region)
    view[0] = view[-1] = 1
    report.write_text("the region itself is writable")
    beyond = view.ctypes.data + (len(view) if guard == "end" else -1)
    report.write_text(f"read {ctypes.c_uint8.from_address(beyond).value}")


@pytest.mark.parametrize("region", ["state", "arena"])
@pytest.mark.parametrize("guard", ["end", "start"])
def test_one_byte_outside_a_region_ends_the_process(guard: Guard, region: str, tmp_path: Path) -> None:
    program("small").save(tmp_path / "p.smg")
    assert spawned(touch, tmp_path / "p.smg", guard, region, tmp_path / "said") == -signal.SIGSEGV
    assert (tmp_path / "said").read_text() == "the region itself is writable"


def mappings() -> list[tuple[int, int, str]]:
    """(start, end, rights) of everything that this process has mapped."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights = line.split()[:2]
        start, end = (int(x, 16) for x in place.split("-"))
        found.append((start, end, rights))
    return found


@pytest.mark.parametrize("guard", ["end", "start"])
def test_the_system_maps_whole_pages_of_each_region_and_no_more(made: Program, guard: Guard) -> None:
    machine = Machine(made.to_bytes(), guard=guard)
    page, found = mmap.PAGESIZE, mappings()
    for view in (machine.state, machine.arena):
        at = next(i for i, (start, end, _) in enumerate(found) if start <= view.ctypes.data < end)
        start, end, rights = found[at]
        assert (rights, end - start) == ("rw-p", -(-len(view) // page) * page)
        assert found[at - 1][1:] == (start, "---p")
        assert (found[at + 1][0], found[at + 1][2]) == (end, "---p")
        flush = start if guard == "start" else end - len(view)
        assert view.ctypes.data == flush


# Allocation.


@pytest.fixture(scope="module")
def harness() -> Path:
    return compiled("", ("-O0",), [C / "harness.c"])


def test_training_allocates_nothing_after_open(made: Program, harness: Path, tmp_path: Path) -> None:
    made.save(tmp_path / "p.smg")
    done = subprocess.run([harness, tmp_path / "p.smg", "4"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split() for line in done.stdout.splitlines())
    mapped, context = int(said["mapped_bytes"]), int(said["context_bytes"])
    assert mapped + context + library.stack_bytes() == Plan.from_json(made.meta["plan"]).ram_bytes


@pytest.fixture(scope="module")
def careless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same harness, but every step calls the allocator that the environment names."""
    folder = tmp_path_factory.mktemp("careless")
    shutil.copy(C / "harness.c", folder / "sound.c")
    (folder / "careless.c").write_text("""
        #define _GNU_SOURCE
        #include "ports/posix.h"
        #include <stdlib.h>
        #include <string.h>
        #include <sys/mman.h>
        static void *volatile got;
        static SmgStatus careless(SmgContext *x, int entry, const SmgBuffer *buffers, int count, SmgSamples samples) {
            const char *how = getenv("ALLOCATE");
            if (!strcmp(how, "malloc")) got = malloc(1);
            if (!strcmp(how, "calloc")) got = calloc(1, 1);
            if (!strcmp(how, "realloc")) got = realloc(got, 1);
            if (!strcmp(how, "mmap")) got = mmap(NULL, 1, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            return smg_run(x, entry, buffers, count, samples);
        }
        #define smg_run careless
        #include "sound.c"
    """)
    return compiled("", ("-O0",), [folder / "careless.c"])


@pytest.mark.parametrize("how", ["malloc", "calloc", "realloc", "mmap"])
def test_an_allocation_after_open_ends_the_harness(how: str, careless: Path, tmp_path: Path) -> None:
    program("small").save(tmp_path / "p.smg")
    command = [careless, tmp_path / "p.smg"]
    done = subprocess.run(command, env={"ALLOCATE": how}, capture_output=True, text=True)
    assert (done.returncode, done.stderr, done.stdout) == (3, f"{how} was called after open\n", "")
    assert subprocess.run(command, env={"ALLOCATE": "nothing"}, capture_output=True).returncode == 0


def test_the_runtime_calls_nothing_but_functions_on_memory(tmp_path: Path) -> None:
    """So there is no allocator, file or thread that it could use; ports are the system's side of it."""
    cc, missing, defined = shutil.which("cc") or "cc", set(), set()
    paths = [path for path in sources() if path.parent.name != "ports" and path.stem not in HOST_ONLY]
    command = [cc, *EXACT, "-O0", "-fno-stack-protector", f"-I{HERE}", "-c", *paths]
    subprocess.run(command, cwd=tmp_path, check=True)
    listed = subprocess.run(["nm", "-P", *tmp_path.glob("*.o")], capture_output=True, text=True, check=True)
    for line in listed.stdout.splitlines():
        name, _, kind = line.partition(" ")
        (missing if kind.startswith("U") else defined).add(name)
    table = {"smg_kernels", "smg_kernel_inplace", "smg_kernel_count"}  # written by compile.py for each build
    assert missing - defined - table - {"_GLOBAL_OFFSET_TABLE_"} == {"memcpy", "memmove", "memset", "strcmp"}


# Sizes.


def test_ram_planned_is_mapped_plus_context_plus_stack_to_the_byte(made: Program) -> None:
    plan, machine = Plan.from_json(made.meta["plan"]), Machine(made.to_bytes())
    assert (plan.state_bytes, plan.arena_bytes) == (len(machine.state), len(machine.arena))
    assert plan.arena_bytes == max(plan.arena_by_entry.values())
    assert (plan.context_bytes, plan.stack_bytes) == (library.context_bytes(), library.stack_bytes())
    assert plan.ram_bytes == machine.mapped_bytes + library.context_bytes() + library.stack_bytes()


def test_every_entry_stays_within_the_declared_stack(made: Program) -> None:
    machine = Machine(made.to_bytes())
    assert list(machine.entries) == ENTRIES
    used = {}
    for n in (BATCH, 1):  # a new number of samples is proved safe first, on the same stack
        for entry, inputs, outputs in calls(machine, n, n):
            used[entry, n] = machine.stack_used(entry, inputs, outputs, n)
    assert min(used.values()) > 0, "not measured"
    assert {call: count for call, count in used.items() if count > library.stack_bytes()} == {}


def test_a_plan_of_lenet_one_alignment_unit_smaller_is_refused() -> None:
    net = entries("lenet5")
    layouts = planned(net)
    prove(net, layouts)
    top = max(layout.arena_bytes for layout in layouts.values())
    shrunk = {n: replace(v, arena_bytes=min(v.arena_bytes, top - v.align)) for n, v in layouts.items()}
    with pytest.raises(UnsafeLayout, match="an access outside its region"):
        prove(net, shrunk)


def test_the_runtime_refuses_a_program_whose_arena_is_one_alignment_unit_smaller(made: Program) -> None:
    with pytest.raises(BadProgram, match="instruction"):
        Machine(replace(made, arena_bytes=made.arena_bytes - made.align).to_bytes())


# Lifetimes that the networks above do not need.


def test_a_value_made_before_the_loop_lives_until_its_last_iteration() -> None:
    b = Builder()
    x = feed(b, "x", (Batch(1), 8))
    made = b.add("mul", b.stored("a", np.ones((8, 8)), Role.PARAM), b.stored("b", np.ones((8, 8)), Role.PARAM))
    h = b.add("linear", x, made)  # the only reader, at the start of every iteration
    h = b.add("linear", h, b.const("wide", np.ones((32, 8))))
    fetch(b, b.add("mean", h, axes=(1,), keepdim=False), "y")
    graph = lowered(b.graph())
    ops = [node.op for node in graph.nodes]
    assert ops.index("mul") < ops.index("loop") < ops.index("linear")
    stored, const_bytes, state_bytes = place.place_state([graph])
    layout = place.place(graph, BATCH, stored, const_bytes, state_bytes)
    prove(Entries({"infer": graph}, BATCH, "", (), {}, {}, ()), {"infer": layout})


def test_working_memory_of_a_kernel_is_kept_apart_from_what_is_alive() -> None:
    b = Builder()
    x = feed(b, "x", (Batch(1), 5, 4, 6))
    scale = b.stored("scale", np.ones(6), Role.PARAM)
    h = b.add("group_norm", x, scale, b.const("shift", np.zeros(6)), groups=3, eps=1e-5)
    h = b.add("mean", h, axes=(1, 2), keepdim=False)
    target = feed(b, "target", (Batch(1),), DType.I32)
    loss = b.add("cross_entropy", h, target, **small.LOSS)
    fetch(b, loss, "loss")
    whole, grads = autodiff(b.graph(), loss, ["scale"])
    net = Entries({"train": train_graph(whole, grads, SGD(0.1))}, BATCH, "", (), {}, {}, ())
    layouts = planned(net)
    assert layouts["train"].scratch
    prove(net, layouts)
