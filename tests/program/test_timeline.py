"""The facts that pictures are drawn from, against what the program really does with its memory."""

from __future__ import annotations

import copy
import functools
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from smidgen import ops
from smidgen.compiler.assemble import encode
from smidgen.compiler.entries import Entries
from smidgen.compiler.optimizers import SGD, Adam
from smidgen.errors import BadProgram
from smidgen.ir import Graph, Role
from smidgen.program.plan import Plan
from smidgen.program.program import Program
from smidgen.program.timeline import Facts, Timeline
from smidgen.report import inspect, plan_html, plan_text
from smidgen.report.by_layer import Layer, grouped, layers_of
from smidgen.runtime import library
from smidgen.train.job import Job
from tests.support import named, small
from tests.support.layouts import planned

NETS = {
    "small": lambda: small.entries(accumulate=True, dropout=0.2),
    "one sample": lambda: small.entries(batch=1),
    "in a loop": lambda: small.entries(("w3", "b3"), batch=5, accumulate=True),
    "biases": lambda: small.entries(("b1", "b2", "b3"), Adam(0.01), batch=3),
    "clipped": lambda: small.entries(optimizer=SGD(0.1, clip_norm=0.3), accumulate=True),
    "named": lambda: named.entries(optimizer=Adam(0.01), accumulate=True),
    "named in a loop": lambda: named.entries(("head.weight", "head.bias"), batch=7),
}


@functools.cache
def made(name: str) -> tuple[Entries, Program, Plan]:
    entries = NETS[name]()
    program = encode(entries)
    return entries, program, Plan.from_json(program.meta["plan"])


def timelines(plan: Plan, program: Program) -> Iterator[tuple[str, Timeline]]:
    assert set(plan.facts.entries) == set(program.entries)
    return iter(plan.facts.entries.items())


@pytest.mark.parametrize("name", NETS)
def test_moments_are_the_instructions_of_the_program(name: str) -> None:
    _, program, plan = made(name)
    for entry, timeline in timelines(plan, program):
        code = program.entry_code(entry)
        assert len(timeline.moments) == len(code)
        for i, (moment, step) in enumerate(zip(timeline.moments, code, strict=True)):
            if step.is_loop:
                assert timeline.loop == (i, step.body)
            else:
                assert step.kernel in ops.get(moment.op).kernels.values()
        assert sum(m.macs for m in timeline.moments) == plan.cost.macs[entry]


@pytest.mark.parametrize("name", NETS)
def test_spans_alive_together_share_no_byte_and_their_peak_is_the_lower_bound(name: str) -> None:
    entries, program, plan = made(name)
    layouts = planned(entries)
    for entry, timeline in timelines(plan, program):
        for a, b in itertools.combinations(timeline.spans, 2):
            together = a.first <= b.last and b.first <= a.last
            assert not together or a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset, (entry, a, b)
        assert timeline.peak()[1] == layouts[entry].lower_bound_bytes
        assert max((s.offset + s.bytes for s in timeline.spans), default=0) <= plan.arena_by_entry[entry]
    assert max(t.peak()[1] for _, t in timelines(plan, program)) == plan.lower_bound_bytes


@pytest.mark.parametrize("name", NETS)
def test_whatever_an_instruction_touches_in_the_arena_is_in_one_span_alive_then(name: str) -> None:
    """Addresses from the program, sizes from the C kernels: nothing of what wrote the facts."""
    _, program, plan = made(name)
    for entry, timeline in timelines(plan, program):
        left = 0
        for i, step in enumerate(program.entry_code(entry)):
            if step.is_loop:
                left = step.body
                continue
            n, left = (1, left - 1) if left else (program.batch, 0)
            inside = n == 1 and timeline.loop is not None
            needs = library.kernel_needs(
                step.kernel, step.params_at(n), len(step.operands), (program.batch if inside else n, program.batch, 0)
            )
            assert needs is not None
            for operand, need in zip(step.operands, needs, strict=True):
                if operand.region != "arena" or not need:
                    continue
                end = operand.offset + need + operand.stride * (program.batch - 1)
                around = [
                    s
                    for s in timeline.spans
                    if s.first <= i <= s.last and s.offset <= operand.offset < s.offset + s.bytes
                ]
                assert len(around) == 1, (entry, i, step, around)
                assert end <= around[0].offset + around[0].bytes


def saved_by_layer(graph: Graph, batch: int) -> dict[str, int]:
    """By definition: what a forward node makes (under whatever view) and a node after the turn reads."""
    turn = next(i for i, node in enumerate(graph.nodes) if node.stage == "backward")
    shows: dict[str, str] = {}
    maker: dict[str, str] = {}
    gathered: dict[str, str] = {}
    late: set[str] = set()
    for i, node in enumerate(graph.nodes):
        if node.op == "loop":
            gathered = dict(zip(node.attrs["yields"], node.outs, strict=True))
        elif ops.get(node.op).is_view:
            shows[node.outs[0]] = shows.get(node.ins[0], node.ins[0])
        elif i < turn:
            layer = node.src or ("(input)" if node.op == "feed" else "(model)")
            maker |= {gathered.get(out, out): layer for out in node.outs if graph[out].role is Role.VALUE}
        else:
            late |= {shows.get(name, name) for name in node.ins}
    found: dict[str, int] = {}
    for name in late & set(maker):
        found[maker[name]] = found.get(maker[name], 0) + graph[name].bytes(batch)
    return found


@pytest.mark.parametrize("name", NETS)
def test_what_a_layer_saves_is_what_the_backward_pass_reads_of_it(name: str) -> None:
    entries, _, plan = made(name)
    want = saved_by_layer(entries.graphs["train"], entries.batch)
    assert {row.name: row.saved_bytes for row in layers_of(plan) if row.saved_bytes} == want
    assert sum(want.values()) > 0


@pytest.mark.parametrize("name", NETS)
def test_layers_add_up_to_the_whole(name: str) -> None:
    _, program, plan = made(name)
    rows = layers_of(plan)
    assert sum(row.forward_macs + row.backward_macs for row in rows) == plan.cost.macs["train"]
    assert sorted(name for row in rows for name in row.learns) == sorted(plan.learns)
    assert {s.name for s in plan.facts.stored if s.role != "const"} == set(program.meta["state"])
    assert sum(row.state_bytes for row in rows) == sum(s.bytes for s in plan.facts.stored if s.role != "const")
    assert 0 <= plan.state_bytes - sum(row.state_bytes for row in rows) < 16 * len(program.meta["state"])


def test_layers_are_the_modules_in_the_order_of_execution() -> None:
    _, _, plan = made("named")
    rows = layers_of(plan)
    modules = ["(input)", "body.0", "body.1", "body.2", "body.3", "(model)", "head", "loss", "(output)", "(optimizer)"]
    assert [row.name for row in rows] == modules
    by_name = {row.name: row for row in rows}
    assert by_name["body.0"].learns == ("body.0.weight", "body.0.bias")
    assert by_name["body.0"].forward_macs == 4 * 8 * 8 * 6 * 27
    assert by_name["body.3"].weights_bytes == 4 * 8 * 9 * 6
    assert by_name["body.3"].state_bytes == 3 * 4 * 8 * 9 * 6  # with two tensors of Adam's
    assert by_name["head"].saved_bytes == 4 * 5 * 4  # the logits, which the loss reads again


def test_the_kinds_of_tensors_say_what_they_are_for() -> None:
    _, _, plan = made("named")
    kinds = {s.tensor: s.kind for s in plan.facts.entries["train"].spans}
    assert kinds["x"] == "input"  # fed twice instead of kept
    assert kinds["body.1.relu.bits"] == "mask"
    assert kinds["body.1.relu"] == "activation"
    assert kinds["body.2.max_pool2d"] == "saved"
    assert kinds["body.3.conv2d_dx"] == "gradient"
    grad = plan.facts.entries["grad"]
    assert {s.kind for s in grad.spans if grad.maker(s).op == "feed"} == {"input", "saved"}  # x; and labels
    accumulators = {s.tensor for s in plan.facts.entries["grad"].spans if s.kind == "accumulator"}
    assert accumulators == {*(f"{name}:acc" for name in named.ALL), "loss.value:sum"}
    assert {s.kind for s in plan.facts.entries["infer"].spans} == {"input", "activation"}


# -- fewer rows ---------------------------------------------------------------------------------------------------


def layer(name: str, macs: int = 0, *ops: str) -> Layer:
    return Layer(name, ops, macs, 2 * macs, 10, 4, 4, (), (name,))


def lists() -> Mapping[str, list[Layer]]:
    flat = [layer(str(i), 100 if i % 3 == 0 else 1, "conv2d" if i % 3 == 0 else "relu") for i in range(90)]
    deep = [
        layer(f"blocks.{i}.{part}", macs, op)
        for i in range(12)
        for part, macs, op in (
            ("conv", 900, "conv2d"),
            ("bn", 9, "batch_norm"),
            ("act", 0, "relu"),
            ("fc", 800, "linear"),
        )
    ]
    endless = [layer("(input)"), *(layer(str(i), 100, "conv2d") for i in range(2000)), layer("(model)"), layer("last")]
    return {"flat": flat, "deep": deep, "endless": endless}


@pytest.mark.parametrize("name", ["flat", "deep", "endless"])
@pytest.mark.parametrize("most", [1, 7, 40])
def test_fewer_rows_hold_the_same_layers_in_the_same_order(name: str, most: int) -> None:
    layers = lists()[name]
    rows = grouped(layers, most)
    assert 1 <= len(rows) <= most
    assert [member for row in rows for member in row.members] == [row.name for row in layers]
    for field in ("forward_macs", "backward_macs", "saved_bytes", "weights_bytes", "state_bytes"):
        assert sum(getattr(row, field) for row in rows) == sum(getattr(row, field) for row in layers)


def test_rows_are_named_for_what_is_in_them() -> None:
    def names(of: str, most: int = 40) -> list[str]:
        return [row.name for row in grouped(lists()[of], most)]

    assert names("flat")[:3] == ["0–2", "3–5", "6–8"]
    assert names("deep")[:3] == ["blocks.0.conv–act", "blocks.0.fc", "blocks.1.conv–act"]
    assert names("deep", 20)[:2] == ["blocks.0", "blocks.1"]
    assert names("endless")[:3] == ["(input)", "0–54", "55–109"]
    assert names("endless")[-3:] == ["1980–1999", "(model)", "last"]
    assert names("endless", 2) == ["(input)–1000", "1001–last"]


# -- files that nobody checked -------------------------------------------------------------------------------------


def test_facts_come_back_from_json_as_they_were() -> None:
    for name in NETS:
        _, program, plan = made(name)
        assert Facts.from_json(plan.facts.to_json()) == plan.facts
        assert Plan.from_json(plan.to_json()) == plan
        assert program.flash_bytes == len(replace(program, meta={}).to_bytes()) == plan.flash_bytes


def test_a_file_without_facts_still_trains_and_is_reported() -> None:
    _, program, plan = made("small")
    old = {k: v for k, v in program.meta["plan"].items() if k not in ("facts", "optimizer", "model_tensors")}
    old["cost"] = {"macs": old["cost"]["macs"], "layers": {}}
    job = Job(replace(program, meta={**program.meta, "plan": old}))
    job.train_step(*small.data(4))
    assert job.plan.ram_bytes == plan.ram_bytes
    assert "does not carry the facts" in plan_text.plan_text(job.plan)
    assert "optimizer not recorded" in inspect.inspect_text(job.program)
    assert plan_text.plan_json(job.plan)["layers"] == []
    assert "application/json" in plan_html.html_page(job.plan)


HOSTILE = [None, -1, 0, 1, 2**31, 2**63, 2**70, 1e308, 0.5, True, "", "x", "\x1b[31m", [], [[]], {}, {"a": 1}]


def altered(value: Any, rng: random.Random) -> Any:
    """Deeply, one thing in it replaced, removed or repeated."""
    value = copy.deepcopy(value)
    where = value
    while True:
        key = rng.choice(list(where) if isinstance(where, dict) else range(len(where)))
        inner = where[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.85:
            where = inner
            continue
        change = rng.randrange(3)
        if change == 0:
            where[key] = rng.choice(HOSTILE)
        elif change == 1:
            del where[key]
        elif isinstance(where, list):
            where.insert(key, rng.choice(HOSTILE))
        else:
            where[str(rng.choice(HOSTILE))] = inner
        return value


def test_a_plan_that_makes_no_sense_is_refused_and_one_that_does_can_be_shown() -> None:
    _, program, _ = made("named")
    rng, refused = random.Random(1), 0
    for _ in range(150):
        bad = replace(program, meta={**program.meta, "plan": altered(program.meta["plan"], rng)})
        try:
            plan = Job(bad).plan
        except BadProgram:
            refused += 1
            with pytest.raises(BadProgram):
                inspect.inspect_text(bad)
            continue
        for text in (plan_text.plan_text(plan), inspect.inspect_text(bad), plan_html.html_page(plan)):
            assert "\x1b" not in text
        plan_text.plan_json(plan, 0.1)
    assert 75 < refused < 150


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("state_bytes",), "many"),
        (("batch",), 0),
        (("method",), None),
        (("decisions", 0, "adds_s"), "soon"),
        (("facts", "entries", "train", "spans", 0, 4), -1),
        (("facts", "entries", "train", "spans", 0, 5), 10**6),
        (("facts", "entries", "train", "spans", 0, 2), 10**6),
        (("facts", "entries", "train", "moments", 0, 0), -1),
        (("facts", "entries", "train", "loop"), [0, 10**6]),
        (("facts", "strings", 0), 7),
    ],
    ids=lambda v: ".".join(map(str, v)) if isinstance(v, tuple) else None,
)
def test_each_nonsense_in_a_plan_is_refused(path: tuple[Any, ...], value: Any) -> None:
    _, program, _ = made("named")
    plan = copy.deepcopy(program.meta["plan"])
    where = plan
    for key in path[:-1]:
        where = where[key]
    where[path[-1]] = value
    with pytest.raises(BadProgram, match="the program does not describe its plan and state"):
        _ = Job(replace(program, meta={**program.meta, "plan": plan})).plan
