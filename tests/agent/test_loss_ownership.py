"""Losses that nobody announces belong to the model that they were computed from, whatever else the process computes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import neuraldbg
import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from tests.agent.conftest import Segment

STEPS = 4
TRAINING = 1 | 1 << 8  # kFlagTraining, kFlagGradMode of shared/record.h


class Model:
    """A small classifier that is attached or not, and the losses that it was trained with."""

    def __init__(self, seed: int, attach: Callable[..., neuraldbg.Session] | None = None) -> None:
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)
        self.session = attach(self.net, optimizer=self.optimizer, run=f"m{seed}") if attach is not None else None
        self.losses: list[float] = []

    def loss(self, step: int, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(6, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator)
        value = functional.cross_entropy(self.net(scale * x), y)
        self.losses.append(value.item())
        return value

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def recorded(self) -> list[float]:
        """The losses of the training passes in the segment, once a step."""
        assert self.session is not None
        path = self.session.status().segment
        self.session.detach()
        records = Segment(path).of("loss")
        assert [record["step"] for record in records] == list(range(len(records)))
        assert all(record["flags"] & TRAINING == TRAINING for record in records), "a training pass in grad mode"
        return [record["value"] for record in records]


def test_two_sessions_whose_passes_interleave(attach: Any) -> None:
    one, other = Model(1, attach), Model(2, attach)
    for step in range(STEPS):
        first, second = one.loss(step), other.loss(step, scale=3)
        first.backward()
        second.backward()
        one.step()
        other.step()
    assert one.recorded() == pytest.approx(one.losses)
    assert other.recorded() == pytest.approx(other.losses)


def test_a_model_that_is_not_attached_keeps_its_loss_to_itself(attach: Any) -> None:
    watched, critic = Model(1, attach), Model(2)
    for step in range(STEPS):
        loss = watched.loss(step)
        critic.loss(step, scale=10).backward()
        loss.backward()
        watched.step()
    assert watched.recorded() == pytest.approx(watched.losses)


def test_a_metric_between_forward_and_backward_changes_nothing(attach: Any) -> None:
    model = Model(1, attach)
    for step in range(STEPS):
        loss = model.loss(step)
        with torch.no_grad():
            functional.mse_loss(model.net(torch.ones(2, 8)), torch.zeros(2, 4))
        loss.backward()
        model.step()
    assert model.recorded() == pytest.approx(model.losses)


def test_gradients_after_an_evaluation_belong_to_training(attach: Any) -> None:
    model = Model(1, attach)
    for step in range(STEPS):
        loss = model.loss(step)
        model.net.eval()
        with torch.no_grad():
            model.net(torch.ones(2, 8))
        model.net.train()
        loss.backward()
        model.step()
    path = model.session.status().segment
    model.session.detach()
    gradients = Segment(path).of("2:output.grad")
    assert len(gradients) == STEPS
    assert all(record["flags"] & TRAINING == TRAINING for record in gradients), (
        "gradients of a training pass are marked as such"
    )


def test_threads_keep_their_losses_apart(attach: Any) -> None:
    models = [Model(seed, attach) for seed in range(4)]
    together = threading.Barrier(len(models))

    def train(model: Model) -> None:
        for step in range(20):
            together.wait()
            model.loss(step, scale=1 + len(model.losses)).backward()
            model.step()

    threads = [threading.Thread(target=train, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model in models:
        assert model.recorded() == pytest.approx(model.losses)


class WithLoss(nn.Module):
    """Computes its loss itself, as many language models do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        logits = self.net(x)
        return {"loss": functional.cross_entropy(logits, y), "logits": logits}


def test_a_loss_inside_of_the_models_pass_is_the_models(attach: Any) -> None:
    other = Model(2, attach)
    torch.manual_seed(1)
    model = WithLoss(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        loss = model(torch.randn(6, 8, generator=generator), torch.zeros(6, dtype=torch.long))["loss"]
        losses.append(loss.item())
        beside = other.loss(step, scale=5)
        loss.backward()
        beside.backward()
        optimizer.step()
        optimizer.zero_grad()
        other.step()
    path = session.status().segment
    session.detach()
    assert [record["value"] for record in Segment(path).of("loss")] == pytest.approx(losses)
    assert other.recorded() == pytest.approx(other.losses)


def test_a_loss_behind_another_model_is_found(attach: Any) -> None:
    """A generator's loss is computed by its critic, and belongs to both."""
    generator, critic = nn.Linear(4, 8), Model(2)
    optimizer = torch.optim.SGD(generator.parameters(), 0.1)
    session = attach(generator, optimizer=optimizer)
    losses = []
    for step in range(STEPS):
        made = critic.net(generator(torch.randn(6, 4, generator=torch.Generator().manual_seed(step))))
        loss = functional.cross_entropy(made, torch.zeros(6, dtype=torch.long))
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    path = session.status().segment
    session.detach()
    assert [record["value"] for record in Segment(path).of("loss")] == pytest.approx(losses)


@pytest.mark.parametrize("form", ["model", "function"])
def test_losses_of_compiled_models_are_found(form: str, attach: Any) -> None:
    model = Model(1, attach)
    net = model.net
    if form == "model":
        model.net = torch.compile(net, backend="aot_eager")
    else:
        function = torch.compile(lambda x: net(x), backend="aot_eager")
        model.net = function
    for step in range(STEPS):
        model.loss(step).backward()
        model.step()
    assert model.recorded() == pytest.approx(model.losses)
