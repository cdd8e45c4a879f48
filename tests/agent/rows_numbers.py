"""Rows of the table: element types, scalers and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.agent.rows import STEPS, Job, row
from tests.agent.rows_control_flow import inputs
from tests.agent.small_models import mlp

SECTION = "Numbers"
APPLIED, FOUND_INF = 1 << 1, 1 << 4
DTYPES = {"float64": 2, "bfloat16": 4, "float16": 3}  # DType of shared/record.h


def number_row(name: str) -> None:
    dtype = getattr(torch, name)

    def typed(job: Job) -> None:
        (segment,) = job.segments
        for site in ("0:output", "0:output.grad", "0.weight", "batch[0]"):
            assert {record["dtype"] for record in segment.of(site)} == {DTYPES[name]}

    @row(SECTION, name, check=typed)
    def of_this_type(job: Job) -> None:
        model = mlp().to(dtype)
        forward = job.compile(model)
        job.train(model, lambda step: forward(inputs(step).to(dtype)).square().mean())


for _name in DTYPES:
    number_row(_name)


@row(SECTION, "float64, inductor", forms=("compiled",))
def double_inductor(job: Job) -> None:
    model = mlp().double()
    forward = torch.compile(model, backend="inductor", fullgraph=True)
    job.train(model, lambda step: forward(inputs(step).double()).square().mean())


class Complex(nn.Module):
    """A layer of complex numbers between two of real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rotate, self.last = nn.Linear(8, 8), Rotate(), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.rotate(torch.fft.fft(self.first(x))).abs())


class Rotate(nn.Module):
    """Complex in, complex out."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.by


def only_real(job: Job) -> None:
    (segment,) = job.segments
    assert "rotate:output" not in segment.planned() and "last:input" in segment.planned()


@row(SECTION, "complex", check=only_real, blind=frozenset({"rotate.by"}), note="complex tensors are not observed")
def complex_numbers(job: Job) -> None:
    model = Complex()
    forward = job.compile(model)
    job.train(model, lambda step: forward(inputs(step)).square().mean())


def in_bfloat16(job: Job) -> None:
    (segment,) = job.segments
    assert {record["dtype"] for record in segment.of("0:output")} == {DTYPES["bfloat16"]}
    assert {record["dtype"] for record in segment.of("0.weight")} == {1}


@row(SECTION, "autocast to bfloat16", check=in_bfloat16)
def autocast(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)

    def loss_of(step: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(inputs(step)).float().square().mean()

    job.train(model, loss_of)


@row(SECTION, "autocast inside of the model", check=in_bfloat16)
def autocast_inside(job: Job) -> None:
    model = mlp()

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    forward = job.compile(function)
    job.train(model, lambda step: forward(inputs(step)))


def skipped_once(job: Job) -> None:
    (segment,) = job.segments
    assert [bool(record["flags"] & APPLIED) for record in segment.of("step")] == [True, False, True]
    assert [bool(record["flags"] & FOUND_INF) for record in segment.of("step")] == [False, True, False]
    assert [record["skipped_total"] for record in segment.of("step")] == [0, 1, 1]


def scaled(job: Job, make: Callable[[Any], torch.optim.Optimizer], unscales: bool) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    job.attach(model, optimizer=optimizer, scaler=scaler)
    for step in range(STEPS):
        loss = forward(inputs(step)).square().mean() * (float("inf") if step == 1 else 1.0)
        job.log(loss)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        job.keep(loss)
        job.keep_state(model)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    job.keep_state(model)


# Of a step that was skipped no parameter is read: nothing was done to it.
SKIPPED: dict[str, Any] = {"varies": r"^\d\.(weight|bias)$", "check": skipped_once}


@row(SECTION, "GradScaler skips a step", **SKIPPED, note="the step is flagged, and no fault")
def scaler(job: Job) -> None:
    scaled(job, lambda parameters: torch.optim.SGD(parameters, 0.1), unscales=False)


@row(SECTION, "GradScaler with unscale_ and clipping", **SKIPPED)
def unscaled(job: Job) -> None:
    scaled(job, lambda parameters: torch.optim.AdamW(parameters, 1e-2), unscales=True)


@row(SECTION, "GradScaler with a fused optimizer", **SKIPPED, note="which is called all the same, and skips by itself")
def scaled_fused(job: Job) -> None:
    scaled(job, lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True), unscales=False)


def updates(job: Job) -> None:
    (segment,) = job.segments
    for step in range(STEPS):
        (record,) = segment.of("0.weight", step=step)
        assert record["update_sum_squares"] > 0
        assert segment.of("step", step=step)[0]["flags"] & APPLIED


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "fused": lambda parameters: torch.optim.Adam(parameters, 1e-2, fused=True),
    "foreach": lambda parameters: torch.optim.Adam(parameters, 1e-2, foreach=True),
    "one by one": lambda parameters: torch.optim.Adam(parameters, 1e-2, foreach=False),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, 1e-2),
    "Adafactor": lambda parameters: torch.optim.Adafactor(parameters, 1e-2),
    "RMSprop": lambda parameters: torch.optim.RMSprop(parameters, 1e-2),
}


def optimizer_row(kind: str) -> None:
    @row(SECTION, f"optimizer: {kind}", forms=("eager",), check=updates)
    def with_this_optimizer(job: Job) -> None:
        model = mlp()
        job.train(model, lambda step: model(inputs(step)).square().mean(), OPTIMIZERS[kind](model.parameters()))


for _kind in OPTIMIZERS:
    optimizer_row(_kind)


class Unhooked:
    """Not a torch.optim.Optimizer, and so without hooks."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = list(parameters)

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                parameter -= 0.1 * parameter.grad

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None


@row(
    SECTION,
    "optimizer of one's own, without hooks",
    blind=frozenset({f"{layer}.{name}" for layer in (0, 2, 4) for name in ("weight", "bias")}),
    note="`session.step()` counts; parameters are not read",
)
def unhooked(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = Unhooked(model.parameters())
    session = job.attach(model)
    for step in range(STEPS):
        loss = forward(inputs(step)).square().mean()
        job.log(loss)
        loss.backward()
        job.keep(loss)
        job.keep_state(model)
        optimizer.step()
        optimizer.zero_grad()
        if session is not None:
            session.step()
    job.keep_state(model)


class OwnStep(torch.optim.SGD):
    """An optimizer whose step() is the user's: torch puts its hooks round it all the same."""

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= group["lr"] * parameter.grad


@row(SECTION, "optimizer that overrides step()", forms=("eager",), check=updates)
def own_step(job: Job) -> None:
    model = mlp()
    job.train(model, lambda step: model(inputs(step)).square().mean(), OwnStep(model.parameters(), 0.1))


def closures(job: Job) -> None:
    (segment,) = job.segments
    passes = [record["microbatches"] for record in segment.of("step")]
    assert len(passes) == STEPS and all(count > 1 for count in passes)
    for step, count in enumerate(passes):
        assert len(segment.of("0:output", step=step)) == len(segment.of("0:output.grad", step=step)) == count


@row(
    SECTION,
    "LBFGS, a closure that runs many times",
    varies=r"^(\d:|batch|loss)",
    check=closures,
    note="each call is a micro-batch of the step",
)
def closure(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    job.attach(model, optimizer=optimizer)
    for step in range(STEPS):

        def loss_of(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = forward(inputs(step)).square().mean()
            job.log(loss)
            loss.backward()
            job.keep(loss)
            return loss

        optimizer.step(loss_of)
        job.keep_state(model)


def rates(job: Job) -> None:
    (segment,) = job.segments
    found = [record["learning_rate"] for record in segment.of("optimizer[0]")]
    assert found == sorted(found, reverse=True) and len(set(found)) == STEPS


@row(SECTION, "schedulers", check=rates, note="each step carries its own learning rate")
def scheduler(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    job.attach(model, optimizer=optimizer, scheduler=schedule)
    for step in range(STEPS):
        loss = forward(inputs(step)).square().mean()
        job.log(loss)
        loss.backward()
        job.keep(loss)
        job.keep_state(model)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def clipped_norms(job: Job) -> None:
    (segment,) = job.segments
    for step in range(STEPS):
        squares = [segment.of(f"{layer}.{name}", step=step) for layer in (0, 2, 4) for name in ("weight", "bias")]
        total = sum(record["gradient_sum_squares"] for (record,) in squares)
        assert 0 < total <= 0.01**2 * 1.001


@row(SECTION, "clip_grad_norm_", check=clipped_norms, note="parameters carry the clipped gradient")
def clipping(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    job.attach(model, optimizer=optimizer)
    for step in range(STEPS):
        loss = forward(inputs(step)).square().mean()
        job.log(loss)
        loss.backward()
        job.keep(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        job.keep_state(model)
        optimizer.step()
        optimizer.zero_grad()
