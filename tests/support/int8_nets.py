"""Random convolutional networks for int8: dense, grouped and depthwise layers, norms, skips, concatenation, gates,
pooling of every kind, activations with and without a form as bounds; odd sizes."""

from __future__ import annotations

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = (F.relu, F.relu6, F.hardswish, F.silu, torch.sigmoid, lambda x: F.leaky_relu(x, 0.1), F.gelu, lambda x: x)


class Layer(nn.Module):
    """A convolution of some kind, perhaps a norm, an activation."""

    def __init__(self, r: random.Random, c: int, o: int, stride: int = 1) -> None:
        super().__init__()
        k, dilation = r.choice([1, 3, 3, 5]), r.choice([1, 1, 1, 2])
        groups = c if o % c == 0 and r.random() < 0.3 else 2 if c % 2 == o % 2 == 0 and r.random() < 0.2 else 1
        has_norm = r.random() < 0.6
        self.conv = nn.Conv2d(
            c, o, k, stride, dilation * (k // 2), dilation, groups, bias=not has_norm or r.random() < 0.3
        )
        self.norm = nn.BatchNorm2d(o) if has_norm else nn.Identity()
        self.activation = r.choice(ACTIVATIONS)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(self.conv(x)))
        return y


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(c, max(2, c // 2), 1), nn.Conv2d(max(2, c // 2), c, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))


class Int8Net(nn.Module):
    """Chosen by a seed; norms have the statistics of `data`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        r = random.Random(seed)
        torch.manual_seed(seed)
        self.shape = (r.randint(1, 4), r.randint(8, 15), r.randint(8, 15))
        self.classes = r.randint(2, 5)
        self.parts, self.kinds = nn.ModuleList(), []
        c, h = self.shape[0], min(self.shape[1:])
        for i in range(r.randint(2, 5)):
            kind = r.choice(["layer", "layer", "skip", "join", "gate", "pool"]) if i else "layer"
            if kind == "layer":
                o = r.choice([c, r.randint(3, 12), 2 * c if c < 9 else c])
                stride = 2 if h > 5 and r.random() < 0.4 else 1
                part: nn.Module = Layer(r, c, o, stride)
                c, h = o, -(-h // stride)
            elif kind == "skip":
                part = nn.Sequential(Layer(r, c, c), Layer(r, c, c))
            elif kind == "join":
                o = r.randint(2, 6)
                part, c = Layer(r, c, o), c + o
            elif kind == "gate":
                part = Gate(c)
            else:
                part = r.choice([nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2)]) if h > 4 else nn.ReLU()
                h = h // 2 if h > 4 else h
            self.parts.append(part)
            self.kinds.append(kind)
        self.flat = r.random() < 0.4
        self.hidden = r.choice([0, 0, 7])
        with torch.no_grad():
            width = self.features(torch.zeros(2, *self.shape)).shape[1]
        self.between = nn.Linear(width, self.hidden) if self.hidden else nn.Identity()
        self.head = nn.Linear(self.hidden or width, self.classes)
        with torch.no_grad():
            for _ in range(10):
                self(torch.randn(64, *self.shape))
        self.eval()

    def features(self, x: Tensor) -> Tensor:
        for part, kind in zip(self.parts, self.kinds, strict=True):
            y = part(x)
            x = x + y if kind == "skip" else torch.cat([x, y], 1) if kind == "join" else y
        return x.flatten(1) if self.flat else x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.between(self.features(x))
        y: Tensor = self.head(torch.relu(h) if self.hidden else h)
        return y
