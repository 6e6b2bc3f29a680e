"""The networks of the speed benchmark, at the sizes that are trained on devices. Weights are random; batch-norm
statistics are measured once on random images, so that activations keep the size that they have in trained networks."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import Net, mobile, plain, residual


class EncoderBlock(nn.Module):
    """Attention and a feed-forward part, each with its input added and a layer norm after it."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        x = self.norm1(x + self.out(a))
        y: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return y


class Transformer(nn.Module):
    """An encoder of sequences of vectors; the classifier reads their mean."""

    def __init__(self, width: int = 512, heads: int = 8, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[EncoderBlock(width, heads, 4 * width) for _ in range(layers)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.layers(x).mean(1))
        return y


class Products(nn.Module):
    """Eight products of n×n matrices in a row: its output takes as long as they do."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(n, n, bias=False) for _ in range(8)])

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x).mean(1)
        return y


class SmallImages(nn.Module):
    """Every kind of layer that the image networks have, in small: uneven padding, groups, overlapping pooling."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.stem = mobile.conv(3, 8, 3, 2, 1, norm=True, act=True)
        self.uneven = nn.Sequential(nn.ZeroPad2d((1, 0, 0, 1)), nn.Conv2d(8, 8, (3, 2), (2, 1)), nn.ReLU())
        self.overlapping, self.halves = nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2)
        self.kept = mobile.Block(8, (12, 5, 1, 8, 1), norm=True)
        self.strided = mobile.Block(8, (12, 3, 2, 10, 0), norm=True)
        self.flat, self.mean, self.head = nn.Linear(20, 7), nn.Linear(10, 7), nn.Linear(7, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.strided(self.kept(self.overlapping(self.uneven(self.stem(x)))))
        flat, mean = self.halves(x).flatten(1), F.adaptive_avg_pool2d(x, 1).flatten(1)
        y: Tensor = self.head(F.relu(self.flat(flat) + self.mean(mean)))
        return y


_WORKLOADS = [
    Net("lenet5", plain.LeNet5, (1, 28, 28), has_norm=False),
    Net("dscnn", plain.DSCNN, (1, 49, 10), classes=12),
    Net("resnet8", residual.ResNet8, (3, 32, 32)),
    Net("mcunet", lambda: mobile.Mobile(mobile.MCUNET_5FPS, 10, norm=True), (3, 128, 128)),
    Net("mobilenetv2_035", lambda: mobile.Mobile(mobile.MOBILENETV2_035, 10, norm=True), (3, 128, 128)),
    Net("mobilenetv2_100", mobile.MobileNetV2, (3, 224, 224), classes=1000),
    Net("resnet18", residual.ResNet18, (3, 224, 224), classes=1000),
    Net("transformer", Transformer, (128, 512), has_norm=False),
]
_SMALL = [
    Net("small_images", SmallImages, (3, 33, 30), classes=5),
    Net("small_sequences", lambda: Transformer(16, 2, 2, 5), (6, 16), classes=5, has_norm=False),
]
_PRODUCTS = [Net(f"gemm{n}", functools.partial(Products, n), (n, n), classes=n, has_norm=False) for n in (256, 1024)]
WORKLOADS = {net.name: net for net in _WORKLOADS}
PRODUCTS = {net.name: net for net in _PRODUCTS}
"""Only their output is measured."""
SMALL = {net.name: net for net in _SMALL}
"""Not measured: all contestants must compute the same with them."""


def built(net: Net) -> nn.Module:
    """The network without its weights' values: what contestants fill from a file."""
    return net.build().eval()


def with_weights(net: Net) -> nn.Module:
    """The network as all contestants start from it, with calibrated batch-norm statistics."""
    model = net.model()
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = 1.0  # the statistics of the last batch alone
    if norms:
        with torch.no_grad():
            model.train()(torch.from_numpy(net.data(4, seed=2)[0]))
    return model.eval()


def find(name: str) -> Net:
    return {**WORKLOADS, **PRODUCTS, **SMALL}[name]


__all__ = ["PRODUCTS", "SMALL", "WORKLOADS", "built", "find", "with_weights"]
