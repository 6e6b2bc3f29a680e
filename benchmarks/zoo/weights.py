"""Random weights that exercise every path: what starts at zero or one (scales of residual branches, biases, class
tokens) is moved off it, matrices keep signals at their size, batch norms know the statistics of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

LEAST_SCALE, USUAL_SCALE = 0.3, 0.7  # of a matrix: its standard deviation times the root of its fan-in
SPREAD = 0.1
NEAR_ZERO = 0.05
LARGEST_OUTPUT = 1e3
PASSES = 4


def moved(model: torch.nn.Module, seed: int) -> None:
    """Parameters that are constant get a spread; matrices that let a signal die out are scaled up."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.is_floating_point() and p.numel():
                p.copy_(_matrix(p, random) if p.ndim > 1 else _vector(p, random))


def _vector(p: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """A bias or a scale. One that is almost zero everywhere and not a bias of exactly zero holds its branch shut."""
    if p.numel() > 1 and float(p.std()) > NEAR_ZERO:
        return p
    noise = SPREAD * torch.randn(p.shape, generator=random)
    if 0 < float(p.abs().max()) < NEAR_ZERO or (p.ndim == 0 and float(p) == 0):
        return 0.5 + noise
    return p + noise if p.numel() > 1 else p


def _matrix(p: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    fan_in = p[0].numel()
    if float(p.std()) < 1e-6:  # zeros, or a scale of the shape (channels, 1, 1)
        if min(fan_in, p.numel() // max(p.shape)) == 1:
            return _vector(p.flatten(), random).reshape(p.shape)
        return p + torch.randn(p.shape, generator=random) * fan_in**-0.5
    scale = float(p.std()) * fan_in**0.5
    return p * (USUAL_SCALE / scale) if scale < LEAST_SCALE else p


def calibrated(model: torch.nn.Module, example: Callable[[], Sequence[torch.Tensor]]) -> None:
    """Running statistics are the averages over a few batches; everything else stays in evaluation mode."""
    kind = torch.nn.modules.batchnorm._BatchNorm
    norms = [m for m in model.modules() if isinstance(m, kind) and m.track_running_stats]
    if not norms:
        return
    before = [m.momentum for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for _ in range(PASSES):
            model(*example())
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
        norm.eval()


def prepared(model: torch.nn.Module, example: Callable[[], Sequence[torch.Tensor]], seed: int) -> str:
    """The model in evaluation mode with such weights; says if it had to keep its own, because others overflow."""
    model.eval()
    own = {k: v.clone() for k, v in model.state_dict().items()}
    moved(model, seed)
    calibrated(model, example)
    with torch.no_grad():
        largest = float(model(*example()).abs().max())
    if largest < LARGEST_OUTPUT:
        return ""
    model.load_state_dict(own)
    calibrated(model, example)
    return f"own initial weights: with others the output is {largest:.0e}"


__all__ = ["calibrated", "moved", "prepared"]
