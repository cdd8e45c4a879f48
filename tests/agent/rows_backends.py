"""Rows: modes of Inductor, backward passes that are compiled by themselves, and parts that Dynamo does not enter."""

from __future__ import annotations

import torch
from neuraldbg.release import OLD
from torch import Tensor, nn

from tests.agent.rows import Job, row
from tests.agent.rows_control_flow import inputs
from tests.agent.small_models import mlp

SECTION = "Modes and compilers"
GRADIENTS = frozenset(f"{layer}:output.grad" for layer in range(5))


def mode_row(mode: str) -> None:
    @row(SECTION, f'`torch.compile(mode="{mode}")`', forms=("compiled",))
    def in_mode(job: Job) -> None:
        model = mlp()
        forward = torch.compile(model, mode=mode, fullgraph=True)
        job.train(model, lambda step: forward(inputs(step)).square().mean())


for _mode in ("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
    mode_row(_mode)


def half_row(dtype: torch.dtype) -> None:
    @row(SECTION, f"{str(dtype).removeprefix('torch.')}, inductor", forms=("compiled",))
    def half(job: Job) -> None:
        model = mlp().to(dtype)
        forward = torch.compile(model, fullgraph=True)
        job.train(model, lambda step: forward(inputs(step).to(dtype)).float().square().mean())


for _dtype in (torch.bfloat16, torch.float16):
    half_row(_dtype)


class _CompiledBackward:
    """A loss whose backward pass runs under compiled autograd."""

    def __init__(self, loss: Tensor) -> None:
        self.loss = loss

    def backward(self) -> None:
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            self.loss.backward()


@row(
    SECTION,
    "compiled autograd",
    forms=("compiled",),
    blind=frozenset() if OLD else GRADIENTS,  # a tap is no hook
    note="its graphs drop what the gradient hooks of other graphs do",
)
def compiled_autograd(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    job.attach(model, optimizer=optimizer)
    for step in range(3):
        loss = forward(inputs(step)).square().mean()
        job.log(loss)
        _CompiledBackward(loss).backward()
        job.keep(loss)
        job.keep_state(model)
        optimizer.step()
        optimizer.zero_grad()


class Scripted(nn.Module):
    """A part of it is TorchScript, which Dynamo does not enter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.script = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.script(self.first(x)))


BLIND = {"blind": frozenset({"script:output", "script:output.grad"}), "exact": False}


def train_scripted(job: Job) -> None:
    model = Scripted()
    forward = job.compile(model, fullgraph=False)
    job.train(model, lambda step: forward(inputs(step)).square().mean())


@row(SECTION, "a ScriptModule as a child", forms=("eager",), **BLIND)
def scripted(job: Job) -> None:
    train_scripted(job)


@row(
    SECTION,
    "a ScriptModule as a child, with graph breaks",
    forms=("compiled",),
    extra_graphs=0 if OLD else 2,
    **BLIND,
    note="without hooks, torch gives up the frame and compiles nothing; with them, what stands round the script",
)
def scripted_with_breaks(job: Job) -> None:
    train_scripted(job)
