"""Pretrained networks and the real data they are adapted to: learn from one part, choose by another, report a third.

No sample is in two parts. Data and weights are in `../shared/data`; its README says where they come from.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from smidgen import files

from ..nets import WEIGHTS, mobile
from ..nets.plain import DSCNN

DATA: Final = Path(__file__).resolve().parents[3] / "shared" / "data"
BUILD: Final = Path(__file__).parents[2] / "build" / "methods"
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Part:
    x: Array
    y: Array


@dataclass(frozen=True)
class Data:
    learn: Part
    choose: Part  # learning rates and schemes are chosen by these
    report: Part


@dataclass(frozen=True)
class Task:
    net: str
    data_name: str
    build: Callable[[int], nn.Module]  # of a seed, which draws the classifier
    data: Callable[[], Data]
    shape: tuple[int, ...]
    epochs: int
    split: str  # in words

    @property
    def name(self) -> str:
        return f"{self.net}/{self.data_name}"


# -- pictures ----------------------------------------------------------------------------------------------------------

PIXELS: Final = 128


def flowers() -> Data:
    """Of each of 102 kinds 21 pictures: 11 to learn from, 4 to choose by, 6 to report."""
    from PIL import Image

    found = np.load(DATA / "fewshot" / "flowers102_jpeg128.npz")
    at, bytes_, label = found["offset"], found["jpeg"], found["label"].astype(np.int64)
    rng = np.random.default_rng(0)
    rows = np.stack([rng.permutation(np.flatnonzero(label == kind))[:21] for kind in range(102)])

    def part(some: Array) -> Part:
        chosen = some.reshape(-1)
        pictures = [Image.open(io.BytesIO(bytes_[at[i] : at[i + 1]].tobytes())).convert("RGB") for i in chosen]
        return Part(_scaled(np.stack([np.asarray(picture) for picture in pictures])), label[chosen])

    return Data(part(rows[:, :11]), part(rows[:, 11:15]), part(rows[:, 15:]))


def cifar10() -> Data:
    """Of each of ten kinds 300 pictures to learn from, 60 to choose by, and the 100 of the test set to report."""
    found = np.load(DATA / "vision" / "cifar10_32.npz")
    label, is_test = found["label"].astype(np.int64), found["is_test"]
    rng = np.random.default_rng(0)
    learn, choose = np.split(np.stack([rng.permutation(np.flatnonzero((label == kind) & ~is_test))
                                       for kind in range(10)]), [300], axis=1)  # fmt: skip

    def part(rows: Array) -> Part:
        large = torch.from_numpy(_scaled(found["images"][rows]))
        large = nn.functional.interpolate(large, size=PIXELS, mode="bilinear", align_corners=False)
        return Part(large.numpy(), label[rows])

    return Data(part(learn.reshape(-1)), part(choose.reshape(-1)), part(np.flatnonzero(is_test)))


def _scaled(pictures: Array) -> Array:
    """[N, H, W, 3] of bytes → [N, 3, H, W] from -1 to 1."""
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2), dtype=np.float32) / 127.5 - 1


def backbone(rows: list[mobile.Row], weights: str, stem: int, classes: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = mobile.Mobile(rows, classes, norm=False, stem=stem)
    found = np.load(WEIGHTS / f"{weights}.fp32.npz")
    mobile.load_published(model, {k: torch.from_numpy(found[k]) for k in found.files})
    return model


# -- signals -----------------------------------------------------------------------------------------------------------


def words() -> Data:
    """Forty Arabic words, split by speaker as published: 18 to learn from, 6 to choose by, 6 to report."""
    found = np.load(DATA / "signal" / "arabic_kws40_mfcc.npz")
    x, y = found["mfcc"].astype(np.float32)[:, None], found["label"].astype(np.int64)
    return Data(*(Part(x[rows], y[rows]) for rows in (found["split"] == s for s in ("train", "valid", "test"))))


def keyword_net(classes: int, seed: int) -> nn.Module:
    """DS-CNN that knows twelve English words (MLPerf Tiny), with another classifier."""
    torch.manual_seed(seed)
    model = DSCNN(classes, norm=False)
    listed = json.loads((WEIGHTS / "mlperf_dscnn_kws12.json").read_text())["nodes"]
    arrays = np.load(WEIGHTS / "mlperf_dscnn_kws12.npz")
    names = [node["name"] for node in listed if "conv" in node["op"]]
    convs = [module for module in model if isinstance(module, nn.Conv2d)]
    with torch.no_grad():
        for name, conv in zip(names, convs, strict=True):
            assert conv.bias is not None
            conv.weight.copy_(torch.from_numpy(arrays[f"{name}.weight"]))
            conv.bias.copy_(torch.from_numpy(arrays[f"{name}.bias"]))
    return model


GRAVITY: Final = 9.81


def activities() -> Data:
    """Six activities of 51 people, from a watch: 31 people to learn from, 10 to choose by, 10 to report."""
    found = np.load(DATA / "signal" / "wisdm_watch_accel6.npz")
    x = found["x"].astype(np.float32).transpose(0, 2, 1) / GRAVITY
    y, who = found["label"].astype(np.int64), found["subject"]
    people = np.random.default_rng(0).permutation(np.unique(who))
    groups = np.split(people, [len(people) - 20, len(people) - 10])
    return Data(*(Part(np.ascontiguousarray(x[rows]), y[rows]) for rows in (np.isin(who, group) for group in groups)))


class Motion(nn.Sequential):
    """Three axes of an accelerometer, any number of samples: six convolutions, every second one depthwise."""

    def __init__(self, classes: int) -> None:
        def step(cin: int, cout: int, stride: int) -> list[nn.Module]:
            return [nn.Conv1d(cin, cin, 5, stride, 2, groups=cin), nn.ReLU(), nn.Conv1d(cin, cout, 1), nn.ReLU()]

        super().__init__(
            nn.Conv1d(3, 32, 7, 1, 3), nn.ReLU(), *step(32, 64, 2), *step(64, 96, 2), *step(96, 128, 2),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, classes),
        )  # fmt: skip


def motion_net(classes: int, seed: int) -> nn.Module:
    """A network that knows seven shoulder exercises (other people, another watch), with another classifier."""
    torch.manual_seed(seed)
    model = Motion(classes)
    known = _exercises()
    own = model.state_dict()
    model.load_state_dict({k: own[k] if k.startswith(f"{len(model) - 1}.") else v for k, v in known.items()})
    return model


def _exercises() -> dict[str, torch.Tensor]:
    """Weights learned from the exercises in PyTorch, always the same; kept in `build`."""
    kept = BUILD / "exercises.pt"
    if not kept.exists():
        found = np.load(DATA / "signal" / "watch_exercise_imu7.npz")
        x = torch.from_numpy(found["x"].astype(np.float32)[:, :, :3].transpose(0, 2, 1).copy())
        x = nn.functional.interpolate(x, size=51, mode="linear")  # 50 → 20 Hz, as the watch of the other data
        y = torch.from_numpy(found["label"].astype(np.int64))
        torch.manual_seed(0)
        model = Motion(7)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(15):
            for rows in torch.randperm(len(x)).split(32):
                loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        held = io.BytesIO()
        torch.save(model.state_dict(), held)
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.write(kept, held.getvalue())
    return dict(torch.load(kept, weights_only=True))


# -- the table ---------------------------------------------------------------------------------------------------------

BACKBONES: Final = {
    "mcunet": partial(backbone, mobile.MCUNET_5FPS, "mcunet-5fps", 16),
    "mobilenetv2_035": partial(backbone, mobile.MOBILENETV2_035, "mbv2-w0.35", 16),
    "proxyless_03": partial(backbone, mobile.PROXYLESS_03, "proxyless-w0.3", 16),
}


def _tasks() -> list[Task]:
    shape = (3, PIXELS, PIXELS)
    tasks = []
    for net, build in BACKBONES.items():
        tasks.append(
            Task(net, "flowers", partial(build, 102), flowers, shape, 10, "11/4/6 pictures of each of 102 kinds")
        )
        tasks.append(
            Task(net, "cifar10", partial(build, 10), cifar10, shape, 4, "300/60/100 pictures of each of 10 kinds")
        )
    tasks.append(Task("dscnn", "words", partial(keyword_net, 40), words, (1, 49, 10), 10, "18/6/6 speakers"))
    tasks.append(Task("motion", "activities", partial(motion_net, 6), activities, (3, 80), 10, "31/10/10 people"))
    return tasks


TASKS: Final = {task.name: task for task in _tasks()}

__all__ = ["BACKBONES", "DATA", "TASKS", "Data", "Part", "Task"]
