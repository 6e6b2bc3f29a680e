"""Streams wherever they can be, whether they save memory or not; and nets made for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from smidgen.compiler.entries import Entries
from smidgen.compiler.graph.alias import loop_range
from smidgen.compiler.graph.rows import Body, Stream
from smidgen.compiler.passes.stream_rows import with_streams
from smidgen.ir import Graph


def streamed(graph: Graph, rows: int = 1) -> Graph:
    """The longest streams from the first node of the loop on, `rows` rows of the longest value at a time."""
    span = loop_range(graph)
    body, found, at = Body(graph, span), list[Stream](), 0
    while at < len(span):
        several = (body.stream(at, nodes, rows) for nodes in range(len(span) - at, 1, -1))
        stream = next((s for s in several if s is not None), None)
        found += [stream] if stream else []
        at += stream.nodes if stream else 1
    return with_streams(graph, found) if found else graph


def with_all_streams(entries: Entries, rows: int = 1) -> Entries:
    def done(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
        return {name: streamed(graph, rows) for name, graph in graphs.items()}

    return replace(entries, graphs=done(entries.graphs), plain=done(entries.plain))


class Varied(nn.Module):
    """Convolutions with and without stride, depthwise too, pools, a residual sum, a concatenation, and up again."""

    def __init__(self, channels: int = 1, width: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.lower = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Linear(2 * width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        h = h + torch.relu(self.depthwise(h))
        low = nn.functional.max_pool2d(torch.relu(self.lower(h)), 3, stride=1, padding=1)
        h = nn.functional.avg_pool2d(torch.cat([self.up(low), h], dim=1), 2)
        y: Tensor = self.last(h.mean(dim=(2, 3)))
        return y


class Signal(nn.Module):
    """Over time, one channel; with dilation and stride."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 5, stride=2, padding=2)
        self.second = nn.Conv1d(width, width, 3, padding=2, dilation=2)
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.max_pool1d(torch.relu(self.second(torch.relu(self.first(x)))), 2)
        y: Tensor = self.last(h.mean(dim=2))
        return y


class Restored(nn.Module):
    """Down, and up again in all ways: nearest, bilinear of both kinds, transposed with rows added behind. Edges are
    padded by hand, and averages count their padding."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, stride=2)
        self.low = nn.Conv2d(width, width, 3, padding=1)
        self.transposed = nn.ConvTranspose2d(width, width, 3, stride=2, padding=1, output_padding=1)
        self.mixed = nn.Conv2d(4 * width, width, 3, padding=1)
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        resized = nn.functional.interpolate
        h = torch.relu(self.first(nn.functional.pad(x, (1, 0, 0, 1), value=0.5)))
        low = torch.relu(self.low(nn.functional.avg_pool2d(h, 3, stride=2, padding=1)))
        near, smooth = resized(low, size=h.shape[2:]), resized(low, size=h.shape[2:], mode="bilinear")
        aligned = resized(low, scale_factor=2, mode="bilinear", align_corners=True)
        h = torch.relu(self.mixed(torch.cat([near, smooth, aligned, self.transposed(low)], dim=1))) * h
        y: Tensor = self.last(h.mean(dim=(2, 3)))
        return y
