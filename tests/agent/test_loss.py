"""The loss: announced, or seen between forward and backward without the call."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from tests.agent.conftest import Segment, graphs
from tests.agent.small_models import MODELS, batch, loss_of

CROSS_ENTROPY, MEAN_SQUARED, OTHER = 1, 2, 5
MEAN, SUM = 1, 2


def train(attach: Any, loss_function: Any, log: Any = None, steps: int = 3) -> tuple[Segment, list[float]]:
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    values = []
    for step in range(steps):
        x, y = batch("mlp", step)
        loss = loss_function(model(x), y)
        if log is not None:
            log(session, loss, y)
        values.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return Segment(session.status().segment), values


# Written as users write it, so that the name is looked up at the call.
def plain_function(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(out, y)


@pytest.mark.parametrize("loss_function", [plain_function, nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")])
def test_functional_losses_and_loss_modules_are_seen(loss_function: Any, attach: Any) -> None:
    segment, values = train(attach, loss_function)
    records = segment.of("loss")
    assert [r["step"] for r in records] == [0, 1, 2]
    assert [r["value"] for r in records] == pytest.approx(values)
    assert {r["loss_kind"] for r in records} == {CROSS_ENTROPY}
    assert {r["reduction"] for r in records} == {SUM if getattr(loss_function, "reduction", "") == "sum" else MEAN}
    assert {r["label_count"] for r in records} == {4}


def test_announced_losses_are_recorded_once(attach: Any) -> None:
    def log(session: Any, loss: Any, y: Any) -> None:
        session.log_loss(loss, targets=y)

    segment, values = train(attach, plain_function, log)
    records = segment.of("loss")
    assert [r["value"] for r in records] == pytest.approx(values)
    assert {r["loss_kind"] for r in records} == {CROSS_ENTROPY}, "the kind comes from the function that ran"
    assert {r["class_count"] for r in records} == {5}, "and so do the logits"


def test_announced_kind_and_ignored_labels(attach: Any) -> None:
    def log(session: Any, loss: Any, y: Any) -> None:
        session.log_loss(loss.item(), targets=y, ignore_index=int(y[0]), kind="other", reduction="sum")

    segment, _ = train(attach, lambda out, y: (out - 1).square().sum(), log, steps=1)
    (record,) = segment.of("loss")
    assert (record["loss_kind"], record["reduction"]) == (OTHER, SUM)
    assert record["label_ignored"] >= 1 and record["label_ignored"] + record["label_count"] == 4


def test_wrong_arguments_after_attach_do_not_raise(attach: Any, caplog: pytest.LogCaptureFixture) -> None:
    session = attach(nn.Linear(2, 2))
    session.log_loss(object())
    session.log_loss(1.0, kind="hinge")
    session.mark("text")
    assert len([line for line in caplog.messages if "log_loss" in line]) == 2


def test_torch_gets_its_functions_back(attach: Any) -> None:
    function = functional.cross_entropy
    before = function.__code__, function.__defaults__, dict(function.__dict__)
    first, second = attach(nn.Linear(2, 2), run="a"), attach(nn.Linear(2, 2), run="b")
    assert functional.cross_entropy is function and function.__code__ is not before[0]
    first.detach()
    assert function.__code__ is not before[0]
    second.detach()
    assert (function.__code__, function.__defaults__, dict(function.__dict__)) == before


def test_a_loss_inside_the_compiled_region_costs_no_graph(attach: Any) -> None:
    model = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer=optimizer)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return loss_of(model(x), y)

    for step in range(2):
        forward(*batch("mlp", step)).backward()
        optimizer.step()
    assert graphs() == (1, 0)


def test_a_loss_that_is_not_finite_has_all_parameters_looked_at(attach: Any) -> None:
    model = nn.Linear(1024, 600)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    session = attach(model, optimizer=optimizer)
    for step in range(2):
        loss = functional.mse_loss(model(torch.randn(2, 1024)), torch.zeros(2, 600))
        session.log_loss(loss.detach() * (float("nan") if step == 1 else 1.0))
        loss.backward()
        optimizer.step()
    segment = Segment(session.status().segment)
    assert segment.counts(0)["weight"] + segment.counts(0)["bias"] == 1
    assert segment.counts(1)["weight"] == segment.counts(1)["bias"] == 1


def test_losses_that_train_nothing_are_not_recorded(attach: Any) -> None:
    def with_a_metric(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        functional.mse_loss(out, torch.zeros_like(out))
        return functional.cross_entropy(out, y) * 2

    segment, values = train(attach, with_a_metric)
    assert [2 * r["value"] for r in segment.of("loss")] == pytest.approx(values)


def test_log_loss_after_backward_records_once(attach: Any) -> None:
    model = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    for step in range(2):
        x, y = batch("mlp", step)
        loss = plain_function(model(x), y)
        loss.backward()
        session.log_loss(loss, targets=y)
        optimizer.step()
    assert [r["step"] for r in Segment(session.status().segment).of("loss")] == [0, 1]


def test_the_agent_does_not_keep_the_logits(attach: Any) -> None:
    model = MODELS["mlp"]()
    attach(model)
    x, y = batch("mlp")
    logits = model(x)
    died = weakref.ref(logits.untyped_storage())
    loss = plain_function(logits, y)
    del logits
    loss.backward()
    assert died() is None
