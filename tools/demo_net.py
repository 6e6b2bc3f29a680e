"""The network of `smidgen demo`, as a user would write it: `smidgen plan tools/demo_net.py:build --input 8x1x8x8`."""

from collections import OrderedDict

from torch import nn


def build() -> nn.Module:
    """8×8 grey images, from -1 (black) to 1 (white), to ten classes."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 8, 3, padding=1), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(8, 20, 3, padding=1), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2),
            flat=nn.Flatten(), drop=nn.Dropout(0.2),
            hidden=nn.Linear(80, 24), relu3=nn.ReLU(), head=nn.Linear(24, 10),
        )
    )  # fmt: skip
