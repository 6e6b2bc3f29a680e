"""ResNet-8 (the MLPerf Tiny image classifier), ResNet-18, -34 and -50."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return F.relu(y)


class ResNet8(nn.Module):
    """Three residual stages of 16, 32, 64 channels; TensorFlow's SAME padding where the stride is 2."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16, eps=1e-3), nn.ReLU())
        self.stages = nn.ModuleList([Stage8(16, 16, 1), Stage8(16, 32, 2), Stage8(32, 64, 2)])
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        y: Tensor = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return y


class Stage8(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, padding=0 if stride == 2 else 1)
        self.bn1 = nn.BatchNorm2d(cout, eps=1e-3)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(cout, eps=1e-3)
        self.skip = nn.Conv2d(cin, cout, 1, stride) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(x, (0, 1, 0, 1)) if self.stride == 2 else x
        y = F.relu(self.bn1(self.conv1(y)))
        y = self.bn2(self.conv2(y))
        return F.relu(self.skip(x) + y)


class Bottleneck(nn.Module):
    """1×1 down to a quarter, 3×3 with the stride, 1×1 up again."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        narrow = cout // 4
        self.conv1 = nn.Conv2d(cin, narrow, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(narrow)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(narrow)
        self.conv3 = nn.Conv2d(narrow, cout, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(cout)
        self.down: nn.Module = nn.Identity()
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += self.down(x)
        return F.relu(y)


class ResNet(nn.Module):
    """Four stages of `counts` blocks; bottlenecks give four times the channels. `width` 1 is the published network."""

    def __init__(
        self, counts: Sequence[int], classes: int = 1000, bottleneck: bool = False, width: float = 1.0
    ) -> None:
        super().__init__()
        c = int(64 * width)
        self.conv1 = nn.Conv2d(3, c, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(c)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks: list[nn.Module] = []
        for stage, count in enumerate(counts):
            cout = int(64 * width) * 2**stage * (4 if bottleneck else 1)
            for k in range(count):
                stride = 2 if stage and not k else 1
                blocks.append(Bottleneck(c, cout, stride) if bottleneck else BasicBlock(c, cout, stride))
                c = cout
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.blocks(x)
        y: Tensor = self.fc(F.adaptive_avg_pool2d(x, (1, 1)).flatten(1))
        return y


class ResNet18(ResNet):
    def __init__(self, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__((2, 2, 2, 2), classes, width=width)


class ResNet34(ResNet):
    def __init__(self, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__((3, 4, 6, 3), classes, width=width)


class ResNet50(ResNet):
    def __init__(self, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__((3, 4, 6, 3), classes, bottleneck=True, width=width)
