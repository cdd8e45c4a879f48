"""Rows of the table: what modules are made of, and what they take and return."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from tests.agent.rows import STEPS, Job, row
from tests.agent.rows_control_flow import inputs, train_mlp

SECTION = "Modules"


@dataclasses.dataclass
class Output:
    """What a model may return."""

    logits: Tensor
    hidden: Tensor
    name: str = "output"


class Pair(NamedTuple):
    """What a layer may return."""

    left: Tensor
    right: Tensor


class Structured(nn.Module):
    """A layer whose output is made by a given function."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.make = Making(make)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Any:
        made = self.make(self.first(x))
        return {"out": self.last(self.make.read(made)), "made": made}


class Making(nn.Module):
    """Returns two tensors in a structure."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.write, self.read = make

    def forward(self, x: Tensor) -> Any:
        return self.write(x * 2, x.argmax(-1))


STRUCTURES: dict[str, Any] = {
    "dict": (lambda x, n: {"n": n, "x": x}, lambda made: made["x"]),
    "tuple": (lambda x, n: (n, x), lambda made: made[1]),
    "named tuple": (lambda x, n: Pair(x, n), lambda made: made.left),
    "dataclass": (lambda x, n: Output(x, n), lambda made: made.logits),
    "nested": (lambda x, n: {"n": [n, {"x": (n, [x])}]}, lambda made: made["n"][1]["x"][1][0]),
}


def structured(kind: str) -> None:
    blind_by_tap = r"^make:output\.grad" if kind == "dataclass" else ""

    @row(SECTION, f"outputs: {kind}", check=the_layer_reports, blind_by_tap=blind_by_tap)
    def outputs(job: Job) -> None:
        model = Structured(STRUCTURES[kind])
        forward = job.compile(model)
        job.train(model, lambda step: forward(inputs(step))["out"].square().mean())


def the_layer_reports(job: Job) -> None:
    (segment,) = job.segments
    assert {"make:output", "make:output.grad", "last:output"} <= segment.planned()


for _kind in STRUCTURES:
    structured(_kind)


class Keywords(nn.Module):
    """Takes nothing by position."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(8, 8), Scale(), nn.Linear(8, 4)

    def forward(self, *, ids: Tensor, x: Tensor) -> Tensor:
        return self.last(self.scale(by=ids.float().mean(), x=functional.relu(self.first(x))))


class Scale(nn.Module):
    """A leaf that takes keywords only."""

    def forward(self, *, x: Tensor, by: Tensor) -> Tensor:
        return x * by


@row(SECTION, "inputs by keyword only", blind_by_tap=":input")
def keywords(job: Job) -> None:
    model = Keywords()
    forward = job.compile(model)
    job.train(model, lambda step: forward(x=inputs(step), ids=torch.arange(4)).square().mean())


class FromDataclass(nn.Module):
    """Takes one argument, which is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, given: Output) -> Tensor:
        return self.last(torch.tanh(self.first(given.logits) + given.hidden))


def two_inputs(job: Job) -> None:
    (segment,) = job.segments
    assert {"batch[0]", "batch[1]"} <= segment.planned()
    assert [record["samples"] for record in segment.of("step")] == [4] * STEPS


@row(SECTION, "inputs: dataclass", check=two_inputs)
def dataclass_input(job: Job) -> None:
    model = FromDataclass()
    forward = job.compile(model)
    job.train(model, lambda step: forward(Output(inputs(step), inputs(step + 5))).square().mean())


class Recurrent(nn.Module):
    """A recurrent layer and its last output."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells, self.last = kind(8, 6, num_layers=2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x)[0][:, -1])


@row(SECTION, "LSTM", forms=("eager",), note="Dynamo does not trace recurrent layers by default")
def lstm(job: Job) -> None:
    model = Recurrent(nn.LSTM)
    job.train(model, lambda step: model(inputs(step, 4, 5, 8)).square().mean())


@row(SECTION, "GRU", forms=("eager",), note="as LSTM")
def gru(job: Job) -> None:
    model = Recurrent(nn.GRU)
    job.train(model, lambda step: model(inputs(step, 4, 5, 8)).square().mean())


class Attention(nn.Module):
    """nn.MultiheadAttention, whose output projection is a module that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.last = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.attend(x, x, x, need_weights=False)[0])


def attention_reports(job: Job) -> None:
    (segment,) = job.segments
    assert {"attend:merge", "attend:merge.grad"} <= segment.planned()
    assert "attend.out_proj:output" not in segment.planned()


@row(SECTION, "nn.MultiheadAttention", check=attention_reports, note="its output is the container's merge")
def attention(job: Job) -> None:
    model = Attention()
    forward = job.compile(model)
    job.train(model, lambda step: forward(inputs(step, 2, 5, 8)).square().mean())


class Encoder(nn.Module):
    """Two of torch's transformer layers."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.encoder(x))


@row(SECTION, "nn.TransformerEncoder")
def encoder(job: Job) -> None:
    model = Encoder()
    forward = job.compile(model)
    job.train(model, lambda step: forward(inputs(step, 2, 5, 8)).square().mean())


@row(
    SECTION,
    "nn.TransformerEncoder in evaluation",
    forms=("eager",),
    times={r":(output|input|merge)$|^batch": 2},
    note="torch keeps its fused layer from modules with hooks, whosever: the ordinary one runs while attached",
)
def encoder_fast_path(job: Job) -> None:
    model = Encoder()
    for layer in model.encoder.layers:
        layer.register_forward_hook(lambda *_arguments: None)

    def loss_of(step: int) -> Tensor:
        model.eval()
        with torch.no_grad():
            job.keep(model(inputs(step + 50, 2, 5, 8)))
        model.train()
        return model(inputs(step, 2, 5, 8)).square().mean()

    job.train(model, loss_of)


class Sparse(nn.Module):
    """An embedding whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(10, 8, sparse=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.tokens(x))


@row(SECTION, "sparse embedding gradients", note="the weight reports, its gradient is not read")
def sparse(job: Job) -> None:
    model = Sparse()
    forward = job.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    job.train(model, lambda step: forward(torch.tensor([[1, 2], [step, 3]])).square().mean(), optimizer)


class StochasticDepth(nn.Module):
    """Leaves out one block in two steps of three."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.keeps = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.keeps:
            x = x + self.block(x)
        return self.last(x)


def left_out(job: Job) -> None:
    (segment,) = job.segments
    assert [len(segment.of("block:output", step=step)) for step in range(4)] == [1, 0, 1, 0]
    assert [len(segment.of("first:output", step=step)) for step in range(4)] == [1, 1, 1, 1]


@row(SECTION, "stochastic depth", varies=r"^block|:input|:merge", check=left_out, note="left out is not silent")
def stochastic_depth(job: Job) -> None:
    model = StochasticDepth()
    forward = job.compile(model)

    def loss_of(step: int) -> Tensor:
        model.keeps = step % 2 == 0
        return forward(inputs(step)).square().mean()

    job.train(model, loss_of, steps=4)


class Experts(nn.Module):
    """Two of four experts are used; which ones is decided outside."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.used = (0, 2)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        out = torch.zeros_like(x)
        for index in self.used:
            out = out + weights[:, index, None] * self.experts[index](x)
        return out


def unused(job: Job) -> None:
    (segment,) = job.segments
    assert "experts.0:output" in segment.planned() and "experts.1:output" not in segment.planned()
    assert "experts.1.weight" in segment.planned()


@row(SECTION, "mixture of experts, two unused", check=unused, note="what did not run in the first pass is not planned")
def experts(job: Job) -> None:
    train_mlp(job, Experts())


class Adapter(nn.Module):
    """Low-rank adaptation of a frozen layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def frozen_base(job: Job) -> None:
    (segment,) = job.segments
    assert not segment.sites["0.base:output"]["requires_grad"]
    assert "0.base:output.grad" not in segment.planned() and "2.base:output.grad" in segment.planned()


@row(SECTION, "LoRA on a frozen base", check=frozen_base)
def lora(job: Job) -> None:
    model = nn.Sequential(Adapter(nn.Linear(8, 8)), nn.ReLU(), Adapter(nn.Linear(8, 8)))
    train_mlp(job, model)


@row(SECTION, "frozen prefix", check=lambda job: only_the_head_has_gradients(job))
def frozen_prefix(job: Job) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    model[0].requires_grad_(False)
    train_mlp(job, model)


def only_the_head_has_gradients(job: Job) -> None:
    (segment,) = job.segments
    assert {name for name in segment.planned() if name.endswith(".grad")} == {"2:output.grad"}


@row(SECTION, "parametrizations: weight_norm")
def weight_norm(job: Job) -> None:
    train_mlp(job, nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4)))


@row(SECTION, "parametrizations: spectral_norm")
def spectral_norm(job: Job) -> None:
    train_mlp(job, nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4)))
