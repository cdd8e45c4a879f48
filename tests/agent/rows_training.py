"""Rows of the table: loops that do more than forward, backward, step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.utils.flop_counter import FlopCounterMode

from tests.agent.rows import STEPS, Job, row
from tests.agent.rows_control_flow import inputs, train_mlp
from tests.agent.small_models import mlp

SECTION = "Training loops"
TRAINING, GRAD_MODE = 1 << 0, 1 << 8
FORWARD = r":(output|input|merge)$|^batch"


@row(
    SECTION,
    "GAN with two optimizers",
    times={r"^critic.*(output|grad)$|^loss": 2, r"^batch\[1\]": 2},
    note="steps are those of the first optimizer; the critic runs twice",
)
def gan(job: Job) -> None:
    models = {
        "generator": nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
        "critic": nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
    }
    forwards = {name: job.compile(model) for name, model in models.items()}
    first = torch.optim.Adam(models["generator"].parameters(), 1e-2)
    second = torch.optim.Adam(models["critic"].parameters(), 1e-2)
    job.attach(models, optimizer=[first, second])
    for step in range(STEPS):
        made = forwards["generator"](inputs(step))
        critic_loss = forwards["critic"](made.detach()).square().mean()
        job.log(critic_loss)
        critic_loss.backward()
        second.step()
        second.zero_grad()
        loss = -forwards["critic"](made).mean()
        job.log(loss)
        loss.backward()
        job.keep(critic_loss, loss)
        for model in models.values():
            job.keep_state(model)
        first.step()
        first.zero_grad()
        second.zero_grad()


def kept_apart(job: Job) -> None:
    """One pass of each step is the training's; the others say that they are not."""
    (segment,) = job.segments
    for step in range(STEPS):
        flags = sorted(record["flags"] & (TRAINING | GRAD_MODE) for record in segment.of("0:output", step=step))
        assert flags == sorted([0, 0, GRAD_MODE, TRAINING | GRAD_MODE])
        assert segment.of("step", step=step)[0]["microbatches"] == 1


@row(
    SECTION,
    "eval, no_grad and inference_mode between steps",
    times={FORWARD: 4},
    check=kept_apart,
    note="their records are told apart from training's",
)
def interleaved(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)

    def loss_of(step: int) -> Tensor:
        model.eval()
        for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
            with context():
                job.keep(forward(inputs(step + 20)))
        model.train()
        return forward(inputs(step)).square().mean()

    job.train(model, loss_of)


@row(
    SECTION,
    "quantization-aware training (fake quantization)",
    forms=("eager",),
    note="Dynamo does not trace torch.ao's own hooks",
)
def quantization_aware(job: Job) -> None:
    model = nn.Sequential(quantization.QuantStub(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    model.train()
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(model, inplace=True)
    train_mlp(job, model)


def functional_calls(job: Job) -> None:
    (segment,) = job.segments
    for step in range(STEPS):
        assert len(segment.of("0:output", step=step)) == 1
        assert len(segment.of("step", step=step)) == 1


@row(SECTION, "torch.func.functional_call", check=functional_calls)
def functional_call(job: Job) -> None:
    model = mlp()
    forward = job.compile(lambda x: torch.func.functional_call(model, dict(model.named_parameters()), (x,)))
    job.train(model, lambda step: forward(inputs(step)).square().mean())


@row(SECTION, "torch.func.grad, vmap, jvp beside training", note="nothing is read inside of a transform")
def transforms(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (x,)).square().mean()

    gradient = job.compile(torch.func.grad(loss))
    of_each = job.compile(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0)))

    def loss_of(step: int) -> Tensor:
        parameters = {name: value.detach() for name, value in model.named_parameters()}
        job.keep(*gradient(parameters, inputs(step)).values(), *of_each(parameters, inputs(step)).values())
        tangents = {name: torch.ones_like(value) for name, value in parameters.items()}
        job.keep(*torch.func.jvp(lambda values: loss(values, inputs(step)), (parameters,), (tangents,)))
        return forward(inputs(step)).square().mean()

    job.train(model, loss_of)


class Order:
    """Hooks of the user's: what ran, in which order, and what it saw."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[Tensor] = []
        for number, module in enumerate(model.children()):
            module.register_forward_pre_hook(self.note(3 * number))
            module.register_forward_hook(self.note(3 * number + 1))
            module.register_full_backward_hook(self.note(3 * number + 2))
        model[0].register_forward_hook(lambda module, args, output: output * 1.5)

    def note(self, number: int) -> Callable[..., None]:
        def hook(module: nn.Module, *values: Any) -> None:
            tensor = values[-1]
            tensor = tensor[0] if isinstance(tensor, tuple) else tensor
            self.seen += [torch.tensor(number), *([tensor.detach().clone()] if tensor is not None else [])]

        return hook


@row(SECTION, "hooks of the user's own", forms=("eager",), note="backward hooks do not compile")
def own_hooks(job: Job) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    order = Order(model)
    train_mlp(job, model)
    job.keep(*order.seen)


@row(SECTION, "forward hooks of the user's that change outputs")
def changing_hooks(job: Job) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    model[0].register_forward_hook(lambda module, args, output: output * 1.5)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    train_mlp(job, model)


@row(SECTION, "a dispatch mode of the user's round the loop", forms=("eager",))
def dispatch_mode(job: Job) -> None:
    model = mlp()
    with FlopCounterMode(display=False) as counter:
        train_mlp(job, model)
    job.keep(torch.tensor(counter.get_total_flops()))
