"""Networks without branches: LeNet-5, VGG, DS-CNN, the ToyCar autoencoder; and a Transformer encoder."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class LeNet5(nn.Sequential):
    def __init__(self, classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
        )  # fmt: skip


# 3×3 convolutions in each of the five stages, a pooling after each
VGG_STAGES = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg_features(depth: int, width: float = 1.0, norm: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = []
    c = 3
    for count, cout in zip(VGG_STAGES[depth], (64, 128, 256, 512, 512), strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(c, int(cout * width), 3, padding=1, bias=not norm)]
            c = int(cout * width)
            layers += [nn.BatchNorm2d(c)] if norm else []
            layers += [nn.ReLU(inplace=True)]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers)


class VGG11(nn.Module):
    """For 32×32 images: eight 3×3 convolutions, five poolings, one linear layer. `norm` adds batch-norm."""

    def __init__(self, classes: int = 10, norm: bool = False) -> None:
        super().__init__()
        self.features = vgg_features(11, norm=norm)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return y


class VGG(nn.Module):
    """VGG-11, -16 or -19 for 224×224 images, with the three linear layers; `width` 1 is the published network."""

    def __init__(self, depth: int, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        self.features = vgg_features(depth, width)
        self.pool = nn.AdaptiveAvgPool2d(7)
        hidden = int(4096 * width)
        self.classifier = nn.Sequential(
            nn.Linear(int(512 * width) * 49, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(torch.flatten(self.pool(self.features(x)), 1))
        return y


class DSCNN(nn.Sequential):
    """The MLPerf Tiny keyword spotter: 49×10 MFCC, TensorFlow SAME padding in the first layer."""

    def __init__(self, classes: int = 12, norm: bool = True) -> None:
        def step(conv: nn.Conv2d) -> list[nn.Module]:
            return [conv, *([nn.BatchNorm2d(64)] if norm else []), nn.ReLU()]

        layers: list[nn.Module] = [nn.ZeroPad2d((1, 1, 4, 5)), *step(nn.Conv2d(1, 64, (10, 4), 2, bias=not norm))]
        for _ in range(4):
            layers += step(nn.Conv2d(64, 64, 3, padding=1, groups=64, bias=not norm))
            layers += step(nn.Conv2d(64, 64, 1, bias=not norm))
        super().__init__(*layers, nn.Dropout(0.0), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


class ToyCarAutoencoder(nn.Sequential):
    """640-128×4-8-128×4-640 with batch-norm (the MLPerf Tiny anomaly detector)."""

    def __init__(self) -> None:
        widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
        layers: list[nn.Module] = []
        for a, b in itertools.pairwise(widths):
            layers += [nn.Linear(a, b), nn.BatchNorm1d(b, eps=1e-3), nn.ReLU()]
        super().__init__(*layers, nn.Linear(128, 640))


class Encoder(nn.Module):
    """Token and position embedding, Transformer encoder layers, mean over positions, classifier."""

    def __init__(self, vocabulary: int = 100, length: int = 16, width: int = 32, heads: int = 4, layers: int = 2,
                 classes: int = 5) -> None:  # fmt: skip
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.randn(1, length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.layers(self.token(tokens) + self.position)
        y: Tensor = self.head(x.mean(1))
        return y
