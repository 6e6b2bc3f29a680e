"""Layers that models of the public zoos bring: norms over weights, windows, resampling, volumes, Fourier transforms.

Each is compared with torch as imported, in float64, and for three steps of training in C.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smidgen
from smidgen.report.parity import Reference, relative
from tests.support.torch_models import Fn
from tests.support.torch_rows import Row, agrees_with_torch
from tests.support.zoo_nets import ZOO_NETS, StdNet, global_filter

ROWS: list[Row] = []


def row(name: str, model: Any, *inputs: Any, weights: Any = (), **options: Any) -> None:
    """As in the table of test_import.py."""
    make = model if isinstance(model, type) else lambda: Fn(model, *weights)
    ROWS.append(Row(name, make, inputs, options))


# Norms over what holds no samples.


class NormedWeight(nn.Module):
    """A batch-norm layer with running statistics over a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(5, 3)), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> Any:
        return x @ self.norm(self.weight)


def each_image(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Instance norm as some libraries write it: samples and channels are one axis."""
    n, c, *hw = x.shape
    flat = F.batch_norm(x.reshape(1, n * c, *hw), None, None, w.repeat(n), None, True)
    return flat.reshape(x.shape)


def normed(w: torch.Tensor, *affine: Any) -> torch.Tensor:
    return F.batch_norm(w, None, None, *affine, training=True)


for _bn in ("frozen", "batch"):
    row(f"standardised-conv-{_bn}", StdNet, (3, 7, 5), bn=_bn)
    row(f"norm-of-a-weight-{_bn}", NormedWeight, (5,), bn=_bn)
    row(f"norm-of-each-image-{_bn}", each_image, (3, 4, 5), weights=[(3,)], bn=_bn)
row("norm-of-a-weight-affine", lambda x, w, a, b: x + normed(w, a, b), (5, 3), weights=[(5, 3), (3,), (3,)])
row("norm-of-a-volume", lambda x, w: x * normed(w), (4, 5, 2, 3), weights=[(4, 5, 2, 3)])


# Windows.


def fold(x: torch.Tensor, hw: Any, kernel: Any, **how: Any) -> torch.Tensor:
    """The windows of x, weighted by their place, put back together."""
    windows = F.unfold(x, kernel, **how)
    return F.fold(windows * (1 + torch.arange(windows.shape[-1])), hw, kernel, **how)


row("unfold-large", lambda x: F.unfold(x, 9, padding=4), (1, 5, 6))
row("unfold-one-image", lambda x, w: x + F.unfold(w, 2), (4, 6), weights=[(1, 3, 4)])
row("unfold-twice", lambda x: F.unfold(x, 2).mean(1) + F.unfold(x, 2, stride=1).amax(1), (2, 4, 5))
row("unfold-overlapping", lambda x: x.unfold(2, 5, 3) * x.unfold(2, 5, 3).mean(1, keepdim=True), (3, 90))
row("unfold-first-axis", lambda x: x.unfold(1, 3, 1).flatten(1), (70, 2))
row("fold", lambda x: fold(x, (5, 6), (2, 3), dilation=(1, 2), padding=1, stride=(2, 1)), (3, 5, 6))
row("fold-apart", lambda x: fold(x, (7, 8), 2, stride=3), (2, 7, 8))
row("fold-only", lambda x: F.fold(x, (4, 5), (3, 2), padding=(1, 0)), (12, 16))
row("fold-parameter", lambda x, w: x * F.fold(w, (3, 3), 2), (2, 3, 3), weights=[(8, 4)])

# Resampling.


def resized(mode: str, *size: int, **how: Any) -> Any:
    return lambda x: F.interpolate(x, size=size or None, mode=mode, **how)


row("bicubic-up", resized("bicubic", 7, 9), (3, 4, 5))
row("bicubic-down", resized("bicubic", 2, 3), (3, 5, 7))
row("bicubic-corners", resized("bicubic", 5, 8, align_corners=True), (2, 3, 5))
row("bicubic-corners-one", resized("bicubic", 1, 1, align_corners=True), (2, 3, 5))
row("bicubic-scale", resized("bicubic", scale_factor=1.7), (2, 4, 3))
row("bicubic-same-height", resized("bicubic", scale_factor=(1.2, 2)), (2, 4, 3))
row("bicubic-one-pixel", resized("bicubic", 3, 4), (2, 1, 1))
row("bicubic-twice", lambda x: resized("bicubic", 6, 6)(x) + resized("bicubic", 6, 6, align_corners=True)(x), (2, 3, 4))
row("bicubic-positions", lambda x, w: x + resized("bicubic", 4, 3)(w), (2, 4, 3), weights=[(1, 2, 7, 7)])
for _mode in ("bilinear", "bicubic"):
    row(f"antialiased-{_mode}", resized(_mode, 3, 4, antialias=True), (2, 10, 9))
    row(f"antialiased-{_mode}-up", resized(_mode, 9, 5, antialias=True), (2, 4, 5))
    row(f"antialiased-{_mode}-corners", resized(_mode, 3, 2, antialias=True, align_corners=True), (2, 7, 9))
    row(f"antialiased-{_mode}-scale", resized(_mode, scale_factor=0.4, antialias=True), (2, 8, 9))

# Volumes.


def layer(make: Any, *sizes: Any, **options: Any) -> Any:
    return type(
        "Layer", (nn.Sequential,), {"__init__": lambda self: nn.Sequential.__init__(self, make(*sizes, **options))}
    )


row("conv3d", layer(nn.Conv3d, 3, 4, 3), (3, 4, 5, 6))
row("conv3d-options", layer(nn.Conv3d, 2, 4, (2, 3, 1), stride=(2, 1, 2), padding=(1, 2, 0), bias=False), (2, 5, 4, 3))
row("conv3d-dilated", layer(nn.Conv3d, 2, 3, 2, dilation=(2, 1, 3), padding=1), (2, 4, 3, 5))
row("conv3d-grouped", layer(nn.Conv3d, 4, 6, 3, groups=2, padding=1), (4, 3, 4, 3))
row("conv3d-depthwise", layer(nn.Conv3d, 4, 4, 3, groups=4, padding=1), (4, 3, 4, 3))
row("conv3d-frames", layer(nn.Conv3d, 3, 4, (1, 3, 3), padding=(0, 1, 1)), (3, 4, 5, 3))
row("conv3d-skipped-frames", layer(nn.Conv3d, 3, 4, (1, 3, 3), stride=(2, 1, 1)), (3, 5, 4, 3))
row("conv3d-time", layer(nn.Conv3d, 4, 6, (3, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0), groups=2), (4, 5, 2, 3))
row("conv3d-same", layer(nn.Conv3d, 2, 3, (2, 3, 4), padding="same"), (2, 4, 5, 3))
row("conv3d-patches", layer(nn.Conv3d, 3, 5, (2, 4, 4), stride=(2, 4, 4)), (3, 4, 8, 8))
row("conv3d-twice", lambda x, w: F.conv3d(F.conv3d(x, w, padding=1), w), (2, 3, 4, 3), weights=[(2, 2, 3, 3, 3)])
row("conv_transpose3d", layer(nn.ConvTranspose3d, 3, 4, 3, stride=2, padding=1, output_padding=1), (3, 2, 3, 4))
row("conv_transpose3d-grouped", layer(nn.ConvTranspose3d, 4, 6, (2, 3, 1), groups=2, dilation=(2, 1, 1)), (4, 3, 2, 3))
row("max_pool3d", layer(nn.MaxPool3d, 2), (2, 4, 5, 6))
row("max_pool3d-options", layer(nn.MaxPool3d, 3, stride=(1, 2, 2), padding=1, ceil_mode=True), (2, 4, 6, 5))
row("max_pool3d-ties", lambda x: F.max_pool3d(F.relu(x), (2, 3, 2), stride=1, dilation=(2, 1, 1)), (2, 4, 3, 5))
row("avg_pool3d", layer(nn.AvgPool3d, (2, 3, 1)), (2, 4, 6, 3))
row("avg_pool3d-options", layer(nn.AvgPool3d, 3, 2, 1, ceil_mode=True, count_include_pad=False), (2, 4, 6, 5))
row("avg_pool3d-divisor", layer(nn.AvgPool3d, 2, divisor_override=5), (2, 4, 6, 5))
row("adaptive_avg_pool3d", layer(nn.AdaptiveAvgPool3d, (2, 3, 1)), (2, 5, 7, 4))
row("adaptive_max_pool3d", layer(nn.AdaptiveMaxPool3d, (2, 3, 1)), (2, 5, 7, 4))
row("upsample-nearest3d", lambda x: F.interpolate(x, size=(5, 3, 7)), (2, 2, 3, 4))
row("upsample-trilinear", lambda x: F.interpolate(x, scale_factor=(2, 1.5, 1), mode="trilinear"), (2, 3, 4, 2))
for _bn in ("frozen", "batch"):
    row(f"batch_norm3d-{_bn}", layer(nn.BatchNorm3d, 3), (3, 2, 4, 3), bn=_bn)

# Fourier transforms and complex numbers.


def rotary(x: torch.Tensor) -> torch.Tensor:
    """As Llama's first code has it."""
    angles = torch.outer(torch.arange(5).double(), torch.tensor([1.0, 0.1]))
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(2)


def no_grad(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        z = torch.fft.fft(x * w)
    return (z * w).real


def halves(z: torch.Tensor) -> Any:
    return z.real, z.imag


def arithmetic(x: torch.Tensor, w: torch.Tensor) -> Any:
    z, u = torch.fft.fft(x), torch.view_as_complex(w)
    y = (z + u) * z.conj() / (u + 2) - 2 * z + x + 1j * u
    return torch.view_as_real(torch.cat([y, -z], 1).transpose(1, 2)[:, 1:] / 3), y.abs(), torch.exp(u).real


row("fnet", lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, (6, 5))
row("fnet-fftn", lambda x: torch.fft.fftn(x, dim=(1, 2)).real, (4, 7))
row("global-filter", global_filter, (5, 6, 3), weights=[(5, 4, 3, 2)])
row("global-filter-odd", global_filter, (4, 5, 2), weights=[(4, 3, 2, 2)])
row("complex-no-grad", no_grad, (6, 5), weights=[(5,)])
row("rotary", rotary, (5, 4))
row("complex-arithmetic", arithmetic, (3, 4), weights=[(3, 4, 2)])
row("complex-cast", lambda x: halves(torch.fft.fft(x.to(torch.cdouble) * 2, dim=1).to(torch.cdouble)), (3, 4))
row("complex-product", lambda x, w: halves(torch.fft.fft(x) @ torch.view_as_complex(w)), (3, 4), weights=[(4, 2, 2)])
row(
    "complex-einsum",
    lambda x, w: torch.view_as_real(torch.einsum("bik,iok->bok", torch.fft.rfft(x), torch.view_as_complex(w))),
    (3, 6),
    weights=[(3, 2, 4, 2)],
)
for _norm in ("backward", "ortho", "forward"):
    row(f"fft-{_norm}", lambda x, n=_norm: halves(torch.fft.ifft(torch.fft.fft(x, norm=n) * x, dim=1, norm=n)), (3, 5))
    row(f"rfft-{_norm}", lambda x, n=_norm: halves(torch.fft.rfft(x, norm=n)), (3, 6))
    row(
        f"irfft-{_norm}", lambda x, n=_norm: torch.fft.irfft(torch.fft.rfft(x, dim=1) * x[:, :4], dim=1, norm=n), (7, 3)
    )
row("fft-lengths", lambda x: [h for n in (3, 8) for h in halves(torch.fft.fft(x, n=n))], (2, 5))
row("irfft-lengths", lambda x: [torch.fft.irfft(torch.fft.rfft(x), n=n) for n in (4, 7, 9, 12)], (2, 9))
row("fftshift", lambda x: halves(torch.fft.fftshift(torch.fft.fft2(x), dim=(1, 2))), (4, 5))


# The tests.


@pytest.mark.parametrize("case", [pytest.param(r, id=r.name) for r in ROWS])
def test_outputs_loss_and_gradients_are_those_of_torch(case: Row) -> None:
    agrees_with_torch(case)


@pytest.mark.parametrize(("batch", "at_once"), [(1, 1), (4, 4), (5, 2)])
@pytest.mark.parametrize(("make", "shape"), [pytest.param(*n[1:], id=n[0]) for n in ZOO_NETS])
def test_three_steps_in_c_are_those_of_torch(
    make: type[nn.Module], shape: tuple[int, ...], batch: int, at_once: int
) -> None:
    torch.manual_seed(1)
    model, optimizer = make(), smidgen.SGD(0.05, momentum=0.9)
    x, y = torch.randn(batch, *shape).numpy(), np.arange(batch) % 3
    memory = smidgen.Memory(accumulate=at_once < batch)
    job = smidgen.compile(model, x[:at_once], optimizer=optimizer, kernels="exact", memory=memory)
    reference = Reference(model, "cross_entropy", optimizer, job.plan.learns, "frozen", torch.float64)
    assert set(job.plan.learns) == {name for name, _ in model.named_parameters()}
    for _ in range(3):
        want = reference.step([x], y)
        assert abs(job.train_step(x, y) - want) < 1e-4 * (1 + abs(want))
    for name in job.plan.learns:
        assert relative(job.state_dict()[name], reference.values()[name]) < 1e-4, name
