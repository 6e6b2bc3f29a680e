"""BERT with a classifier: embeddings of tokens, positions and segments, encoder layers with norms behind them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-12
MASKED = -10000.0  # added to the scores of padding, whose share of the attention is then exactly zero


class Layer(nn.Module):
    """Attention and a feed-forward part of four times the width; a norm after each sum."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width, eps=EPS)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm2, self.dropout = nn.LayerNorm(width, eps=EPS), nn.Dropout(dropout)

    def forward(self, x: Tensor, added: Tensor | None) -> Tensor:
        n, length, width = x.shape
        q, k, v = (
            part(x).reshape(n, length, self.heads, width // self.heads).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        p = self.dropout.p if self.training else 0.0
        a = F.scaled_dot_product_attention(q, k, v, added, p).transpose(1, 2).reshape(n, length, width)
        x = self.norm1(x + self.dropout(self.out(a)))
        y: Tensor = self.norm2(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return y


class Bert(nn.Module):
    """`mask` is 1 at tokens and 0 at padding; without it, all are tokens. Without `segments`, there is one.
    `std` and `bias_std` are those of initial weights and biases."""

    def __init__(
        self, width: int, layers: int, heads: int, vocabulary: int = 30522, positions: int = 512, classes: int = 2,
        dropout: float = 0.1, std: float = 0.02, bias_std: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.segment, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, eps=EPS)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=std)
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.bias, std=bias_std)

    def forward(self, tokens: Tensor, mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        segments = torch.zeros_like(tokens) if segments is None else segments
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.norm(self.token(tokens) + self.position(places) + self.segment(segments)))
        added = None if mask is None else (1 - mask[:, None, None, :].to(x.dtype)) * MASKED
        for layer in self.layers:
            x = layer(x, added)
        y: Tensor = self.classifier(self.dropout(torch.tanh(self.pooler(x[:, 0]))))
        return y
