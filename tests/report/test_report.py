"""What `smidgen plan` and `smidgen inspect` print: exact text of a small network, and rules for all others."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import smidgen
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD, Adam
from smidgen.compiler.passes.autodiff import autodiff
from smidgen.compiler.pipeline import at_batch, build
from smidgen.ir import Batch, DType, Role
from smidgen.ops.build import Builder, feed, fetch
from smidgen.program.plan import Decision, Plan
from smidgen.report import inspect, plan_html, plan_text
from smidgen.train import step_time
from smidgen.train.job import Job
from smidgen.train.load import load
from tests.support import named, small
from tests.support.snapshots import check_snapshot

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "read_a_plan.md"


@functools.cache
def job() -> Job:
    return Job(encode(named.entries()))


@functools.cache
def plans() -> Mapping[str, Plan]:
    made = {
        "named": named.entries(),
        "in parts": named.entries(optimizer=Adam(0.01), accumulate=True),
        "in a loop": named.entries(("head.weight", "head.bias"), batch=9),
        "one sample": named.entries(batch=1),
        "long names": named.entries(module="module_" * 20 + "body"),
        "unnamed": small.entries(),
    }
    return {name: Job(encode(entries)).plan for name, entries in made.items()}


RUNTIME = {"context_bytes": 1056, "stack_bytes": 4096}  # the runtime's own figures are not what is compared


def test_a_plan_reads_as_in_the_snapshot() -> None:
    plan = replace(job().plan, **RUNTIME)
    text = plan_text.plan_text(plan, title="nets.py:build", seconds_per_step=0.00125, width=100)
    check_snapshot("plan.txt", text)


def test_a_program_file_reads_as_in_the_snapshot(tmp_path: Path) -> None:
    job().save(tmp_path / "net.smg")
    program = load(tmp_path / "net.smg").program
    program = replace(program, meta={**program.meta, "plan": {**program.meta["plan"], **RUNTIME}})
    check_snapshot("inspect.txt", inspect.inspect_text(program, "net.smg", width=90))


PLANS = ["named", "in parts", "in a loop", "one sample", "long names", "unnamed"]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("width", [80, 81, 97, 140])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    text = plan_text.plan_text(plans()[name], title="t", seconds_per_step=2.5, width=width)
    assert [line for line in text.splitlines() if len(line) > width] == []


@pytest.mark.parametrize("name", PLANS)
def test_colours_change_nothing_but_the_fill_of_the_picture(name: str) -> None:
    plain = plan_text.plan_text(plans()[name], title="t", width=90)
    coloured = plan_text.plan_text(plans()[name], title="t", width=90, colour=True)
    assert "\x1b" not in plain
    assert "\x1b[34m" in coloured
    codes = re.compile(r"\x1b\[[0-9;]*m")
    fills = str.maketrans("▓▒░▞▚·▇", "███████")  # a line between tensors is drawn where the fill is solid
    without = [line.rstrip() for line in codes.sub("", coloured).translate(fills).splitlines()]
    assert without == plain.translate(fills).splitlines()


def test_the_answer_comes_first_and_is_exact() -> None:
    plan = plans()["in parts"]
    first = plan_text.plan_text(plan, width=120).splitlines()[0]
    parts = [plan.state_bytes, plan.arena_bytes, plan.context_bytes, plan.stack_bytes]
    assert sum(parts) == plan.ram_bytes
    for figure in (plan.ram_bytes, *parts):
        assert f"{figure:,}" in first


def test_the_picture_is_of_the_entry_that_decides_the_arena() -> None:
    plan = plans()["in parts"]
    text = plan_text.plan_text(plan)
    assert plan.arena_by_entry["grad"] == plan.arena_bytes > plan.arena_by_entry["train"]
    assert f"arena  grad: {plan.arena_bytes:,} bytes" in text
    assert "in the same place: train" in text
    assert "accumulator" in text
    assert "sample by sample" in plan_text.plan_text(plans()["in a loop"])


def test_the_letters_in_the_picture_name_the_largest_tensors_at_the_peak() -> None:
    plan = plans()["named"]
    text = plan_text.plan_text(plan)
    timeline = plan.facts.entries["train"]
    moment, most = timeline.peak()
    listed = re.findall(r"^  ([A-H]) +([\d.]+ \w+)  (\S+)", text, re.MULTILINE)
    alive = timeline.alive(moment)
    assert [name for _, _, name in listed] == [s.tensor for s in alive[: len(listed)]]
    picture = [line for line in text.splitlines() if "┤" in line]
    for letter, _, name in listed:
        [row] = [i for i, line in enumerate(picture) if letter in line.partition("┤")[2]]
        span = next(s for s in alive if s.tensor == name)
        height = (len(picture) - row - 0.5) / len(picture) * plan.arena_bytes
        slack = plan.arena_bytes / len(picture)
        assert span.offset - slack <= height <= span.offset + span.bytes + slack
    assert sum(-(-s.bytes // timeline.align) * timeline.align for s in alive) == most == plan.lower_bound_bytes


def test_a_decision_with_a_price_says_so() -> None:
    plan = replace(job().plan, decisions=(Decision("recompute", "activations are made again", 2048, 0.0031),))
    assert "  recompute        2 KB  3.1 ms a step  activations are made again" in plan_text.plan_text(plan)
    assert "none: there was nothing to save" in plan_text.plan_text(replace(plan, decisions=()))


def test_an_arena_above_the_lower_bound_says_by_how_much() -> None:
    plan = job().plan
    larger = replace(plan, arena_by_entry={**plan.arena_by_entry, "train": plan.lower_bound_bytes * 5 // 4})
    assert "25.0% above the least that these steps can do with" in plan_text.plan_text(larger)


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2J\x07\u202e\nbody"
    made = Job(encode(named.entries(module=evil)))
    made.save(tmp_path / "net.smg")
    read = load(tmp_path / "net.smg")
    for text in (plan_text.plan_text(read.plan, title=evil), inspect.inspect_text(read.program, evil)):
        assert not set(text) & {"\x1b", "\x07", "\u202e"}
        assert "�[2J��" in text
    assert f"{evil}.0" in [layer["name"] for layer in plan_text.plan_json(read.plan)["layers"]]


# -- JSON ---------------------------------------------------------------------------------------------------------


def keys(value: Any) -> set[str]:
    """All keys that are not names of the user's or of kernels."""
    free = {"macs", "kernels", "sections"}
    if isinstance(value, dict):
        inner = {k: v for k, v in value.items() if k not in free}
        entries = value.get("entries", {})
        own = set(value) | {k for e in entries.values() for k in keys(e)}
        return own | {k for key, v in inner.items() if key != "entries" for k in keys(v)}
    return {k for item in value for k in keys(item)} if isinstance(value, (list, tuple)) else set()


def test_the_json_says_what_the_text_says_and_every_key_is_documented(tmp_path: Path) -> None:
    plan = plans()["in parts"]
    found = json.loads(json.dumps(plan_text.plan_json(plan, 0.002, 0.0004)))
    assert found["seconds_per_inference"] == 0.0004
    assert found["ram_bytes"] == plan.ram_bytes
    assert (found["seconds_per_step"], found["samples_per_s"]) == (0.002, 2000)
    assert found["macs"] == dict(plan.cost.macs)
    assert [layer["name"] for layer in found["layers"]][:2] == ["(input)", "body.0"]
    train = found["entries"]["train"]
    assert train["peak_bytes"] <= train["arena_bytes"] == plan.arena_by_entry["train"]
    relu = next(t for t in train["tensors"] if t["tensor"] == "body.1.relu")
    assert (relu["layer"], relu["op"], relu["kind"]) == ("body.1", "relu", "activation")
    assert train["instructions"][relu["made"]]["op"] == "relu"
    job().save(tmp_path / "net.smg")
    inside = json.loads(json.dumps(inspect.inspect_json(load(tmp_path / "net.smg").program, tmp_path / "net.smg")))
    documented = set(re.findall(r"`(\w+)`", GUIDE.read_text()))
    assert (keys(found) | keys(inside)) - documented == set()


def test_the_contents_of_a_file_are_what_is_in_it(tmp_path: Path) -> None:
    trained = Job(encode(named.entries(optimizer=Adam(0.01), accumulate=True)))
    x, y = small.data(4)
    for _ in range(3):
        trained.train_step(x, y)
    trained.save(tmp_path / "net.smg")
    found = inspect.inspect_json(load(tmp_path / "net.smg").program, tmp_path / "net.smg")
    assert (found["steps"], found["optimizer"], found["method"], found["batch"]) == (3, "Adam", "full", 4)
    assert found["lr"] == pytest.approx(0.01)
    assert found["file_bytes"] == (tmp_path / "net.smg").stat().st_size
    assert sum(found["sections"].values()) <= found["file_bytes"]
    assert list(found["entries"]) == ["train", "grad", "apply", "zero", "infer"]
    assert found["entries"]["train"]["inputs"][0] == {"name": "x", "dtype": "f32", "shape": ["n", 3, 8, 8]}
    assert found["kernels"]["adam_f32"] == 5
    shapes = {t["name"]: t["shape"] for t in found["state"] if t["learns"]}
    assert shapes == {k: list(v.shape) for k, v in trained.state_dict().items()}


# -- time ---------------------------------------------------------------------------------------------------------


def test_measuring_a_step_leaves_the_job_as_it_was() -> None:
    one, other = (Job(encode(named.entries(optimizer=Adam(0.01)))) for _ in range(2))
    x, y = small.data(4)
    one.train_step(x, y)
    other.train_step(x, y)
    seconds, once = step_time.measure_step(one), step_time.measure_inference(one)
    assert seconds is not None
    assert once is not None
    assert 0 < once < seconds
    assert one.step == 1
    assert one.train_step(x, y) == other.train_step(x, y)
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(value, other.state_dict()[name])


def test_tokens_several_inputs_and_targets_of_numbers_can_be_measured() -> None:
    b = Builder()
    tokens, more = feed(b, "tokens", (Batch(1), 3), DType.I32), feed(b, "more", (Batch(1), 3, 4))
    table = b.stored("table", np.ones((7, 4)), Role.PARAM)
    h = b.add("add", b.add("embedding", table, tokens), more)
    inference = Builder(b.graph())
    fetch(inference, h, "output")
    target = feed(b, "target", (Batch(1), 3, 4))
    loss = b.add("mse_loss", h, target, reduction="mean")
    fetch(b, loss, "loss")
    whole, grads = autodiff(b.graph(), loss, ["table"])
    built = build(whole, inference.graph(), grads, SGD(0.1), "full", {"table": ()}, {"table": (7, 4)}, False, 0)
    assert (step_time.measure_step(Job(encode(at_batch(built, 5)))) or 0) > 0


def test_a_program_that_does_not_learn_has_no_time_a_step() -> None:
    entries = named.entries()
    infer = replace(entries, graphs={"infer": entries.graphs["infer"]})
    assert step_time.measure_step(Job(encode(infer))) is None
    assert (step_time.measure_inference(Job(encode(infer))) or 0) > 0


def test_a_plan_for_a_device_says_what_an_inference_takes_there() -> None:
    model, x = torch.nn.Linear(6, 2), np.zeros((4, 6), np.float32)
    plan = smidgen.compile(model, torch.from_numpy(x), device="nano33ble").plan
    assert 0 < plan.infer_seconds < plan.step_seconds
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))).infer_seconds == plan.infer_seconds
    text = plan_text.plan_text(plan, seconds_per_step=1e-3, seconds_per_inference=2e-4, width=120)
    assert re.search(r"^infer +[\d.]+ µs +inference of 1 sample on nano33ble, predicted: ", text, re.MULTILINE)
    assert re.search(r"^ +200 µs +inference of 1 sample on this machine$", text, re.MULTILINE)
    found = plan_text.plan_json(plan)
    assert (found["infer_seconds"], found["infer_joules"]) == (plan.infer_seconds, plan.infer_joules)
    assert [row[0] for row in plan_html.page_data(plan)["predicted"]] == ["step", "infer"]
