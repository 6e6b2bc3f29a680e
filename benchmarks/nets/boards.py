"""Small networks of random layout, as microcontrollers train them: by these the prices of cores are fitted and judged.
A seed gives the same network every time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from smidgen import SGD, Adam

from ..zoo.weights import calibrated

CLASSES = 6
CALIBRATED = 16  # samples of a batch that batch norms take their statistics from
SMOOTH: tuple[Callable[[], nn.Module], ...] = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)
POINTWISE = (*[nn.ReLU] * 6, *[nn.ReLU6] * 2, *SMOOTH)
"""Two of three are rectified, as in most networks for microcontrollers: without an FPU, a product with 0 takes fewer
instructions."""
Samples = tuple[list[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Options:
    """How a network is trained."""

    optimizer: Any
    method: str | tuple[str, ...] = "full"
    bn: str = "frozen"
    batch: int = 1
    parts: int = 1  # micro-batches of a step
    int8: bool = False  # frozen weights are stored as int8


@dataclass(frozen=True)
class Small:
    name: str
    model: nn.Module
    shapes: tuple[tuple[int, ...], ...]  # of one sample of each input
    classes: int
    options: Options
    data: Callable[[int], Samples] | None = None  # so many samples with labels; None: random numbers

    def samples(self, count: int) -> Samples:
        if self.data is not None:
            return self.data(count)
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal((count, *shape)).astype(np.float32) for shape in self.shapes]
        return arrays, rng.integers(0, self.classes, count).astype(np.int32)

    def in_use(self) -> Small:
        """With batch norms that know the statistics of such samples."""
        arrays, _ = self.samples(CALIBRATED)
        calibrated(self.model, lambda: [torch.from_numpy(x) for x in arrays])
        return self


def _act(rng: random.Random) -> nn.Module:
    return rng.choice(POINTWISE)()


def _layers_1d(rng: random.Random) -> tuple[nn.Module, tuple[int, ...], int]:
    """Convolutions over time, plain, strided, dilated or depthwise separable."""
    c, length = rng.choice((1, 3, 6, 9)), rng.choice((48, 64, 100, 128))
    shape, classes, layers = (c, length), CLASSES, list[nn.Module]()
    for i in range(rng.randint(2, 4)):
        out, k = rng.choice((6, 8, 12, 16, 20, 24)), rng.choice((3, 5, 7, 9))
        kind = rng.choice(("plain", "plain", "strided", "dilated", "separable")) if i else "plain"
        stride, dilation = (2 if kind == "strided" else 1), (2 if kind == "dilated" else 1)
        around = rng.choice((0, k // 2)) * dilation
        if length + 2 * around - dilation * (k - 1) < 8:
            around = dilation * (k - 1) // 2
        if kind == "separable":
            layers += [nn.Conv1d(c, c, k, padding=around, groups=c), nn.Conv1d(c, out, 1)]
        else:
            layers += [nn.Conv1d(c, out, k, stride=stride, padding=around, dilation=dilation)]
        length = (length + 2 * around - dilation * (k - 1) - 1) // stride + 1
        c = out
        layers += [nn.BatchNorm1d(c)] if rng.random() < 0.6 else []
        layers += [_act(rng)]
        if length >= 16 and rng.random() < 0.6:
            layers += [rng.choice((nn.MaxPool1d, nn.AvgPool1d))(2)]
            length //= 2
    if rng.random() < 0.5:
        layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(c, classes)]
    else:
        hidden = rng.choice((12, 24, 32))
        layers += [nn.Flatten(), nn.Linear(c * length, hidden), _act(rng), nn.Linear(hidden, classes)]
    return nn.Sequential(*layers), shape, classes


def _layers_2d(rng: random.Random) -> tuple[nn.Module, tuple[int, ...], int]:
    """Convolutions over images, plain, strided or depthwise separable, with a residual block at times."""
    c, high, wide = rng.choice((1, 3)), rng.choice((10, 12, 16)), rng.choice((10, 14, 16))
    shape, classes, layers = (c, high, wide), CLASSES, list[nn.Module]()
    for i in range(rng.randint(2, 4)):
        out, k = rng.choice((6, 8, 10, 16, 24)), rng.choice((1, 3, 3, 5))
        kind = rng.choice(("plain", "strided", "separable", "groups")) if i else "plain"
        groups = 2 if kind == "groups" and c % 2 == 0 and out % 2 == 0 else 1
        stride = 2 if kind == "strided" and min(high, wide) >= 6 else 1
        around = k // 2 if min(high, wide) < 8 else rng.choice((0, k // 2))
        if kind == "separable":
            layers += [nn.Conv2d(c, c, k, padding=around, groups=c), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, out, 1)]
        else:
            layers += [nn.Conv2d(c, out, k, stride=stride, padding=around, groups=groups)]
        high, wide = ((size + 2 * around - k) // stride + 1 for size in (high, wide))
        c = out
        layers += [nn.BatchNorm2d(c)] if rng.random() < 0.6 else []
        layers += [_act(rng)]
        if min(high, wide) >= 6 and rng.random() < 0.5:
            layers += [rng.choice((nn.MaxPool2d, nn.AvgPool2d))(2)]
            high, wide = high // 2, wide // 2
        if rng.random() < 0.3:
            layers += [_Residual(nn.Sequential(nn.Conv2d(c, c, 3, padding=1), nn.ReLU()))]
    if rng.random() < 0.5:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, classes)]
    else:
        layers += [nn.Flatten(), nn.Linear(c * high * wide, 16), _act(rng), nn.Linear(16, classes)]
    return nn.Sequential(*layers), shape, classes


def _layers_mobile(rng: random.Random) -> tuple[nn.Module, tuple[int, ...], int]:
    """Inverted bottlenecks: expand, depthwise, project; the input is added where the shapes agree."""
    size, c = rng.choice((16, 20, 24)), rng.choice((8, 12, 16))
    shape, layers = (3, size, size), [*_normed(nn.Conv2d(3, c, 3, 2, 1, bias=False)), nn.ReLU6()]
    size = (size + 1) // 2
    for _ in range(rng.randint(2, 3)):
        wide, k, stride = c * rng.choice((2, 3, 4)), rng.choice((3, 5, 7)), rng.choice((1, 1, 2)) if size >= 6 else 1
        out = rng.choice((c, c, 10, 16, 20))
        block = nn.Sequential(
            *_normed(nn.Conv2d(c, wide, 1, bias=False)), nn.ReLU6(),
            *_normed(nn.Conv2d(wide, wide, k, stride, k // 2, groups=wide, bias=False)), nn.ReLU6(),
            *_normed(nn.Conv2d(wide, out, 1, bias=False)),
        )  # fmt: skip
        layers += [_Residual(block)] if stride == 1 and out == c else [block]
        size, c = (size + stride - 1) // stride, out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, CLASSES)), shape, CLASSES


def _normed(conv: nn.Conv2d) -> list[nn.Module]:
    return [conv, nn.BatchNorm2d(conv.out_channels)]


class _Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x)
        return y


def _layers_dense(rng: random.Random) -> tuple[nn.Module, tuple[int, ...], int]:
    width, classes = rng.choice((20, 32, 50)), CLASSES
    shape, layers = (width,), list[nn.Module]()
    for _ in range(rng.randint(2, 4)):
        out = rng.choice((10, 16, 25, 40, 64))
        layers += [nn.Linear(width, out)]
        layers += [rng.choice((nn.LayerNorm, nn.BatchNorm1d))(out)] if rng.random() < 0.7 else []
        layers += [_act(rng), nn.Dropout(0.1)]
        width = out
    return nn.Sequential(*layers, nn.Linear(width, classes)), shape, classes


class _Attention(nn.Module):
    """An encoder block on a sequence of vectors, and a classifier of its mean."""

    def __init__(self, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2, self.head = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        a = torch.softmax(q @ k.transpose(-2, -1) * (width // self.heads) ** -0.5, -1) @ v
        x = self.norm1(x + self.out(a.transpose(1, 2).reshape(n, length, width)))
        x = self.norm2(x + self.down(torch.nn.functional.gelu(self.up(x))))
        y: Tensor = self.head(x.mean(1))
        return y


def _attention(rng: random.Random) -> tuple[nn.Module, tuple[int, ...], int]:
    width, classes = rng.choice((16, 24, 32)), CLASSES
    return _Attention(width, rng.choice((2, 4)), classes), (rng.choice((6, 10, 16)), width), classes


KINDS = {
    "1d": _layers_1d, "2d": _layers_2d, "mobile": _layers_mobile, "dense": _layers_dense, "attention": _attention,
}  # fmt: skip


class _Joined(nn.Module):
    """Several networks, each with an input of its own; their outputs are added, so that one step trains all."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Tensor:
        outs = [part(x) for part, x in zip(self.parts, inputs, strict=True)]
        total = outs[0]
        for out in outs[1:]:
            total = total + out
        return total


def small(name: str, kinds: Sequence[str], seed: int, options: Options) -> Small:
    """Networks of these kinds, joined; the seeds of neighbours differ."""
    made = []
    for i, kind in enumerate(kinds):
        torch.manual_seed(1000 * seed + i)
        made.append(KINDS[kind](random.Random(f"{kind} {seed} {i}")))
    model = made[0][0] if len(made) == 1 else _Joined([model for model, *_ in made])
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.weight, 0.7, 1.3)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    net = Small(name, model.eval(), tuple(shape for _, shape, _ in made), CLASSES, options).in_use()
    if options.int8:
        quantize(model)
    return net


def quantize(model: nn.Module) -> None:
    """As after post-training quantization: batch norms are folded, weights become int8 numbers times a scale for each
    output, activations end at 6, as in networks that are made for it."""
    for module in list(model.modules()):
        for i in range(1, len(module)) if isinstance(module, nn.Sequential) else ():
            layer, norm = module[i - 1], module[i]
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                module[i - 1] = (fuse_linear_bn_eval if isinstance(layer, nn.Linear) else fuse_conv_bn_eval)(
                    layer, norm
                )
                module[i] = nn.Identity()
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU)):
                setattr(module, name, nn.ReLU6())
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)):
            w = module.weight.data
            scale = w.abs().amax(dim=tuple(range(1, w.dim())), keepdim=True) / 127
            module.weight.data = torch.round(w / scale).clamp(-127, 127) * scale


MIXED = ("1d", "1d", "2d", "2d", "dense", "attention")
MOBILE = ("mobile", "mobile", "mobile", "1d")
FITTED = {
    f"fit-{i}": (kinds, i, options)
    for i, (kinds, options) in enumerate(
        (
            (MIXED, Options(SGD(1e-3))),
            (MIXED, Options(SGD(1e-3, momentum=0.9), batch=2)),
            (MIXED, Options(Adam(1e-3), batch=3)),
            (MIXED, Options(SGD(1e-3, momentum=0.9), bn="batch", batch=2)),
            (MIXED, Options(SGD(1e-3), batch=2, parts=2)),
            (MIXED, Options(Adam(1e-3), method="bias")),
            (MIXED, Options(SGD(1e-3), method="last:2", batch=2, int8=True)),
            (MIXED, Options(SGD(1e-3, momentum=0.9))),
            (MOBILE, Options(SGD(1e-3), method="last_layer", int8=True)),
            (MOBILE, Options(SGD(1e-3, momentum=0.9), method="last_layer", int8=True)),
            (MOBILE, Options(SGD(1e-3))),
        )
    )
}
"""What rates are fitted to: names → arguments of `small`."""
ONE_DIMENSIONAL = {
    f"1d-{i}": (("1d",), 100 + i, options)
    for i, options in enumerate(
        (
            Options(SGD(1e-3)),
            Options(SGD(1e-3, momentum=0.9), batch=4),
            Options(Adam(1e-3)),
            Options(SGD(1e-3), method="last:2"),
            Options(SGD(1e-3, momentum=0.9), method="bias", batch=2),
        )
    )
}
"""What they are judged by: other layouts."""
