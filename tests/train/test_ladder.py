"""ladder=: several plans in one program. Whichever rungs a run takes, it learns the same bits; going down gives memory
back to the system. Which rung is taken is decided from faked files and clocks here. Needs torch."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import cli
from smidgen.compiler.assemble import encode
from smidgen.compiler.fit.candidate import candidate
from smidgen.compiler.fit.ladder import joined
from smidgen.compiler.planner.goal import Goal
from smidgen.errors import BadOption, DoesNotFit
from smidgen.program.rungs import Rung, rungs_of
from smidgen.runtime.machine import Machine
from smidgen.train.history import Position
from smidgen.train.memory_watch import CALM_BATCHES
from tests.support import small
from tests.support.arguments import compiled
from tests.support.ladders import allowed, bits, data, made, residual, shares

# -- the same bits -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["residual", "dscnn"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_a_budget_cut_to_the_lowest_rung_and_restored_every_few_batches_changes_no_bit(
    name: str, accumulate: bool
) -> None:
    more = {"bn": "frozen", "accumulate": True, "batch": 2} if accumulate else {}
    plain, x, y = made(name, [], **more)
    batch = 5 if accumulate else None  # three parts, the last of one sample
    plain.fit(x, y, epochs=8, batch=batch, progress=False)
    job, _, _ = made(name, shares(plain, 0.9, 0.75), **more)
    assert [rung.name for rung in job.rungs] == ["train", "train@1", "train@2"]
    fixed = job.plan.ram_bytes - job.plan.arena_bytes
    limits = shares(plain, 0.9, 0.75)
    assert all(rung.ram_bytes <= int(limit) for rung, limit in zip(job.rungs[1:], limits, strict=True))
    assert job.rungs[0].ram_bytes == plain.plan.ram_bytes == fixed + job.rungs[0].arena_bytes
    restored = [None] * CALM_BATCHES
    cuts = allowed(job, None, None, 2, 2, 2, *restored, None, 1, *restored)
    history = job.fit(x, y, epochs=8, batch=batch, progress=False, follow_memory=cuts)
    course = [(2, 2), (12, 0), (14, 1), (22, 0), (25, 2)]
    assert [(s.step, s.rung) for s in history.switches][:5] == course
    assert bits(job) == bits(plain)
    assert job.evaluate(x, y) == plain.evaluate(x, y)


def test_every_rung_by_hand_learns_the_same_bits_and_stays_within_its_arena() -> None:
    plain, x, y = made("residual", [])
    job, _, _ = made("residual", shares(plain, 0.9, 0.7))
    start = bits(job)
    found = set()
    for rung in (0, 1, 2):
        job.engine.state.set_all(start)
        job.rung = rung
        job.engine.machine.arena[:] = 0x5A
        job.train_step(x[:4], y[:4])
        job.predict(x[:4])
        job.evaluate(x, y)
        assert (job.engine.machine.arena[job.rungs[rung].arena_bytes :] == 0x5A).all()
        found.add(bits(job))
    assert len(found) == 1
    assert (
        job.rungs[2].arena_bytes < job.rungs[1].arena_bytes < job.rungs[0].arena_bytes == len(job.engine.machine.arena)
    )


def test_a_checkpoint_does_not_know_the_rung(tmp_path: Path) -> None:
    plain, x, y = made("residual", [])
    ladder = shares(plain, 0.9, 0.7)
    path = tmp_path / "run.ckpt"
    whole, half, rest = (made("residual", ladder)[0] for _ in range(3))
    expected = whole.fit(x, y, epochs=4, progress=False)
    stop = {"at": 7}

    def interrupted() -> int:
        stop["at"] -= 1
        if stop["at"] < 0:
            raise KeyboardInterrupt
        return half.rungs[2].ram_bytes

    with pytest.raises(KeyboardInterrupt):
        half.fit(x, y, epochs=4, progress=False, checkpoint=path, checkpoint_every=1, follow_memory=interrupted)
    rest.resume(path)
    assert rest.rung == 0
    history = rest.fit(x, y, epochs=4, progress=False, follow_memory=allowed(rest, 1))
    assert bits(rest) == bits(whole)
    assert history.steps == expected.steps
    assert [(s.step, s.rung) for s in history.switches] == [(0, 2), (7, 1)]
    assert json.loads(json.dumps(history.to_json()))["switches"][0]["ram_bytes"] == rest.rungs[2].ram_bytes
    assert "2 switches of plans, down to " in str(history)


def test_a_position_of_a_file_without_switches_is_read() -> None:
    old = Position(steps=3).to_json()
    del old["switches"]
    assert Position.from_json(old, None).switches == ()
    with pytest.raises((ValueError, TypeError, KeyError)):
        Position.from_json({**old, "switches": [{"step": -1, "rung": 0, "ram_bytes": 1, "why": ""}]}, None)


def test_a_saved_program_keeps_its_ladder_and_fast_kernels_count(tmp_path: Path) -> None:
    plain, x, y = made("residual", [])
    job, _, _ = made("residual", shares(plain, 0.8))
    job.save(tmp_path / "net.smg")
    again = smidgen.load(tmp_path / "net.smg", kernels="exact")
    assert again.rungs == job.rungs
    fast, _, _ = made("residual", shares(made("residual", [], kernels="fast")[0], 0.8), kernels="fast")
    assert fast.rungs[1].ram_bytes == job.rungs[1].ram_bytes + fast.plan.work_bytes
    again.rung = 1
    assert again.train_step(x[:4], y[:4]) == plain.train_step(x[:4], y[:4])


# -- memory is given back ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guard", ["end", "start"])
@pytest.mark.parametrize("keep", [0, 1, 4096, 10_000, 10**9])
def test_pages_beyond_what_is_kept_are_given_back_and_are_zero_again(guard: Any, keep: int) -> None:
    machine = Machine(encode(small.entries(batch=16)).to_bytes(), guard=guard)
    assert len(machine.arena) > 5 * mmap.PAGESIZE
    machine.arena[:] = 0x5A
    machine.trim(keep)
    kept = np.flatnonzero(machine.arena == 0)
    first = int(kept[0]) if len(kept) else len(machine.arena)
    assert (machine.arena[first:] == 0).all(), "all or nothing beyond a page's start"
    assert min(keep, len(machine.arena)) <= first <= keep + mmap.PAGESIZE
    assert (machine.arena.ctypes.data + first) % mmap.PAGESIZE == 0 or first == len(machine.arena)
    machine.arena[:] = 1  # and may be written
    assert int(machine.arena.sum(dtype=np.int64)) == len(machine.arena)


def test_a_switch_down_gives_the_tail_of_the_arena_back_before_the_next_step() -> None:
    plain, _, _ = made("residual", [])
    job, _, _ = made("residual", shares(plain, 0.7))
    job.engine.machine.arena[:] = 0x5A
    job.rung = 1
    keep = job.rungs[1].arena_bytes
    assert (job.engine.machine.arena[:keep] == 0x5A).all()
    assert (job.engine.machine.arena[keep + mmap.PAGESIZE :] == 0).all()


RSS = """
import json, re, sys
import numpy as np
import smidgen

def rss():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

x = np.random.default_rng(0).standard_normal((8, 3, 64, 64)).astype(np.float32)
y = np.arange(8, dtype=np.int32)
base = rss()
job = smidgen.load(sys.argv[1], kernels="exact")
loaded = rss() - base
found = []
for rung in (0, 2, 0, 1, 2):
    job.rung = rung
    at_once = rss() - base
    job.train_step(x, y)
    job.predict(x)
    found.append([rung, job.rungs[rung].ram_bytes, at_once, rss() - base])
print(json.dumps({"loaded": loaded, "found": found, "state": job.engine.machine.state.nbytes}))
"""


def test_after_a_switch_down_the_process_holds_no_more_than_the_plan_of_that_rung(tmp_path: Path) -> None:
    x, _ = data(8, 64)
    memory = smidgen.Memory(ladder=["32MB", "24MB"], effort=0)
    job = smidgen.compile(residual(24, 6).eval(), x, kernels="exact", memory=memory,
                          optimizer=smidgen.SGD(lr=0.01, momentum=0.9))  # fmt: skip
    assert job.rungs[0].ram_bytes > 40 * 2**20
    job.save(tmp_path / "net.smg")
    done = subprocess.run([sys.executable, "-c", RSS, tmp_path / "net.smg"], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    assert said["loaded"] < 4 * 2**20, "an arena that nobody has touched yet"
    held = 0.0
    for rung, ram, at_once, after in said["found"]:
        assert after == pytest.approx(ram, rel=0.05), rung
        if held > ram:
            assert at_once == pytest.approx(ram, rel=0.05), f"not given back before the next step, rung {rung}"
        held = after


# -- what is refused -----------------------------------------------------------------------------------------------


def test_a_rung_that_cannot_be_reached_says_what_is_needed() -> None:
    with pytest.raises(DoesNotFit) as caught:
        made("residual", ["100MB", "50KB"])
    text = str(caught.value)
    assert text.startswith("error[E201]: needs ")
    assert "of RAM, rung 2 of the ladder has 50 KB\n" in text
    assert "live there: " in text


def test_a_ladder_with_more_rungs_than_entry_points_says_how_many_there_can_be() -> None:
    model, sizes = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), [f"{100 - i}MB" for i in range(9)]
    options: dict[str, Any] = {"method": "tinyol", "kernels": "exact"}
    with pytest.raises(BadOption, match="a ladder of 9 rungs is too long for this program") as caught:
        smidgen.compile(model, torch.zeros(2, 6), memory=smidgen.Memory(ladder=sizes), **options)
    assert caught.value.why == "it would have 17 entry points, and can have 16: each rung adds 1"
    assert caught.value.help == "at most 8 rungs"
    job = smidgen.compile(model, torch.zeros(2, 6), memory=smidgen.Memory(ladder=sizes[:8]), **options)
    assert len(job.rungs) == 9


def test_inference_and_evaluation_count_on_every_rung() -> None:
    arenas = {"train": 100, "train@1": 50, "grad@1": 60, "grad": 90, "infer": 70, "evaluate": 55, "zero": 10}
    assert rungs_of(arenas, arenas, 1000) == (Rung("train", 100, 1100), Rung("train@1", 70, 1070))


def test_evaluate_is_left_out_if_a_rung_is_too_small_for_it() -> None:
    entries = small.entries(evaluate=True)
    rest = replace(entries, graphs={name: graph for name, graph in entries.graphs.items() if name != "evaluate"})
    top, low = (candidate(None, e, Goal()) for e in (entries, rest))
    both = joined(top, [low])
    assert sorted(both.graphs) == ["infer", "train", "train@1"]
    assert [d.kind for d in both.decisions][-2:] == ["rung", "no_evaluate"]
    assert sorted(joined(top, [top]).graphs) == ["evaluate", "infer", "train", "train@1"]


@pytest.mark.parametrize("ladder", ["64MB", 64, ["lots"], [None], ["1MB", "1024KB"], [0]])
def test_what_is_no_ladder_is_refused(ladder: Any) -> None:
    with pytest.raises(BadOption, match="ladder="):
        smidgen.compile(nn.Linear(2, 2), torch.randn(1, 2), memory=smidgen.Memory(ladder=ladder))


def test_a_board_has_no_ladder() -> None:
    with pytest.raises(BadOption, match="a ladder is for machines with an operating system"):
        smidgen.compile(nn.Linear(2, 2), torch.randn(1, 2), device="stm32f746", memory=smidgen.Memory(ladder=["64KB"]))


def test_a_program_with_one_plan_has_no_other_rung() -> None:
    job, x, y = made("residual", [])
    assert [rung.ram_bytes for rung in job.rungs] == [job.plan.ram_bytes]
    for number in (1, -1, True, None):
        with pytest.raises(BadOption, match="the program has no rung"):
            job.rung = number  # type: ignore[assignment]
    with pytest.raises(BadOption, match="follow_memory needs a program with a ladder"):
        job.fit(x, y, follow_memory=True)
    with pytest.raises(BadOption, match="follow_memory=3 is not understood"):
        job.fit(x, y, follow_memory=3)  # type: ignore[arg-type]


def test_a_ladder_works_within_a_budget() -> None:
    plain, x, y = made("residual", [], bn="frozen")
    budget, lower = shares(plain, 0.9, 0.7)
    job, _, _ = made("residual", [lower], bn="frozen", budget=budget)
    assert job.plan.ram_bytes == job.rungs[0].ram_bytes <= int(budget)
    assert job.rungs[1].ram_bytes <= int(lower)
    for jobs in (plain, job):
        jobs.fit(x, y, progress=False, **({"follow_memory": allowed(job, 0, 1)} if jobs is job else {}))
    assert bits(job) == bits(plain)


def test_a_rung_may_page_where_the_others_do_not(tmp_path: Path) -> None:
    from benchmarks.nets import NETS

    net = NETS["dscnn"]
    x, y = net.data(12)
    plain, job = (
        compiled(
            net.model().eval(),
            x[:1],
            loss=net.loss,
            optimizer=smidgen.SGD(0.01),
            kernels="exact",
            memory=smidgen.Memory(effort=0),
            **more,
        )
        for more in ({}, {"ladder": ["400KB", "200KB"], "page_to": tmp_path / "page.bin"})
    )
    assert job.plan.paged["train"].in_bytes == 0 < job.plan.paged["train@2"].in_bytes
    assert job.rungs[2].ram_bytes <= 200 * 1024
    plain.fit(x, y, progress=False)
    job.fit(x, y, progress=False, follow_memory=allowed(job, 0, 0, 2, 1))
    assert job.paged.in_bytes > 0
    assert bits(job) == bits(plain)


# -- the command line ----------------------------------------------------------------------------------------------


def test_the_command_line_builds_a_ladder_and_follows_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets.py").write_text("from tests.support.ladders import residual\n")
    x, y = data(18)
    np.savez("train.npz", x=x, y=y)
    model = ["nets.py:residual", "--input", "4x3x16x16", "--effort", "0"]
    assert cli.main(["plan", *model, "--ladder", "350KB,300KB"]) == 0
    assert "ladder           3   plans in one program, for " in capsys.readouterr().out
    assert cli.main(["build", *model, "--ladder", "350KB,300KB", "-o", "net.smg"]) == 0
    assert cli.main(["inspect", "net.smg", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out.partition("{")[2].join(["{", ""]))["plan"]
    assert [rung["name"] for rung in plan["rungs"]] == ["train", "train@1", "train@2"]
    assert plan["rungs"][2]["ram_bytes"] <= 300 * 1024
    assert cli.main(["train", "net.smg", "--data", "train.npz", "--follow-memory", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["switches"] == []
    assert cli.main(["build", *model, "--ladder", "350KB,many", "-o", "net.smg"]) == 2
    assert "ladder='many' is not a number of bytes" in capsys.readouterr().err
