"""Planted faults are each caught by a named test: one change to a copy of the sources, one test that must then fail.

Needs a C compiler; with tcc a build of the runtime takes half a second.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.copies import copied

SOURCES = "src/smidgen"

PARITY = "tests/acceptance/test_pipeline.py::test_c_runtime_follows_the_interpreter_with_full_and_partial_batches"
MOMENTUM = f"{PARITY}[w1-b1-w2-b2-w3-b3-SGD-momentum-None0]"
ADAM = f"{PARITY}[w1-b1-w2-b2-w3-b3-Adam-adam-None]"
LOOPED = f"{PARITY}[w3-b3-SGD-momentum-None0]"
PARTS = "tests/acceptance/test_pipeline.py::test_a_batch_in_parts_gives_the_same_bits_as_the_whole"
SAVED = "tests/acceptance/test_pipeline.py::test_saved_state_continues_where_it_was"
KERNEL = "tests/ops/test_ops.py::test_c_kernel_equals_ref_and_declares_its_extents"
GRADIENT = "tests/ops/test_ops.py::test_gradient_equals_finite_differences"
PLANS = "tests/place/test_verify.py::test_plans_are_accepted[w1-b1-w2-b2-w3-b3]"
LOOPED_PLANS = "tests/place/test_verify.py::test_plans_are_accepted[w3-b3]"
MEMORY = "tests/runtime/test_memory.py::test"
PAGES = "tests/train/test_paging.py::test"
SAFETY = "tests/program/test_paging_safety.py::test"
STREAMED = "tests/acceptance/test_generated_streams.py::test_random_streams_of_random_networks_give_the_same_bits[0]"
LEARNED = "tests/acceptance/test_generated_learning_streams.py::test_streams_of_a_few_networks_learn_the_same_bits"
TILED = (
    "tests/acceptance/test_generated_tiles.py::test_random_chains_of_random_networks_learn_the_same_bits_in_tiles[0]"
)
UPDATED = "tests/passes/test_tiles.py::test"
FIT = "tests/train/test_fit.py::test"
LADDER = "tests/train/test_ladder.py::test"


@dataclass(frozen=True)
class Fault:
    """`old` stands exactly once in `file`; with `new` in its place `test` must fail."""

    what: str
    file: str
    old: str
    new: str
    test: str


FAULTS = [
    # Gradients.
    Fault(
        "wrong sign in a C kernel", "runtime/kernels/loss.c", "dx[t] -= take;", "dx[t] += take;",
        f"{KERNEL}[cross_entropy_dx-0]",
    ),
    Fault(
        "wrong sign in a gradient rule", "ops/binary.py", 'return [da, db and b.add("neg", db)]', "return [da, db]",
        f"{GRADIENT}[sub-0]",
    ),
    Fault(
        "missing fan-out add", "compiler/passes/autodiff.py",
        'grads[name] = b.add("add", grads[name], grad, name=f"d:{name}") if name in grads else grad',
        "grads[name] = grad",
        "tests/passes/test_autodiff.py::test_gradients_add_at_fan_out",
    ),
    Fault(
        "only the first gradient of a weight used twice", "compiler/passes/autodiff.py",
        'grads[name] = b.add("add", grads[name], grad, name=f"d:{name}") if name in grads else grad',
        "grads.setdefault(name, grad)",
        "tests/passes/test_autodiff.py::test_a_weight_used_twice_gets_the_sum_of_both_gradients",
    ),
    Fault(
        "gradient of a broadcast not summed", "ops/binary.py",
        "sum_to(b, rule(b, node, dy), b[x].shape) if b.need(x)", "rule(b, node, dy) if b.need(x)",
        f"{GRADIENT}[add-2]",
    ),
    Fault(
        "off-by-one padding", "runtime/kernels/conv.c",
        "int32_t h0, h1, iw = -v->PL;", "int32_t h0, h1, iw = 1 - v->PL;",
        f"{KERNEL}[conv2d-0]",
    ),
    Fault(
        "gradient of the image at the wrong tap", "runtime/kernels/conv.c",
        "conv_meets(ih, v->PT, 0, v->KH, v->SH, v->DH)", "conv_meets(ih, v->PL, 0, v->KH, v->SH, v->DH)",
        f"{KERNEL}[conv2d_dx-4]",
    ),
    Fault(
        "a threshold that includes its bound", "runtime/kernels/activation.c",
        ": (x > lo) & (x < hi);", ": (x >= lo) & (x < hi);", MOMENTUM,
    ),
    Fault(
        "dropout redrawn in the backward pass", "ops/random.py",
        "node.ins[1], **node.attrs)", 'node.ins[1], **{**node.attrs, "key": node.attrs["key"] + 1})',
        f"{GRADIENT}[dropout-0]",
    ),
    # Updates.
    Fault(
        "update before a late reader", "compiler/passes/update.py",
        "position = max(position, *(read_at.get(name, -1) for name in overwritten))", "pass",
        "tests/passes/test_update.py::test_an_update_waits_for_the_last_reader_of_the_weight",
    ),
    Fault(
        "momentum not applied", "runtime/kernels/update.h", "return beta1 * m + d;", "return d;", MOMENTUM,
    ),
    Fault(
        "bias correction of Adam one step late", "runtime/kernels/sink.h",
        "counter[1] > 0 ? (uint32_t)counter[1] + 1u : 1u", "counter[1] > 0 ? (uint32_t)counter[1] : 1u", ADAM,
    ),
    Fault(
        "steps not counted", "compiler/passes/update.py",
        'nodes.append(_update(b, "count_step", (COUNTER,), {}))', "pass", ADAM,
    ),
    Fault(
        "running statistics written twice", "compiler/torch_import/aten/layers.py",
        'moved = t.add_many("running_stats", *stats, *now, momentum=float(momentum), count=count, use=use)',
        'for _ in "12": stats = moved = list(t.add_many('
        '"running_stats", *stats, *now, momentum=float(momentum), count=count, use=use))',
        "tests/cli/test_cli.py::test_batch_statistics_pass_and_json_has_the_documented_keys",
    ),
    Fault(
        "running variance left biased", "runtime/kernels/batch_norm.c",
        "take * (var[l] * unbiased)", "take * var[l]", f"{KERNEL}[running_stats-0]",
    ),
    Fault(
        "optimizer state not saved", "train/job.py",
        "self.program.with_state(self.engine.whole()).save(place)", "self.program.save(place)", SAVED,
    ),
    # Batches that are not full, or come in parts.
    Fault(
        "partial batch counted as full: sizes", "runtime/vm.c",
        "&(const Where){.scale = n}", "&(const Where){.scale = smg_batch(x)}",
        MOMENTUM,
    ),
    Fault(
        "partial batch counted as full: mean", "runtime/vm.c",
        "SmgCall c = {.run = {n, total, before},", "SmgCall c = {.run = {n, smg_batch(x), before},", MOMENTUM,
    ),
    Fault(
        "mean over a part instead of the whole batch", "runtime/kernels/loss.c",
        "counted / (double)run.n * (double)run.total : counted", "counted : counted", f"{PARTS}[0.0-SGD-sgd]",
    ),
    Fault(
        "every part draws the mask of the first", "runtime/vm.c",
        "SmgCall c = {.run = {n, total, before},", "SmgCall c = {.run = {n, total, 0},", f"{PARTS}[0.4-SGD-sgd]",
    ),
    Fault(
        "accumulators not cleared", "train/engine.py",
        'self.machine.run("zero", [], [], 1, 1)', "pass", f"{PARTS}[0.0-SGD-sgd]",
    ),
    # Pages.
    Fault(
        "a page gives up its place before it came back", "compiler/place/arena.py",
        "families.graph[top].bytes(batch)), birth[top], death[top])",
        "families.graph[top].bytes(batch)), birth[top], birth[top])",
        f"{PAGES}_it_does_not_matter_when_a_page_arrives[prefetch0]",
    ),
    Fault(
        "the verifier looks away while a page arrives", "compiler/verify.py",
        "self._check_started(node, accesses)", "pass",
        f"{SAFETY}_memory_that_a_page_is_on_its_way_to_is_nobody_elses",
    ),
    Fault(
        "the loader does not ask who waits", "runtime/check.c",
        "if (c.pending) {", "if (0) {",
        f"{SAFETY}_the_loader_refuses_pages_that_could_hurt[never waited for]",
    ),
    Fault(
        "the loader lets anybody touch what arrives", "runtime/check.c",
        "if (bytes && s->bytes && !is_apart", "if (0 && !is_apart",
        f"{SAFETY}_the_loader_refuses_pages_that_could_hurt[read too early]",
    ),
    Fault(
        "a failed step leaves its pages on their way", "runtime/pages.c",
        "if (x->pager && x->pager->wait)", "if (0)",
        f"{PAGES}_whenever_the_disk_fails_the_state_is_that_before_the_step",
    ),
    Fault(
        "a failed step leaves half of its updates", "train/engine.py",
        "undo.bring_back(self.machine.state)", "pass",
        f"{PAGES}_whenever_the_disk_fails_the_state_is_that_before_the_step",
    ),
    Fault(
        "checksums of pages not compared", "runtime/kernels/page.c",
        "if (!why && stored && stored != checksum(data, bytes))", "if (0 && stored != checksum(data, bytes))",
        f"{PAGES}_a_build_with_checksums_finds_a_page_that_changed[0]",
    ),
    Fault(
        "a page that was written is taken for what it was", "compiler/passes/page.py",
        "return home if not written or written[0] > last else None", "return home",
        "tests/passes/test_paging_pass.py::test_what_came_from_a_page_that_is_written_again_goes_to_one_of_its_own",
    ),
    # Runs of fit, and their files.
    Fault(
        "every epoch in the same order", "train/batches.py",
        "start = _mixed(_mixed(seed) ^ epoch)", "start = _mixed(_mixed(seed))",
        f"{FIT}_the_order_of_samples_never_changes",
    ),
    Fault(
        "the best state not brought back", "train/loop.py", "self.state.set_all(best.state)", "pass",
        f"{FIT}_patience_ends_the_run_and_brings_back_the_best_state",
    ),
    Fault(
        "the last good state not kept", "train/loop.py", "self.good.bring_back(self.state)", "pass",
        f"{FIT}_a_loss_that_is_not_finite_ends_the_run_in_the_last_good_state",
    ),
    Fault(
        "the place in the epoch not resumed", "train/loop.py",
        "self.data.epoch(which, self.position.step)", "self.data.epoch(which)",
        "tests/train/test_checkpoint.py::test_batches_of_the_caller_continue_after_those_that_were_done[list]",
    ),
    Fault(
        "a file written over the old one", "files.py", 'partial = f".{name}.part"', "partial = name",
        "tests/train/test_atomic.py::test_a_failure_of_any_call_leaves_the_last_good_file[write-0-full]",
    ),
    Fault(
        "up a rung at once", "train/memory_watch.py", "if self._calm < CALM_BATCHES:", "if self._calm < 1:",
        "tests/train/test_ladder_watch.py::test_up_takes_room_to_spare_for_some_batches_in_a_row",
    ),
    Fault(
        "memory not given back", "runtime/ports/posix.c",
        "madvise(p->arena.start + from, to - from, MADV_DONTNEED);", "(void)to;",
        f"{LADDER}_pages_beyond_what_is_kept_are_given_back_and_are_zero_again[1-end]",
    ),
    # Memory.
    Fault(
        "slot freed one step early", "compiler/place/arena.py",
        "align), birth[top], death[top])", "align), birth[top], max(birth[top], death[top] - 1))", PLANS,
    ),
    Fault(
        "in place over a value that is read later", "compiler/place/arena.py",
        "is not Role.VALUE or death[top] != position:", "is not Role.VALUE:", PLANS,
    ),
    Fault(
        "views and updates not joined", "compiler/place/arena.py",
        "families.join(node.outs[out], node.ins[source])", "pass", PLANS,
    ),
    Fault(
        "a value outside the loop freed within it", "compiler/place/arena.py",
        "last = body[-1] if i in body and top not in families.in_body else touched[-1]", "last = touched[-1]",
        f"{MEMORY}_a_value_made_before_the_loop_lives_until_its_last_iteration",
    ),
    Fault(
        "loop stride wrong in the plan", "compiler/graph/alias.py",
        "return self.graph[top].bytes(1) if inside else 0", "return self.graph[top].bytes(1) - 4 if inside else 0",
        LOOPED_PLANS,
    ),
    Fault(
        "loop stride wrong in the runtime", "runtime/vm.c",
        "(size_t)w->iteration * strides[operand]", "(size_t)w->iteration * strides[0]", LOOPED,
    ),
    # Streams.
    Fault(
        "a stream holds a row too few", "compiler/graph/rows.py",
        "-(-self.step // self.period) + self.ahead - self.kept)",
        "-(-self.step // self.period) + self.ahead - self.kept - 1)", STREAMED,
    ),
    Fault(
        "a skip of a stream is delayed by one", "compiler/graph/rows.py",
        "    return (ahead * by + low - late) // over", "    return (ahead * by + low - late) // over + 1",
        STREAMED,
    ),
    Fault(
        "rows between those of an iteration come too late", "compiler/graph/rows.py",
        "high + over - grain) / over) + 1", "high) / over) + 1", STREAMED,
    ),
    Fault(
        "upsampling in a stream begins at the first row of the image", "runtime/rows.c",
        "turn->first;\n        x->words[rule->above + 1] = turn->from;",
        "turn->first;\n        x->words[rule->above + 1] = 0;", STREAMED,
    ),
    Fault(
        "padding below does not count", "ops/pool.py",
        'call.attrs.get("divisor") or 0, *call["padding"]]', 'call.attrs.get("divisor") or 0, 0, 0]',
        f"{KERNEL}[avg_pool2d-1]",
    ),
    Fault(
        "rows of a stream stay where they were", "runtime/vm.c",
        "if (begin > before && end > begin)", "if (0)", STREAMED,
    ),
    Fault(
        "rows that stay are forgotten after each iteration", "compiler/graph/rows.py",
        "return self.kept == self.ahead", "return True", STREAMED,
    ),
    Fault(
        "a result over rows that are still to be read", "compiler/graph/joint.py",
        "apart = -(-least // align) * align", "apart = max(-(-least // align) - 1, 0) * align", STREAMED,
    ),
    Fault(
        "the loader lets a row be written over before it is read", "runtime/rows.c",
        "const int64_t end = (int64_t)(from + most) * out->bytes;", "const int64_t end = (int64_t)from * out->bytes;",
        "tests/runtime/test_rows.py::test_an_input_that_is_so_far_behind_is_never_overwritten",
    ),
    Fault(
        "a block that changes its size is taken for one that does not", "runtime/first_fit.c",
        "P = first[i + 1] - first[i];", "P = 1;",
        "tests/place/test_place_search.py::test_a_block_in_parts_lies_as_low_as_they_fit",
    ),
    # What learns by rows, and in tiles.
    Fault(
        "a sum over rows begins anew with each call", "runtime/kernels/going.h",
        "(Going){sum, part, first == 0,", "(Going){sum, part, 1,", LEARNED,
    ),
    Fault(
        "a sum over rows is told of a wrong first row", "runtime/rows.c",
        "x->words[rule->above + 1] = turn->from; }", "x->words[rule->above + 1] = turn->from + 1; }", LEARNED,
    ),
    Fault(
        "a window over what learns is a row short", "ops/traits.py",
        'Rows("window", self.reach, self.step', 'Rows("window", self.reach - 1, self.step', LEARNED,
    ),
    Fault(
        "a tile forgets the sum of those before it", "runtime/kernels/matrix.c",
        "if (sum) { memcpy(total + old,", "if (0) { memcpy(total + old,", TILED,
    ),
    Fault(
        "a part of an update is another one", "compiler/encode.py",
        "found = [node.attrs[FIRST] * graph", "found = [(node.attrs[FIRST] - 4) * graph",
        f"{UPDATED}_an_update_of_another_part_is_not_safe",
    ),
    Fault(
        "scratch not kept apart", "compiler/place/arena.py",
        'Block(f"scratch:{i}", align_up(count, align), turns', 'Block(f"scratch:{i}", 0, turns',
        f"{MEMORY}_working_memory_of_a_kernel_is_kept_apart_from_what_is_alive",
    ),
]  # fmt: skip
TESTS = sorted({fault.test for fault in FAULTS})


def built(folder: Path) -> Path:
    """The runtime of a copy."""
    compile_runtime = runpy.run_path(str(folder / SOURCES / "runtime" / "build.py"))["compile_runtime"]
    cc = "tcc" if shutil.which("tcc") else ""
    library: Path = compile_runtime(folder / "lib.so", cc, () if cc else ("-O1",), checks=False)
    return library


def outcome(folder: Path, library: Path, *tests: str) -> tuple[int, str]:
    """Exit status and output of pytest in a copy: 0 all passed, 1 some failed, anything else could not run."""
    script = (
        "import sys, pathlib, pytest, smidgen\n"
        "assert pathlib.Path(smidgen.__file__).is_relative_to(pathlib.Path('src').resolve()), smidgen.__file__\n"
        "sys.exit(pytest.main(['-p', 'no:cacheprovider', '--tb=short', *sys.argv[1:]]))"
    )
    own = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "SMIDGEN"))}
    env = own | {"PYTHONPATH": str(folder / "src"), "SMIDGEN_LIBRARY": str(library)}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1"}  # seconds that a single test does not need
    done = subprocess.run([sys.executable, "-c", script, *tests], cwd=folder, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime without a fault, for all faults in Python."""
    return built(copied(tmp_path_factory.mktemp("sound")))


def test_every_named_test_passes_without_a_fault(library: Path) -> None:
    status, said = outcome(library.parent, library, *TESTS)
    assert status == 0, said
    assert f"{len(TESTS)} passed" in said, said


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.what.replace(" ", "-"))
def test_a_planted_fault_is_caught_by_its_named_test(fault: Fault, library: Path, tmp_path: Path) -> None:
    folder = copied(tmp_path)
    path = folder / SOURCES / fault.file
    text = path.read_text()
    found = text.count(fault.old)
    assert found == 1, f"cannot plant '{fault.what}': {fault.file} has {fault.old!r} {found} times; adapt this table"
    path.write_text(text.replace(fault.old, fault.new))
    status, said = outcome(folder, built(folder) if path.suffix in (".c", ".h") else library, fault.test)
    assert status != 0, f"'{fault.what}' in {fault.file} passes {fault.test}:\n{said}"
    assert (status, "1 failed" in said) == (1, True), f"{fault.test} could not run (status {status}):\n{said}"


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.what for fault in FAULTS}) == len(FAULTS) >= 9
