"""The networks that tools/replay.py compiles: between them, every kind of layer, method, optimizer and option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.nets import NETS
from benchmarks.nets.large import REDUCED
from benchmarks.nets.workloads import SMALL
from smidgen import SGD, Adam, AdamW
from tests.generated import RandomNet


@dataclass(frozen=True)
class Task:
    """What `smidgen.compile` is given."""

    name: str
    make: Callable[[], tuple[nn.Module, tuple[Any, ...]]]  # the model and one batch of its inputs
    options: dict[str, Any] = field(default_factory=dict)


class Recurrent(nn.Module):
    """An LSTM or a GRU over sequences, and a linear layer on its last output."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = kind(12, 16, batch_first=True)  # type: ignore[call-arg]
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.cell(x)[0][:, -1])
        return y


class TwoInputs(nn.Module):
    """An image and a row of figures, joined before the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.row = nn.Sequential(nn.Linear(6, 8), nn.GELU())
        self.head = nn.Linear(16, 5)

    def forward(self, image: Tensor, row: Tensor) -> Tensor:
        y: Tensor = self.head(torch.cat([self.image(image), self.row(row)], 1))
        return y


class Shared(nn.Module):
    """One convolution and one norm at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(2):
            x = torch.relu(self.norm(self.conv(x)))
        y: Tensor = self.head(x.mean((2, 3)))
        return y


def with_dropout() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Dropout(0.3), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(1024, 32), nn.LayerNorm(32), nn.Hardswish(), nn.Dropout(0.5), nn.Linear(32, 6),
    ).train()  # fmt: skip


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def own(name: str, build: Callable[[], nn.Module], *shapes: tuple[int, ...], **options: Any) -> Task:
    def make() -> tuple[nn.Module, tuple[Any, ...]]:
        torch.manual_seed(0)
        return build(), tuple(normal(*shape) for shape in shapes)

    return Task(name, make, options)


def listed(name: str, net: str, batch: int, **options: Any) -> Task:
    """A network of the benchmarks; never with published weights, which may not be there."""
    found = {**NETS, **SMALL, **REDUCED}[net]
    assert not found.weights, net
    return Task(name, lambda: (found.model().eval(), found.batch(batch)[0]), {"loss": found.loss, **options})


def generated(seed: int, **options: Any) -> Task:
    def make() -> tuple[nn.Module, tuple[Any, ...]]:
        net = RandomNet(seed)
        return net, tuple(normal(16, *shape) for shape in net.input_shapes)

    return Task(f"generated_{seed}", make, options)


def all_tasks() -> list[Task]:
    momentum = SGD(lr=0.01, momentum=0.9)
    return [
        listed("lenet5", "lenet5", 64, optimizer=momentum),
        listed("lenet5_int8", "lenet5", 8, method="last_layer", const="int8"),
        listed("lenet5_exact", "lenet5", 128, kernels="exact", optimizer=AdamW(lr=1e-3, weight_decay=0.01)),
        listed("dscnn_batch_statistics", "dscnn", 4, bn="batch", optimizer=momentum),
        listed("resnet8", "resnet8", 16, optimizer=Adam(lr=1e-3)),
        listed("resnet8_spare_classes", "resnet8", 4, method="last:2", spare_classes=3),
        listed("mobilenetv2_bn", "mobilenetv2_bn", 2, method="bn"),
        listed("mcunet_bn", "mcunet_bn", 8, method="bias"),
        listed("squeezenet", "squeezenet_reduced", 8),
        listed("toycar", "toycar", 16, optimizer=Adam(lr=1e-3), bn="batch"),
        listed("encoder", "encoder", 4, optimizer=momentum),
        listed("small_images", "small_images", 4, accumulate=True),
        listed("small_sequences", "small_sequences", 4, accumulate=False),
        listed("bert", "bert_small_reduced", 2),
        own("lstm", lambda: Recurrent(nn.LSTM), (32, 6, 12), optimizer=SGD(lr=0.1, clip_norm=1.0)),
        own("gru", lambda: Recurrent(nn.GRU), (32, 6, 12), optimizer=momentum),
        own("two_inputs", TwoInputs, (16, 3, 8, 8), (16, 6), optimizer=momentum, accumulate=True),
        own("shared_weights", Shared, (16, 3, 8, 8), bn="batch", optimizer=Adam(lr=1e-3)),
        own("dropout", with_dropout, (64, 3, 16, 16), optimizer=momentum, seed=5),
        generated(3),
        generated(11, optimizer=momentum, loss="mse"),
    ]  # fmt: skip


__all__ = ["Task", "all_tasks"]
