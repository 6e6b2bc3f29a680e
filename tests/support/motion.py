"""One-dimensional networks on windows of motion, six axes and 128 samples, as a wearable has them: about 43,000
parameters in four convolutions."""

from __future__ import annotations

import random

import torch
from torch import nn

WINDOW = (6, 128)
CLASSES = 7


def motion_net(seed: int = 0) -> nn.Module:
    """Seed 0 is the plain one with strides; others vary kernel, widths, activation, norm, and how they get shorter."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    several = (16, 24, 32), (32, 48), (48, 64), (64, 80)
    widths = [chance.choice(some) for some in several] if seed else [24, 48, 64, 64]
    kernel = chance.choice((3, 5, 7)) if seed else 5
    activation = chance.choice((nn.ReLU, nn.GELU, nn.SiLU, nn.ReLU6)) if seed else nn.ReLU
    shorter = chance.choice(("stride", "max", "mean")) if seed else "stride"
    norm = chance.random() < 0.6 if seed else True
    layers: list[nn.Module] = []
    channels = WINDOW[0]
    for number, width in enumerate(widths):
        stride = 2 if shorter == "stride" and number < 3 else 1
        layers.append(nn.Conv1d(channels, width, kernel, stride, kernel // 2))
        layers += [nn.BatchNorm1d(width)] if norm else []
        layers.append(activation())
        if shorter != "stride" and number < 3:
            layers.append(nn.MaxPool1d(2) if shorter == "max" else nn.AvgPool1d(2))
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, CLASSES)).eval()


def motion_windows(samples: int) -> torch.Tensor:
    return torch.randn(samples, *WINDOW, generator=torch.Generator().manual_seed(0))
