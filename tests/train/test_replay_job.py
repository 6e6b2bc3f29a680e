"""Replay in a job: steps with old samples beside new ones, in planned memory, resumed with the same bits."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smidgen
from smidgen import SGD, Adam, Classes, Memory, Replay
from smidgen.cli.job import replay_of
from smidgen.errors import BadCheckpoint, BadData, BadOption, BadProgram, DoesNotFit, NotFinite, SmidgenError
from smidgen.ir import ALIGN, Array
from smidgen.train import checkpoint
from smidgen.train.job import Job
from tests.support.jobs import state


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 16), nn.ReLU(),
        nn.Linear(16, 4),
    )  # fmt: skip


X = np.random.default_rng(0).standard_normal((48, 2, 6, 6)).astype(np.float32)
Y = np.arange(48) % 4
EXAMPLE = torch.zeros(8, 2, 6, 6)


def made(samples: int = 12, *, kernels: str = "exact", method: Any = "last_layer", example: Any = EXAMPLE,
         memory: Memory | None = None, of: str = "features", precision: str = "int8", fresh: int | None = None,
         **options: Any) -> Job:  # fmt: skip
    kept = replace(memory or Memory(), replay=Replay(samples, of, precision, fresh))
    return smidgen.compile(net(), example, method=method, memory=kept, kernels=kernels, **options)


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["features", "inputs"])
@pytest.mark.parametrize("precision", ["int8", "f32"])
def test_the_buffer_counts_to_the_byte(of: str, precision: str) -> None:
    job, without = (
        made(of=of, precision=precision),
        smidgen.compile(net(), EXAMPLE, method="last_layer", kernels="exact"),
    )
    elements = 16 if of == "features" else 72
    each = 4 + (4 + elements if precision == "int8" else 4 * elements)
    assert job.replay.bytes == 16 + 8 * 4 + 12 * each
    assert job.plan.state_bytes == without.plan.state_bytes + -(-job.replay.bytes // ALIGN) * ALIGN
    assert job.mapped_bytes == job.plan.state_bytes + job.plan.arena_bytes
    if of == "features":
        assert job.plan.arena_by_entry["train"] < without.plan.arena_by_entry["train"]


def test_an_empty_buffer_takes_no_room_in_the_program_file() -> None:
    job = made(1000)
    assert len(job.program.state) <= job.program.meta["replay"]["at"]
    assert job.plan.flash_bytes < job.replay.bytes


def test_a_budget_counts_the_buffer() -> None:
    least = made(12).plan.exact_ram_bytes
    assert made(12, memory=Memory(budget=least)).plan.ram_bytes <= least
    with pytest.raises(DoesNotFit):
        made(4000, memory=Memory(budget=least))


def test_the_plan_says_what_is_kept() -> None:
    from smidgen.report.plan_text import plan_text

    job = made()
    [decision] = [d for d in job.plan.decisions if d.kind == "replay"]
    assert decision.why == (
        f"keeps 12 samples to learn again: 16 numbers of features before '6' each, int8; {job.replay.bytes:,} bytes of "
        "state"
    )
    text = plan_text(job.plan)
    line = next(line for line in text.splitlines() if line.startswith("replay"))
    assert f"{job.replay.bytes:,} bytes of the state" in line
    assert "replay" in next(line for line in text.splitlines() if line.startswith("state"))


# -- steps ------------------------------------------------------------------------------------------------------------


def test_a_step_has_as_many_old_samples_as_new_ones() -> None:
    job, seen = made(), []
    run = job.engine.machine.run

    def watched(entry: str, inputs: Any, outputs: Any, n: int, *rest: Any) -> None:
        seen.append((entry, n))
        run(entry, inputs, outputs, n, *rest)

    job.engine.machine.run = watched  # type: ignore[method-assign]
    for i in range(3):
        job.train_step(X[4 * i : 4 * i + 4], Y[4 * i : 4 * i + 4])
    job.train_step(X[:1], Y[:1])
    job.train_step(X[:8], Y[:8])
    assert seen == [
        ("features", 4), ("train", 4), ("features", 4), ("train", 8), ("features", 4), ("train", 8),
        ("features", 1), ("train", 2), ("features", 8), ("train", 8),
    ]  # fmt: skip


def test_fit_takes_the_planned_share_and_keeps_samples_once() -> None:
    job = made(48, fresh=2)
    history = job.fit(X, Y, epochs=3, progress=False)
    assert [epoch.samples for epoch in history.epochs] == [48] * 3
    assert job.step == 3 * 24
    assert job.replay.seen == {str(i): 12 for i in range(4)}, "later epochs bring nothing new"
    kept = job.replay.draw(48)[0]
    assert len(np.unique(kept, axis=0)) == 48


def test_a_step_that_an_error_stops_leaves_the_buffer_as_it_was() -> None:
    job = made()
    job.train_step(X[:4], Y[:4])
    before = state(job)
    for x, y in ((X[:4], np.array([0, 1, 2, 9])), (np.full_like(X[:4], np.nan), Y[:4])):
        with pytest.raises(SmidgenError):
            job.train_step(x, y)
        assert state(job) == before


def test_ignored_samples_are_learned_from_by_nobody_and_not_kept() -> None:
    job = made()
    job.train_step(X[:4], np.array([0, -100, 2, -100]))
    assert job.replay.counts == {"0": 1, "1": 0, "2": 1, "3": 0}


def test_the_buffer_can_be_filled_drawn_from_and_cleared() -> None:
    job = made()
    assert job.replay.add(X, Y) >= 12
    assert job.replay.counts == {str(i): 3 for i in range(4)}
    assert job.replay.seen == {str(i): 12 for i in range(4)}
    assert job.step == 0
    x, y = job.replay.draw(5)
    assert (x.shape, x.dtype, y.shape) == ((5, 16), np.float32, (5,))
    assert repr(job.replay) == f"<replay: 12 of 12 samples, features, {job.replay.bytes} bytes; 0 3, 1 3, 2 3, 3 3>"
    job.replay.clear()
    assert len(job.replay) == 0
    assert job.replay.samples == 12


def test_a_target_that_is_no_class_is_kept_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
    x, y = np.random.default_rng(0).standard_normal((2, 30, 5)).astype(np.float32)
    job = smidgen.compile(
        model, torch.zeros(4, 5), loss="mse", method="last_layer", kernels="exact", memory=Memory(replay=Replay(7))
    )
    for i in range(10):
        job.train_step(x[3 * i : 3 * i + 3][:2], y[3 * i : 3 * i + 3, :2][:2])
    assert len(job.replay) == 7
    assert job.replay.counts == {}
    drawn = job.replay.draw(7)[1]
    rows = {row.tobytes() for row in y[:, :2]}
    assert all(np.ascontiguousarray(row).tobytes() in rows for row in drawn)


def test_new_classes_enter_the_buffer() -> None:
    job = made(8, classes=Classes(spare=2))
    job.train_step(X[:4], Y[:4])
    assert list(job.replay.counts) == ["0", "1", "2", "3"]
    number = job.add_class("cat")
    for _ in range(3):
        job.train_step(X[4:8], np.full(4, number))
    assert list(job.replay.counts) == ["0", "1", "2", "3", "cat"]
    assert sorted(job.replay.counts.values()) == [1, 1, 1, 1, 4]


@pytest.mark.parametrize("options", [
    {"memory": Memory(accumulate=True)}, {"memory": Memory(ladder=["7.2KB"])}, {"kernels": "fast"},
    {"optimizer": Adam(0.01)}, {"optimizer": SGD(0.1, clip_norm=1.0)}, {"memory": Memory(const="int8")},
    {"method": "full", "of": "inputs"}, {"bn": "batch"},
], ids=str)  # fmt: skip
def test_it_goes_with_everything_else(options: dict[str, Any]) -> None:
    job = made(**options)
    job.fit(X, Y, epochs=2, progress=False)
    assert len(job.replay) == 12
    for rung in range(len(job.rungs)):
        job.rung = rung
        job.train_step(X[:4], Y[:4])
    if "grad" in job.program.entries:
        job.train_step(X[:20], Y[:20])


def test_micro_batches_are_the_undivided_step_to_the_bit() -> None:
    whole, parts = made(24), made(24, example=EXAMPLE[:3], memory=Memory(accumulate=True), batch=None)
    parts.engine.replay.shape = whole.engine.replay.shape  # type: ignore[union-attr]
    parts.engine.replay.buffer = type(whole.engine.replay.buffer)(  # type: ignore[union-attr]
        whole.engine.replay.shape,
        parts.engine.replay.buffer.memory,  # type: ignore[union-attr]
    )
    for i in range(6):
        x, y = X[4 * i : 4 * i + 4], Y[4 * i : 4 * i + 4]
        assert whole.train_step(x, y) == parts.train_step(x, y)
    assert state(whole) == state(parts)


def test_state_in_pages_and_a_buffer_in_ram(tmp_path: Path) -> None:
    memory = Memory(page_to=tmp_path / "page.bin", budget=made().plan.exact_ram_bytes - 200)
    job = made(memory=memory)
    assert job.program.page_bytes
    job.fit(X, Y, epochs=1, progress=False)
    other = made()
    other.fit(X, Y, epochs=1, progress=False)
    assert job.replay.counts == other.replay.counts
    for name, value in other.state_dict().items():
        assert value.tobytes() == job.state_dict()[name].tobytes()


# -- what survives ----------------------------------------------------------------------------------------------------


def test_a_saved_job_draws_the_same_samples(tmp_path: Path) -> None:
    job = made()
    job.fit(X[:24], Y[:24], progress=False)
    job.save(tmp_path / "a.smg")
    other = smidgen.load(tmp_path / "a.smg", kernels="exact")
    for one in (job, other):
        one.fit(X[24:], Y[24:], progress=False)
    assert state(job) == state(other)
    assert np.array_equal(job.replay.draw(5)[0], other.replay.draw(5)[0])


def test_a_run_that_is_resumed_in_its_middle_ends_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "run.ckpt"
    whole, cut = made(), made()
    whole.fit(X, Y, epochs=3, progress=False)

    class Stop(Exception):
        pass

    def stop(epoch: Any) -> None:
        if epoch.epoch == 2:
            raise Stop

    with pytest.raises(Stop):
        cut.fit(X, Y, epochs=3, progress=False, checkpoint=path, checkpoint_every=5, on_epoch=stop)
    again = made()
    again.resume(path)
    again.fit(X, Y, epochs=3, progress=False)
    assert state(again) == state(whole)


def test_a_loss_that_is_not_finite_takes_the_buffer_back_too() -> None:
    job = made(method="last:2", optimizer=SGD(1.0))
    job.train_step(X[:4], Y[:4])
    job.lr = 1e30
    with pytest.raises(NotFinite):
        job.fit(X, Y, progress=False)
    assert sum(job.replay.seen.values()) <= 8
    assert not job.engine.replay.wrong()  # type: ignore[union-attr]


def damaged(job: Job) -> Array:
    """A copy of the state whose buffer has a label that is no class."""
    found = job.engine.state.copy()
    shape = job.engine.replay.shape  # type: ignore[union-attr]
    end = shape.at + shape.bytes
    found[end - 4 : end].view(np.int32)[:] = 77
    return found


def test_a_damaged_buffer_in_a_program_is_refused(tmp_path: Path) -> None:
    job = made()
    job.replay.add(X, Y)
    job.program.with_state(damaged(job).tobytes()).save(tmp_path / "a.smg")
    with pytest.raises(BadProgram, match="replay buffer is damaged") as error:
        smidgen.load(tmp_path / "a.smg")
    assert error.value.why == "the labels of the replay buffer do not fit its counts"


def test_a_damaged_buffer_in_a_checkpoint_is_refused_and_nothing_is_set(tmp_path: Path) -> None:
    job = made()
    job.replay.add(X, Y)
    before = state(job)
    kept = checkpoint.Checkpoint(job.engine.fingerprint, 0, damaged(job).tobytes())
    checkpoint.write(tmp_path / "a.ckpt", kept)
    with pytest.raises(BadCheckpoint, match="replay buffer is damaged"):
        job.resume(tmp_path / "a.ckpt")
    assert state(job) == before


def test_a_damaged_buffer_in_a_slot_is_refused(tmp_path: Path) -> None:
    job = made()
    job.replay.add(X, Y)
    body = damaged(job).tobytes()
    head = b"SMGS" + np.array([1, len(body), 1, job.program.checksum, zlib.crc32(body), 0], "<u4").tobytes()
    slot = head + zlib.crc32(head).to_bytes(4, "little") + body
    (tmp_path / "slots.bin").write_bytes(slot + bytes(len(slot)))
    with pytest.raises(BadCheckpoint, match="replay buffer is damaged"):
        job.restore(tmp_path / "slots.bin")


@pytest.mark.parametrize("change", [
    {"samples": 13}, {"samples": 0}, {"samples": -1}, {"samples": "12"}, {"classes": 3}, {"classes": 2**40}, {"at": 3},
    {"at": 2**31}, {"parts": []}, {"parts": 7}, {"parts": [[[1, 16], "f32", 2], [[1], "i32", 2]]}, {"of": "inputs"},
    {"of": "nothing"}, {"seed": -1}, {"fresh": 1.5}, {"step": None},
], ids=str)  # fmt: skip
def test_a_program_that_describes_another_buffer_is_refused(change: dict[str, Any]) -> None:
    program = made().program
    facts = {**program.meta["replay"], **change}
    with pytest.raises(BadProgram, match="replay buffer"):
        Job(replace(program, meta={**program.meta, "replay": facts}))


# -- what it is for ---------------------------------------------------------------------------------------------------


def clusters(rng: np.random.Generator, number: int, count: int) -> Array:
    centre = np.random.default_rng(number).standard_normal(12) * 2.0
    return (centre + rng.standard_normal((count, 12))).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classes_that_come_one_after_another_are_kept_with_replay_and_lost_without(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 6))
    rng = np.random.default_rng(seed)
    found = {}
    for replay in (Replay(60), None):
        job = smidgen.compile(
            model, torch.zeros(16, 12), method="last:2", optimizer=SGD(0.05, momentum=0.9), kernels="exact",
            memory=Memory(replay=replay),
        )  # fmt: skip
        for number in range(6):
            job.fit(clusters(rng, number, 96), np.full(96, number), epochs=4, progress=False)
        x = np.concatenate([clusters(rng, number, 50) for number in range(6)])
        right = job.predict(x).argmax(1) == np.repeat(np.arange(6), 50)
        found[replay is not None] = float(right[:250].mean()), float(right[250:].mean())
    old, new = found[True]
    assert old > 0.85, found
    assert new > 0.85, found
    assert found[False][0] < 0.3, found
    assert found[False][1] > 0.9, found


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replay", "said"),
    [(Replay(0), "not a number of samples"), (Replay(True), "not a number of samples"),
     (Replay(20, of="nothing"), "of='nothing'"), (Replay(20, precision="int4"), "precision='int4'"),
     (Replay(20, fresh=0), "fresh=0"), (Replay(20, fresh=8), "leaves no room for old samples"),
     (Replay(3), r"Replay\(samples=3\) is too small"), (200, "is not understood"),
     (Replay(2**30, of="inputs"), "more than a program can address")],
    ids=str,
)  # fmt: skip
def test_what_means_nothing_is_said_with_what_would(replay: Any, said: str) -> None:
    with pytest.raises(BadOption, match=said) as error:
        smidgen.compile(net(), EXAMPLE, method="last_layer", kernels="exact", memory=Memory(replay=replay))
    assert error.value.help


@pytest.mark.parametrize("options", [{"batch": 1}, {"example": EXAMPLE[:1]}], ids=str)
def test_a_step_of_one_sample_has_no_room_for_old_ones(options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="replay needs steps of two samples or more"):
        made(**options)


def test_a_job_without_a_buffer_says_how_to_get_one() -> None:
    job = smidgen.compile(net(), EXAMPLE, kernels="exact")
    with pytest.raises(BadOption, match="keeps no samples"):
        _ = job.replay


@pytest.mark.parametrize(
    ("call", "kind"),
    [(lambda r: r.draw(1), BadData), (lambda r: r.draw(0), BadOption), (lambda r: r.draw("3"), BadOption),
     (lambda r: r.add(X[:2], Y[:3]), BadData), (lambda r: r.add(X[:2], [0, 9]), BadData),
     (lambda r: r.add(X[:2] * np.nan, Y[:2]), BadData), (lambda r: r.add((X[:2], X[:2]), Y[:2]), BadData)],
)  # fmt: skip
def test_what_the_buffer_cannot_do_is_an_error(call: Any, kind: type[SmidgenError]) -> None:
    job = made()
    with pytest.raises(kind):
        call(job.replay)
    assert not len(job.replay)


def test_sweep_and_max_batch_count_the_buffer() -> None:
    memory = Memory(budget="16KB", replay=Replay(40))
    with_it = smidgen.max_batch(net(), EXAMPLE[:2], method="last_layer", kernels="exact", memory=memory)
    without = smidgen.max_batch(net(), EXAMPLE[:2], method="last_layer", kernels="exact", budget="16KB")
    assert with_it.batch != without.batch


@pytest.mark.parametrize(
    ("text", "replay"),
    [("200", Replay(200)), ("9:inputs", Replay(9, "inputs")), ("9:f32:4", Replay(9, precision="f32", fresh=4)),
     ("9:1:features:int8", Replay(9, fresh=1))],
)  # fmt: skip
def test_a_command_line_says_the_same(text: str, replay: Replay) -> None:
    assert replay_of(text) == replay


@pytest.mark.parametrize("text", ["", "x", "9:x", "9:4:4", "9:f32:int8", "-9", "9:"])
def test_a_command_line_that_means_nothing_is_an_error(text: str) -> None:
    with pytest.raises(BadOption) as error:
        replay_of(text)
    assert error.value.help
