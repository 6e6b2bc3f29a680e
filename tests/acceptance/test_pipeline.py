"""A small network through the whole pipeline without torch: interpreter and C runtime agree, in every entry."""

from __future__ import annotations

import numpy as np
import pytest

from smidgen.compiler.assemble import encode
from smidgen.compiler.graph import interp
from smidgen.compiler.optimizers import SGD, Adam, AdamW, Optimizer
from smidgen.train.job import Job
from smidgen.train.load import load
from tests.support import small

OPTIMIZERS: list[Optimizer] = [
    SGD(0.1), SGD(0.1, momentum=0.9, weight_decay=1e-3), SGD(0.1, momentum=0.9, nesterov=True), Adam(0.01),
    AdamW(0.01, weight_decay=0.1), SGD(0.1, momentum=0.9, clip_norm=0.3),
]  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{type(o).__name__}-{o.op}-{o.clip_norm}")
@pytest.mark.parametrize("learn", [small.ALL, ("w3", "b3"), ("b1", "b2", "b3")], ids="-".join)
def test_c_runtime_follows_the_interpreter_with_full_and_partial_batches(
    optimizer: Optimizer, learn: tuple[str, ...]
) -> None:
    entries = small.entries(learn, optimizer)
    job = Job(encode(entries))
    train = entries.graphs["train"]
    state = interp.initial_state(train)
    for step, n in enumerate((4, 3, 1, 4)):
        x, y = small.data(n, step)
        outputs, state = interp.advance(train, state, {"x": x, "target": y}, n=n)
        assert job.train_step(x, y) == pytest.approx(float(outputs["loss"]), rel=1e-5)
    learned = job.state_dict()
    for name in learn:
        np.testing.assert_allclose(learned[name], state[name], atol=3e-6)
    assert job.step == 4
    x, _ = small.data(9)
    want = interp.run(entries.graphs["infer"], {**state, "x": x}, n=9)["output"]
    np.testing.assert_allclose(job.predict(x), want, atol=3e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS[:4], ids=lambda o: f"{type(o).__name__}-{o.op}")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_batch_in_parts_gives_the_same_bits_as_the_whole(optimizer: Optimizer, dropout: float) -> None:
    whole = Job(encode(small.entries(optimizer=optimizer, batch=7, dropout=dropout)))
    parts = Job(encode(small.entries(optimizer=optimizer, batch=3, dropout=dropout, accumulate=True)))
    for step in range(3):
        x, y = small.data(7, step)
        whole.train_step(x, y)
        parts.train_step(x, y)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(parts.state_dict()[name], value, err_msg=name)
    assert parts.step == whole.step == 3


def test_a_frozen_prefix_gives_the_same_bits_in_a_loop_and_out_of_it() -> None:
    entries = small.entries(("w3", "b3"))
    assert entries.graphs["train"].nodes[0].op == "loop"
    looped, plain = Job(encode(entries)), Job(encode(small.entries(("w2", "w3", "b3"))))
    x, y = small.data(4)
    assert looped.train_step(x, y) == plain.train_step(x, y)


def test_the_arena_of_a_frozen_prefix_does_not_grow_with_the_batch() -> None:
    sizes = [Job(encode(small.entries(("w3", "b3"), batch=b))).plan.arena_bytes for b in (1, 64)]
    assert sizes[1] - sizes[0] < 64 * 200  # features and logits only


def test_saved_state_continues_where_it_was(tmp_path) -> None:  # type: ignore[no-untyped-def]
    job = Job(encode(small.entries(optimizer=Adam(0.01), dropout=0.2)))
    job.train_step(*small.data(4, 1))
    job.lr = 0.003
    job.save(tmp_path / "net.smg")
    again = load(tmp_path / "net.smg")
    assert again.lr == pytest.approx(0.003)
    assert again.step == 1
    for step in range(2, 5):
        assert job.train_step(*small.data(4, step)) == again.train_step(*small.data(4, step))


def test_ram_planned_is_ram_mapped() -> None:
    job = Job(encode(small.entries()))
    plan = job.plan
    assert plan.ram_bytes == job.mapped_bytes + plan.context_bytes + plan.stack_bytes
    assert plan.arena_bytes <= 1.05 * plan.lower_bound_bytes
