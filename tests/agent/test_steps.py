"""Steps are counted from the optimizer. What a STEP record says of micro-batches, skipped steps, dirty gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from tests.agent.conftest import Segment
from tests.agent.small_models import MODELS, batch, loss_of

APPLIED, FOUND_INF, DIRTY, UNANNOUNCED, ALL_PARAMETERS = 1 << 1, 1 << 4, 1 << 6, 1 << 9, 1 << 10


def mlp_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)


def steps_of(session: Any) -> tuple[Segment, list[dict[str, Any]]]:
    segment = Segment(session.status().segment)
    return segment, segment.of("step")


def test_micro_batches_are_counted_and_kept_apart(attach: Any) -> None:
    model, optimizer = mlp_and_optimizer()
    session = attach(model, optimizer=optimizer)
    for _ in range(2):
        for part in range(3):
            x, y = batch("mlp", part)
            loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    segment, steps = steps_of(session)
    assert [(s["step"], s["microbatches"], s["samples"]) for s in steps] == [(0, 3, 12), (1, 3, 12)]
    assert not any(s["flags"] & DIRTY for s in steps), "accumulating within a step is not dirty"
    for site in ("0:output", "0:output.grad", "batch[0]"):
        assert [r["microbatch"] for r in segment.of(site, step=1)] == [0, 1, 2]


def test_steps_are_complete_by_their_own_count(attach: Any) -> None:
    model, optimizer = mlp_and_optimizer()
    session = attach(model, optimizer=optimizer, start_step=7)
    x, y = batch("mlp")
    for _ in range(3):
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    segment, steps = steps_of(session)
    assert [s["step"] for s in steps] == [7, 8, 9]
    for step in steps:
        assert step["attempts_total"] == sum(r["step"] <= step["step"] for r in segment.records)
        assert step["flags"] & APPLIED


@pytest.mark.parametrize("clear", ["after step", "before backward", "set to zero", "never"])
def test_dirty_gradients_are_those_that_nobody_cleared(clear: str, attach: Any) -> None:
    model, optimizer = mlp_and_optimizer()
    session = attach(model, optimizer=optimizer)
    x, y = batch("mlp")
    for _ in range(3):
        loss = loss_of(model(x), y)
        if clear == "before backward":
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clear in ("after step", "set to zero"):
            optimizer.zero_grad(set_to_none=clear == "after step")
    _, steps = steps_of(session)
    expected = clear == "never"
    assert [bool(s["flags"] & DIRTY) for s in steps] == [False, expected, expected]


def test_optimizer_and_parameter_records_hold_what_the_optimizer_did(attach: Any) -> None:
    model, optimizer = mlp_and_optimizer()
    session = attach(model, optimizer=optimizer)
    x, y = batch("mlp")
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model(x), y).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    segment, _ = steps_of(session)
    (record,) = segment.of("optimizer[0]")
    assert record["learning_rate"] == 0.1 and record["weight_decay"] == 0.01
    assert record["parameter_count"] == record["observed_count"] == 6
    assert record["beta1"] == pytest.approx(0.9)
    for (name, value), old, gradient in zip(model.named_parameters(), before, gradients, strict=True):
        (found,) = segment.of(name)
        update = (value.detach() - old).double()
        assert found["value_sum_squares"] == pytest.approx(value.detach().double().square().sum().item(), rel=1e-6)
        assert found["gradient_sum_squares"] == pytest.approx(gradient.double().square().sum().item(), rel=1e-6)
        assert found["update_sum_squares"] == pytest.approx(update.square().sum().item(), rel=1e-5)
        assert found["changed"] == 1
        assert segment.inits[name]["sum_squares"] == pytest.approx(old.double().square().sum().item(), rel=1e-6)
        assert segment.sites[name]["optimizer_group"] == 0


def test_large_models_rotate_their_parameters_until_something_is_suspicious(attach: Any) -> None:
    model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 64))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    session = attach(model, optimizer=optimizer)
    names = [name for name, _ in model.named_parameters()]
    groups = 3  # ceil((1024 * 512 + 512 + 512 * 64 + 64) / 262144)
    for step in range(5):
        x = torch.randn(2, 1024)
        if step == 4:
            x[0, 0] = float("inf")
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    segment, steps = steps_of(session)
    for step in steps[:4]:
        number = step["step"]
        assert (step["rotation_group"], step["rotation_groups"]) == (number % groups, groups)
        seen = {name for name in names if segment.of(name, step=number)}
        assert seen == {name for i, name in enumerate(names) if i % groups == number % groups}
    assert steps[4]["flags"] & ALL_PARAMETERS
    assert all(segment.of(name, step=4) for name in names)


def test_steps_that_the_scaler_skips_are_steps(attach: Any) -> None:
    model, optimizer = mlp_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, backoff_factor=0.5)
    session = attach(model, optimizer=optimizer, scaler=scaler)
    for step in range(3):
        x, y = batch("mlp", step)
        loss = loss_of(model(x), y) * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    segment, steps = steps_of(session)
    assert [s["step"] for s in steps] == [0, 1, 2]
    assert [bool(s["flags"] & APPLIED) for s in steps] == [True, False, True]
    assert [bool(s["flags"] & FOUND_INF) for s in steps] == [False, True, False]
    assert [s["skipped_total"] for s in steps] == [0, 1, 1]
    assert [r["loss_scale"] for r in segment.of("optimizer[0]")] == [4.0, 4.0, 2.0]
    session.detach()
    assert "neuraldbg" not in torch.amp.GradScaler.step.__module__


def test_an_optimizer_that_attach_did_not_get_is_found(attach: Any) -> None:
    model, optimizer = mlp_and_optimizer()
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    session = attach(model)
    x, y = batch("mlp")
    for _ in range(2):
        other.step()
        loss_of(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    segment, steps = steps_of(session)
    assert [s["step"] for s in steps] == [0, 1]
    for step in range(2):
        assert segment.counts(step) == dict.fromkeys(segment.planned(), 1)


def test_steps_without_an_optimizer_are_the_users(attach: Any) -> None:
    model, _ = mlp_and_optimizer()
    session = attach(model)
    for _ in range(2):
        functional.mse_loss(model(batch("mlp")[0]), torch.zeros(4, 5)).backward()
        session.step()
    _, steps = steps_of(session)
    assert [s["step"] for s in steps] == [0, 1]


def test_detach_closes_the_step_that_has_begun(attach: Any) -> None:
    model, optimizer = mlp_and_optimizer()
    session = attach(model, optimizer=optimizer)
    path = session.status().segment
    model(batch("mlp")[0])
    session.detach()
    (step,) = Segment(path).of("step")
    assert step["flags"] & UNANNOUNCED and not step["flags"] & APPLIED


def test_two_optimizers_of_one_model_both_report(attach: Any) -> None:
    model = MODELS["mlp"]()
    halves = list(model.parameters())
    first = torch.optim.SGD(halves[:2], 0.1)
    second = torch.optim.Adam([{"params": halves[2:4]}, {"params": halves[4:], "lr": 0.01}])
    session = attach(model, optimizer=[first, second])
    x, y = batch("mlp")
    for _ in range(2):
        loss_of(model(x), y).backward()
        second.step()
        first.step()
        model.zero_grad()
    segment, steps = steps_of(session)
    assert [s["step"] for s in steps] == [0, 1]
    assert [segment.of(f"optimizer[{i}]", step=1)[0]["parameter_count"] for i in range(3)] == [2, 2, 2]
    assert [segment.sites[name]["optimizer_group"] for name, _ in model.named_parameters()] == [0, 0, 1, 1, 2, 2]
    assert segment.counts(1) == dict.fromkeys(segment.planned(), 1)
