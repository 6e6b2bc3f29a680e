"""A table of torch models: for each, the imported graphs give torch's outputs, loss and gradients in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from smidgen import interp
from smidgen.aten import TABLE
from smidgen.errors import BadOption, BadShape, ExportFailed, Internal, SmidgenError, UnsupportedOp
from smidgen.ir import Array, Batch, DType, Role
from smidgen.passes.autodiff import autodiff
from smidgen.torch_import import LOSSES, Imported, import_model

SAMPLES = 3


class Fn(nn.Module):
    """A function of its inputs as a model, with parameters of the given shapes as further arguments."""

    def __init__(self, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.fn = fn
        self.w = nn.ParameterList([nn.Parameter(torch.randn(s)) for s in shapes])

    def forward(self, *x: torch.Tensor) -> Any:
        return self.fn(*x, *self.w)


@dataclass(frozen=True)
class Row:
    name: str
    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]  # shapes without the batch, or (highest, shape) for integers below `highest`
    options: dict[str, Any] = field(default_factory=dict)


ROWS: list[Row] = []


def row(name: str, model: Any, *inputs: Any, weights: Sequence[tuple[int, ...]] = (), **options: Any) -> None:
    """`model` is a function of tensors (and of parameters of the shapes `weights`), or a maker of a module."""
    is_maker = isinstance(model, type) or (getattr(model, "__code__", None) and model.__code__.co_argcount == 0)
    make = model if is_maker else lambda: Fn(model, *weights)
    ROWS.append(Row(name, make, inputs, options))


def each(names: str, *inputs: Any) -> None:
    """One row for every function of torch or torch.nn.functional named."""
    for name in names.split():
        row(name, getattr(torch, name, None) or getattr(F, name), *inputs)


# Element by element.
each("neg abs exp sin cos erf sigmoid tanh square sign", (4, 5))
each("relu relu6 leaky_relu hardtanh hardswish hardsigmoid silu elu selu celu softplus mish", (4, 5))
each("logsigmoid softsign tanhshrink hardshrink softshrink expm1 exp2 erfc", (7,))
for _f in (torch.log, torch.sqrt, torch.rsqrt, torch.reciprocal, torch.log2, torch.log10, torch.log1p):
    row(_f.__name__, lambda x, f=_f: f(x.abs() + 0.5), (4, 5))
row("gelu", F.gelu, (4, 5))
row("gelu-tanh", lambda x: F.gelu(x, approximate="tanh"), (4, 5))
row("elu-alpha", lambda x: F.elu(x, 0.7), (4, 5))
row("celu-alpha", lambda x: F.celu(x, 0.7), (4, 5))
row("softplus-beta", lambda x: F.softplus(3 * x, 2.0, 1.5), (4, 5))
row("leaky_relu-slope", lambda x: F.leaky_relu(x, 0.3), (4, 5))
row("threshold", lambda x: F.threshold(x, 0.1, -2.0), (4, 5))
row("rrelu", lambda: nn.Sequential(nn.RReLU()).eval(), (4, 5))
row("prelu-one", lambda: nn.PReLU(init=0.3), (4, 5))
row("prelu-channels", lambda: nn.PReLU(4, init=0.3), (4, 5, 2))
row("glu", lambda x: F.glu(x, 1), (4, 5))
row("hyperbolic", lambda x: torch.tan(x * 0.1) + torch.sinh(x) - torch.cosh(x), (7,))
row("add-broadcast", lambda x, y: x + y, (4, 1), (1, 5))
row("add-alpha", lambda x, y: torch.add(x, y, alpha=0.3), (4, 5), (1, 5))
row("sub-scalar", lambda x: (x - 2, 2 - x, x - 0, torch.rsub(x, 1.5)), (4,))
row("sub-broadcast", lambda x, w: w - x, (4, 5), weights=[(4, 1)])
row("mul-scalar", lambda x: x * 3 * 1, (4,))
row("mul-broadcast", lambda x, w: x * w, (4, 5), weights=[(5,)])
row("div", lambda x, y: x / (y.abs() + 1), (4, 5), (1, 5))
row("div-scalar", lambda x: (x / 3, 1.5 / (x.abs() + 1)), (4, 5))
row("pow", lambda x: (x**2, x**3, x**1, (x.abs() + 0.5) ** 0.5, (x.abs() + 0.5) ** -1.7, x.abs() ** 2.5), (4, 5))
row("pow-base", lambda x: 2**x, (4, 5))
row("pow-tensor", lambda x, y: (x.abs() + 0.5) ** y, (4, 5), (1, 5))
row("addcmul-lerp", lambda x, y: (torch.addcmul(x, y, y, value=0.5), torch.lerp(x, y, 0.3)), (4,), (4,))
row("addcdiv", lambda x, y: torch.addcdiv(x, y, y.abs() + 1, value=0.5), (4,), (4,))
row("clamp", lambda x: (x.clamp(-0.5, 0.7), x.clamp(min=0.1), x.clamp(max=0.1), x.clamp_min(0.2)), (4, 5))
row("clamp-tensor", lambda x, w: torch.clamp(x, min=w), (4, 5), weights=[(5,)])
row("maximum-minimum", lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)), (4, 5), (1, 5))
row("logaddexp", torch.logaddexp, (4,), (4,))
row("where", lambda x, y: torch.where(x > y, x, y * 2), (4, 5), (1, 5))
row("where-scalars", lambda x: torch.where(x > 0, 1.0, 0.0) + torch.where(x <= 0.5, x, 0.0), (4, 5))
row("masked_fill", lambda x: x.masked_fill(x > 0.3, -2.0), (4, 5))
row("masked-write", lambda x: (y := x * 1).masked_fill_(x > 0.3, -2.0) + y, (4, 5))
row("index-write", lambda x: _wrote(x * 1, x < 0.2, 1.5), (4, 5))
row("comparisons", lambda x, y: [(x < y).double(), (x >= 0).double(), (x == x) * x, (x != y).double()], (4,), (4,))
row("logic", lambda x: ((x > 0) & ~(x > 1) | (x < -1)).double() * x, (4, 5))
row("xor-any-all", lambda x: (((x > 0) ^ (x > 1)).any(1).double(), (x > -1).all(1) * x[:, 0]), (4, 5))
row("bool-output", lambda x: x > 0, (4,))
row("casts", lambda i: (i.double() * 0.5, (i > 2).to(torch.int64), i.double()), (5, (4,)))
row("integers", lambda i, x: x * (i + 1) / (i == 2).sum(1, keepdim=True).clamp(min=1), (5, (4,)), (4,))
row("masked-mean", lambda i, x: (x * (i > 0)[..., None]).sum(1) / ((i > 0).sum(1, keepdim=True) + 1), (3, (6,)), (6, 4))

# Movement.
row("reshape", lambda x: x.reshape(x.shape[0], -1).view(-1, 4, 5).flatten(1).unflatten(1, (2, 10)), (4, 5))
row("reshape-into-batch", lambda x: x.reshape(-1, 5).relu().reshape(x.shape[0], 4, 5), (4, 5))
row("squeeze", lambda x: x.unsqueeze(1).squeeze(1)[:, None].squeeze(), (4, 5))
row("permute", lambda x: x.permute(0, 3, 1, 2).transpose(-1, 1).movedim(2, 1) * torch.arange(4), (2, 5, 4))
row("transposes", lambda x: x.mT.swapaxes(0, 2).permute(2, 0, 1) + 1, (4, 5))
row("batch-elsewhere", lambda x: (x.transpose(0, 1) * torch.arange(4)[:, None, None]).transpose(1, 0), (4, 5))
row("expand", lambda x: x[:, :1].expand(-1, 3, 5) + x[:, 1:2].expand_as(x[:, 1:]), (4, 5))
row("expand-weight", lambda x, w: torch.cat([w.expand(x.shape[0], -1, -1), x], 1), (4, 5), weights=[(1, 1, 5)])
row("repeat", lambda x: x.repeat(1, 2, 3).sum(1) + x.tile((1, 1, 3))[:, 0], (4, 5))
row("repeat-batch", lambda x: x.repeat(2, 1, 1).relu().reshape(2, -1, 4, 5).sum(0), (4, 5))
row("repeat_interleave", lambda x: x.repeat_interleave(2, 1) * torch.arange(8)[:, None], (4, 5))
row("cat", lambda x, y: torch.cat([x, y, torch.ones(1).expand_as(x)], 1), (4,), (4,))
row("stack", lambda x, y: torch.stack([x, y], 2) * torch.arange(2), (4,), (4,))
row("cat-many", lambda x: torch.cat([x * k for k in range(20)], 1), (3,))
row("cat-batch", lambda x: (y := torch.cat([x, -2 * x], 0).relu())[: x.shape[0]] * 3 + y[x.shape[0] :], (4,))
row("split", lambda x: [p * k for k, p in enumerate((*x.split(2, 1), *x.split([1, 4], 1), *x.chunk(2, 2)))], (5, 4))
row("unbind", lambda x: sum(k * p for k, p in enumerate(x.unbind(1))), (5, 4))
row("slices", lambda x: x[:, 1:-1:2, -3:] + x[:, 0, None, :3].narrow(1, 0, 1), (6, 4))
row("select", lambda x: x[:, -1] + x[..., 2, :].select(1, 0)[:, None], (6, 4))
row("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=0.7), (2, 3, 4))
row("pad-crop", lambda x: F.pad(x, (1, -1, -2, 0)), (2, 5, 4))
row("pad-reflect", lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"), (2, 4, 5))
row("pad-replicate", lambda x: F.pad(x, (2, 1, 1, 2), mode="replicate"), (2, 4, 5))
row("pad-circular", lambda x: F.pad(x, (2, 1, 1, 2), mode="circular"), (2, 4, 5))
row("flip-roll", lambda x: x.flip(1, 2) + x.roll((1, -2), (1, 2)), (4, 5))
row("pixel_shuffle", lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2) * 2, 2) + x, (8, 2, 3))
row("pixel_shuffle-only", lambda x: F.pixel_shuffle(x, 2), (8, 2, 3))
row("channel_shuffle", lambda: nn.ChannelShuffle(2), (6, 2, 3))
row("index-constant", lambda x: x[:, [2, 0, 1, 1]] + x.index_select(1, torch.tensor([0, 1, 2, 3])), (4, 5))
row("index-table", lambda x, w: x + w[torch.tensor([[0, 1], [2, 0]])], (2, 2, 5), weights=[(3, 5)])
row("index-column", lambda x, w: x + w[:, torch.tensor([2, 0])], (4, 2), weights=[(4, 3)])
row("gather", lambda x, i: x.gather(1, i[:, None]), (5,), (5, ()))
row("one_hot", lambda i: F.one_hot(i, 6).double() * 2, (6, (4,)))
row("tril", lambda x: x.tril() + x.triu(1) * 2, (4, 4))
row("unfold-patches", lambda x: x.unfold(2, 2, 2).unfold(3, 3, 3).sum(1).flatten(1), (2, 4, 6))
row("unfold-windows", lambda x: x.unfold(1, 3, 2) * 2, (7,))
row("unfold-image", lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=(2, 1)), (3, 5, 6))
row("diagonal", lambda x: x.diagonal(dim1=1, dim2=2) + torch.diag_embed(x[:, 0]).sum(1), (4, 4))
row("constants", lambda x: x + torch.arange(4) + torch.full((4,), 2.0) + torch.eye(4).triu(1), (4, 4))
row("constants-batch", lambda x: torch.zeros(x.shape[0], 4) + x.new_full((x.shape[0], 1), 3) + torch.ones_like(x), (4,))
row("positions", lambda i, w: w[torch.arange(4)][None].expand(i.shape[0], -1, -1) + 1, (5, (4,)), weights=[(9, 3)])
row("clone-contiguous", lambda x: x.clone().transpose(1, 2).contiguous().view(x.shape[0], -1), (4, 5))

# Writing in place.
row("inplace", lambda x: (y := x * 2).add_(1).mul_(3).relu_() + y, (4, 5))
row("inplace-view", lambda x: _row_times(x + 0, 2), (4, 5))
row("inplace-slices", lambda x: _written(x), (4, 6))
row("inplace-through-views", lambda x: _through_views(x), (4, 6))
row("inplace-loop", lambda x: _filled(x), (4, 6))
row("inplace-constant", lambda x: x + _mask(), (4, 4))
row("inplace-halves", lambda x: _halves_write(x), (4, 6))
row("inplace-input", lambda x: F.relu(x + 0, inplace=True) * 2, (4,))

# Reductions.
row("sum", lambda x: (x.sum(1), x.sum((1, 2)), x.sum(-1, keepdim=True), x.sum()), (4, 5))
row("mean", lambda x: (x.mean(1), x.mean((1, 2), keepdim=True), x.mean(0), x.mean(), x.mean((0, 2))), (4, 5))
row("sum-over-n", lambda x: (x.sum() / x.shape[0], (3 * x.sum((0, 1))) / x.shape[0]), (4, 5))
row("amax-amin", lambda x: (x.amax(1), x.amin((1, 2)), x.amax(-1, keepdim=True)), (4, 5))
row("max-min", lambda x: (x.max(1)[0], x.min(2, keepdim=True).values), (4, 5))
row("max-index", lambda x: (x.max(1).indices, x.min(1).indices), (4, 5))
row("argmax", lambda x: (x.argmax(1), x.argmin(-1, keepdim=True)), (4, 5))
row("var-std", lambda x: (x.var(1), x.std((1, 2)), x.var(1, correction=0, keepdim=True), x.std(2, False)), (4, 5))
row("var-batch", lambda x: (x.var(0, correction=0), x.var(correction=0)), (4, 5))
row("std_mean", lambda x: (*torch.std_mean(x, 1), *torch.var_mean(x, (1, 2), correction=0, keepdim=True)), (4, 5))
row("prod-aminmax", lambda x: (x.prod(2), *torch.aminmax(x, dim=1)), (4, 5))
row("cdist", torch.cdist, (4, 3), (5, 3))
row("norms", lambda x: (x.norm(dim=1), torch.linalg.norm(x, dim=2), x.norm(p=1, dim=1), x.norm(p=3, dim=2)), (4, 5))
row("norm-inf", lambda x: torch.linalg.vector_norm(x, math.inf, (1, 2)), (4, 5))
row("normalize", lambda x: F.normalize(x, dim=1), (4, 5))
row("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, dim=1), (5,), (5,))
row("softmax", lambda x: (x.softmax(1), F.log_softmax(x, -1), F.softmin(x, 2)), (4, 5))
row("logsumexp", lambda x: (x.logsumexp(1), x.logsumexp((1, 2), keepdim=True)), (4, 5))
row("cumsum", lambda x: x.cumsum(1), (4, 5))

# Products.
row("linear", lambda: nn.Linear(5, 3), (5,))
row("linear-3d", lambda: nn.Linear(5, 3, bias=False), (4, 5))
row("matmul-weight", lambda x, w: x @ w, (4, 5), weights=[(5, 3)])
row("matmul-weight-left", lambda x, w: w @ x, (4, 5), weights=[(3, 4)])
row("matmul-batched", lambda x, y: x @ y.transpose(1, 2) + x.bmm(y.mT), (4, 5), (3, 5))
row("matmul-broadcast", lambda x, w: x @ w, (2, 4, 5), weights=[(2, 5, 3)])
row("matmul-vector", lambda x, w: x @ w, (4, 5), weights=[(5,)])
row("matmul-vector-left", lambda x, w: w @ x, (4, 5), weights=[(4,)])
row("mm-addmm", lambda x, w, b: torch.addmm(b, x, w) + x.mm(w), (5,), weights=[(5, 3), (3,)])
row("addmm-scaled", lambda x, w: torch.addmm(x[:, :3], x, w.t(), beta=2, alpha=3), (5,), weights=[(3, 5)])
row("baddbmm", lambda x, y: torch.baddbmm(x, x[:, :, :4], y, beta=0.5, alpha=2), (4, 5), (4, 5))
row("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), (4, 5), (3, 5))
row("einsum-weight", lambda x, w: torch.einsum("bchw,co->bohw", x, w), (4, 2, 3), weights=[(4, 5)])
row("tensordot", lambda x, w: torch.tensordot(x, w, dims=([2], [0])), (4, 5), weights=[(5, 2)])
row("bilinear", lambda: nn.Bilinear(4, 5, 3), (4,), (5,))
row("embedding", lambda: nn.Embedding(7, 4), (7, (5,)))
row("embedding-padding", lambda: nn.Embedding(7, 4, padding_idx=2), (7, (5,)))

# Convolutions.
row("conv2d", lambda: nn.Conv2d(3, 4, 3), (3, 6, 5))
row("conv2d-stride-pad", lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 2), bias=False), (3, 6, 5))
row("conv2d-dilated", lambda: nn.Conv2d(3, 4, 3, dilation=2, padding=2), (3, 6, 5))
row("conv2d-grouped", lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (4, 5, 5))
row("conv2d-depthwise", lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 5, 5))
row("conv2d-same", lambda: nn.Conv2d(3, 4, (4, 3), padding="same"), (3, 6, 5))
row("conv2d-valid", lambda: nn.Conv2d(3, 4, 3, padding="valid"), (3, 6, 5))
row("conv2d-asymmetric", lambda x, w: F.conv2d(F.pad(x, (0, 1, 2, 1)), w), (3, 6, 5), weights=[(4, 3, 3, 3)])
row("conv2d-reflect", lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 6, 5))
row("conv1d", lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 9))
row("conv1d-same", lambda: nn.Conv1d(4, 4, 4, padding="same", dilation=2, groups=2), (4, 9))
row("conv_transpose2d", lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (3, 4, 5))
row("conv_transpose2d-grouped", lambda: nn.ConvTranspose2d(4, 6, (2, 3), stride=2, groups=2, bias=False), (4, 3, 4))
row("conv_transpose2d-dilated", lambda: nn.ConvTranspose2d(4, 2, 3, dilation=2), (4, 3, 4))
row("conv_transpose1d", lambda: nn.ConvTranspose1d(3, 4, 4, stride=2, padding=1), (3, 5))

# Pooling and resampling.
row("max_pool2d", lambda: nn.MaxPool2d(2), (3, 6, 5))
row("max_pool2d-options", lambda: nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), (3, 6, 8))
row("max_pool2d-dilated", lambda: nn.MaxPool2d(2, stride=1, dilation=2), (3, 6, 8))
row("max_pool1d", lambda: nn.MaxPool1d(3, stride=2, ceil_mode=True), (3, 8))
row("avg_pool2d", lambda: nn.AvgPool2d((2, 3)), (3, 6, 6))
row("avg_pool2d-options", lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), (3, 6, 5))
row("avg_pool2d-ceil", lambda: nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True), (3, 6, 5))
row("avg_pool2d-divisor", lambda: nn.AvgPool2d(2, divisor_override=3), (3, 6, 5))
row("avg_pool1d", lambda: nn.AvgPool1d(3, stride=2, padding=1), (3, 7))
row("adaptive_avg_pool2d", lambda: nn.AdaptiveAvgPool2d((3, 2)), (3, 7, 5))
row("adaptive_avg_pool2d-global", lambda: nn.AdaptiveAvgPool2d(1), (3, 7, 5))
row("adaptive_avg_pool1d", lambda: nn.AdaptiveAvgPool1d(3), (3, 7))
row("adaptive_max_pool2d", lambda: nn.AdaptiveMaxPool2d((3, 2)), (3, 7, 5))
row("adaptive_max_pool1d", lambda: nn.AdaptiveMaxPool1d(3), (3, 7))
row("upsample-nearest", lambda x: F.interpolate(x, scale_factor=2), (3, 3, 4))
row("upsample-nearest-size", lambda x: F.interpolate(x, size=(5, 7)), (3, 3, 4))
row("upsample-nearest-1d", lambda x: F.interpolate(x, scale_factor=2.5), (3, 4))
row("upsample-bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (3, 3, 4))
row("upsample-corners", lambda x: F.interpolate(x, size=(5, 7), mode="bilinear", align_corners=True), (3, 3, 4))
row("upsample-fraction", lambda x: F.interpolate(x, scale_factor=1.7, mode="bilinear"), (3, 3, 4))
row("upsample-linear", lambda x: F.interpolate(x, scale_factor=2, mode="linear"), (3, 4))

# Normalisation.
for _bn in ("frozen", "batch"):
    row(f"batch_norm2d-{_bn}", lambda: nn.BatchNorm2d(3), (3, 4, 5), bn=_bn)
    row(f"batch_norm1d-{_bn}", lambda: nn.BatchNorm1d(3, momentum=0.3), (3,), bn=_bn)
    row(f"batch_norm1d-3d-{_bn}", lambda: nn.BatchNorm1d(3, affine=False), (3, 4), bn=_bn)
    row(f"batch_norm-twice-{_bn}", lambda: _NormTwice(), (3, 4, 5), bn=_bn)
    row(f"batch_norm-untracked-{_bn}", lambda: nn.BatchNorm2d(3, track_running_stats=False), (3, 4, 5), bn=_bn)
row("instance_norm", lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 5))
row("instance_norm-plain", lambda: nn.InstanceNorm1d(3), (3, 6))
row("layer_norm", lambda: nn.LayerNorm(5), (4, 5))
row("layer_norm-2", lambda: nn.LayerNorm((4, 5), bias=False), (2, 4, 5))
row("layer_norm-plain", lambda: nn.LayerNorm(5, elementwise_affine=False), (4, 5))
row("group_norm", lambda: nn.GroupNorm(2, 4), (4, 3, 5))
row("group_norm-flat", lambda: nn.GroupNorm(2, 4, affine=False), (4,))
row("rms_norm", lambda: nn.RMSNorm(5), (4, 5))
row("rms_norm-eps", lambda: nn.RMSNorm((4, 5), eps=1e-3, elementwise_affine=False), (4, 5))
row("local_response_norm", lambda x: F.local_response_norm(x, 3), (5, 4))
row("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,))

# Attention, recurrences.
row("sdpa", lambda q, k: F.scaled_dot_product_attention(q, k, k * 2), (2, 4, 6), (2, 5, 6))
row("sdpa-causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.3), (2, 4, 6))
row("sdpa-bool", lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=(m > 0)[:, None, None]), (2, 4, 6),
    (2, 5, 6), (2, (5,)))  # fmt: skip
row("sdpa-nothing-allowed", lambda q, m: F.scaled_dot_product_attention(q, q, q, (m > 0)[:, None]), (4, 6), (1, (4,)))
row("sdpa-float", lambda q, w: F.scaled_dot_product_attention(q, q, q, attn_mask=w), (2, 4, 6), weights=[(4, 4)])
row("sdpa-constant", lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=torch.eye(4).bool()), (4, 6))
row("attention-first", lambda: _SelfAttention(batch_first=True), (5, 8))
row("attention-second", lambda: _SelfAttention(batch_first=False), (5, 8))
row("attention-weights", lambda: _SelfAttention(batch_first=True, weights=True), (5, 8))
row("attention-cross", lambda: _CrossAttention(), (5, 8), (3, 6))
row("encoder-layer", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (5, 8))
row("encoder-gelu", lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, F.gelu, 1e-5, True, norm_first=True), (5, 8))
row("encoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2), (5, 8))
row("encoder-second", lambda: _BatchSecond(nn.TransformerEncoderLayer(8, 2, 16, 0.0)), (5, 8))
row("encoder-padding", lambda: _Padded(), (3, (5,)))
row("decoder-layer", lambda: nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), (5, 8), (3, 8))
row("rnn", lambda: nn.RNN(4, 3, batch_first=True), (5, 4))
row("lstm", lambda: nn.LSTM(4, 3, num_layers=2, batch_first=True), (5, 4))
row("lstm-both-ways", lambda: nn.LSTM(4, 3, bidirectional=True, batch_first=True), (3, 4))
row("gru", lambda: nn.GRU(4, 3, batch_first=True), (5, 4))
row("lstm-second", lambda: _BatchSecond(nn.LSTM(4, 3, bias=False)), (5, 4))
row("cells", lambda: _Cells(), (4, 3))
row("lstm-cell", lambda: _Cell(), (4, 3))

# Whole models.
row("dict-output", lambda x: {"a": x * 2, "b": (x.sum(1), x.mean(1))}, (4,))
row("shared-module", lambda: _Shared(), (4,))
row("shared-weight", lambda: _Tied(), (7, (5,)))
row("resnet-block", lambda: _Residual(), (4, 6, 6), bn="batch")
row("mobile-block", lambda: _Mobile(), (4, 6, 6))
row("no-grad", lambda: _NoGrad(), (4,))
row("detached", lambda x, w: (x * w).detach() * w + x, (4,), weights=[(4,)])


def _wrote(y: torch.Tensor, mask: torch.Tensor, value: float) -> torch.Tensor:
    y[mask] = value
    return y


def _row_times(y: torch.Tensor, by: float) -> torch.Tensor:
    y[:, 0] *= by
    return y


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 1:3, ::2] = x[:, :2, :3] * 5
    y[:, 3] = 0.5
    y[..., -1] += 1
    return y


def _through_views(x: torch.Tensor) -> Any:
    y = x * 1
    flat, turned, part = y.view(y.shape[0], -1), y.transpose(1, 2), y[:, 1]
    flat += 1
    turned[:, 0].mul_(3)
    part.unsqueeze(1).relu_()
    return y, flat, turned, part


def _filled(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], 4, 6, dtype=x.dtype)
    for k in range(4):
        out[:, k] = x[:, k] * k + (out[:, k - 1] if k else 0)
    return out


def _mask() -> torch.Tensor:
    mask = torch.zeros(4, 4)
    mask[0, 1:] = 2.0
    mask.fill_diagonal_(3.0)
    return mask


def _halves_write(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    a, b = y[..., :3], y[..., 3:]
    a.mul_(2)
    b.add_(a)
    return y


class _SelfAttention(nn.Module):
    def __init__(self, batch_first: bool, weights: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.batch_first, self.weights = batch_first, weights

    def forward(self, x: torch.Tensor) -> Any:
        x = x if self.batch_first else x.transpose(0, 1)
        y, w = self.attention(x, x, x, need_weights=self.weights)
        return (y, w) if self.weights else y if self.batch_first else y.transpose(0, 1)


class _CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.attention(x, y, y)[0]


class _BatchSecond(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x.transpose(0, 1))
        return (y[0] if isinstance(y, tuple) else y).transpose(0, 1)


class _Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.encoder(self.embed(tokens), src_key_padding_mask=(tokens == 0) & (torch.arange(5) > 0))


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 5)

    def forward(self, x: torch.Tensor) -> Any:
        h = c = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return h


class _Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.tanh, self.relu = nn.GRUCell(3, 5), nn.RNNCell(3, 5), nn.RNNCell(3, 5, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> Any:
        h = x.new_zeros(x.shape[0], 5)
        return [cell(x[:, 1], cell(x[:, 0], h)) for cell in (self.gru, self.tanh, self.relu)]


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.a(x).relu())


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i: torch.Tensor) -> Any:
        return self.head(self.embed(i).tanh())


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


class _NormTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, momentum=0.3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.conv(self.norm(x)))


class _Mobile(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.Conv2d(8, 8, 3, 2, 1, groups=8),
            nn.BatchNorm2d(8), nn.Hardswish(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip


class _NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = self.a(x).relu()
        return self.b(y) + x


# The test.


def leaves(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = torch.utils._pytree.tree_leaves(value)
    return found


def spread_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """Every element of every float output pulls with another weight."""
    total = target.mean() * 0
    for y in leaves(output):
        if y.is_floating_point():
            total = total + ((y - 0.3) * (y + 0.1)).mean()
    return total


def made(case: Row) -> tuple[nn.Module, list[torch.Tensor]]:
    torch.manual_seed(3)
    model = case.make().double()
    generator = torch.Generator().manual_seed(5)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point():
            value = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.data = value * value + 0.3 if "var" in name else value * 0.7 + 0.1
    inputs = []
    for spec in case.inputs:
        if len(spec) == 2 and isinstance(spec[1], tuple):
            inputs.append(torch.randint(0, spec[0], (SAMPLES, *spec[1]), generator=generator))
        else:
            inputs.append(torch.randn((SAMPLES, *spec), generator=generator, dtype=torch.float64))
    return model, inputs


def close(got: Array, want: torch.Tensor, tolerance: float = 1e-10) -> None:
    reference = want.detach().double().numpy()
    assert got.shape == reference.shape
    scale = max(1.0, float(np.abs(reference).max(initial=0)))
    np.testing.assert_allclose(got.astype(np.float64), reference, rtol=0, atol=tolerance * scale)


def feeds(imported: Imported, inputs: Sequence[torch.Tensor], *more: torch.Tensor) -> dict[str, Array]:
    names = imported.train.inputs
    return {name: x.numpy() for name, x in zip(names, [*inputs, *more], strict=True)}


@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in ROWS])
def test_outputs_loss_and_gradients_are_those_of_torch(case: Row) -> None:
    model, inputs = made(case)
    target = torch.zeros(SAMPLES, 1, dtype=torch.float64)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    imported = import_model(model, inputs, loss=spread_loss, target=target, **case.options)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert modes == [m.training for m in model.modules()]

    values = feeds(imported, inputs, target)
    env = interp.run(imported.infer, values, n=SAMPLES)
    wanted = leaves(copy.deepcopy(model).eval()(*inputs))
    assert len(imported.infer.outputs) == len(wanted)
    for name, shape, want in zip(imported.infer.outputs, imported.output_shapes, wanted, strict=True):
        close(env[name], want)
        assert imported.infer[name].shape == shape
        assert imported.infer[name].dtype is dtype_named(want)

    learned = [p.name for p in imported.parameters if p.name in imported.train.tensors]
    fed = {f"{n}.fed": x for n, x in zip(imported.train.inputs, inputs, strict=False) if x.is_floating_point()}
    fed = {name: x for name, x in fed.items() if name in imported.train.tensors}
    whole, grads = autodiff(imported.train, imported.loss, [*learned, *fed])
    env = interp.run(whole, values, n=SAMPLES)
    twin = as_trained(model, case.options.get("bn", "frozen"))
    leaf = {id(x): x.clone().requires_grad_() for x in inputs if x.is_floating_point()}
    loss = spread_loss(twin(*[leaf.get(id(x), x) for x in inputs]), target)
    close(env[imported.loss], loss)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    for name in learned:
        gradient = twin.get_parameter(name).grad
        if name in grads:
            close(env[grads[name]], torch.zeros(1) if gradient is None else gradient, 1e-8)
        else:
            assert gradient is None or not gradient.any()
    for name, x in fed.items():
        gradient = leaf[id(x)].grad
        if name in grads:
            close(env[grads[name]], torch.zeros(x.shape) if gradient is None else gradient, 1e-8)
        else:
            assert gradient is None or not gradient.any()
    check_statistics(imported, env, twin)


def dtype_named(x: torch.Tensor) -> DType:
    return DType.F32 if x.is_floating_point() else DType.U8 if x.dtype is torch.bool else DType.I32


def as_trained(model: nn.Module, bn: str) -> nn.Module:
    """What torch trains: the mode the model is in, batch-norm as asked."""
    twin = copy.deepcopy(model)
    for module in _norms(twin):
        module.train(bn == "batch")
    return twin


def check_statistics(imported: Imported, env: dict[str, Array], twin: nn.Module) -> None:
    """Running statistics after the step, if the graph updates them; a layer used twice moves them twice."""
    newest: dict[str, str] = {}
    owner: dict[str, str] = {}
    for node in imported.train.nodes:
        if node.op == "running_stats":
            for old, new in zip(node.ins, node.outs, strict=False):
                assert imported.train[new].role is Role.STAT
                owner[new] = owner.get(old, old)
                assert newest.get(owner[new], owner[new]) == old
                newest[owner[new]] = new
    tracked = {n for n, _ in twin.named_buffers() if n.rpartition(".")[2] in ("running_mean", "running_var")}
    assert set(newest) == (tracked if any(m.training for m in _norms(twin)) else set())
    for name, new in newest.items():
        close(env[new], twin.get_buffer(name))


def _norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_the_table_is_long_enough() -> None:
    assert len(ROWS) >= 120
    assert len({r.name for r in ROWS}) == len(ROWS)


# Losses.


@dataclass(frozen=True)
class LossRow:
    name: str
    loss: Any
    output: tuple[int, ...]
    target: Callable[[torch.Generator], torch.Tensor] | None = None


def classes(high: int, *shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda g: torch.randint(0, high, (SAMPLES, *shape), generator=g)


def shares(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda g: torch.rand(SAMPLES, *shape, generator=g, dtype=torch.float64)


def floats(*shape: int) -> Callable[[torch.Generator], torch.Tensor]:
    return lambda g: torch.randn(SAMPLES, *shape, generator=g, dtype=torch.float64)


def squares(output: torch.Tensor, target: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    return F.cross_entropy(output, target, *args, reduction="none", **options).square().mean()


WEIGHT = torch.tensor([0.5, 2.0, 1.0, 0.7, 1.5], dtype=torch.float64)
LOSS_ROWS = [
    LossRow("cross_entropy", "cross_entropy", (5,), classes(5)),
    LossRow("cross_entropy-images", "cross_entropy", (5, 2, 3), classes(5, 2, 3)),
    LossRow("mse", "mse", (4,), floats(4)),
    LossRow("l1", "l1", (4, 2), floats(4, 2)),
    LossRow("huber", "huber", (4,), floats(4)),
    LossRow("smooth_l1", "smooth_l1", (4,), floats(4)),
    LossRow("bce_with_logits", "bce_with_logits", (4,), shares(4)),
    LossRow("module", nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1, ignore_index=1), (5,), classes(5)),
    LossRow("sum", nn.CrossEntropyLoss(reduction="sum"), (5, 3), classes(5, 3)),
    LossRow("none", lambda o, t: squares(o, t), (5, 3), classes(5, 3)),
    LossRow("none-smooth", lambda o, t: squares(o, t, WEIGHT, ignore_index=2, label_smoothing=0.2), (5,), classes(5)),
    LossRow("soft", nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.1), (5,), shares(5)),
    LossRow("nll", lambda o, t: F.nll_loss(o.log_softmax(1), t, weight=WEIGHT), (5,), classes(5)),
    LossRow("nll-none", lambda o, t: F.nll_loss(o, t, reduction="none").sum() / t.shape[0], (5,), classes(5)),
    LossRow("mse-sum", nn.MSELoss(reduction="sum"), (4,), floats(4)),
    LossRow("mse-none", lambda o, t: F.mse_loss(o, t, reduction="none").sum(1).mean(), (4,), floats(4)),
    LossRow("mse-plus", lambda o, t: F.mse_loss(o, t) + 0.1 * o.abs().mean(), (4,), floats(4)),
    LossRow("huber-delta", nn.HuberLoss(delta=0.4), (4,), floats(4)),
    LossRow("huber-none", lambda o, t: F.huber_loss(o, t, reduction="none", delta=0.4).mean(), (4,), floats(4)),
    LossRow("smooth_l1-none", lambda o, t: F.smooth_l1_loss(o, t, reduction="none", beta=0.4).mean(), (4,), floats(4)),
    LossRow("bce-weights", nn.BCEWithLogitsLoss(weight=WEIGHT[:4], pos_weight=WEIGHT[1:]), (4,), shares(4)),
    LossRow("bce-positive", nn.BCEWithLogitsLoss(pos_weight=WEIGHT[1:]), (4,), shares(4)),
    LossRow("bce", lambda o, t: F.binary_cross_entropy(o.sigmoid(), t), (4,), shares(4)),
    LossRow("kl", lambda o, t: F.kl_div(o.log_softmax(1), t.softmax(1), reduction="batchmean"), (4,), floats(4)),
    LossRow("kl-log", lambda o, t: F.kl_div(o, t.log_softmax(1), log_target=True, reduction="sum"), (4,), floats(4)),
    LossRow("cosine", lambda o, t: 1 - F.cosine_similarity(o, t).mean(), (4,), floats(4)),
    LossRow("gathered", lambda o, t: -o.log_softmax(1).gather(1, t[:, None]).mean(), (5,), classes(5)),
    LossRow("root-mean-square", lambda o, t: ((o - t) ** 2).mean().sqrt(), (4,), floats(4)),
]


@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in LOSS_ROWS])
def test_losses_and_their_gradients_are_those_of_torch(case: LossRow) -> None:
    g = torch.Generator().manual_seed(1)
    count = math.prod(case.output)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, count), nn.Unflatten(1, case.output)).double()
    x = torch.randn(SAMPLES, 6, generator=g, dtype=torch.float64)
    assert case.target is not None
    target = case.target(g)
    named = isinstance(case.loss, str)
    imported = import_model(model, x.numpy(), loss=case.loss, target=None if named else target)
    wanted = [p.name for p in imported.parameters]
    whole, grads = autodiff(imported.train, imported.loss, wanted)
    env = interp.run(whole, feeds(imported, [x], target), n=SAMPLES)
    real = case.loss
    if isinstance(real, str):
        real = LOSSES[real]
    loss = real(model(x), target)
    close(env[imported.loss], loss)
    loss.backward()
    for name in wanted:
        close(env[grads[name]], model.get_parameter(name).grad, 1e-9)  # type: ignore[arg-type]


# Modes, names, roles.


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop, self.fc = nn.Dropout(0.5), nn.Linear(400, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.fc(self.drop(x))


def ops_of(graph: Any) -> list[str]:
    return [node.op for node in graph.nodes]


def test_dropout_is_active_only_in_training_mode() -> None:
    model = Dropped()
    assert "dropout" in ops_of(import_model(model, torch.zeros(1, 400), loss="mse").train)
    imported = import_model(model.eval(), torch.zeros(1, 400), loss="mse")
    assert "dropout" not in ops_of(imported.train)
    assert not any(m.training for m in model.modules())


def test_dropout_keeps_the_mean() -> None:
    imported = import_model(Dropped(), torch.zeros(1, 400), loss=lambda o, t: o.mean(), target=torch.zeros(1))
    [node] = [n for n in imported.train.nodes if n.op == "dropout"]
    env = interp.run(imported.train, {"x": np.ones((5, 400)), "target": np.zeros(5)}, n=5)
    assert set(np.unique(env[node.outs[0]])) == {0.0, 2.0}
    assert env[node.outs[0]].mean() == pytest.approx(1, abs=0.1)
    assert imported.train[":counter"].role is Role.SETTING


def test_channel_dropout_and_stochastic_depth_are_imported() -> None:
    class Random(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            keep = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(0.75).div_(0.75)
            return F.dropout2d(x, 0.5, self.training) * (keep if self.training else 1)

    imported = import_model(Random(), torch.zeros(1, 8, 3, 3), loss="mse")
    env = interp.run(imported.train, {"x": np.ones((40, 8, 3, 3)), "target": np.zeros((40, 8, 3, 3))}, n=40)
    [dropped] = [n for n in imported.train.nodes if n.op == "feature_dropout"]
    values = env[dropped.outs[0]].reshape(40, 9, 8)
    assert (values == values[:, :1]).all()
    assert len(imported.infer.nodes) == 2


def test_names_roles_and_source_modules_are_those_of_the_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
    model[3].weight.requires_grad_(False)
    imported = import_model(model, torch.zeros(4, 3, 4, 4), loss="cross_entropy", bn="batch")
    assert [p.name for p in imported.parameters] == list(dict(model.named_parameters()))
    assert [(p.module, p.requires_grad) for p in imported.parameters[-2:]] == [("3", False), ("3", True)]
    assert [p.name for p in imported.buffers] == list(dict(model.named_buffers()))
    assert imported.batch == 4
    train = imported.train
    assert train["0.weight"].role is Role.PARAM
    assert train["0.weight"].shape == (4, 3, 3, 3)
    assert train.data["0.weight"].dtype == np.float64
    assert train["1.running_mean"].role is Role.STAT
    assert {n.op: n.src for n in train.nodes if n.op in ("conv2d", "linear", "cross_entropy")} == {
        "conv2d": "0", "linear": "3", "cross_entropy": "loss",
    }  # fmt: skip
    [update] = [n for n in train.nodes if n.op == "running_stats"]
    assert update.attrs["count"] == Batch(4)
    assert train[imported.loss].shape == ()
    assert train.inputs == ("input", "target")
    assert train["target"].dtype is DType.I32
    assert imported.infer.outputs == ("output",)
    assert "running_stats" not in ops_of(imported.infer)


def test_shared_parameters_are_one_tensor_with_aliases() -> None:
    imported = import_model(
        _Tied(), torch.zeros(2, 5, dtype=torch.int64), loss=lambda o, t: o.mean(), target=np.zeros(2)
    )
    [only] = imported.parameters
    assert (only.name, only.aliases) == ("embed.weight", ("head.weight",))
    assert len(imported.train.of_role(Role.PARAM)) == 1
    assert len(import_model(_Shared(), torch.zeros(1, 4), loss="mse").train.of_role(Role.PARAM)) == 2


def test_samples_stay_in_sequence_in_torchs_attention() -> None:
    """nn.MultiheadAttention merges (length, batch) before its last product; samples would then be interleaved."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    graph = import_model(layer, torch.zeros(1, 5, 8), loss="mse").train
    for node in graph.nodes:
        if node.op == "reshape":
            before, after = graph[node.ins[0]].shape, graph[node.outs[0]].shape
            lead = [math.prod(s[: next(i for i, d in enumerate(s) if isinstance(d, Batch))]) for s in (before, after)]
            assert lead[0] == lead[1], f"{before} → {after}"


def test_an_argument_or_setting_never_takes_the_name_of_a_parameter_or_buffer() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lr, self.weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))
            self.register_buffer("counter", torch.full((3,), 3.0))
            self.register_buffer("x", torch.full((3,), 4.0))
            self.v = nn.ParameterDict({"mul": torch.full((3,), 5.0)})

        def forward(self, weight: torch.Tensor, x: torch.Tensor, counter: torch.Tensor, target: torch.Tensor) -> Any:
            y = weight * self.weight + x * self.x + counter * self.counter * self.lr + target * self.v.mul
            return F.dropout(y, 0.5, self.training)

    model = Named()
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(2, 3)) for _ in range(4)]
    imported = import_model(model, given, loss="mse")
    assert imported.infer.inputs == ("weight.2", "x.2", "counter.2", "target")
    assert imported.train.inputs == (*imported.infer.inputs, "target.2")
    for graph in (imported.train, imported.infer):
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            close(graph.data[name], tensor)
        assert [t.name for t in graph.of_role(Role.PARAM)] == ["lr", "weight", "v.mul"]
    assert [t.name for t in imported.train.of_role(Role.SETTING)] == [":counter"]
    env = interp.run(imported.infer, dict(zip(imported.infer.inputs, given, strict=True)), n=2)
    close(env["output"], model.eval()(*[torch.from_numpy(x) for x in given]))


def test_modules_called_model_and_loss_keep_their_names() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return self.loss(self.model(x))

    model = Nested()
    weighted = nn.BCEWithLogitsLoss(weight=torch.tensor([1.0, 2.0, 3.0]))  # has a buffer called weight, too
    imported = import_model(model, torch.zeros(2, 3), loss=weighted, target=torch.zeros(2, 3))
    for graph in (imported.train, imported.infer):
        assert [t.name for t in graph.of_role(Role.PARAM)] == [p.name for p in imported.parameters]
        close(graph.data["loss.weight"], model.loss.weight)
    close(imported.train.data["loss.weight.2"], torch.tensor([1.0, 2.0, 3.0]))


def test_a_model_in_evaluation_mode_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[bool] = []
    real = torch.export.export

    def counted(module: nn.Module, *args: Any, **options: Any) -> Any:
        captured.append(module.training)
        return real(module, *args, **options)

    monkeypatch.setattr(torch.export, "export", counted)
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    for was_training, wanted in ((False, [False]), (True, [False, True])):
        captured.clear()
        imported = import_model(model.train(was_training), torch.zeros(2, 3), loss="cross_entropy", bn="batch")
        assert captured == wanted
        assert ops_of(imported.infer) == ["feed", "linear", "batch_norm", "fetch"]
        dropped = ["dropout"] if was_training else []
        norm = ["batch_stats", "running_stats", "batch_norm_batch"]
        assert ops_of(imported.train) == ["feed", "feed", "linear", *dropped, *norm, "cross_entropy"]
        assert imported.infer.inputs == ("input",)


def test_an_output_with_several_rows_a_sample_takes_a_target_of_as_many_rows() -> None:
    class Flattened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

        def forward(self, tokens: torch.Tensor) -> Any:
            return self.head(self.embed(tokens)).reshape(-1, 9)

    model = Flattened().double()
    tokens, target = torch.randint(0, 9, (3, 5)), torch.randint(0, 9, (15,))
    imported = import_model(model, tokens, loss="cross_entropy")
    assert imported.train["target"].shape == (Batch(5),)
    env = interp.run(imported.train, feeds(imported, [tokens], target), n=3)
    close(env[imported.loss], F.cross_entropy(model(tokens), target))


def test_outputs_that_are_none_are_left_out() -> None:
    class Weightless(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> Any:
            return self.attention(x, x, x, need_weights=False)

    assert import_model(Weightless(), torch.zeros(1, 3, 4), loss="mse").output_shapes == ((Batch(1), 3, 4),)


def test_a_loss_may_use_the_models_parameters() -> None:
    model = nn.Linear(3, 2)

    def decayed(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output, target) + 0.1 * sum(p.square().sum() for p in model.parameters())

    imported = import_model(model, torch.zeros(1, 3), loss=decayed, target=torch.zeros(1, 2))
    env = interp.run(imported.train, {"input": np.zeros((2, 3)), "target": np.zeros((2, 2))}, n=2)
    want = decayed(model(torch.zeros(2, 3)), torch.zeros(2, 2)).item()
    assert env[imported.loss] == pytest.approx(want, rel=1e-6)


def test_inputs_of_float64_and_arrays_are_taken_in_the_models_precision() -> None:
    imported = import_model(nn.Linear(3, 2), np.zeros((1, 3)), loss="cross_entropy")
    assert imported.batch == 1
    assert imported.output_shapes == ((Batch(1), 2),)


# Errors.


class HardBatch(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        y = x.relu()
        return y.view(4, -1).sum(1, keepdim=True)


class SevenRows(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        y = x.relu()
        return y.view(7, -1)


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return x.reshape(-1, 2, 3).sum(1)


class DecidesByValue(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        if x.sum() > 0:
            return x
        return -x


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.seen += 1
        return x


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return g


class OwnGradient(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Straight.apply(x)  # type: ignore[no-untyped-call]


class InsideNoGrad(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = x.sort(1)[0]
        return x - y


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.autocast("cpu"):
            return self.fc(x)


def helped(x: torch.Tensor) -> torch.Tensor:
    return x.sort(1)[0]


class Helped(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return helped(x)


ERRORS: list[tuple[str, nn.Module, tuple[int, ...], type[SmidgenError], str]] = [
    ("hard-batch", HardBatch(), (3,), ExportFailed, "y.view(4, -1)"),
    ("hard-seven", SevenRows(), (3,), ExportFailed, "y.view(7, -1)"),
    ("pairs-of-samples", Pairs(), (3,), ExportFailed, "x.reshape(-1, 2, 3)"),
    ("data-dependent", DecidesByValue(), (3,), ExportFailed, "if x.sum() > 0:"),
    ("gram-matrix", Fn(lambda x: x @ x.T), (3,), ExportFailed, "multiple of the batch"),
    ("over-the-batch", Fn(lambda x: x.T @ x), (3,), UnsupportedOp, "over the samples"),
    ("one-sample", Fn(lambda x: x - x[0]), (3,), UnsupportedOp, "picked out of the batch"),
    ("batch-max", Fn(lambda x: x.amax(0)), (3,), UnsupportedOp, "sum and mean work"),
    ("sort", Fn(lambda x: x.sort(1)[0]), (3,), UnsupportedOp, "aten.sort"),
    ("random", Fn(lambda x: x + torch.randn(3)), (3,), UnsupportedOp, "aten.randn"),
    ("conv3d", nn.Conv3d(1, 1, 2), (1, 3, 3, 3), UnsupportedOp, "help: conv2d"),
    ("boolean-index", Fn(lambda x: x[x > 0]), (3,), UnsupportedOp, "depends on values"),
    ("own-gradient", OwnGradient(), (3,), UnsupportedOp, "'Straight' defines itself"),
    ("buffer", Counts(), (3,), UnsupportedOp, "changes 'seen'"),
    ("helper", Helped(), (3,), UnsupportedOp, ": return x.sort(1)[0]"),
    ("no-grad", InsideNoGrad(), (3,), UnsupportedOp, ": y = x.sort(1)[0]"),
    ("autocast", Autocast(), (3,), UnsupportedOp, ": return self.fc(x)"),
    ("complex", Fn(lambda x: (x * torch.ones(3, dtype=torch.complex64)).real), (3,), UnsupportedOp, "imaginary"),
    ("half", Fn(lambda x: x.half().float()), (3,), UnsupportedOp, "float16"),
    ("pool-indices", Fn(lambda x: F.max_pool2d(x, 2, return_indices=True)[1]), (1, 4, 4), UnsupportedOp, "indices"),
    ("gqa", Fn(lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, :1], enable_gqa=True)), (2, 4, 4),
     UnsupportedOp, "grouped-query"),
]  # fmt: skip


@pytest.mark.parametrize(("model", "shape", "error", "text"), [pytest.param(*r[1:], id=r[0]) for r in ERRORS])
def test_what_cannot_be_imported_is_named_with_its_line(
    model: nn.Module, shape: tuple[int, ...], error: type[SmidgenError], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error) as caught:
        import_model(model, torch.zeros(4, *shape), loss=lambda o, t: o.mean(), target=np.zeros(4))
    message = str(caught.value)
    assert text in message
    assert f"{Path(__file__).name}:" in message or isinstance(model, nn.Conv3d)
    assert "help:" in message
    assert len(message) < 900
    assert message.count("\n") <= 3
    assert capsys.readouterr() == ("", "")


def test_an_unknown_op_names_module_line_and_alternative() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.special.bessel_j0(x)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Sequential(nn.ReLU(), Odd())

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(x)

    with pytest.raises(UnsupportedOp) as caught:
        import_model(Net(), torch.zeros(1, 3), loss="mse")
    lines = str(caught.value).split("\n")
    assert lines[0] == "error[E101]: torch op aten.special_bessel_j0 is not supported"
    assert lines[1].startswith("  at   head.1 (")
    assert "torch.special.bessel_j0(x)" in lines[1]


def test_an_op_in_a_loss_names_its_line() -> None:
    def ranked(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        difference = output - target
        return difference.sort(1)[0].mean()

    with pytest.raises(UnsupportedOp) as caught:
        import_model(nn.Linear(3, 2), torch.zeros(1, 3), loss=ranked, target=torch.zeros(1, 2))
    assert caught.value.at.startswith("loss (")
    assert f"{Path(__file__).name}:" in caught.value.at
    assert caught.value.at.endswith(": return difference.sort(1)[0].mean())")


def test_a_layer_of_torch_that_is_the_whole_model_is_named_by_its_class() -> None:
    with pytest.raises(UnsupportedOp) as caught:
        import_model(nn.EmbeddingBag(5, 3), torch.zeros(2, 4, dtype=torch.int64), loss="mse")
    assert caught.value.at == "EmbeddingBag"


def test_what_no_rule_foresaw_is_an_error_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("x")

    monkeypatch.setitem(TABLE, "relu", broken)
    with pytest.raises(UnsupportedOp, match=r"aten\.relu.*\n.*F\.relu\(x\)(.|\n)*KeyError: 'x'"):
        import_model(Fn(lambda x: F.relu(x)), torch.zeros(2, 3), loss="mse")
    monkeypatch.setitem(TABLE, "mse_loss", broken)
    with pytest.raises(Internal, match="KeyError: 'x'"):
        import_model(nn.Linear(3, 2), torch.zeros(2, 3), loss="mse")


EXAMPLES: list[tuple[str, Any, str]] = [
    ("nothing", (), "there is no input"),
    ("none", None, "NoneType"),
    ("text", np.array(["a", "b"]), "cannot be read"),
    ("objects", np.array([None, 2], dtype=object), "cannot be read"),
    ("no-memory", torch.zeros(2, 3, device="meta"), "cannot be read"),
    ("complex", torch.zeros(2, 3, dtype=torch.complex64), "complex"),
    ("two-sizes", (torch.zeros(2, 3), torch.zeros(3, 3)), "different batch sizes"),
]


@pytest.mark.parametrize(("example", "text"), [pytest.param(*r[1:], id=r[0]) for r in EXAMPLES])
def test_an_example_that_cannot_be_used_is_explained(example: Any, text: str) -> None:
    with pytest.raises(BadShape, match=text):
        import_model(nn.Linear(3, 2), example, loss="mse")


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16])
def test_examples_of_any_type_are_taken_as_torch_takes_them(kind: torch.dtype) -> None:
    model = Fn(lambda x, w: (x.float() / 3) @ w, (3, 2))
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(kind)
    imported = import_model(model, x, loss="mse")
    env = interp.run(imported.infer, {imported.infer.inputs[0]: x.numpy()}, n=2)
    close(env["output"], model(x), 1e-6)
    reverse = np.zeros((2, 3), np.float32)[::-1]  # torch takes no negative strides
    assert import_model(nn.Linear(3, 2), reverse, loss="mse").batch == 2


def test_wrong_options_are_explained() -> None:
    model = nn.Linear(3, 2)
    x = torch.zeros(2, 3)
    with pytest.raises(BadOption, match="did you mean 'cross_entropy'"):
        import_model(model, x, loss="crossentropy")
    with pytest.raises(BadOption, match="target"):
        import_model(model, x, loss=lambda o, t: o.mean())
    with pytest.raises(BadOption, match="bn='batch'"):
        import_model(model, x, loss="mse", bn="train")
    with pytest.raises(BadOption, match="returns 2 tensors"):
        import_model(Fn(lambda x: (x, x)), x, loss="mse")
    for wrong in (None, 3):
        with pytest.raises(BadOption, match=f"loss={wrong} is not a loss\\n.*bce_with_logits, cross_entropy, huber"):
            import_model(model, x, loss=wrong, target=x)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="the model is a function"):
        import_model(helped, x, loss="mse")  # type: ignore[arg-type]
    with pytest.raises(BadShape, match="the target has 5 samples, the example 2"):
        import_model(model, x, loss="mse", target=torch.zeros(5, 2))
    with pytest.raises(BadShape, match="the target has 2 tensors"):
        import_model(model, x, loss="mse", target=(x, x))
    for moved in (lambda x: x.T, lambda x: x.mean()):
        with pytest.raises(BadShape, match="first axis of the model's output is not the batch"):
            import_model(Fn(moved), x, loss="mse")
    with pytest.raises(BadShape, match="not a scalar"):
        import_model(model, x, loss=lambda o, t: o, target=x)
    with pytest.raises(BadShape, match="class axis"):
        import_model(Fn(lambda x: x[:, 0]), x, loss="cross_entropy")
    with pytest.raises(BadShape, match="no samples"):
        import_model(model, torch.zeros(0, 3), loss="mse")
    with pytest.raises(UnsupportedOp, match="momentum=None"):
        import_model(nn.Sequential(model, nn.BatchNorm1d(2, momentum=None)), x, loss="mse", bn="batch")
    import_model(nn.Sequential(model, nn.BatchNorm1d(2, momentum=None)), x, loss="mse", bn="frozen")
