"""Small fleets: data of several devices, a program, and clients that do the same with PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import smidgen
from smidgen import fleet
from smidgen.fleet.client import round_seed
from smidgen.train.batches import order

Data = tuple[np.ndarray, np.ndarray]


def cnn() -> nn.Module:
    """With batch-norm and a residual connection."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + self.norm(self.conv(x)))

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), Residual(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 5)
    )


def samples(shape: tuple[int, ...], classes: int, sizes: tuple[int, ...], seed: int = 0) -> list[Data]:
    """Of each device; each has its own mean."""
    rng = np.random.default_rng(seed)
    found = []
    for n in sizes:
        x = (rng.standard_normal((n, *shape)) + rng.standard_normal(shape) / 2).astype(np.float32)
        found.append((x, rng.integers(0, classes, n)))
    return found


def programmed(program: Path, data: list[Data], **options: Any) -> ClientApp:
    def here(context: Context) -> fleet.Client:
        part = int(context.node_config["partition-id"])
        return fleet.Client(program, *data[part], part=part, **options)

    return fleet.client_app(here)


def with_torch(model: nn.Module, data: list[Data], optimizer: Callable[[Any], torch.optim.Optimizer]) -> ClientApp:
    """The usual client of Flower, in the order of samples of ours. A model of its own for each message."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part, config = int(context.node_config["partition-id"]), message.content["config"]
        own = copy.deepcopy(model).eval()
        given = {name: torch.from_numpy(a.numpy().copy()) for name, a in message.content["arrays"].items()}
        own.load_state_dict(given, strict=False)
        x, y = map(torch.from_numpy, data[part])
        seed = round_seed(int(config["seed"]), int(config["server-round"]), part)
        trained(own, optimizer(own.parameters()), x, y, int(config["epochs"]), int(config["batch"]), seed)
        arrays = ArrayRecord({k: v for k, v in own.state_dict().items() if k in given})
        counters = MetricRecord({"num-examples": len(y), "loss": 0.0})
        return Message(RecordDict({"arrays": arrays, "metrics": counters}), reply_to=message)

    return app


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor, epochs: int, batch: int,
    seed: int, extra: Callable[[], torch.Tensor] | None = None,
) -> None:  # fmt: skip
    for epoch in range(epochs):
        which = torch.from_numpy(order(seed, epoch, len(y)))
        for first in range(0, len(y), batch):
            part = which[first : first + batch]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[part]), y[part])
            (loss if extra is None else loss + extra()).backward()
            optimizer.step()


def program(folder: Path, model: nn.Module, example: Any, **options: Any) -> Path:
    options = {"optimizer": smidgen.SGD(lr=0.05, momentum=0.9), **options}
    smidgen.compile(model, example, **options).save(folder / "net.smg")
    return folder / "net.smg"
