"""Networks without branches: LeNet-5, VGG-11, DS-CNN, the ToyCar autoencoder; and a Transformer encoder."""

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


class VGG11(nn.Module):
    """For 32×32 images: eight 3×3 convolutions, five poolings, one linear layer. `norm` adds batch-norm."""

    def __init__(self, classes: int = 10, norm: bool = False) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        c = 3
        for width in (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0):
            if width:
                layers += [nn.Conv2d(c, width, 3, padding=1, bias=not norm)]
                layers += [nn.BatchNorm2d(width)] if norm else []
                layers += [nn.ReLU(inplace=True)]
                c = width
            else:
                layers += [nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.classifier(torch.flatten(self.features(x), 1))
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
