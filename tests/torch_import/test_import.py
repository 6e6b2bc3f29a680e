"""A table of torch models: for each, the imported graphs give torch's outputs, loss and gradients in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.support.torch_models import (
    _BatchSecond,
    _Cell,
    _Cells,
    _CrossAttention,
    _filled,
    _halves_write,
    _mask,
    _Mobile,
    _NoGrad,
    _NormTwice,
    _Padded,
    _Residual,
    _row_times,
    _SelfAttention,
    _Shared,
    _through_views,
    _Tied,
    _written,
    _wrote,
)
from tests.support.torch_rows import Row, agrees_with_torch, row_of

ROWS: list[Row] = []


def row(name: str, model: Any, *inputs: Any, weights: Sequence[tuple[int, ...]] = (), **options: Any) -> None:
    ROWS.append(row_of(name, model, *inputs, weights=weights, **options))


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
row("embedding-bag", lambda: nn.EmbeddingBag(7, 4), (7, (5,)))
row("embedding-bag-sum", lambda: nn.EmbeddingBag(7, 4, mode="sum", include_last_offset=False), (7, (1,)))
row(
    "embedding-bag-weights", lambda i, f, w: F.embedding_bag(i, w, mode="sum", per_sample_weights=f), (7, (5,)), (5,),
    weights=[(7, 4)],
)  # fmt: skip
row("embedding-bag-max", lambda: nn.EmbeddingBag(7, 4, mode="max"), (7, (5,)))
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


@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in ROWS])
def test_outputs_loss_and_gradients_are_those_of_torch(case: Row) -> None:
    agrees_with_torch(case)


def test_the_table_is_long_enough() -> None:
    assert len(ROWS) >= 120
    assert len({r.name for r in ROWS}) == len(ROWS)
