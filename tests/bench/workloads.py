"""The three training steps whose time is compared with and without an agent. Nothing here imports an agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """A CIFAR-style block."""

    def __init__(self, fan_in: int, fan_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, fan_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(fan_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(fan_out, fan_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(fan_out)
        self.relu2 = nn.ReLU()
        same = fan_in == fan_out and stride == 1
        self.skip = nn.Identity() if same else nn.Conv2d(fan_in, fan_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Branch plus skip, rectified."""
        branch = self.norm2(self.conv2(self.relu1(self.norm1(self.conv1(x)))))
        return self.relu2(branch + self.skip(x))


class TransformerBlock(nn.Module):
    """A GPT block of width 256 and 4 heads."""

    def __init__(self, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.outer = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then feed-forward."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.outer(self.act(self.inner(self.norm2(x))))


class Gpt(nn.Module):
    """Four blocks over 512 tokens."""

    def __init__(self, vocabulary: int = 512, width: int = 256, blocks: int = 4, context: int = 128) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[TransformerBlock(width) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def _resnet() -> nn.Module:
    stem = (nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = (ResidualBlock(16, 16, 1), ResidualBlock(16, 32, 2), ResidualBlock(32, 64, 2))
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Workload:
    """A model, its batch and its optimizer; `rounds` is how often each variant steps."""

    title: str
    rounds: int
    model: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    optimizer: Callable[[Any], torch.optim.Optimizer]


WORKLOADS = {
    "mlp": Workload(
        "MLP 8×512, batch 128, SGD",
        150,
        _mlp,
        lambda: (torch.randn(128, 512), torch.randint(0, 10, (128,))),
        lambda parameters: torch.optim.SGD(parameters, 1e-3),
    ),
    "resnet": Workload(
        "ResNet 32×32, batch 64, SGD with momentum",
        60,
        _resnet,
        lambda: (torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))),
        lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    ),
    "gpt": Workload(
        "GPT 4×256, 128 tokens, batch 8, AdamW",
        24,
        Gpt,
        lambda: (torch.randint(0, 512, (8, 128)), torch.randint(0, 512, (8, 128))),
        lambda parameters: torch.optim.AdamW(parameters, 1e-3),
    ),
}


class Stepper:
    """One model with its optimizer; calling it makes one training step. `observe` gets the loss before backward."""

    def __init__(self, workload: Workload, compiled: bool, fullgraph: bool = True) -> None:
        torch.manual_seed(0)
        self.model = workload.model()
        self.optimizer = workload.optimizer(self.model.parameters())
        self.x, self.y = workload.batch()
        self.forward = torch.compile(self.model, fullgraph=fullgraph) if compiled else self.model
        self.observe: Callable[[Tensor], None] = lambda loss: None

    def __call__(self) -> None:
        """One step."""
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.forward(self.x).flatten(0, -2), self.y.flatten())
        self.observe(loss)
        loss.backward()
        self.optimizer.step()
