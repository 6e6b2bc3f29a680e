"""The networks that tests and benchmarks use, by name: one table, built the same way every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from . import mobile, plain, residual

WEIGHTS = Path(__file__).resolve().parents[3] / "shared" / "data" / "weights"


@dataclass(frozen=True)
class Net:
    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one sample
    loss: str = "cross_entropy"
    classes: int = 10
    tokens: int = 0  # > 0: the input is integers below this
    masked: bool = False  # a second input: 1 at the tokens of a sequence, 0 at the padding behind them
    has_norm: bool = True
    weights: str = ""  # published weights to load, if the folder is there
    lr: float = 0.01  # with momentum: the loss falls at this rate; a tenth of 0.01 with Adam

    def model(self, seed: int = 0) -> nn.Module:
        """Deterministic initial weights; batch-norm statistics and affine parameters away from their defaults."""
        torch.manual_seed(seed)
        model = self.build()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                nn.init.uniform_(module.weight, 0.7, 1.3)
                nn.init.uniform_(module.bias, -0.2, 0.2)
                assert module.running_mean is not None
                assert module.running_var is not None
                nn.init.uniform_(module.running_mean, -0.2, 0.2)
                nn.init.uniform_(module.running_var, 0.6, 1.6)
        if self.weights and (WEIGHTS / f"{self.weights}.fp32.npz").exists():
            found = np.load(WEIGHTS / f"{self.weights}.fp32.npz")
            mobile.load_published(model, {k: torch.from_numpy(found[k]) for k in found.files})  # type: ignore[arg-type]
        return model

    def data(self, n: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Random inputs and targets of n samples."""
        rng = np.random.default_rng(seed)
        if self.tokens:
            x: np.ndarray = rng.integers(0, self.tokens, (n, *self.shape)).astype(np.int64)
        else:
            x = rng.standard_normal((n, *self.shape)).astype(np.float32)
        if self.loss == "mse":
            return x, x.astype(np.float32)
        return x, rng.integers(0, self.classes, n).astype(np.int64)

    def batch(self, n: int, seed: int = 1) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """All inputs of n samples, and targets."""
        x, y = self.data(n, seed)
        if not self.masked:
            return (x,), y
        lengths = np.random.default_rng(seed).integers(self.shape[0] // 2, self.shape[0], n, endpoint=True)
        return (x, (np.arange(self.shape[0]) < lengths[:, None]).astype(np.int64)), y


def _mobile(rows: list[mobile.Row], norm: bool, classes: int = 10) -> Callable[[], nn.Module]:
    return lambda: mobile.Mobile(rows, classes, norm)


PUBLISHED: dict[str, Any] = {"has_norm": False, "lr": 3e-4}  # trained weights take smaller steps than random ones

_NETS = [
    Net("mcunet", _mobile(mobile.MCUNET_5FPS, False), (3, 64, 64), weights="mcunet-5fps", **PUBLISHED),
    Net(
        "mobilenetv2",
        _mobile(mobile.MOBILENETV2_035, False),
        (3, 64, 64),
        has_norm=False,
        weights="mbv2-w0.35",
        lr=3e-4,
    ),
    Net(
        "proxyless", _mobile(mobile.PROXYLESS_03, False), (3, 64, 64), has_norm=False, weights="proxyless-w0.3", lr=3e-4
    ),
    Net("mcunet_bn", _mobile(mobile.MCUNET_5FPS, True), (3, 64, 64)),
    Net("mobilenetv2_bn", _mobile(mobile.MOBILENETV2_035, True), (3, 64, 64)),
    Net("proxyless_bn", _mobile(mobile.PROXYLESS_03, True), (3, 64, 64)),
    Net("mobilenetv1", lambda: mobile.MobileNetV1(0.25), (3, 128, 128), classes=2),
    Net("resnet8", residual.ResNet8, (3, 32, 32)),
    Net("resnet18", lambda: residual.ResNet18(10), (3, 64, 64)),
    Net("dscnn", plain.DSCNN, (1, 49, 10), classes=12),
    Net("vgg11", plain.VGG11, (3, 32, 32), has_norm=False),
    Net("lenet5", plain.LeNet5, (1, 28, 28), has_norm=False),
    Net("toycar", plain.ToyCarAutoencoder, (640,), loss="mse"),
    Net("encoder", plain.Encoder, (16,), classes=5, tokens=100, has_norm=False),
]
NETS = {net.name: net for net in _NETS}
