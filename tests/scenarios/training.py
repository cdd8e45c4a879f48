"""One training run as data: model, optimizer, batches and what happens before a step. `train` is an ordinary loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Batch = tuple[Tensor, Tensor]

PICTURE_NOISE = 2.5  # makes the two picture families reach about half of their first loss in a hundred steps


@dataclass
class Training:
    """What one run needs. `before_step` and `corrupt` are where a fault, if any, is planted."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterator[Batch]
    steps: int = 150
    schedule: Callable[[int], float] | None = None  # multiplies the learning rate of step n
    clip: float | None = None
    accumulate: int = 1
    evaluate_every: int = 0
    before_step: Callable[[int], None] = lambda step: None
    corrupt: Callable[[int, Tensor, Tensor], Batch] = lambda step, x, y: (x, y)
    losses: list[float] = field(default_factory=list)


def cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over samples, and over tokens where there are any."""
    return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())


def pictures(generator: torch.Generator, batch: int = 32) -> Iterator[Batch]:
    """Noisy 3×12×12 pictures of eight smooth templates; one label in ten is wrong, so that the loss keeps a floor."""
    templates = functional.interpolate(torch.randn(8, 3, 4, 4, generator=generator), scale_factor=3, mode="bilinear")
    while True:
        labels = torch.randint(0, 8, (batch,), generator=generator)
        x = templates[labels] + PICTURE_NOISE * torch.randn(batch, 3, 12, 12, generator=generator)
        wrong = torch.rand(batch, generator=generator) < 0.1
        yield x, torch.where(wrong, torch.randint(0, 8, (batch,), generator=generator), labels)


def points(generator: torch.Generator, batch: int = 32) -> Iterator[Batch]:
    """Points in 16 dimensions, labelled by three hyperplanes."""
    while True:
        x = torch.randn(batch, 16, generator=generator)
        yield x, (x[:, 0] > 0).long() + 2 * (x[:, 1] + x[:, 2] > 0).long() + 4 * (x[:, 3] > x[:, 4]).long()


def sequences(generator: torch.Generator, vocabulary: int, batch: int = 16, length: int = 24) -> Iterator[Batch]:
    """Arithmetic progressions modulo the vocabulary: the next token follows from the two before it."""
    while True:
        start = torch.randint(0, vocabulary, (batch, 1), generator=generator)
        stride = torch.randint(1, 4, (batch, 1), generator=generator)
        tokens = (start + stride * torch.arange(length + 1)) % vocabulary
        yield tokens[:, :-1], tokens[:, 1:]


def warm_up(steps: int, total: int) -> Callable[[int], float]:
    """Linear from exactly 0, then a cosine down to a tenth."""

    def factor(step: int) -> float:
        if step < steps:
            return step / steps
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - steps) / max(1, total - steps))))

    return factor


def train(training: Training, forward: Callable[[Tensor], Tensor] | None = None, session: Any = None) -> list[float]:
    """Run it. `forward` is the model to call (compiled or not), `session` the agent's session, if there is one."""
    model, optimizer = training.model, training.optimizer
    forward = model if forward is None else forward
    rates = [group["lr"] for group in optimizer.param_groups]
    for step in range(training.steps):
        if training.schedule is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * training.schedule(step)
        training.before_step(step)
        optimizer.zero_grad()
        total = 0.0
        for _ in range(training.accumulate):
            x, y = training.corrupt(step, *next(training.batches))
            loss = cross_entropy(forward(x), y)
            if session is not None:
                session.log_loss(loss, targets=y)
            (loss / training.accumulate).backward()
            total += loss.item() / training.accumulate
        if training.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()
        training.losses.append(total)
        if training.evaluate_every and step % training.evaluate_every == training.evaluate_every - 1:
            evaluate(training, forward)
    return training.losses


def evaluate(training: Training, forward: Callable[[Tensor], Tensor]) -> None:
    """Two evaluation batches between training steps, four times as large and without gradients."""
    training.model.eval()
    with torch.no_grad() if training.evaluate_every else nullcontext():
        for _ in range(2):
            x, _ = next(training.batches)
            forward(torch.cat([x] * 4))
    training.model.train()
