"""Models small enough to be compiled in seconds, with every kind of site: glue, merges, views, buffers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

WIDTH = 32
TOKENS = 12
VOCABULARY = 17
CLASSES = 5


class Block(nn.Module):
    """Pre-norm transformer block: attention and residual adds are functional code between modules."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.ln2 = nn.LayerNorm(WIDTH)
        self.fc = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.GELU()
        self.proj = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.proj(self.act(self.fc(self.ln2(x))))


class GPT(nn.Module):
    """Two blocks in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return self.head(self.ln(self.blocks(x)))


class ResidualBlock(nn.Module):
    """Convolutions with batch norm (buffers) and an in-place activation behind the residual add."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU(inplace=True)
        self.short = nn.Conv2d(channels_in, channels, 1, bias=False) if channels_in != channels else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + self.short(x))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        ResidualBlock(8, 16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "resnet": resnet, "gpt": GPT}


def batch(name: str, seed: int = 0, samples: int = 4) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one step."""
    generator = torch.Generator().manual_seed(seed)
    if name == "gpt":
        tokens = torch.randint(0, VOCABULARY, (samples, TOKENS), generator=generator)
        return tokens, tokens.roll(-1, 1)
    shape = (samples, 8) if name == "mlp" else (samples, 3, 8, 8)
    return torch.randn(shape, generator=generator), torch.randint(0, CLASSES, (samples,), generator=generator)


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, -2), targets.flatten())
