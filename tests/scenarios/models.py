"""The networks of the scenarios. Small enough for seconds per run, deep enough for a cause to have somewhere to hide.

ResNet and Mixer are the held-out families: detectors and thresholds were tuned on multilayer perceptrons and GPTs only.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.scenarios.levers import LeverGELU, LeverReLU


class ResidualBlock(nn.Module):
    """Convolution, batch norm, activation, convolution, batch norm, dropout, and the sum with the input."""

    def __init__(self, channels: int, dropout: float = 0.0, zero_init: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.act1 = LeverReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.dropout = nn.Dropout(dropout)
        self.act2 = LeverReLU()
        if zero_init:
            nn.init.zeros_(self.norm2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x plus the branch, rectified."""
        y = self.act1(self.norm1(self.conv1(x)))
        return self.act2(x + self.dropout(self.norm2(self.conv2(y))))


class ResNet(nn.Module):
    """Stem, residual blocks, pooling, linear head; input N×3×12×12."""

    def __init__(self, channels: int = 12, blocks: int = 4, dropout: float = 0.0, zero_init: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.act = LeverReLU()
        self.blocks = nn.Sequential(*[ResidualBlock(channels, dropout, zero_init) for _ in range(blocks)])
        self.head = nn.Linear(channels * 9, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.blocks(self.act(self.norm(self.stem(x))))
        return self.head(functional.avg_pool2d(x, 4).flatten(1))


class Perceptron(nn.Module):
    """Two linear layers around an activation, the mixing unit."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, hidden)
        self.act = LeverGELU()
        self.outer = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mix along the last axis."""
        return self.outer(self.act(self.inner(x)))


class MixerBlock(nn.Module):
    """Mixes tokens, then channels, each with a residual connection."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = Perceptron(tokens, 2 * tokens)
        self.norm2 = nn.LayerNorm(width)
        self.channels = Perceptron(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """One mixing layer."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer over 3×3 patches of N×3×12×12 images."""

    def __init__(self, width: int = 32, blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, width, 3, stride=3)
        self.blocks = nn.Sequential(*[MixerBlock(16, width) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        x = self.embed(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class Attention(nn.Module):
    """Causal self-attention whose projections all have a bias (the key bias has no gradient, by algebra)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the past."""
        batch, length, width = x.shape
        split = (batch, length, self.heads, width // self.heads)
        q, k, v = (f(x).view(split).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm transformer block; `zero_init` makes it the identity at the start."""

    def __init__(self, width: int, heads: int, zero_init: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.act = LeverGELU()
        self.outer = nn.Linear(4 * width, width)
        if zero_init:
            for layer in (self.attention.project, self.outer):
                nn.init.zeros_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward part."""
        x = x + self.attention(self.norm1(x))
        return x + self.outer(self.act(self.inner(self.norm2(x))))


class Gpt(nn.Module):
    """A decoder-only transformer."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 32,
        blocks: int = 3,
        heads: int = 4,
        context: int = 24,
        zero_init: bool = False,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads, zero_init) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def perceptron(depth: int = 4, width: int = 64, dropout: float = 0.0) -> nn.Sequential:
    """A plain ReLU network of 16 inputs and 8 classes."""
    layers: list[nn.Module] = []
    fan_in = 16
    for _ in range(depth):
        layers += [nn.Linear(fan_in, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        fan_in = width
    return nn.Sequential(*layers, nn.Linear(width, 8))


def count_parameters(model: nn.Module) -> int:
    """Number of scalars a model trains."""
    return sum(p.numel() for p in model.parameters())


def seeded(seed: int) -> torch.Generator:
    """A generator for data, apart from the one that initialises weights."""
    return torch.Generator().manual_seed(seed)
