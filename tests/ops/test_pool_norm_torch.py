"""Pooling, resampling and normalisation against torch.nn.functional in float64, and what only the C kernels promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from smidgen import ops
from smidgen.compiler.graph import interp
from smidgen.errors import BadShape, BatchStatistics
from smidgen.ir import Array, DType, at
from smidgen.ops import pool, resample
from smidgen.ops.build import Builder
from smidgen.runtime import library

RNG = np.random.default_rng(5)


def nchw(x: Array) -> torch.Tensor:
    """A torch leaf; images [N,...,C] become [N,C,...]."""
    moved = np.moveaxis(x, -1, 1) if x.ndim > 2 else x
    return torch.tensor(np.ascontiguousarray(moved), requires_grad=True)


def last(x: torch.Tensor | None) -> Array:
    assert x is not None
    value = x.detach().numpy()
    return np.moveaxis(value, 1, -1) if value.ndim > 2 else value


def graph_of(
    op: str, arrays: Sequence[Array], attrs: dict[str, Any], batched: bool = False
) -> tuple[Builder, list[str], tuple[str, ...]]:
    """One node. If `batched`, axis 0 of everything but vectors is the batch."""
    b = Builder()
    kinds = {"f": DType.F32, "i": DType.I32, "u": DType.U8}
    shapes = [(ops.N, *a.shape[1:]) if batched and a.ndim > 1 else a.shape for a in arrays]
    ins = [b.tensor(f"in{i}", s, kinds[a.dtype.kind]) for i, (s, a) in enumerate(zip(shapes, arrays, strict=True))]
    return b, ins, b.add_many(op, *ins, **attrs)


def with_gradients(op: str, arrays: Sequence[Array], dy: Array, **attrs: Any) -> tuple[list[Array], list[Array | None]]:
    """Results of the op's meaning and, for each input, the gradient that its rule yields."""
    b, ins, outs = graph_of(op, arrays, attrs)
    seed = b.tensor("dy", dy.shape)
    grads = ops.get(op).vjp(b, b.nodes[0], [seed, *[None] * (len(outs) - 1)])  # type: ignore[operator]
    env = interp.run(b.graph(), {**dict(zip(ins, arrays, strict=True)), seed: dy}, n=1)
    return [env[o] for o in outs], [env[g] if g else None for g in grads]


def kernel(op: str, *arrays: Array, into: int | None = None, **attrs: Any) -> list[Array]:
    """What the C kernel computes, output 0 in the memory of input `into`; its complaint is raised."""
    b, ins, outs = graph_of(op, arrays, attrs, batched=True)
    n = len(arrays[0])
    call = ops.Call(tuple(b[i] for i in ins), tuple(b[o] for o in outs), attrs)
    record = ops.get(op)
    stored = [np.array(a, dtype=t.dtype.numpy, order="C") for a, t in zip(arrays, call.ins, strict=True)]
    results = [np.zeros(at(t.shape, n), t.dtype.numpy) for t in call.outs]
    if into is not None:
        results[0] = stored[into]
    for out, source in record.shares.items():
        results[out] = stored[source]
    kept = [a for i, a in enumerate(stored) if i not in record.shares.values()]
    scratch = at(record.scratch(call), n)
    operands = [*results, *kept, *([np.zeros(scratch, np.uint8)] if scratch else [])]
    said = library.run_kernel(record.kernels["f32"], operands, at(tuple(record.params(call)), n), (n, n, 0))
    if said:
        raise RuntimeError(said)
    return results


def same(got: Array | None, want: Array) -> None:
    assert got is not None
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def check_image_op(op: str, x: Array, in_torch: Callable[[torch.Tensor], torch.Tensor], **attrs: Any) -> list[Array]:
    leaf = nchw(x)
    y = in_torch(leaf)
    dy = RNG.standard_normal((len(x), *y.shape[2:], y.shape[1]))
    y.backward(nchw(dy).detach())
    outs, grads = with_gradients(op, [x], dy, out_hw=tuple(y.shape[2:]), **attrs)
    same(outs[0], last(y))
    same(grads[0], last(leaf.grad))
    return outs


WINDOWS = [  # kernel, stride, padding, dilation
    ((2, 2), (2, 2), (0, 0), (1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((3, 2), (3, 1), (1, 1), (1, 1)),
    ((5, 4), (3, 3), (2, 2), (1, 1)),
    ((2, 3), (2, 3), (1, 1), (2, 3)),
    ((3, 3), (1, 2), (1, 1), (2, 2)),
    ((3, 1), (1, 2), (1, 0), (1, 1)),
    ((1, 1), (2, 3), (0, 0), (1, 1)),
]
SIZES = [(7, 9), (8, 8), (5, 6)]


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("hw", SIZES)
@pytest.mark.parametrize(("kernel_", "stride", "padding", "dilation"), WINDOWS)
def test_max_pool_is_that_of_torch(
    kernel_: Any, stride: Any, padding: Any, dilation: Any, hw: tuple[int, int], ceil_mode: bool
) -> None:
    x = RNG.integers(-2, 3, (2, *hw, 3)).astype(np.float64)  # many ties
    attrs = {"kernel": kernel_, "stride": stride, "padding": padding, "dilation": dilation}
    for values in (x, np.where(x == 2, np.nan, x), np.where(x < 2, -np.inf, x)):
        found = F.max_pool2d(nchw(values), kernel_, stride, padding, dilation, ceil_mode, return_indices=True)
        y, packed = check_image_op(
            "max_pool2d", values, lambda t: F.max_pool2d(t, kernel_, stride, padding, dilation, ceil_mode), **attrs
        )
        k = pool.unpacked(packed, y.shape, pool.index_bits(kernel_))
        h = np.arange(y.shape[1])[:, None, None] * stride[0] - padding[0] + k // kernel_[1] * dilation[0]
        w = np.arange(y.shape[2])[:, None] * stride[1] - padding[1] + k % kernel_[1] * dilation[1]
        np.testing.assert_array_equal(h * hw[1] + w, last(found[1]))
        in_c = kernel("max_pool2d", values, out_hw=y.shape[1:3], **attrs)
        np.testing.assert_array_equal(in_c[0], y)
        np.testing.assert_array_equal(in_c[1], packed)
        np.testing.assert_array_equal(kernel("max_pool2d_plain", values, out_hw=y.shape[1:3], **attrs)[0], y)
        dy = np.ones(y.shape)
        want = ops.get("max_pool2d_dx").ref(dy, packed, in_hw=hw, **attrs)[0]
        np.testing.assert_array_equal(kernel("max_pool2d_dx", dy, packed, in_hw=hw, **attrs)[0], want)


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("count_include_pad", [False, True])
@pytest.mark.parametrize("divisor", [None, 5, -2])
@pytest.mark.parametrize("hw", SIZES)
@pytest.mark.parametrize(("kernel_", "stride", "padding"), [w[:3] for w in WINDOWS if w[3] == (1, 1)])
def test_avg_pool_is_that_of_torch(
    kernel_: Any, stride: Any, padding: Any, hw: Any, divisor: Any, count_include_pad: bool, ceil_mode: bool
) -> None:
    x = RNG.standard_normal((2, *hw, 3))
    check_image_op(
        "avg_pool2d", x, lambda t: F.avg_pool2d(t, kernel_, stride, padding, ceil_mode, count_include_pad, divisor),
        kernel=kernel_, stride=stride, padding=padding, count_include_pad=count_include_pad, divisor=divisor,
    )  # fmt: skip


@pytest.mark.parametrize("out_hw", [(1, 1), (2, 3), (3, 2), (5, 4), (7, 9), (9, 13)])
def test_adaptive_pools_are_those_of_torch(out_hw: tuple[int, int]) -> None:
    x = RNG.standard_normal((2, 7, 9, 3))
    check_image_op("adaptive_avg_pool2d", x, lambda t: F.adaptive_avg_pool2d(t, out_hw))
    for values in (x, np.round(x), np.where(x > 1, np.nan, np.round(x))):
        _, index = check_image_op("adaptive_max_pool2d", values, lambda t: F.adaptive_max_pool2d(t, out_hw))
        want = F.adaptive_max_pool2d(nchw(values), out_hw, return_indices=True)[1]
        np.testing.assert_array_equal(index, last(want))
        np.testing.assert_array_equal(kernel("adaptive_max_pool2d", values, out_hw=out_hw)[1], index)


TARGETS: list[dict[str, Any]] = [
    *[{"size": s} for s in [(14, 18), (7, 9), (11, 23), (3, 4), (1, 1), (7, 1), (16, 2)]],
    *[{"scale_factor": s} for s in [(2.0, 2.0), (1.7, 2.3), (0.6, 0.5), (1.05, 3.0), (1.3, 0.31)]],
]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_upsampling_is_that_of_torch(target: dict[str, Any]) -> None:
    x = RNG.standard_normal((2, 7, 9, 3))
    scale = target.get("scale_factor")
    check_image_op("upsample_nearest2d", x, lambda t: F.interpolate(t, **target, mode="nearest"), scale=scale)
    for align in (False, True):
        bilinear = partial(F.interpolate, **target, mode="bilinear", align_corners=align)
        check_image_op("upsample_bilinear2d", x, bilinear, align_corners=align, scale=scale)


@pytest.mark.parametrize("scale", [None, 1.1, 1.7, 2.6, 0.3])
def test_nearest_picks_the_same_pixel_as_torch_at_every_size(scale: float | None) -> None:
    for size in (*range(1, 40), 97, 224):
        x = np.arange(size, dtype=np.float64).reshape(1, 1, size, 1)
        outs = [max(1, int(size * scale))] if scale else [*range(1, 60), 449]
        for out in outs:
            if scale:
                want = F.interpolate(nchw(x), scale_factor=(1.0, scale), mode="nearest") if size * scale >= 1 else None
            else:
                want = F.interpolate(nchw(x), size=(1, out), mode="nearest")
            if want is not None:
                attrs: dict[str, Any] = {"out_hw": (1, out), "scale": (1.0, scale) if scale else None}
                np.testing.assert_array_equal(resample.nearest_ref(x, **attrs)[0], last(want))
                np.testing.assert_array_equal(kernel("upsample_nearest2d", x, **attrs)[0], last(want))


def vectors(*shape: int) -> tuple[Array, Array, Array, Array]:
    """gamma, beta, mean, var."""
    return (*(RNG.standard_normal(shape) for _ in range(3)), RNG.uniform(0.3, 2, shape))  # type: ignore[return-value]


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (7, 3), (2, 9, 1)])
def test_batch_norm_with_given_statistics_is_that_of_torch(shape: tuple[int, ...]) -> None:
    x, dy = RNG.standard_normal(shape), RNG.standard_normal(shape)
    values = vectors(shape[-1])
    leaves = [nchw(v) for v in (x, *values)]
    t, gamma, beta = leaves[:3]
    y = F.batch_norm(t, leaves[3].detach(), leaves[4].detach(), gamma, beta, training=False, eps=1e-3)
    y.backward(nchw(dy).detach())
    outs, grads = with_gradients("batch_norm", [x, *values], dy, eps=1e-3)
    same(outs[0], last(y))
    for got, leaf in zip(grads[:3], leaves[:3], strict=True):
        same(got, last(leaf.grad))


@pytest.mark.parametrize("shape", [(4, 3, 5, 6), (7, 3), (2, 9, 1)])
def test_batch_norm_with_batch_statistics_is_that_of_torch(shape: tuple[int, ...]) -> None:
    x, dy = 3 + 2 * RNG.standard_normal(shape), RNG.standard_normal(shape)
    gamma, beta, running_mean, running_var = vectors(shape[-1])
    t, tg, tb = nchw(x), nchw(gamma), nchw(beta)
    moved = torch.tensor(running_mean), torch.tensor(running_var)
    y = F.batch_norm(t, *moved, tg, tb, training=True, momentum=0.3, eps=1e-3)
    y.backward(nchw(dy).detach())

    b = Builder()
    feeds = {"x": x, "gamma": gamma, "beta": beta, "rm": running_mean, "rv": running_var, "dy": dy}
    for name, value in feeds.items():
        b.tensor(name, value.shape)
    mean, var = b.add_many("batch_stats", "x")
    new = b.add_many("running_stats", "rm", "rv", mean, var, momentum=0.3, count=x.size // shape[-1])
    out = b.add("batch_norm_batch", "x", "gamma", "beta", eps=1e-3)
    grads = ops.get("batch_norm_batch").vjp(b, b.nodes[-1], ["dy"])  # type: ignore[operator]
    env = interp.run(b.graph(), feeds, n=1)
    same(env[out], last(y))
    for got, leaf in zip(grads, (t, tg, tb), strict=True):
        same(env[str(got)], last(leaf.grad))
    for got, want in zip(new, moved, strict=True):
        same(env[got], want.numpy())


@pytest.mark.parametrize(("shape", "axes"), [((4, 5, 6), 1), ((3, 2, 4, 5), 3), ((6, 7), 2), ((2, 3, 1), 1)])
def test_layer_norm_is_that_of_torch(shape: tuple[int, ...], axes: int) -> None:
    x, dy = RNG.standard_normal(shape), RNG.standard_normal(shape)
    tail = shape[-axes:]
    gamma, beta = vectors(*tail)[:2]
    leaves = [torch.tensor(v, requires_grad=True) for v in (x, gamma, beta)]
    y = F.layer_norm(leaves[0], tail, leaves[1], leaves[2], eps=1e-3)
    y.backward(torch.tensor(dy))
    outs, grads = with_gradients("layer_norm", [x, gamma, beta], dy, axes=axes, eps=1e-3)
    same(outs[0], y.detach().numpy())
    for got, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        same(got, leaf.grad.numpy())


@pytest.mark.parametrize(("shape", "groups"), [((2, 3, 5, 6), 3), ((2, 7, 4), 1), ((3, 5, 2, 4), 4), ((3, 6), 2)])
def test_group_norm_is_that_of_torch(shape: tuple[int, ...], groups: int) -> None:
    x, dy = RNG.standard_normal(shape), RNG.standard_normal(shape)
    gamma, beta = vectors(shape[-1])[:2]
    leaves = [nchw(v) for v in (x, gamma, beta)]
    y = F.group_norm(leaves[0], groups, leaves[1], leaves[2], eps=1e-3)
    y.backward(nchw(dy).detach())
    outs, grads = with_gradients("group_norm", [x, gamma, beta], dy, groups=groups, eps=1e-3)
    same(outs[0], last(y))
    for got, leaf in zip(grads, leaves, strict=True):
        same(got, last(leaf.grad))


def test_statistics_of_one_value_per_channel_are_refused() -> None:
    x = np.ones((1, 1, 1, 4))
    one = np.ones(4)
    with pytest.raises(BatchStatistics):
        ops.get("batch_stats").ref(x)
    with pytest.raises(RuntimeError, match="more than one value per channel"):
        kernel("batch_stats", x)
    with pytest.raises(RuntimeError, match="more than one value per channel"):
        kernel("running_stats", one, one, one, one, momentum=0.1, count=1)
    for op, images, count in (
        ("batch_norm_batch", 1, 2),
        ("batch_norm_batch_dx", 2, 1),
        ("batch_norm_batch_dgamma", 2, 0),
    ):
        with pytest.raises(RuntimeError, match="more than one value per channel"):
            kernel(op, *[x] * images, *[one] * count, eps=1e-5)


def test_damaged_indices_are_refused() -> None:
    attrs: dict[str, Any] = WINDOW | {"dilation": (1, 1), "in_hw": (5, 5)}
    dy = np.ones((1, 3, 3, 2))
    with pytest.raises(RuntimeError, match="outside its window"):
        kernel("max_pool2d_dx", dy, np.zeros((1, 9), np.uint8), **attrs)  # position 0 of the first window is padding
    with pytest.raises(RuntimeError, match="outside its window"):
        kernel("max_pool2d_dx", dy, np.full((1, 9), 255, np.uint8), **attrs)
    for bad in (-1, 25):
        with pytest.raises(RuntimeError, match="outside the image"):
            kernel("adaptive_max_pool2d_dx", dy, np.full((1, 3, 3, 2), bad, np.int32), in_hw=(5, 5))


WINDOW = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1)}
FORWARD: list[tuple[str, int, dict[str, Any]]] = [
    ("max_pool2d", 0, WINDOW | {"dilation": (1, 1), "out_hw": (4, 4)}),
    ("avg_pool2d", 0, WINDOW | {"out_hw": (4, 4), "count_include_pad": True}),
    ("adaptive_avg_pool2d", 0, {"out_hw": (3, 3)}),
    ("upsample_bilinear2d", 0, {"out_hw": (9, 9), "align_corners": False}),
    ("batch_norm", 4, {"eps": 1e-5}),
    ("layer_norm", 2, {"axes": 1, "eps": 1e-5}),
    ("group_norm", 2, {"groups": 2, "eps": 1e-5}),
]


@pytest.mark.parametrize(("op", "count", "attrs"), FORWARD, ids=[f[0] for f in FORWARD])
def test_a_sample_gives_the_same_bits_alone_and_in_a_batch(op: str, count: int, attrs: dict[str, Any]) -> None:
    x = RNG.standard_normal((5, 7, 8, 18))
    rest = [np.abs(v) for v in vectors(18)][:count]
    whole = kernel(op, x, *rest, **attrs)[0]
    alone = [kernel(op, x[i : i + 1], *rest, **attrs)[0] for i in range(5)]
    assert whole.tobytes() == np.concatenate(alone).tobytes()


INPLACE: list[tuple[str, int, int, dict[str, Any]]] = [
    ("batch_norm", 1, 4, {"eps": 1e-5}),
    ("batch_norm_dx", 1, 2, {"eps": 1e-5}),
    ("batch_norm_batch", 1, 2, {"eps": 1e-5}),
    ("batch_norm_batch_dx", 2, 1, {"eps": 1e-5}),
    ("layer_norm", 1, 2, {"axes": 1, "eps": 1e-5}),
    ("layer_norm_dx", 2, 1, {"axes": 1, "eps": 1e-5}),
    ("group_norm", 1, 2, {"groups": 2, "eps": 1e-5}),
    ("group_norm_dx", 2, 1, {"groups": 2, "eps": 1e-5}),
]


@pytest.mark.parametrize(("op", "images", "count", "attrs"), INPLACE, ids=[i[0] for i in INPLACE])
def test_working_in_place_gives_the_same_bits(op: str, images: int, count: int, attrs: dict[str, Any]) -> None:
    arrays = [*RNG.standard_normal((images, 5, 7, 8, 18)), *[np.abs(v) for v in vectors(18)][:count]]
    apart = kernel(op, *arrays, **attrs)[0]
    assert ops.get(op).inplace
    for source in ops.get(op).inplace:
        assert kernel(op, *arrays, into=source, **attrs)[0].tobytes() == apart.tobytes()


SINKS: list[tuple[str, int, dict[str, Any]]] = [
    ("batch_norm_dgamma", 2, {"eps": 1e-5}),
    ("layer_norm_dgamma", 0, {"axes": 1, "eps": 1e-5}),
    ("group_norm_dgamma", 0, {"groups": 2, "eps": 1e-5}),
]


@pytest.mark.parametrize(("op", "count", "attrs"), SINKS, ids=[s[0] for s in SINKS])
def test_scale_gradients_of_micro_batches_add_up_to_the_same_bits(op: str, count: int, attrs: dict[str, Any]) -> None:
    dy, x = RNG.standard_normal((2, 5, 7, 8, 18))
    rest = list(vectors(18)[2:])[:count]
    whole = kernel(op, dy, x, *rest, **attrs)[0]
    acc = np.zeros(18, np.float32)
    for part in (slice(0, 2), slice(2, 3), slice(3, 5)):
        acc = kernel(f"{op}_acc", dy[part], x[part], *rest, acc, **attrs)[0]
    assert acc.tobytes() == whole.tobytes()


BAD: list[tuple[str, list[tuple[int, ...]], dict[str, Any], str]] = [
    ("max_pool2d", [(1, 5, 5)], FORWARD[0][2], "needs f32 or i8 images"),
    ("max_pool2d", [(1, 5, 5, 1)], FORWARD[0][2] | {"out_hw": (3, 9)}, "window 3 of 9 along the width sees no part"),
    ("max_pool2d", [(1, 5, 5, 1)], FORWARD[0][2] | {"stride": (0, 1)}, "must be positive"),
    ("max_pool2d", [(1, 5, 5, 1)], FORWARD[0][2] | {"kernel": (999, 999), "out_hw": (1, 1)}, "more than 65536"),
    ("avg_pool2d", [(1, 7, 7, 1)], FORWARD[1][2] | {"divisor": 0}, "must not be zero"),
    ("adaptive_avg_pool2d", [(1, 5, 5, 1)], {"out_hw": (0, 1)}, "must be at least 1"),
    ("batch_norm", [(2, 3), (3,), (3,), (3,), (4,)], {"eps": 0.1}, r"vectors of shape \[3\]"),
    ("batch_norm_dgamma", [(2, 3), (3, 3), (3,), (3,)], {"eps": 0.1}, "same shape"),
    ("layer_norm", [(2, 3), (3,), (3,)], {"axes": 3, "eps": 0.1}, "3 trailing axes"),
    ("group_norm", [(2, 3), (3,), (3,)], {"groups": 2, "eps": 0.1}, "3 channels cannot be split into 2 groups"),
]


@pytest.mark.parametrize(("op", "shapes", "attrs", "message"), BAD, ids=[f"{b[0]}: {b[3]}" for b in BAD])
def test_wrong_shapes_are_refused_in_words(op: str, shapes: Any, attrs: Any, message: str) -> None:
    with pytest.raises(BadShape, match=message):
        graph_of(op, [np.zeros(s) for s in shapes], attrs)
