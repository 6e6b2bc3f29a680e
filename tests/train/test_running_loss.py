"""The loss of a step in micro-batches: the bits of the whole batch, however it is cut, on the host, by the interpreter
and in C; and nothing but the loss changes by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smidgen
from smidgen import ops
from smidgen.ir import Batch, DType, Tensor, at, batch_axis
from smidgen.ops.registry import Case, Op, Run
from smidgen.runtime import library
from tests.support.arguments import compiled as compiled_with

SAMPLES, CLASSES = 37, 11
RNG = np.random.default_rng(3)
X = RNG.standard_normal((SAMPLES, 6)).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, SAMPLES)
FLOATS = (3 * RNG.standard_normal((SAMPLES, CLASSES))).astype(np.float32)
SHARES = RNG.uniform(0, 1, (SAMPLES, CLASSES)).astype(np.float32)
Loss = str | Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
WEIGHT = torch.linspace(0.5, 2, CLASSES)
LOSSES: dict[str, tuple[Loss, Any]] = {
    "cross_entropy": ("cross_entropy", LABELS),
    "smoothed": (lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1), LABELS),
    "weighted sum": (lambda o, t: F.cross_entropy(o, t, weight=WEIGHT, reduction="sum"), LABELS),
    "nll": (lambda o, t: F.nll_loss(F.log_softmax(o, 1), t), LABELS),
    "mse": ("mse", FLOATS),
    "l1": ("l1", FLOATS),
    "huber": ("huber", FLOATS),
    "smooth_l1": ("smooth_l1", FLOATS),
    "bce": ("bce_with_logits", SHARES),
    "bce weighted": (lambda o, t: F.binary_cross_entropy_with_logits(o, t, pos_weight=WEIGHT, reduction="sum"), SHARES),
    "mean": (lambda o, t: ((o - t) ** 4).mean(), FLOATS),
    "sum": (lambda o, t: ((o - t).abs() + 1).log().sum(), FLOATS),
    "several": (lambda o, t: 2 * F.mse_loss(o, t) - 0.3 * (o * t).mean() / 2 + 1e-3 * (o**2).sum(), FLOATS),
    "each class": (lambda o, t: ((o - t) ** 2).mean(0).sum(), FLOATS),
}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, CLASSES))


def compiled(loss: Loss, y: Any, batch: int, **more: Any) -> smidgen.Job:
    optimizer = smidgen.SGD(0.05, momentum=0.9)
    options = {"optimizer": optimizer, "accumulate": True, "kernels": "exact", **more}
    return compiled_with(model(), X, loss=loss, target=y, batch=batch, **options)


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_in_micro_batches_has_the_bits_of_the_whole_batch(name: str) -> None:
    loss, y = LOSSES[name]
    whole = compiled(loss, y, SAMPLES)
    expected = [whole.train_step(X, y) for _ in range(3)]
    for batch in (1, 5, 12, 36):  # 37 is a multiple of none
        parts = compiled(loss, y, batch)
        assert [parts.train_step(X, y) for _ in range(3)] == expected
        for key, value in whole.state_dict().items():
            np.testing.assert_array_equal(parts.state_dict()[key], value)


class Factor(nn.Module):
    """The loss is multiplied by something that learns, so the gradient reads the sum of each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.factor = model(), nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.inner(x), self.factor


def scaled(outputs: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(outputs[0], target) * outputs[1]


def test_a_loss_with_a_factor_that_learns_is_right_in_micro_batches() -> None:
    jobs = [
        smidgen.compile(
            Factor(), X, loss=scaled, target=FLOATS, batch=b, memory=smidgen.Memory(accumulate=True), kernels="exact"
        )
        for b in (SAMPLES, 8)
    ]
    for _ in range(3):
        whole, parts = (job.train_step(X, FLOATS) for job in jobs)
        assert parts == pytest.approx(whole, rel=1e-5)
    for key, value in jobs[0].state_dict().items():
        np.testing.assert_allclose(jobs[1].state_dict()[key], value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("batch", [4, 10])
def test_pixels_sequences_and_ignored_labels_have_the_bits_of_the_whole_batch(batch: int) -> None:
    x = RNG.standard_normal((11, 2, 5, 7)).astype(np.float32)
    pixels, net = RNG.integers(0, 3, (11, 5, 7)), nn.Conv2d(2, 3, 1)
    jobs = [
        smidgen.compile(
            net,
            x,
            loss="cross_entropy",
            target=pixels,
            batch=b,
            memory=smidgen.Memory(accumulate=True),
            kernels="exact",
        )
        for b in (11, batch)
    ]
    assert jobs[0].train_step(x, pixels) == jobs[1].train_step(x, pixels)
    ignored = np.where(np.arange(SAMPLES) % 5 == 1, -100, LABELS)
    whole, parts = compiled("cross_entropy", LABELS, SAMPLES), compiled("cross_entropy", LABELS, batch)
    kept = ignored >= 0
    assert parts.train_step(X, ignored) == whole.train_step(X[kept], LABELS[kept])


def test_infinite_and_huge_losses_are_the_same_too() -> None:
    for far in (3e19, 1.5e19, np.inf, np.nan):
        y = FLOATS.copy()
        y[::2] = far
        with np.errstate(all="ignore"):
            # Users cannot give such targets, but a loss can become so.
            found = [compiled("mse", FLOATS, batch).engine.train([X, y], SAMPLES) for batch in (SAMPLES, 5)]
        np.testing.assert_array_equal(found[0], found[1])


def test_the_first_step_after_a_stopped_one_starts_a_new_sum() -> None:
    job, other = compiled("cross_entropy", LABELS, 10), compiled("cross_entropy", LABELS, 10)
    with pytest.raises(smidgen.SmidgenError):
        job.train_step(X, np.where(np.arange(SAMPLES) == 25, 99, LABELS))
    assert job.train_step(X, LABELS) == other.train_step(X, LABELS)


RUNNING = sorted(name for name, op in ops.all_ops().items() if op.running is not None)


def test_every_loss_goes_on_by_an_op_of_its_own() -> None:
    losses = {"cross_entropy", "nll_loss", "mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "bce_with_logits"}
    assert set(RUNNING) == {*losses, "batch_sum", "batch_mean"}


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("cuts", [(7,), (3, 11), (1, 2, 20)])
def test_an_op_that_goes_on_gives_the_bits_of_the_op_at_once(name: str, cuts: tuple[int, ...]) -> None:
    """Cut anywhere, also in the middle of a block of the sum."""
    op, n, done = ops.get(name), 23, 0
    assert op.running is not None
    running = ops.get(op.running.op)
    rng = np.random.default_rng(1)
    for case in (c for c in op.cases if batch_axis(_shape(c)) == 0):
        arrays = [a(rng, n) if callable(a) else rng.standard_normal(at(tuple(a), n)) for a in case.inputs]
        arrays = [np.abs(a).astype(np.int32) % 3 if a.dtype.kind == "i" else a.astype(np.float32) for a in arrays]
        attrs = {**case.attrs, **({"ignore_index": -7} if "ignore_index" in case.attrs else {})}
        if attrs.get("reduction") == "mean" and len(arrays) > 2 and name in ("cross_entropy", "nll_loss"):
            continue  # a mean with class weights is that of a whole batch only
        shape = at(op.infer([_tensor(a, n) for a in arrays], attrs)[0][0], n)
        whole, total = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        carried = np.zeros(op.running.carried(shape), np.float32)
        _run(op, [whole], arrays, attrs, Run(n, n))
        for first, last in zip((0, *cuts), (*cuts, n), strict=True):
            part = [a[first * len(a) // n : last * len(a) // n] if len(a) % n == 0 else a for a in arrays]
            _run(running, [total, carried], part, attrs, Run(last - first, n))
        np.testing.assert_array_equal(total, whole)
        done += 1
    assert done


def _shape(case: Case) -> Any:
    return case.inputs[0] if not callable(case.inputs[0]) else ()


def _tensor(a: np.ndarray, n: int) -> Tensor:
    """Arrays of a multiple of n rows have samples along them; 13 numbers that are carried have not."""
    shape = (Batch(len(a) // n), *a.shape[1:]) if a.ndim and len(a) % n == 0 else a.shape
    return Tensor("t", shape, DType.I32 if a.dtype.kind == "i" else DType.F32)


def _run(op: Op, outs: list[np.ndarray], ins: list[np.ndarray], attrs: Any, run: Run) -> None:
    given = tuple(_tensor(a, run.n) for a in ins)
    plain = [Tensor("t", a.shape) for a in outs]
    params = [at(p, run.n) for p in op.params(ops.Call((*plain[1:], *given), tuple(plain), attrs))]
    (kernel,) = op.kernels.values()
    operands = [*outs, *(np.ascontiguousarray(a) for a in ins)]
    assert library.run_kernel(kernel, operands, params, (run.n, run.total, 0)) is None
