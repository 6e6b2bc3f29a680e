"""Networks at the sizes they were published with, and the same architectures at sizes that are compared in seconds.

A reduced network has all layers of the large one; smaller are images, sequences, the vocabulary, the classes, and
where it would still take long, the channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from . import Net, bert, dense, inception, mobile, plain, residual, squeeze

REDUCED_CLASSES, REDUCED_TOKENS, REDUCED_LENGTH = 5, 60, 12

RESIDUAL: dict[str, Any] = {"lr": 1e-4}  # sums grow with the depth where norms keep the statistics that they have

# name, the network from (classes, width), pixels; reduced: pixels and width; the rest of Net
_IMAGES: list[tuple[str, Callable[[int, float], nn.Module], int, int, float, dict[str, Any]]] = [
    *((f"vgg{depth}", partial(plain.VGG, depth), 224, 48, 1 / 16, {"has_norm": False}) for depth in plain.VGG_STAGES),
    ("resnet18", residual.ResNet18, 224, 48, 1 / 4, RESIDUAL),
    ("resnet34", residual.ResNet34, 224, 48, 1 / 4, RESIDUAL),
    ("resnet50", residual.ResNet50, 224, 48, 1 / 4, RESIDUAL),
    ("mobilenetv1", lambda classes, width: mobile.MobileNetV1(width, classes), 224, 48, 1 / 4, {}),
    ("mobilenetv2", partial(mobile.MobileNetV2, dropout=0.2), 224, 48, 1 / 2, {}),
    ("squeezenet", squeeze.SqueezeNet, 224, 48, 1 / 2, {"has_norm": False}),
    ("densenet121", lambda classes, width: dense.DenseNet(classes, int(32 * width)), 224, 48, 1 / 8, {}),
    ("inceptionv3", inception.InceptionV3, 299, 91, 1 / 8, {}),
]
# Attention does not change with the keys' bias, whose gradient is nothing but rounding: from the published zero, there
# would be nothing to compare relative to.
AWAY_FROM_ZERO: dict[str, Any] = {"std": 0.1, "bias_std": 0.1}

# name, width, layers, heads; reduced: width
_SEQUENCES = [("bert_small", 512, 4, 8, 64), ("bert_base", 768, 12, 12, 48)]


def _made(build: Callable[[int, float], nn.Module], classes: int, width: float) -> nn.Module:
    """With the initial weights of He et al.: without them, little of an image reaches the end of a deep network."""
    model = build(classes, width)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def _tables() -> tuple[dict[str, Net], dict[str, Net]]:
    large, reduced = [], []
    for name, build, px, few, width, more in _IMAGES:
        large.append(Net(name, partial(_made, build, 1000, 1.0), (3, px, px), classes=1000, **more))
        small = partial(_made, build, REDUCED_CLASSES, width)
        reduced.append(Net(f"{name}_reduced", small, (3, few, few), classes=REDUCED_CLASSES, **more))
    kind: dict[str, Any] = {"classes": 2, "masked": True, "has_norm": False}
    for name, width, layers, heads, narrow in _SEQUENCES:
        large.append(Net(name, partial(bert.Bert, width, layers, heads), (128,), tokens=30522, **kind))
        small = partial(bert.Bert, narrow, layers, heads, REDUCED_TOKENS, 2 * REDUCED_LENGTH, **AWAY_FROM_ZERO)
        reduced.append(Net(f"{name}_reduced", small, (REDUCED_LENGTH,), tokens=REDUCED_TOKENS, **kind))
    return {net.name: net for net in large}, {net.name: net for net in reduced}


LARGE, REDUCED = _tables()


def task(name: str, batch: int = 8) -> tuple[nn.Module, tuple[np.ndarray, ...], str]:
    """The network of this name, large or reduced, in evaluation mode (dropout is off), one batch of its inputs, and
    its loss: what `smidgen.compile` takes."""
    net = {**LARGE, **REDUCED}[name]
    return net.model().eval(), net.batch(batch)[0], net.loss


__all__ = ["LARGE", "REDUCED", "task"]
