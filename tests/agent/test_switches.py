"""What a record says of its own tensor and module: whether autograd records it, and which mode the module is in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.agent.conftest import Segment, graphs

REQUIRES_GRAD = 1 << 5
MODULE_EVAL = 1 << 12


class Block(nn.Module):
    """Linear layers around an activation that can be cut off, and a Dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act, self.drop, self.last = nn.Linear(8, 8), Cut(), nn.Dropout(0.5), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.act(self.first(x))))


class Cut(nn.Module):
    """A ReLU; `cut` is the fault."""

    cut = False

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(x)
        return x.detach() if self.cut else x


def train(model: nn.Module, forward: Any, optimizer: torch.optim.Optimizer) -> None:
    forward(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def flags(segment: Segment, site: str, flag: int) -> list[bool]:
    return [bool(record["flags"] & flag) for record in segment.of(site)]


def attached(attach: Any, form: str) -> tuple[Any, Block, Any, torch.optim.Optimizer]:
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    forward = torch.compile(model, backend="aot_eager", fullgraph=True) if form == "compiled" else model
    return session, model, forward, optimizer


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_records_tell_whether_autograd_saw_the_tensor(form: str, attach: Any) -> None:
    session, model, forward, optimizer = attached(attach, form)
    for step in range(4):
        model.act.cut = step >= 2
        train(model, forward, optimizer)
    segment = Segment(session.status().segment)
    assert flags(segment, "act:output", REQUIRES_GRAD) == [True, True, False, False]
    assert flags(segment, "first:output", REQUIRES_GRAD) == [True] * 4
    assert flags(segment, "last:output", REQUIRES_GRAD) == [True] * 4
    assert [record["step"] for record in segment.of("act:output.grad")] == [0, 1]
    assert [record["step"] for record in segment.of("last:output.grad")] == [0, 1, 2, 3]


@pytest.mark.parametrize("form", ["eager", "compiled"])
def test_records_tell_the_mode_of_their_module(form: str, attach: Any) -> None:
    session, model, forward, optimizer = attached(attach, form)
    train(model, forward, optimizer)
    model.drop.eval()
    train(model, forward, optimizer)
    model.eval()
    train(model, forward, optimizer)
    model.train()
    train(model, forward, optimizer)
    segment = Segment(session.status().segment)
    assert flags(segment, "drop:output", MODULE_EVAL) == [False, True, True, False]
    assert flags(segment, "last:output", MODULE_EVAL) == [False, False, True, False]


def test_reading_modes_compiles_nothing_again(attach: Any) -> None:
    def run(watch: bool) -> tuple[int, int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        session = attach(model, optimizer=optimizer) if watch else None
        compiled = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
        for training in (True, False, True):
            model.train(training)
            train(model, compiled, optimizer)
        if session is not None:
            session.detach()
        return graphs()

    assert run(watch=True) == run(watch=False)
