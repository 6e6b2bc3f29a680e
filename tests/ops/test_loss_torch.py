"""Losses against torch.nn.functional in float64: values, gradients, reductions, and how micro-batches add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smidgen import ops
from smidgen.errors import BadData, BadShape
from smidgen.ir import Array, DType, Tensor
from smidgen.runtime import library

REDUCTIONS = ["mean", "sum"]


def close(got: Array, want: torch.Tensor) -> None:
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-12, atol=1e-14)


def channels_last(t: torch.Tensor) -> torch.Tensor:
    return t.movedim(1, -1)


def both(name: str, arrays: list[Array], total: int | None = None, **attrs: Any) -> tuple[Array, Array]:
    """Loss and gradient for input 0 by the ops' numpy meaning; the gradient of the loss is 0.7."""
    n = arrays[0].shape[0]
    run = ops.Run(n, total or n, 0)
    (loss,) = ops.get(name).ref(*arrays, **attrs, run=run)
    dloss = np.array(0.7)
    if name == "nll_loss":
        (dx,) = ops.get("nll_loss_dx").ref(dloss, *arrays[1:], shape=arrays[0].shape, **attrs, run=run)
    else:
        (dx,) = ops.get(f"{name}_dx").ref(dloss, *arrays, **attrs, run=run)
    return loss, dx


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("extra", [(), (4,), (3, 2)], ids=["rows", "1d", "2d"])
@pytest.mark.parametrize("ignore", [None, -100, 2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    ("name", "smoothing"), [("cross_entropy", 0.0), ("cross_entropy", 0.15), ("cross_entropy", 1.0), ("nll_loss", None)]
)
def test_losses_of_labels_equal_torch(
    name: str, smoothing: float | None, weighted: bool, ignore: int | None, extra: tuple[int, ...], reduction: str
) -> None:
    rng = np.random.default_rng(3)
    logits = torch.tensor(rng.standard_normal((6, 5, *extra)) * 3, requires_grad=True)
    target = rng.integers(0, 5, (6, *extra))
    if ignore is not None:
        target.reshape(-1)[::3] = ignore
    weight = rng.uniform(0.2, 2, 5) if weighted else None
    options: dict[str, Any] = {"ignore_index": -100 if ignore is None else ignore, "reduction": reduction}
    if smoothing is not None:
        options["label_smoothing"] = smoothing
    function = F.cross_entropy if name == "cross_entropy" else F.nll_loss
    want = function(logits, torch.tensor(target), weight=torch.tensor(weight) if weighted else None, **options)
    (want * 0.7).backward()
    arrays = [channels_last(logits).detach().numpy(), target.astype(np.int32)]
    arrays += [] if weight is None else [weight]
    loss, dx = both(name, arrays, **options)
    close(loss, want)
    assert logits.grad is not None
    close(dx, channels_last(logits.grad))


PAIRS: list[tuple[str, Callable[..., torch.Tensor], dict[str, Any]]] = [
    ("mse_loss", F.mse_loss, {}),
    ("l1_loss", F.l1_loss, {}),
    ("huber_loss", F.huber_loss, {"delta": 0.6}),
    ("huber_loss", F.huber_loss, {"delta": 2.0}),
    ("smooth_l1_loss", F.smooth_l1_loss, {"beta": 0.6}),
    ("smooth_l1_loss", F.smooth_l1_loss, {"beta": 0.0}),
]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("name", "function", "attrs"), PAIRS)
def test_losses_of_pairs_equal_torch(
    name: str, function: Callable[..., torch.Tensor], attrs: dict[str, Any], reduction: str
) -> None:
    rng = np.random.default_rng(4)
    x = torch.tensor(rng.standard_normal((6, 5, 3)), requires_grad=True)
    t = torch.tensor(rng.standard_normal((6, 5, 3)))
    with torch.no_grad():
        t[0, 0, 0] = x[0, 0, 0]  # the kink of l1, and the middle of the others
        t[0, 0, 1] = x[0, 0, 1] - 0.6  # a border of huber and smooth_l1
    want = function(x, t, reduction=reduction, **attrs)
    (want * 0.7).backward()
    loss, dx = both(name, [x.detach().numpy(), t.numpy()], reduction=reduction, **attrs)
    close(loss, want)
    assert x.grad is not None
    close(dx, x.grad)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("pos_weight", [None, (1,), (5,), (3, 5)])
def test_bce_with_logits_equals_torch(pos_weight: tuple[int, ...] | None, reduction: str) -> None:
    rng = np.random.default_rng(5)
    x = torch.tensor(rng.standard_normal((6, 3, 5)) * 20, requires_grad=True)
    t = torch.tensor(rng.uniform(0, 1, (6, 3, 5)))
    weight = None if pos_weight is None else rng.uniform(0.2, 3, pos_weight)
    want = F.binary_cross_entropy_with_logits(
        x, t, reduction=reduction, pos_weight=None if weight is None else torch.tensor(weight)
    )
    (want * 0.7).backward()
    arrays = [x.detach().numpy(), t.numpy(), *([] if weight is None else [weight])]
    loss, dx = both("bce_with_logits", arrays, reduction=reduction)
    close(loss, want)
    assert x.grad is not None
    close(dx, x.grad)


CE: dict[str, Any] = {"label_smoothing": 0.1, "ignore_index": -100, "reduction": "mean"}


def kernel_loss_and_gradient(
    x: Array, target: Array, total: int, mean: int = 1, ignore: int = -100
) -> tuple[np.float32, Array]:
    """cross_entropy and its gradient in C, smoothing 0.1."""
    loss, dx = np.zeros(1, np.float32), np.zeros_like(x)
    rows, classes = x.size // x.shape[-1], x.shape[-1]
    params, run = [rows, classes, ignore, mean, 0.1], (len(x), total, 0)
    assert library.run_kernel("cross_entropy_f32", [loss, x, target], params, run) is None
    one = np.ones(1, np.float32)
    assert library.run_kernel("cross_entropy_dx_f32", [dx, one, x, target], params, run) is None
    return loss[0], dx


def test_micro_batches_add_up_and_their_gradients_have_the_same_bits() -> None:
    rng = np.random.default_rng(6)
    x = rng.standard_normal((7, 3, 5)).astype(np.float32)
    target = rng.integers(0, 5, (7, 3)).astype(np.int32)
    whole, gradient = kernel_loss_and_gradient(x, target, total=7)
    parts = [kernel_loss_and_gradient(x[a:b].copy(), target[a:b].copy(), total=7) for a, b in ((0, 3), (3, 6), (6, 7))]
    assert sum(float(loss) for loss, _ in parts) == pytest.approx(float(whole), rel=1e-6)
    np.testing.assert_array_equal(np.concatenate([dx for _, dx in parts]), gradient)
    exact = [both("cross_entropy", [x[a:b], target[a:b]], total=7, **CE)[0] for a, b in ((0, 3), (3, 7))]
    assert float(sum(exact)) == pytest.approx(float(whole), rel=1e-6)


def test_a_batch_of_ignored_rows_is_nan_as_in_torch() -> None:
    x = np.random.default_rng(7).standard_normal((3, 5)).astype(np.float32)
    target = np.full(3, -100, np.int32)
    assert np.isnan(F.cross_entropy(torch.tensor(x), torch.tensor(target, dtype=torch.int64)).item())
    loss, dx = kernel_loss_and_gradient(x, target, total=3)
    ref_loss, ref_dx = both("cross_entropy", [x, target], total=3, **CE)
    assert np.isnan(loss) and np.isnan(ref_loss)  # noqa: PT018
    assert not dx.any()
    assert not ref_dx.any()


def test_ignored_rows_in_a_part_of_a_batch_are_refused() -> None:
    x, target = np.zeros((3, 5), np.float32), np.array([0, -100, 1], np.int32)
    said = library.run_kernel(
        "cross_entropy_f32", [np.zeros(1, np.float32), x, target], [3, 5, -100, 1, 0.0], (3, 6, 0)
    )
    assert said == "a mean with ignored labels needs the whole batch at once"


@pytest.mark.parametrize("label", [-1, 5, 2**31 - 1, -(2**31)])
def test_a_label_outside_the_classes_is_refused(label: int) -> None:
    x, target = np.zeros((3, 5), np.float32), np.array([0, label, 1], np.int32)
    out, one, params = np.zeros_like(x), np.ones(1, np.float32), [3, 5, -100, 1]
    message = "a label is not the number of a class"
    assert library.run_kernel("cross_entropy_f32", [out, x, target], [*params, 0.0]) == message
    assert library.run_kernel("cross_entropy_dx_f32", [out, one, x, target], [*params, 0.0]) == message
    assert library.run_kernel("nll_loss_f32", [out, x, target], params) == message
    assert library.run_kernel("nll_loss_dx_f32", [out, one, target], params) == message
    with pytest.raises(BadData, match=message):
        both("cross_entropy", [x, target], **CE)


def test_large_logits_neither_overflow_nor_lose_the_loss() -> None:
    x = np.array([[1e4, -1e4, 1e4 - 3], [3e38, -3e38, 0]], np.float32)
    target = np.array([2, 0], np.int32)
    loss = np.zeros(1, np.float32)
    assert library.run_kernel("cross_entropy_f32", [loss, x, target], [2, 3, -100, 0, 0.0]) is None
    want = F.cross_entropy(torch.tensor(x, dtype=torch.float64), torch.tensor([2, 0]), reduction="sum")
    assert loss[0] == pytest.approx(want.item(), rel=1e-5)


def test_long_sums_stay_accurate() -> None:
    x = np.random.default_rng(8).uniform(0.5, 1.5, 1_000_003).astype(np.float32)
    loss = np.zeros(1, np.float32)
    assert library.run_kernel("mse_loss_f32", [loss, x, np.zeros_like(x)], [x.size, 1]) is None
    assert loss[0] == pytest.approx(np.square(x.astype(np.float64)).mean(), rel=2e-7)


@pytest.mark.parametrize(
    ("name", "shapes", "attrs"),
    [
        ("cross_entropy", [(4, 5), (3,)], CE),
        ("cross_entropy", [(4, 5), (4,), (4,)], CE),
        ("cross_entropy", [(4, 5), (4,)], {**CE, "label_smoothing": 1.5}),
        ("cross_entropy", [(4, 5), (4,)], {**CE, "reduction": "none"}),
        ("mse_loss", [(4, 5), (4,)], {"reduction": "mean"}),
        ("huber_loss", [(4,), (4,)], {"reduction": "mean", "delta": -1.0}),
        ("bce_with_logits", [(4, 5), (4, 5), (4,)], {"reduction": "mean"}),
    ],
)
def test_what_does_not_fit_is_refused_by_the_shape_rule(
    name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any]
) -> None:
    labels = name == "cross_entropy"
    ins = [Tensor("t", s, DType.I32 if labels and i == 1 else DType.F32) for i, s in enumerate(shapes)]
    with pytest.raises(BadShape):
        ops.get(name).infer(ins, attrs)
