"""Inverted-bottleneck networks for microcontrollers, and MobileNetV1 and V2.

Block tables are facts of the published MCUNet-5fps, MobileNetV2-0.35 and -1.0 and ProxylessNAS-0.3 models (MIT HAN Lab,
tiny-training); weights are read from `../shared/data/weights` where that folder exists.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# expansion width (0: none), depthwise kernel, stride, output channels; a block keeps its input when the shapes agree
# and the table says so with a trailing 1.
Row = tuple[int, int, int, int, int]

MCUNET_5FPS: list[Row] = [
    (0, 3, 1, 8, 0), (32, 3, 2, 16, 0), (48, 3, 1, 16, 1), (48, 7, 2, 24, 0), (120, 3, 1, 24, 1), (120, 3, 2, 40, 0),
    (160, 7, 1, 40, 1), (160, 5, 1, 48, 0), (144, 3, 1, 48, 1), (192, 3, 1, 48, 1), (240, 7, 2, 96, 0),
    (384, 5, 1, 96, 1), (384, 5, 1, 96, 1), (576, 3, 1, 160, 0),
]  # fmt: skip
MOBILENETV2_035: list[Row] = [
    (0, 3, 1, 8, 0), (48, 3, 2, 8, 0), (48, 3, 1, 8, 1), (48, 3, 2, 16, 0), (96, 3, 1, 16, 1), (96, 3, 1, 16, 1),
    (96, 3, 2, 24, 0), (144, 3, 1, 24, 1), (144, 3, 1, 24, 1), (144, 3, 1, 24, 1), (144, 3, 1, 32, 0),
    (192, 3, 1, 32, 1), (192, 3, 1, 32, 1), (192, 3, 2, 56, 0), (336, 3, 1, 56, 1), (336, 3, 1, 56, 1),
    (336, 3, 1, 112, 0),
]  # fmt: skip
MOBILENETV2_100: list[Row] = [
    (0, 3, 1, 16, 0), (96, 3, 2, 24, 0), (144, 3, 1, 24, 1), (144, 3, 2, 32, 0), (192, 3, 1, 32, 1), (192, 3, 1, 32, 1),
    (192, 3, 2, 64, 0), (384, 3, 1, 64, 1), (384, 3, 1, 64, 1), (384, 3, 1, 64, 1), (384, 3, 1, 96, 0),
    (576, 3, 1, 96, 1), (576, 3, 1, 96, 1), (576, 3, 2, 160, 0), (960, 3, 1, 160, 1), (960, 3, 1, 160, 1),
    (960, 3, 1, 320, 0),
]  # fmt: skip
PROXYLESS_03: list[Row] = [
    (0, 3, 1, 8, 0), (24, 5, 2, 16, 0), (48, 3, 1, 16, 1), (48, 7, 2, 16, 0), (48, 3, 1, 16, 1), (48, 5, 1, 16, 1),
    (48, 5, 1, 16, 1), (96, 7, 2, 24, 0), (72, 5, 1, 24, 1), (72, 5, 1, 24, 1), (72, 5, 1, 24, 1), (144, 5, 1, 32, 0),
    (96, 5, 1, 32, 1), (96, 5, 1, 32, 1), (96, 5, 1, 32, 1), (192, 7, 2, 64, 0), (384, 7, 1, 64, 1),
    (192, 7, 1, 64, 1), (192, 7, 1, 64, 1), (384, 7, 1, 96, 0),
]  # fmt: skip


def conv(cin: int, cout: int, k: int, stride: int, groups: int, norm: bool, act: bool) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(cin, cout, k, stride, k // 2, groups=groups, bias=not norm)]
    layers += [nn.BatchNorm2d(cout)] if norm else []
    layers += [nn.ReLU6(inplace=True)] if act else []
    return nn.Sequential(*layers)


class Block(nn.Module):
    """Expand, depthwise, project; the input is added where the table says so."""

    def __init__(self, cin: int, row: Row, norm: bool) -> None:
        super().__init__()
        width, k, stride, cout, self.residual = row[0] or cin, *row[1:4], bool(row[4])
        self.pw1 = conv(cin, width, 1, 1, 1, norm, True) if row[0] else nn.Identity()
        self.dw = conv(width, width, k, stride, width, norm, True)
        self.pw2 = conv(width, cout, 1, 1, 1, norm, False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pw2(self.dw(self.pw1(x)))
        return x + y if self.residual else y


class Mobile(nn.Module):
    def __init__(self, rows: list[Row], classes: int, norm: bool, stem: int = 16) -> None:
        super().__init__()
        self.stem = conv(3, stem, 3, 2, 1, norm, True)
        blocks, c = [], stem
        for row in rows:
            blocks.append(Block(c, row, norm))
            c = row[3]
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.stem(x))
        y: Tensor = self.classifier(x.mean((2, 3)))
        return y


class MobileNetV2(nn.Module):
    """MobileNetV2 at full width, with the wide 1×1 layer in front of the classifier; `width` narrows all of it."""

    def __init__(self, classes: int = 1000, width: float = 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        rows = [(int(hidden * width), k, stride, int(out * width), keep)
                for hidden, k, stride, out, keep in MOBILENETV2_100]  # fmt: skip
        whole = Mobile(rows, classes, norm=True, stem=int(32 * width))
        self.stem, self.blocks = whole.stem, whole.blocks
        last, wide = int(320 * width), int(1280 * width)
        self.head = conv(last, wide, 1, 1, 1, norm=True, act=True)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(wide, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(self.dropout(self.head(self.blocks(self.stem(x))).mean((2, 3))))
        return y


class MobileNetV1(nn.Sequential):
    """Depthwise-separable stack at a width multiplier; the MLPerf Tiny person-detection network at 0.25."""

    def __init__(self, width: float = 0.25, classes: int = 2) -> None:
        plan = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1)]
        c = int(32 * width)
        layers: list[nn.Module] = [nn.Conv2d(3, c, 3, 2, 1, bias=False), nn.BatchNorm2d(c), nn.ReLU()]
        for out, stride in plan:
            cout = int(out * width)
            layers += [nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False), nn.BatchNorm2d(c), nn.ReLU()]
            layers += [nn.Conv2d(c, cout, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU()]
            c = cout
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes))


def load_published(model: Mobile, arrays: dict[str, torch.Tensor]) -> None:
    """Copy the published weights (batch-norm already folded into them) into a network built with norm=False."""
    with torch.no_grad():
        for name, module in model.named_modules():
            key = name.removesuffix(".0")
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                module.weight.copy_(arrays[f"{key}.weight"])
                module.bias.copy_(arrays[f"{key}.bias"])
        if model.classifier.out_features == len(arrays["classifier.bias"]):
            model.classifier.weight.copy_(arrays["classifier.weight"].flatten(1))
            model.classifier.bias.copy_(arrays["classifier.bias"])
