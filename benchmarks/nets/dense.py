"""DenseNet-121: every layer of a block reads the results of all layers before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DenseLayer(nn.Module):
    """Norm, 1×1 to four times the growth, norm, 3×3 to the growth; its result is put behind its input."""

    def __init__(self, cin: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(cin), nn.Conv2d(cin, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], 1)


class Transition(nn.Module):
    """Half the channels, half the height and width."""

    def __init__(self, cin: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(cin), nn.Conv2d(cin, cin // 2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x))), 2)


class DenseNet(nn.Module):
    """DenseNet-121 as it stands; `growth` 32 is the published network."""

    def __init__(self, classes: int = 1000, growth: int = 32, counts: Sequence[int] = (6, 12, 24, 16)) -> None:
        super().__init__()
        c = 2 * growth
        self.stem = nn.Sequential(
            nn.Conv2d(3, c, 7, 2, 3, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks: list[nn.Module] = []
        for count in counts:
            if blocks:
                blocks.append(Transition(c))
                c //= 2
            for _ in range(count):
                blocks.append(DenseLayer(c, growth))
                c += growth
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.classifier = nn.BatchNorm2d(c), nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        y: Tensor = self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return y
