"""InceptionV3 without its auxiliary classifier: branches of factored convolutions, side by side."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kernel = int | tuple[int, int]


class Conv(nn.Sequential):
    """Convolution, norm, relu."""

    def __init__(self, cin: int, cout: int, kernel: Kernel, stride: int = 1, same: bool = True) -> None:
        pair = (kernel, kernel) if isinstance(kernel, int) else kernel
        around = (pair[0] // 2, pair[1] // 2) if same else (0, 0)
        super().__init__(
            nn.Conv2d(cin, cout, pair, stride, around, bias=False),
            nn.BatchNorm2d(cout, eps=1e-3),
            nn.ReLU(inplace=True),
        )


def chain(cin: int, *rows: tuple[int, Kernel], strided: bool = False) -> nn.Sequential:
    """Convolutions in a row, (channels, kernel) each; the last of them halves height and width if `strided`."""
    layers = []
    for k, (cout, kernel) in enumerate(rows):
        halves = strided and k == len(rows) - 1
        layers.append(Conv(cin, cout, kernel, 2 if halves else 1, same=not halves))
        cin = cout
    return nn.Sequential(*layers)


class Pooled(nn.Module):
    """Averages of 3×3 neighbours, then 1×1."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__()
        self.conv = Conv(cin, cout, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(F.avg_pool2d(x, 3, 1, 1))
        return y


class Fork(nn.Module):
    """A chain whose result is read by 1×3 and 3×1 side by side."""

    def __init__(self, trunk: nn.Module, cin: int, cout: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.wide, self.high = Conv(cin, cout, (1, 3)), Conv(cin, cout, (3, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.trunk(x)
        return torch.cat([self.wide(x), self.high(x)], 1)


class Mixed(nn.Module):
    """Branches of one input, put side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _factored(cin: int, narrow: int, w: Callable[[int], int]) -> Mixed:
    """7×7 as 1×7 and 7×1, once and twice."""
    n, c, wide, high = w(narrow), w(192), (1, 7), (7, 1)
    return Mixed(
        Conv(cin, c, 1),
        chain(cin, (n, 1), (n, wide), (c, high)),
        chain(cin, (n, 1), (n, high), (n, wide), (n, high), (c, wide)),
        Pooled(cin, c),
    )


class InceptionV3(nn.Module):
    """`width` 1 is the published network."""

    def __init__(self, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()

        def w(channels: int) -> int:
            return int(channels * width)

        def small(cin: int, pooled: int) -> Mixed:
            five, threes = chain(cin, (w(48), 1), (w(64), 5)), chain(cin, (w(64), 1), (w(96), 3), (w(96), 3))
            return Mixed(Conv(cin, w(64), 1), five, threes, Pooled(cin, w(pooled)))

        def wide(cin: int) -> Mixed:
            one, two = chain(cin, (w(384), 1)), chain(cin, (w(448), 1), (w(384), 3))
            forks = (Fork(trunk, w(384), w(384)) for trunk in (one, two))
            return Mixed(Conv(cin, w(320), 1), *forks, Pooled(cin, w(192)))

        self.stem = nn.Sequential(
            Conv(3, w(32), 3, 2, same=False), Conv(w(32), w(32), 3, same=False), Conv(w(32), w(64), 3),
            nn.MaxPool2d(3, 2), Conv(w(64), w(80), 1), Conv(w(80), w(192), 3, same=False), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        a, b, c, d = w(288), w(768), w(1280), w(2048)
        self.mixed = nn.Sequential(
            small(w(192), 32), small(w(256), 64), small(a, 64),
            Mixed(
                Conv(a, w(384), 3, 2, same=False),
                chain(a, (w(64), 1), (w(96), 3), (w(96), 3), strided=True),
                nn.MaxPool2d(3, 2),
            ),
            _factored(b, 128, w), _factored(b, 160, w), _factored(b, 160, w), _factored(b, 192, w),
            Mixed(
                chain(b, (w(192), 1), (w(320), 3), strided=True),
                chain(b, (w(192), 1), (w(192), (1, 7)), (w(192), (7, 1)), (w(192), 3), strided=True),
                nn.MaxPool2d(3, 2),
            ),
            wide(c), wide(d),
        )  # fmt: skip
        self.dropout, self.classifier = nn.Dropout(), nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.mixed(self.stem(x)), 1).flatten(1)
        y: Tensor = self.classifier(self.dropout(x))
        return y
