"""Models of torch that the table of imports needs: writes in place, attention, cells, shared weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Fn(nn.Module):
    """A function of its inputs as a model, with parameters of the given shapes as further arguments."""

    def __init__(self, fn: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.fn = fn
        self.w = nn.ParameterList([nn.Parameter(torch.randn(s)) for s in shapes])

    def forward(self, *x: torch.Tensor) -> Any:
        return self.fn(*x, *self.w)


def _wrote(y: torch.Tensor, mask: torch.Tensor, value: float) -> torch.Tensor:
    y[mask] = value
    return y


def _row_times(y: torch.Tensor, by: float) -> torch.Tensor:
    y[:, 0] *= by
    return y


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, 1:3, ::2] = x[:, :2, :3] * 5
    y[:, 3] = 0.5
    y[..., -1] += 1
    return y


def _through_views(x: torch.Tensor) -> Any:
    y = x * 1
    flat, turned, part = y.view(y.shape[0], -1), y.transpose(1, 2), y[:, 1]
    flat += 1
    turned[:, 0].mul_(3)
    part.unsqueeze(1).relu_()
    return y, flat, turned, part


def _filled(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape[0], 4, 6, dtype=x.dtype)
    for k in range(4):
        out[:, k] = x[:, k] * k + (out[:, k - 1] if k else 0)
    return out


def _mask() -> torch.Tensor:
    mask = torch.zeros(4, 4)
    mask[0, 1:] = 2.0
    mask.fill_diagonal_(3.0)
    return mask


def _halves_write(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    a, b = y[..., :3], y[..., 3:]
    a.mul_(2)
    b.add_(a)
    return y


class _SelfAttention(nn.Module):
    def __init__(self, batch_first: bool, weights: bool = False) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)
        self.batch_first, self.weights = batch_first, weights

    def forward(self, x: torch.Tensor) -> Any:
        x = x if self.batch_first else x.transpose(0, 1)
        y, w = self.attention(x, x, x, need_weights=self.weights)
        return (y, w) if self.weights else y if self.batch_first else y.transpose(0, 1)


class _CrossAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.attention(x, y, y)[0]


class _BatchSecond(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x.transpose(0, 1))
        return (y[0] if isinstance(y, tuple) else y).transpose(0, 1)


class _Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.encoder(self.embed(tokens), src_key_padding_mask=(tokens == 0) & (torch.arange(5) > 0))


class _Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(3, 5)

    def forward(self, x: torch.Tensor) -> Any:
        h = c = x.new_zeros(x.shape[0], 5)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return h


class _Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.tanh, self.relu = nn.GRUCell(3, 5), nn.RNNCell(3, 5), nn.RNNCell(3, 5, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> Any:
        h = x.new_zeros(x.shape[0], 5)
        return [cell(x[:, 1], cell(x[:, 0], h)) for cell in (self.gru, self.tanh, self.relu)]


class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a

    def forward(self, x: torch.Tensor) -> Any:
        return self.b(self.a(x).relu())


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i: torch.Tensor) -> Any:
        return self.head(self.embed(i).tanh())


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += x
        return self.relu(y)


class _NormTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, momentum=0.3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.norm(self.conv(self.norm(x)))


class _Mobile(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True), nn.Conv2d(8, 8, 3, 2, 1, groups=8),
            nn.BatchNorm2d(8), nn.Hardswish(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip


class _NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        with torch.no_grad():
            y = self.a(x).relu()
        return self.b(y) + x
