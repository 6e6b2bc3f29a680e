"""The network of the transcripts and the documented keys of --json."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


NETS = """\
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    ).eval()
"""


def documented() -> dict[str, list[str]]:
    """Command → keys, from the table in docs/reference/cli.md."""
    rows = re.findall(r"^\| ([\w ]+) \| (`.*`) \|$", (ROOT / "docs/reference/cli.md").read_text(), re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", keys) for name, keys in rows}
