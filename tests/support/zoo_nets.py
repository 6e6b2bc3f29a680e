"""Small networks with layers that models of the public zoos bring."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class StdConv(nn.Conv2d):
    """A standardised convolution, as in NF nets and BiT: its weight is normalised by a batch-norm without samples."""

    def __init__(self, *sizes: int, gamma: float = 1.7, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.gain = nn.Parameter(torch.full((self.out_channels, 1, 1, 1), 1.2))
        self.scale = gamma * self.weight[0].numel() ** -0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, gain = self.weight.reshape(1, self.out_channels, -1), (self.gain * self.scale).view(-1)
        weight = F.batch_norm(rows, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6)
        return self._conv_forward(x, weight.reshape_as(self.weight), self.bias)


class StdNet(nn.Module):
    """One of its convolutions is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = StdConv(3, 6, 3, stride=2, padding=1)
        self.twice = StdConv(6, 6, 3, padding=1, groups=2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> Any:
        x = F.silu(self.stem(x))
        x = x + F.silu(self.twice(self.twice(x)))
        return self.head(x.mean((2, 3)))


def global_filter(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """As GFNet has it, on channels last."""
    spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(w)
    return torch.fft.irfft2(spectrum, s=x.shape[1:3], dim=(1, 2), norm="ortho")


class Folding(nn.Module):
    """Attention over windows put back together, as VOLO has it, on an image that was resampled."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.weigh, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 9), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = F.interpolate(self.inside(x), (5, 6), mode="bicubic")
        x = x + F.interpolate(F.interpolate(x, (3, 4), mode="bilinear", antialias=True), (5, 6), mode="bicubic")
        weights = self.weigh(x.permute(0, 2, 3, 1)).softmax(-1).flatten(1, 2).transpose(1, 2)
        windows = F.unfold(x, 3, padding=1).unflatten(1, (4, 9)) * weights[:, None]
        return self.head(F.fold(windows.flatten(1, 2), (5, 6), 3, padding=1).mean((2, 3)))


class Video(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv3d(2, 4, (3, 3, 3), stride=(1, 2, 2), padding=1, bias=False), nn.BatchNorm3d(4)
        self.time, self.up = nn.Conv3d(4, 4, (3, 1, 1), padding=(1, 0, 0)), nn.ConvTranspose3d(4, 3, 2, stride=2)

    def forward(self, x: torch.Tensor) -> Any:
        x = F.max_pool3d(F.relu(self.norm(self.stem(x))), 3, stride=2, padding=1)
        return F.avg_pool3d(self.up(x + self.time(x)), 2).mean((2, 3, 4))


class Spectral(nn.Module):
    """A global filter, then the mixing of FNet."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.filter = nn.Linear(3, 4), nn.Parameter(torch.randn(5, 4, 4, 2))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.inside(x)
        x = self.norm(x + global_filter(x, self.filter)).flatten(1, 2)
        return self.head(self.norm(x + torch.fft.fft2(x).real).mean(1))


class Picking(nn.Module):
    """The best tokens of each sample are picked, weighed, changed and put back, as routers and pooling of tokens do."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.inside, self.head = nn.Linear(4, 1), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        best, where = self.score(x).squeeze(-1).topk(3, dim=1)
        places = where[..., None].expand(-1, -1, 4)
        picked = x.gather(1, places) * best.sigmoid()[..., None]
        own = self.inside(x)[torch.arange(x.shape[0])[:, None], where]
        x = x.scatter_add(1, places, F.gelu(self.inside(picked) + own))
        return self.head(x.cumsum(1).mean(1))


class Experts(nn.Module):
    """A mixture of experts: each token goes to the two that its router prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(4, 3), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        chosen, where = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = torch.zeros_like(self.router(x)).scatter(-1, where, chosen / chosen.sum(-1, keepdim=True))
        for i, expert in enumerate(self.experts):
            x = x + weights[..., i : i + 1] * F.silu(expert(x))
        return self.head(x.mean(1))


ZOO_NETS: list[tuple[str, type[nn.Module], tuple[int, ...]]] = [
    ("standardised-conv", StdNet, (3, 9, 7)),
    ("folding", Folding, (3, 4, 5)),
    ("video", Video, (2, 4, 7, 6)),
    ("spectral", Spectral, (5, 6, 3)),
    ("picking", Picking, (7, 4)),
    ("experts", Experts, (5, 4)),
]
