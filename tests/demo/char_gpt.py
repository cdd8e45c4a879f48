"""Trains a small character-level GPT with torch.compile(fullgraph=True) on a licence text that every Debian carries.

    python -m tests.demo.char_gpt --run gpt-1 [--fault vanishing --seed 7]

With --fault, one mistake enters one block in mid-training: a tensor that the source code multiplies with (divides by,
or subtracts) changes its value, a learning rate jumps, or targets lose their order. Module and step are drawn from the
seed and written to --truth, which nothing but the reader of this demo looks at: the agent sees ordinary training.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.scenarios.levers import LeverGELU, pull

CONTEXT = 48
BATCH = 12
WIDTH = 64
BLOCKS = 4
RATE = 3e-3
WARM_UP = 20
TEXTS = (
    "/usr/share/common-licenses/GPL-3",
    "/usr/share/common-licenses/GPL-2",
    "/usr/share/common-licenses/Apache-2.0",
)

# A lever is a tensor in the source code of an activation function (tests/scenarios/levers.py).
LEVERS = {
    "nonfinite": ("temperature", 0.0, "NONFINITE_FORWARD"),
    "vanishing": ("backward_factor", 1e-4, "VANISHING_GRADIENT"),
    "exploding": ("backward_factor", 200.0, "EXPLODING_GRADIENT"),
    "dead": ("offset", 200.0, "DEAD_UNITS"),
}
FAULTS = (*LEVERS, "lr", "data", "none")


@dataclass(frozen=True)
class Planted:
    """The mistake of this run; kind and module are what a right diagnosis names."""

    fault: str
    kind: str
    module: str
    step: int


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to the past."""
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, 4 * WIDTH)
        self.act = LeverGELU()
        self.outer = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then the feed-forward part."""
        x = x + self.attention(self.norm1(x))
        return x + self.outer(self.act(self.inner(self.norm2(x))))


class CharGpt(nn.Module):
    """Predicts the next character."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token = nn.Embedding(characters, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, characters, bias=False)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character at every place."""
        x = self.token(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text() -> tuple[str, str]:
    """The first text that this system has, and its path."""
    for path in map(Path, (*TEXTS, Path(sys.prefix) / "LICENSE.txt")):
        if path.is_file():
            return path.read_text(encoding="utf-8", errors="replace"), str(path)
    raise SystemExit("no text to train on: none of " + ", ".join(TEXTS) + " exists")


def plan(fault: str, seed: int) -> Planted:
    """Draw where and when."""
    choice = random.Random(f"{fault}-{seed}")
    step = choice.randrange(90, 115)
    if fault in LEVERS:
        return Planted(fault, LEVERS[fault][2], f"blocks.{choice.randrange(BLOCKS)}.act", step)
    kind = {"lr": "LEARNING_RATE_SPIKE", "data": "LABEL_ANOMALY", "none": ""}[fault]
    return Planted(fault, kind, "", step)


def learning_rate(step: int, steps: int, planted: Planted) -> float:
    """Warm-up from 0, cosine; fifty times that if this is the planted mistake."""
    factor = step / WARM_UP if step < WARM_UP else 0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / (2 * steps))
    return RATE * factor * (50.0 if planted.fault == "lr" and step >= planted.step else 1.0)


def train(options: argparse.Namespace, planted: Planted) -> None:
    """Train, with the agent attached."""
    import neuraldbg

    torch.manual_seed(options.seed)
    text, path = read_text()
    alphabet = sorted(set(text))
    table = {character: index for index, character in enumerate(alphabet)}
    tokens = torch.tensor([table[character] for character in text])
    model = CharGpt(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    forward = torch.compile(model, fullgraph=True)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"  {parameters} parameters, {len(text)} characters of {path}; compiling at the first step", flush=True)

    generator = torch.Generator().manual_seed(options.seed)
    start = time.monotonic()
    with neuraldbg.attach(model, optimizer=optimizer, run=options.run, cadence=1) as session:
        for step in range(options.steps):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, options.steps, planted)
            offsets = torch.randint(0, len(tokens) - CONTEXT - 1, (BATCH,), generator=generator)
            window = torch.stack([tokens[o : o + CONTEXT + 1] for o in offsets.tolist()])
            x, y = window[:, :-1], window[:, 1:]
            if step >= planted.step:
                if planted.fault == "data":
                    y = y.flatten()[torch.randperm(y.numel(), generator=generator)].view_as(y)
                elif planted.fault in LEVERS and step == planted.step:
                    lever, value, _ = LEVERS[planted.fault]
                    pull(model.get_submodule(planted.module), lever, value)
            loss = functional.cross_entropy(forward(x).flatten(0, 1), y.flatten())
            session.log_loss(loss, targets=y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 15 == 0 or step == options.steps - 1:
                print(f"  step {step:4d}  loss {loss.item():6.3f}  {time.monotonic() - start:5.1f} s", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Train once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", default="char-gpt", help="name under which the daemon knows this run")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--truth", type=Path, help="where to write what was planted, as JSON")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    planted = plan(options.fault, options.seed)
    if planted.fault != "none" and options.steps <= planted.step + 10:
        parser.error(f"--steps must exceed {planted.step + 10}: the mistake enters at step {planted.step}")
    train(options, planted)
    if options.truth:
        options.truth.write_text(json.dumps(asdict(planted)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
