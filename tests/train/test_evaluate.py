"""`job.evaluate`: loss and accuracy for networks of many kinds, as PyTorch has them; several inputs, odd targets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smidgen
from smidgen.compiler.assemble import encode
from smidgen.compiler.optimizers import SGD
from smidgen.ir import Array
from smidgen.ops.build import Builder, fetch
from smidgen.train.job import Job
from tests.support import small
from tests.support.jobs import said, state

X, Y = small.data(19)


class Words(nn.Module):
    """Two inputs, one of them integers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 6)
        self.head = nn.Linear(6 + 3, 4)

    def forward(self, words: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(torch.cat([self.table(words).mean(1), numbers], 1))
        return found


def words(n: int) -> tuple[tuple[Array, Array], Array]:
    rng = np.random.default_rng(n)
    return (rng.integers(0, 11, (n, 5)), rng.standard_normal((n, 3)).astype(np.float32)), rng.integers(0, 4, n)


def test_several_inputs_come_as_a_tuple_or_from_a_data_loader() -> None:
    torch.manual_seed(0)
    x, y = words(10)
    model, example = Words(), tuple(torch.from_numpy(a[:4]) for a in x)
    first = smidgen.compile(model, example, optimizer=SGD(0.1))
    jobs = [first, Job(first.program), Job(first.program)]
    tensors = [torch.from_numpy(np.asarray(a)) for a in (*x, y)]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*tensors), batch_size=4)
    jobs[0].fit(x, y, epochs=2, shuffle=False, eval=(x, y))
    jobs[1].fit(loader, epochs=2, eval=loader, schedule="constant")
    jobs[2].fit([(tuple(a[k : k + 4] for a in x), y[k : k + 4]) for k in (0, 4, 8)], epochs=2)
    assert state(jobs[0]) == state(jobs[1]) == state(jobs[2])
    assert jobs[0].evaluate(x, y) == jobs[0].evaluate(loader)


LOSSES: list[tuple[str, Any, tuple[int, ...]]] = [
    ("mse", F.mse_loss, (3,)),
    ("l1", F.l1_loss, (3,)),
    ("huber", F.huber_loss, (3,)),
    ("smooth_l1", F.smooth_l1_loss, (3,)),
    ("bce_with_logits", F.binary_cross_entropy_with_logits, (3,)),
    ("cross_entropy", F.cross_entropy, ()),
]


@pytest.mark.parametrize(
    ("name", "function", "shape", "given"),
    [*((*row, "name") for row in LOSSES), *((*row, "function") for row in LOSSES[::2]), (*LOSSES[-1], "function")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_evaluate_gives_the_loss_of_the_model_in_evaluation_mode(
    name: str, function: Any, shape: tuple[int, ...], given: str
) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))
    rng = np.random.default_rng(3)
    x = rng.standard_normal((12, 4)).astype(np.float32)
    y = rng.integers(0, 3, 12) if name == "cross_entropy" else rng.random((12, *shape)).astype(np.float32)
    y = y.round() if name == "bce_with_logits" else y
    if given == "name":
        job = smidgen.compile(model, x[:4], loss=name, bn="batch")
    else:
        job = smidgen.compile(model, x[:4], loss=lambda o, t: 2 * function(o, t), target=y[:4], bn="batch")
    job.fit(x, y, epochs=2)
    before = state(job)
    found = job.evaluate(x, y)
    assert state(job) == before, "evaluating changed something"
    job.load_into(model)
    with torch.no_grad():
        output = model.eval()(torch.from_numpy(x))
    want = float(function(output, torch.from_numpy(y))) * (1 if given == "name" else 2)
    assert found["loss"] == pytest.approx(want, rel=1e-5)
    assert found["samples"] == 12
    if name == "cross_entropy":
        assert found["accuracy"] == (output.argmax(1).numpy() == y).mean()
    elif name == "bce_with_logits":
        assert found["accuracy"] == ((output.numpy() > 0) == (y > 0.5)).mean()
    else:
        assert "accuracy" not in found


def test_evaluate_of_a_segmentation_leaves_ignored_labels_out() -> None:
    torch.manual_seed(2)
    model = nn.Conv2d(2, 3, 1)
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((9, 2, 4, 5)).astype(np.float32), rng.integers(0, 3, (9, 4, 5))
    y[rng.random(y.shape) < 0.4] = 255
    y[4:8] = 255  # a whole batch of nothing
    job = smidgen.compile(
        model, x[:4], loss=lambda o, t: F.cross_entropy(o, t, ignore_index=255), target=y[:4], optimizer=SGD(0.1)
    )
    assert job.program.meta["loss"] == {
        "kind": "cross_entropy",
        "classes": 3,
        "ignore": 255,
        "mean": True,
        "alone": True,
    }
    output = model(torch.from_numpy(x)).detach()
    found = job.evaluate(x, y)
    assert found["loss"] == pytest.approx(float(F.cross_entropy(output, torch.from_numpy(y), ignore_index=255)))
    counted = y != 255
    assert found["accuracy"] == (output.argmax(1).numpy() == y)[counted].mean()
    text = said(lambda: job.fit(x, y, shuffle=False))
    assert text == (
        "error[E506]: the loss is NaN in step 2 (epoch 1)\n"
        "  why  all labels of this batch are ignored, and a mean over none of them is not a number\n"
        "  help: leave out samples without a label, or use larger batches"
    )
    assert job.step == 1
    assert said(lambda: job.fit(x, np.where(counted, y, 7))).startswith("error[E502]: label 7 in sample 0 (counted")


def test_integers_that_the_loss_uses_in_its_own_way_count_as_classes_only_if_they_can_be() -> None:
    model, x = nn.Linear(4, 3), np.ones((6, 4), np.float32)

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output - F.one_hot(target, 3)) ** 2).mean()

    def ordinal(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return ((output.sum(1) - target) ** 2).mean()

    y = np.array([0, 1, 2, 0, 1, 2])
    assert "accuracy" in smidgen.compile(model, x[:2], loss=loss, target=y[:2]).evaluate(x, y)
    job = smidgen.compile(model, x[:2], loss=ordinal, target=y[:2])
    assert "accuracy" not in job.evaluate(x, y * 10)
    assert job.fit(x, y * 10).stopped == "done"


def test_scores_may_have_their_classes_last_if_the_loss_reads_them_so() -> None:
    class Next(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.table(words))
            return found

    model, (x, _) = Next(), (np.random.default_rng(0).integers(0, 7, (5, 6)), None)
    y = np.roll(x, -1, 1)
    job = smidgen.compile(
        model, x[:2], loss=lambda o, t: F.cross_entropy(o.reshape(-1, 7), t.reshape(-1)), target=y[:2]
    )
    want = model(torch.from_numpy(x)).argmax(2).numpy() == y
    assert job.evaluate(x, y)["accuracy"] == want.mean()
    assert said(lambda: job.fit(x, y + 1)).startswith("error[E502]: label 7 in sample 1 (counted from 0)")


def test_a_model_whose_results_in_evaluation_mode_the_loss_cannot_take_still_trains() -> None:
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.body(x)
            return (y, 2 * y) if self.training else y

    x, y = np.ones((5, 4), np.float32), np.zeros((5, 3), np.float32)
    job = smidgen.compile(
        Auxiliary(), x[:2], loss=lambda o, t: F.mse_loss(o[0], t) + F.mse_loss(o[1], t).sqrt(), target=y[:2]
    )
    assert list(job.program.entries) == ["infer", "train"]
    assert said(lambda: job.evaluate(x, y)) == (
        "error[E501]: the program has no entry point 'evaluate'\n"
        "  why  the loss does not take what the model returns in evaluation mode, or it was compiled long ago"
    )
    assert job.fit(x, y, epochs=2).stopped == "done"


def test_a_few_bytes_more_for_the_evaluate_entry_are_a_decision_of_the_plan() -> None:
    model = nn.Sequential(nn.Conv2d(3, 9, 3), nn.ReLU(), nn.Flatten(), nn.Linear(9 * 36, 5))
    plan = smidgen.compile(model, X[:1], method="last_layer").plan
    most = max(size for name, size in plan.arena_by_entry.items() if name != "evaluate")
    [decision] = [d for d in plan.decisions if d.kind == "evaluate"]
    raised = plan.arena_bytes - most
    assert 0 < raised < (plan.state_bytes + plan.arena_bytes) / 100
    assert (decision.why, decision.saves_bytes) == (f"job.evaluate gives the loss, for {raised} bytes more", 0)


def test_the_evaluate_entry_is_left_out_rather_than_making_the_arena_larger() -> None:
    b = Builder(small.evaluation())
    big = b.add("mul", *[b.add("linear", "x.fed", b.const("big", np.ones((90, 3)))) for _ in range(2)])
    fetch(b, b.add("mean", big, axes=(1, 2, 3), keepdim=False), "extra")
    rest = small.entries(batch=4)
    with_it = encode(replace(rest, graphs={**rest.graphs, "evaluate": b.graph()}))
    without = encode(rest)
    assert with_it.arena_bytes == without.arena_bytes
    assert list(with_it.entries) == ["infer", "train"]
    [decision] = [d for d in Job(with_it).plan.decisions if d.kind == "no_evaluate"]
    assert decision.saves_bytes > 0
    job = Job(with_it)
    assert sorted(job.evaluate(X, Y)) == ["accuracy", "samples"]
    history = job.fit(X, Y, eval=(X, Y), epochs=9, patience=9)
    shares = [e.eval["accuracy"] for e in history.epochs if e.eval]
    best = int(np.argmax(shares)) + 1
    assert (history.best_epoch, history.restored) == (best, best != 9), "accuracy stands in for it"
