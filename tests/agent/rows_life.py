"""Rows of the table: what happens to a model besides being trained."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.agent.rows import STEPS, Job, row
from tests.agent.rows_control_flow import inputs
from tests.agent.small_models import mlp

SECTION = "Life of a model"


def train_beside(job: Job, model: nn.Module, beside: Any, **arguments: Any) -> None:
    """The usual loop with something else in every step."""
    forward = job.compile(model)

    def loss_of(step: int) -> Tensor:
        beside(step)
        return forward(inputs(step)).square().mean()

    job.train(model, loss_of, **arguments)


@row(SECTION, "copy.deepcopy while attached", note="copies report nothing and train alike")
def deep_copy(job: Job) -> None:
    model = mlp()

    def beside(step: int) -> None:
        other = copy.deepcopy(model)
        other(inputs(step + 7)).square().mean().backward()
        job.keep_state(other)

    train_beside(job, model, beside)


@row(SECTION, "EMA copy (swa_utils.AveragedModel)", note="its forward passes are not the model's")
def averaged(job: Job) -> None:
    model = mlp()
    ema: list[AveragedModel] = []

    def beside(step: int) -> None:
        if not ema:
            ema.append(AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)))
        ema[0].update_parameters(model)
        with torch.no_grad():
            job.keep(ema[0](inputs(step + 7)))

    train_beside(job, model, beside)


@row(SECTION, "attach to a model with an EMA copy made before")
def averaged_before(job: Job) -> None:
    model = mlp()
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def beside(step: int) -> None:
        ema.update_parameters(model)
        with torch.no_grad():
            job.keep(ema(inputs(step + 7)))

    train_beside(job, model, beside)


@row(SECTION, "torch.save, pickle", note="read without this package; what is read reports nothing")
def stored(job: Job) -> None:
    model = mlp()

    def beside(step: int) -> None:
        file = io.BytesIO()
        torch.save(model, file)
        assert b"neuraldbg" not in file.getvalue().replace(b"_neuraldbg", b"")
        file.seek(0)
        for other in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(model))):
            job.keep(other(inputs(step + 7)))

    train_beside(job, model, beside)


@row(SECTION, "state_dict, load_state_dict")
def states(job: Job) -> None:
    model, other = mlp(), mlp()
    names = list(model.state_dict())

    def beside(step: int) -> None:
        state = model.state_dict()
        assert list(state) == names and [name for name, _ in model.named_buffers()] == []
        job.keep(*state.values())
        other.load_state_dict(state)
        model.load_state_dict(other.state_dict())

    train_beside(job, model, beside)


@row(SECTION, "torch.export while attached", forms=("eager",), note="the exported program reports nothing")
def exported(job: Job) -> None:
    model = mlp()

    def beside(step: int) -> None:
        if step != 1:
            return
        for strict in (False, True):
            program = torch.export.export(model, (inputs(step),), strict=strict)
            assert "neuraldbg" not in str(program.graph)
            job.keep(program.module()(inputs(step + 7)))

    train_beside(job, model, beside)


@row(SECTION, "torch.jit.trace while attached", forms=("eager",), note="the trace reports nothing")
def traced(job: Job) -> None:
    model = mlp()

    def beside(step: int) -> None:
        if step == 1:
            trace = torch.jit.trace(model, (inputs(step),), check_trace=False)
            assert "neuraldbg" not in str(trace.inlined_graph)
            job.keep(trace(inputs(step + 7)))

    train_beside(job, model, beside)


@row(SECTION, "torch.export before the first step", forms=("eager",))
def exported_first(job: Job) -> None:
    model = mlp()

    def beside(step: int) -> None:
        if step == 0:
            job.keep(torch.export.export(model, (inputs(step),)).module()(inputs(7)))

    train_beside(job, model, beside)


class Fragile(nn.Module):
    """Raises when it is told to, between two of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.breaks = nn.Linear(8, 8), nn.Linear(8, 4), False

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.breaks:
            raise KeyError("a batch that cannot be used")
        return self.last(x)


def broken_pass(job: Job) -> None:
    (segment,) = job.segments
    assert [len(segment.of("first:output", step=step)) for step in range(STEPS)] == [1, 2, 1]
    assert [len(segment.of("last:output", step=step)) for step in range(STEPS)] == [1, 1, 1]


@row(
    SECTION,
    "an exception inside of a forward pass, caught by the loop",
    forms=("eager",),
    varies=r"^(first:output|batch\[0\])$",
    check=broken_pass,
    note="the step holds what was seen of both passes",
)
def caught(job: Job) -> None:
    model = Fragile()

    def beside(step: int) -> None:
        model.breaks = step == 1
        try:
            if model.breaks:
                model(inputs(step + 7))
        except KeyError:
            model.breaks = False

    train_beside(job, model, beside)


def closed_by_hand(job: Job) -> None:
    (segment,) = job.segments
    unannounced = [bool(record["flags"] & 1 << 9) for record in segment.of("step")]
    assert unannounced == [False, True]


@row(
    SECTION,
    "an exception that ends the loop",
    varies=r"^(\d|loss|optimizer|:)",
    check=closed_by_hand,
    note="it passes through `with`; the step that had begun is closed",
)
def passed_on(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = job.attach(model, optimizer=optimizer)
    try:
        for step in range(STEPS):
            loss = forward(inputs(step)).square().mean()
            job.log(loss)
            loss.backward()
            if step == 1:
                raise KeyError("the loop's own")
            optimizer.step()
            optimizer.zero_grad()
    except KeyError as error:
        if session is not None:
            session.__exit__(type(error), error, None)
    job.keep_state(model)


def both_whole(job: Job) -> None:
    assert [segment.run["run_name"] for segment in job.segments] == ["first", "second"]
    assert [len(segment.of("step")) for segment in job.segments] == [STEPS, STEPS]


@row(SECTION, "two sessions in one process", check=both_whole)
def two_sessions(job: Job) -> None:
    models = mlp(), nn.Sequential(nn.Linear(8, 3), nn.Tanh())
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    forwards = [job.compile(model) for model in models]
    sessions = [
        job.attach(model, optimizer=optimizer, run=run)
        for model, optimizer, run in zip(models, optimizers, ("first", "second"), strict=True)
    ]
    for step in range(STEPS):
        for model, optimizer, forward, session in zip(models, optimizers, forwards, sessions, strict=True):
            loss = forward(inputs(step)).square().mean()
            if session is not None:
                session.log_loss(loss)
            loss.backward()
            job.keep(loss)
            job.keep_state(model)
            optimizer.step()
            optimizer.zero_grad()


def goes_on(job: Job) -> None:
    first, second = job.segments
    assert [record["step"] for record in first.of("step")] == [0, 1, 2]
    assert [record["step"] for record in second.of("step")] == [3, 4, 5]


@row(SECTION, "resume from a checkpoint (`start_step`)", check=goes_on, note="the second process goes on counting")
def resumed(job: Job) -> None:
    file = io.BytesIO()
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    forward = job.compile(model)
    session = job.train(model, lambda step: forward(inputs(step)).square().mean(), optimizer)
    if session is not None:
        session.detach()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    state = torch.load(file)
    torch._dynamo.reset()  # a process of its own has compiled nothing
    model = mlp()
    model.load_state_dict(state["model"])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    optimizer.load_state_dict(state["optimizer"])
    again = job.compile(model)
    job.train(model, lambda step: again(inputs(step + STEPS)).square().mean(), optimizer, start_step=STEPS)


@row(
    SECTION,
    "attached, but never called",
    forms=("eager",),
    varies=".",
    exact=False,
)
def forgotten(job: Job) -> None:
    model = mlp()
    session = job.attach(model)
    job.keep_state(model)
    if session is not None:
        session.step()
