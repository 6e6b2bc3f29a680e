"""Replay with samples outside RAM: the same training to the bit as with samples in RAM, planned, saved and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Classes, Memory, Replay
from smidgen.cli.job import replay_of
from smidgen.errors import BadCheckpoint, BadOption, BadProgram, DoesNotFit, RunFailed
from smidgen.ir import ALIGN, Array
from smidgen.program.program import Program
from smidgen.report.plan_text import plan_text
from smidgen.train.job import Job
from tests.support.jobs import state

X = np.random.default_rng(0).standard_normal((48, 2, 6, 6)).astype(np.float32)
Y = np.arange(48) % 4
EXAMPLE = torch.zeros(8, 2, 6, 6)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 16), nn.ReLU(),
        nn.Linear(16, 4),
    )  # fmt: skip


def made(page_to: Path | None, samples: int = 12, memory: Memory | None = None, kept: dict[str, Any] | None = None,
         **options: Any) -> Job:  # fmt: skip
    """With samples in RAM if there is no file."""
    replay = Replay(samples, where="ram" if page_to is None else "page", **(kept or {}))
    given = {"method": "last_layer", "kernels": "exact", **options}
    return smidgen.compile(net(), EXAMPLE, memory=replace(memory or Memory(), page_to=page_to, replay=replay), **given)


def learned(job: Job) -> dict[str, bytes]:
    found = {name: value.tobytes() for name, value in job.state_dict().items()}
    return found | {
        f"{name}:{slot}": v.tobytes() for name, kept in job.optimizer_state().items() for slot, v in kept.items()
    }


# -- memory -----------------------------------------------------------------------------------------------------------


def test_ram_grows_by_a_byte_a_sample(tmp_path: Path) -> None:
    few, many = (made(tmp_path / f"{n}", n) for n in (12, 1012))
    assert many.replay.bytes - few.replay.bytes == 1000
    assert many.replay.page_bytes - few.replay.page_bytes == 1000 * (4 + 16 + 4 + 4)
    assert abs(many.plan.ram_bytes - few.plan.ram_bytes - 1000) < ALIGN
    assert many.plan.page_bytes >= many.replay.page_bytes
    assert many.plan.page_state_bytes == many.plan.page_bytes
    assert many.mapped_bytes == many.plan.state_bytes + many.plan.arena_bytes


def test_an_empty_buffer_takes_no_room_in_the_program_file(tmp_path: Path) -> None:
    job = made(tmp_path / "page", 2000)
    assert not len(job.program.page)
    assert job.plan.flash_bytes < job.replay.page_bytes / 4


def test_a_budget_that_no_buffer_in_ram_meets_is_met(tmp_path: Path) -> None:
    budget = made(None, 4).plan.exact_ram_bytes + 800
    with pytest.raises(DoesNotFit):
        made(None, 400, Memory(budget=budget))
    assert made(tmp_path / "page", 400, Memory(budget=budget)).plan.ram_bytes <= budget


def test_the_plan_says_where_samples_are_and_what_they_cost(tmp_path: Path) -> None:
    job = made(tmp_path / "page")
    [decision] = [d for d in job.plan.decisions if d.kind == "replay"]
    assert decision.why.endswith(f"; {job.replay.bytes:,} bytes of state, {job.replay.page_bytes:,} in pages")
    line = next(line for line in plan_text(job.plan).splitlines() if line.startswith("replay"))
    assert f"{job.replay.bytes} bytes of the state, {job.replay.page_bytes} in pages" in line
    assert repr(job.replay).startswith(
        f"<replay: 0 of 12 samples, features, {job.replay.bytes} bytes and {job.replay.page_bytes} in pages"
    )
    here, there = (
        made(path, device="nano33ble").plan.step_seconds for path in (None, tmp_path / "other")
    )  # fmt: skip
    assert there > here, "a card takes time"


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    {}, {"kept": {"precision": "f32"}}, {"kept": {"of": "inputs"}}, {"memory": Memory(accumulate=True)},
    {"memory": Memory(ladder=["12KB"])}, {"method": "full", "optimizer": SGD(0.1, momentum=0.9)}, {"kernels": "fast"},
    {"classes": Classes(spare=2)},
], ids=str)  # fmt: skip
def test_training_is_that_with_samples_in_ram_to_the_bit(options: dict[str, Any], tmp_path: Path) -> None:
    here, there = made(None, **options), made(tmp_path / "page", **options)
    for job in (here, there):
        job.fit(X, Y, epochs=2, progress=False)
        if "grad" in job.program.entries:
            job.train_step(X[:20], Y[:20])
    assert learned(here) == learned(there)
    assert (here.replay.counts, here.replay.seen) == (there.replay.counts, there.replay.seen)
    for ours, theirs in zip(there.replay.draw(12), here.replay.draw(12), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_a_target_that_is_no_class_is_outside_too(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    x, y = np.random.default_rng(0).standard_normal((2, 30, 5)).astype(np.float32)
    found = []
    for memory in (Memory(replay=Replay(7)), Memory(page_to=tmp_path / "page", replay=Replay(7, where="page"))):
        job = smidgen.compile(model, torch.zeros(4, 5), loss="mse", method="last_layer", kernels="exact", memory=memory)
        job.fit(x, y[:, :2], epochs=2, progress=False)
        found.append((learned(job), job.replay.draw(7)[1].tobytes()))
    assert found[0] == found[1]


def test_samples_and_state_can_both_be_outside(tmp_path: Path) -> None:
    """The optimizer's state pages in and out, samples are beside it."""
    plain = made(None, 4, method="full")
    memory = Memory(budget=int(plain.plan.exact_ram_bytes * 0.6))
    job, here = made(tmp_path / "page", 60, memory, method="full"), made(None, 60, method="full")
    assert job.plan.paged["train"].in_bytes
    for one in (job, here):
        one.fit(X, Y, epochs=2, progress=False)
    assert learned(job) == learned(here)


# -- what survives ----------------------------------------------------------------------------------------------------


def test_a_saved_job_draws_the_same_samples(tmp_path: Path) -> None:
    job = made(tmp_path / "page")
    job.fit(X[:24], Y[:24], progress=False)
    job.save(tmp_path / "a.smg")
    other = smidgen.load(tmp_path / "a.smg", kernels="exact", page_to=tmp_path / "other")
    for one in (job, other):
        one.fit(X[24:], Y[24:], progress=False)
    assert state(job) == state(other)
    assert np.array_equal(job.replay.draw(5)[0], other.replay.draw(5)[0])


def test_a_run_that_is_resumed_in_its_middle_ends_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    whole, cut = made(tmp_path / "1"), made(tmp_path / "2")
    whole.fit(X, Y, epochs=3, progress=False)

    class Stop(Exception):
        pass

    def stop(epoch: Any) -> None:
        if epoch.epoch == 2:
            raise Stop

    with pytest.raises(Stop):
        cut.fit(X, Y, epochs=3, progress=False, checkpoint=path, checkpoint_every=5, on_epoch=stop)
    again = made(tmp_path / "3")
    again.resume(path)
    again.fit(X, Y, epochs=3, progress=False)
    assert state(again) == state(whole)


def damaged(job: Job) -> Array:
    """A copy of all state of which one bit of one sample is another."""
    found = job.engine.state.copy()
    found[job.program.state_bytes + job.program.meta["replay"]["page"] + 9] ^= 4
    return found


def test_a_damaged_sample_in_a_program_is_refused(tmp_path: Path) -> None:
    job = made(tmp_path / "page")
    job.replay.add(X, Y)
    job.program.with_state(damaged(job).tobytes()).save(tmp_path / "a.smg")
    with pytest.raises(BadProgram, match="replay buffer is damaged") as error:
        smidgen.load(tmp_path / "a.smg", page_to=tmp_path / "other")
    assert error.value.why == "a sample of the replay buffer is not what was written there"


def test_a_damaged_sample_in_a_copy_of_the_state_is_refused_and_nothing_is_set(tmp_path: Path) -> None:
    job = made(tmp_path / "page")
    job.replay.add(X, Y)
    before = state(job)
    with pytest.raises(BadCheckpoint, match="replay buffer is damaged"):
        job.engine.set_all(damaged(job).tobytes())
    assert state(job) == before


def test_a_sample_that_a_disk_lost_stops_a_step_before_it_begins(tmp_path: Path) -> None:
    job = made(tmp_path / "page")
    job.fit(X, Y, progress=False)
    before, counters = learned(job), job.engine.state.copy()[: job.program.state_bytes].tobytes()
    at = job.program.meta["replay"]["page"]
    good = job.engine.machine.read_page(at, job.replay.page_bytes)
    job.engine.machine.write_page(at, good ^ 1)
    with pytest.raises(RunFailed, match="cannot be read from their pages") as error:
        job.train_step(X[:4], Y[:4])
    assert "job.replay.clear()" in error.value.help
    assert learned(job) == before
    assert job.engine.state.copy()[: job.program.state_bytes].tobytes() == counters
    job.replay.clear()
    job.train_step(X[:4], Y[:4])
    assert len(job.replay) == 4


def test_a_disk_that_cannot_be_written_is_said_and_nothing_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(tmp_path / "page")
    replay = job.engine.replay
    assert replay is not None
    monkeypatch.setattr(replay.buffer, "_stored", (*replay.buffer._stored[:2], None))
    with pytest.raises(RunFailed, match="cannot be written to its page"):
        job.replay.add(X, Y)
    with pytest.raises(RunFailed, match="incomplete"):
        job.save(tmp_path / "a.smg")


@pytest.mark.parametrize(
    "change", [{"page": 4}, {"page": 2**31}, {"page": -4}, {"page": None}, {"samples": 13}], ids=str
)
def test_a_program_that_describes_another_place_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    program = made(tmp_path / "page").program
    facts = {**program.meta["replay"], **change}
    with pytest.raises(BadProgram, match="replay buffer"):
        Job(replace(program, meta={**program.meta, "replay": facts}), page_to=tmp_path / "other")


def test_a_program_file_keeps_the_place(tmp_path: Path) -> None:
    program = made(tmp_path / "page").program
    again = Program.from_bytes(program.to_bytes())
    assert again.meta["replay"] == program.meta["replay"]
    assert again.page_bytes == program.page_bytes > 0


# -- what cannot be ---------------------------------------------------------------------------------------------------


def test_samples_outside_need_a_place() -> None:
    with pytest.raises(BadOption, match="no place for samples") as error:
        smidgen.compile(net(), EXAMPLE, method="last_layer", memory=Memory(replay=Replay(12, where="page")))
    assert "page_to='page.bin'" in error.value.help
    with pytest.raises(BadOption, match="where='card'"):
        smidgen.compile(net(), EXAMPLE, method="last_layer", memory=Memory(replay=Replay(12, where="card")))


def test_a_command_line_says_the_same() -> None:
    assert replay_of("200:f32", "page") == Replay(200, precision="f32", where="page")
    assert replay_of("200", None) == Replay(200)
    with pytest.raises(BadOption, match="--replay-in"):
        replay_of(None, "page")
