"""Networks that move axes about a great deal, in the manner of published ones; their sizes are arguments.

`NETS` has a small one of each kind with the shape of one sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional


def conv_norm(ins: int, outs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(ins, outs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outs), nn.SiLU())


class Attention(nn.Module):
    """Heads split by a reshape and a permute; with `einsum`, the products are written with their axes."""

    def __init__(self, width: int, heads: int, einsum: bool = False) -> None:
        super().__init__()
        self.heads, self.einsum = heads, einsum
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        if self.einsum:
            q, k, v = parts.unbind(2)
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (width // self.heads) ** -0.5
            mixed = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
        else:
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
            mixed = (scores.softmax(-1) @ v).transpose(1, 2)
        y: Tensor = self.out(mixed.reshape(batch, tokens, width))
        return y


class Block(nn.Module):
    """A transformer block with its norms first."""

    def __init__(self, width: int, heads: int, einsum: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, einsum)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Transformer(nn.Module):
    """Patches, a class token, positions, blocks: as ViT."""

    def __init__(self, size: int, patch: int, width: int, heads: int, depth: int, einsum: bool = False) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.1)
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) * 0.1)
        self.blocks = nn.Sequential(*[Block(width, heads, einsum) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return y


class WindowBlock(nn.Module):
    """Attention within windows of an image that is rolled by half a window before: as Swin."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, high, wide, width = x.shape
        w = self.window
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = y.view(batch, high // w, w, wide // w, w, width).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, width)
        y = self.attention(y).view(batch, high // w, wide // w, w, w, width).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(batch, high, wide, width)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        z: Tensor = x + self.mlp(self.norm2(x))
        return z


class Merge(nn.Module):
    """Four neighbours become one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]]
        y: Tensor = self.reduce(self.norm(torch.cat(corners, -1)))
        return y


class Windows(nn.Module):
    def __init__(self, patch: int, width: int, window: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        blocks: list[nn.Module] = []
        for stage, depth in enumerate(depths):
            blocks += [Merge(width // 2)] if stage else []
            blocks += [WindowBlock(width, width // 8, window, window // 2 * (i % 2)) for i in range(depth)]
            width *= 2
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width // 2), nn.Linear(width // 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.blocks(self.patches(x).permute(0, 2, 3, 1))).mean((1, 2)))
        return y


class LSTM2d(nn.Module):
    """Rows and columns of an image are sequences of two bidirectional LSTMs: as Sequencer2D."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.down = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.across = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.out = nn.Linear(4 * hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, high, wide, width = x.shape
        down, _ = self.down(x.permute(0, 2, 1, 3).reshape(-1, high, width))
        down = down.reshape(batch, wide, high, -1).permute(0, 2, 1, 3)
        across, _ = self.across(x.reshape(-1, wide, width))
        y: Tensor = self.out(torch.cat([down, across.reshape(batch, high, wide, -1)], -1))
        return y


class SequencerBlock(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.mix, self.norm2 = nn.LayerNorm(width), LSTM2d(width, hidden), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class Down(nn.Module):
    """A strided convolution between blocks that have channels last."""

    def __init__(self, ins: int, outs: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(ins, outs, stride, stride)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return y


class Sequencer(nn.Module):
    def __init__(self, patch: int, widths: tuple[int, ...], hiddens: tuple[int, ...], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, widths[0], patch, patch)
        blocks: list[nn.Module] = []
        for stage, (width, hidden, depth) in enumerate(zip(widths, hiddens, depths, strict=True)):
            blocks += [Down(widths[stage - 1], width, 2 if stage == 1 else 1)] if stage else []
            blocks += [SequencerBlock(width, hidden) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.norm(self.blocks(self.patches(x).permute(0, 2, 3, 1))).mean((1, 2)))
        return y


class PatchBlock(nn.Module):
    """Patches of an image become tokens, pass a transformer and become the image again: as MobileViT."""

    def __init__(self, channels: int, width: int, depth: int, patch: int = 2) -> None:
        super().__init__()
        self.patch = patch
        self.local = nn.Sequential(conv_norm(channels, channels, 3), nn.Conv2d(channels, width, 1, bias=False))
        self.blocks, self.norm = nn.Sequential(*[Block(width, 4) for _ in range(depth)]), nn.LayerNorm(width)
        self.back, self.fuse = conv_norm(width, channels), conv_norm(2 * channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.local(x)
        batch, width, high, wide = y.shape
        p, rows, columns = self.patch, high // self.patch, wide // self.patch
        y = y.reshape(batch * width * rows, p, columns, p).transpose(1, 2)
        y = y.reshape(batch, width, rows * columns, p * p).transpose(1, 3).reshape(batch * p * p, rows * columns, width)
        y = self.norm(self.blocks(y))
        y = y.view(batch, p * p, rows * columns, width).transpose(1, 3)
        y = y.reshape(batch * width * rows, columns, p, p).transpose(1, 2).reshape(batch, width, high, wide)
        z: Tensor = self.fuse(torch.cat([x, self.back(y)], 1))
        return z


class Inverted(nn.Module):
    def __init__(self, ins: int, outs: int, stride: int = 1, times: int = 2) -> None:
        super().__init__()
        self.skip = stride == 1 and ins == outs
        self.body = nn.Sequential(
            conv_norm(ins, ins * times), conv_norm(ins * times, ins * times, 3, stride, ins * times),
            nn.Conv2d(ins * times, outs, 1, bias=False), nn.BatchNorm2d(outs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.body(x) if self.skip else self.body(x)
        return y


class PatchNet(nn.Module):
    def __init__(self, channels: int, width: int, depths: tuple[int, ...]) -> None:
        super().__init__()
        blocks: list[nn.Module] = [conv_norm(3, channels, 3, 2)]
        for depth in depths:
            blocks += [Inverted(channels, channels, 2), PatchBlock(channels, width, depth)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return y


class DeepPatches(nn.Module):
    """Patch blocks one after the other, all at one size."""

    def __init__(self, depth: int, channels: int = 8, width: int = 8) -> None:
        super().__init__()
        self.first = conv_norm(3, channels, 3)
        self.blocks = nn.Sequential(*[PatchBlock(channels, width, 1) for _ in range(depth)])
        self.head = nn.Linear(channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(self.first(x)).mean((2, 3)))
        return y


class MixerBlock(nn.Module):
    """Tokens are mixed through a transpose, then channels: as MLP-Mixer."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        y: Tensor = x + self.channels(self.norm2(x))
        return y


class Mixer(nn.Module):
    def __init__(self, size: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*[MixerBlock((size // patch) ** 2, width) for _ in range(depth)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))
        return y


class ShuffleBlock(nn.Module):
    """Half of the channels pass, the others are convolved; then they are shuffled: as ShuffleNetV2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.body = nn.Sequential(conv_norm(half, half), conv_norm(half, half, 3, 1, half), conv_norm(half, half))

    def forward(self, x: Tensor) -> Tensor:
        one, other = x.chunk(2, 1)
        y = torch.cat([one, self.body(other)], 1)
        batch, channels, high, wide = y.shape
        return y.view(batch, 2, channels // 2, high, wide).transpose(1, 2).reshape(batch, channels, high, wide)


class Shuffle(nn.Module):
    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(conv_norm(3, channels, 3, 2), *[ShuffleBlock(channels) for _ in range(depth)])
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.blocks(x).mean((2, 3)))
        return y


class GatedAxes(nn.Module):
    """Height, width and channels are each weighted by a gate that is computed with that axis last."""

    def __init__(self, size: int, channels: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        sizes = (channels, size, size)
        self.gates = nn.ModuleList(nn.ModuleList(nn.Linear(n, n) for n in sizes) for _ in range(depth))
        self.norms = nn.ModuleList(nn.GroupNorm(2, channels) for _ in range(depth))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for (channels, high, wide), norm in zip(self.gates, self.norms, strict=True):  # type: ignore[misc]
            y = norm(x)
            c = channels(y.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            h = high(y.permute(0, 1, 3, 2)).permute(0, 1, 3, 2)
            x = x + functional.hardtanh(c) + h.sigmoid() * wide(y)
        z: Tensor = self.head(x.flatten(2).transpose(1, 2).amax(1))
        return z


Maker = Callable[[], nn.Module]
NETS: Final[dict[str, tuple[Maker, tuple[int, ...]]]] = {
    "transformer": (lambda: Transformer(16, 4, 16, 4, 3), (3, 16, 16)),
    "einsum": (lambda: Transformer(16, 4, 16, 4, 2, einsum=True), (3, 16, 16)),
    "windows": (lambda: Windows(2, 16, 4, (2, 2)), (3, 32, 32)),
    "sequencer": (lambda: Sequencer(4, (12, 16), (4, 6), (2, 1)), (3, 16, 16)),
    "patches": (lambda: PatchNet(16, 16, (1, 2)), (3, 32, 32)),
    "deep_patches": (lambda: DeepPatches(4), (3, 8, 8)),
    "mixer": (lambda: Mixer(16, 4, 12, 3), (3, 16, 16)),
    "shuffle": (lambda: Shuffle(16, 4), (3, 16, 16)),
    "gated_axes": (lambda: GatedAxes(8, 6, 3), (3, 8, 8)),
}
