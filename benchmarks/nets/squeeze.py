"""SqueezeNet 1.1: fire modules (a narrow 1×1 layer, then 1×1 and 3×3 side by side), no linear layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fire(nn.Module):
    def __init__(self, cin: int, narrow: int, each: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(cin, narrow, 1)
        self.expand1, self.expand3 = nn.Conv2d(narrow, each, 1), nn.Conv2d(narrow, each, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1(x)), F.relu(self.expand3(x))], 1)


class SqueezeNet(nn.Module):
    """`width` 1 is the published network."""

    def __init__(self, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        c = int(64 * width)
        layers: list[nn.Module] = [nn.Conv2d(3, c, 3, 2), nn.ReLU(inplace=True)]
        for row in ((16, 64), (16, 64), (), (32, 128), (32, 128), (), (48, 192), (48, 192), (64, 256), (64, 256)):
            if len(layers) == 2 or not row:  # a pooling after the stem, too
                layers += [nn.MaxPool2d(3, 2, ceil_mode=True)]
            if row:
                narrow, each = (int(count * width) for count in row)
                layers += [Fire(c, narrow, each)]
                c = 2 * each
        self.features = nn.Sequential(*layers)
        self.dropout, self.classifier = nn.Dropout(), nn.Conv2d(c, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.classifier(self.dropout(self.features(x))))
        return F.adaptive_avg_pool2d(x, 1).flatten(1)
