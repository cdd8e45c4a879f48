"""Rows of the table: what forward and backward passes may do."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.agent.rows import RECOMPUTE, Job, row
from tests.agent.small_models import mlp

SECTION = "Control flow"
ACTIVATIONS = r":(output|input|merge)|^batch|^loss"  # with their gradients; parameters come once a step


def inputs(step: int, *shape: int) -> Tensor:
    """Random numbers that depend on the step alone."""
    return torch.randn(shape or (4, 8), generator=torch.Generator().manual_seed(step))


def train_mlp(job: Job, model: nn.Module, **arguments: object) -> None:
    """A model of eight inputs, compiled where the form says so, against the mean of squares."""
    forward = job.compile(model)
    job.train(model, lambda step: forward(inputs(step)).square().mean(), **arguments)


class Checkpointed(nn.Module):
    """Two of its layers run under activation checkpointing."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)
        self.block = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.25), nn.Linear(16, 8))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.relu(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant)))


def flagged(job: Job) -> None:
    """The second run of the block is there, and says what it is."""
    (segment,) = job.segments
    for site in ("block.0:output", "block.1:output"):
        for step in range(3):
            flags = [record["flags"] & RECOMPUTE for record in segment.of(site, step=step)]
            assert flags == ([0, RECOMPUTE] if job.form == "eager" else [0])
    assert not any(record["flags"] & RECOMPUTE for record in segment.of("block.1:output.grad"))
    assert not any(record["flags"] & RECOMPUTE for record in segment.of("first:output"))


@row(SECTION, "activation checkpointing, not reentrant", check=flagged, note="recomputed records carry a flag")
def checkpointing(job: Job) -> None:
    train_mlp(job, Checkpointed(reentrant=False))


@row(SECTION, "activation checkpointing, reentrant", check=flagged)
def reentrant_checkpointing(job: Job) -> None:
    train_mlp(job, Checkpointed(reentrant=True))


def recomputed_pass(job: Job) -> None:
    (segment,) = job.segments
    assert [record["microbatches"] for record in segment.of("step")] == [1, 1, 1]
    assert [record["samples"] for record in segment.of("step")] == [4, 4, 4]


@row(
    SECTION,
    "activation checkpointing of the whole model",
    check=recomputed_pass,
    note="the second pass is no micro-batch",
)
def checkpointed_root(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    job.train(model, lambda step: checkpoint(forward, inputs(step), use_reentrant=False).square().mean())


class CheckpointedBlocks(nn.Module):
    """Two blocks of a class, each under checkpointing of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = Residual(), Residual(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.first, self.second):
            x = checkpoint(block, x, use_reentrant=False)
        return self.last(x)


def flagged_by_graphs(job: Job) -> None:
    """The operators of a graph know that they run in a backward pass."""
    (segment,) = job.segments
    for step in range(3):
        flags = [record["flags"] & RECOMPUTE for record in segment.of("first.second:output", step=step)]
        assert flags == [0, RECOMPUTE]


@row(
    SECTION,
    "compiled blocks under eager checkpointing",
    forms=("compiled",),
    check=flagged_by_graphs,
    note="each recomputed graph flags its records",
)
def checkpointed_compiled_block(job: Job) -> None:
    model = CheckpointedBlocks()
    for block in (model.first, model.second):
        block.compile(backend="aot_eager", fullgraph=True)
    job.train(model, lambda step: model(inputs(step)).square().mean())


@row(SECTION, "gradient accumulation", times={ACTIVATIONS: 2}, note="micro-batches are counted within the step")
def accumulation(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    job.attach(model, optimizer=optimizer)
    for step in range(3):
        for part in range(2):
            loss = forward(inputs(2 * step + part)).square().mean() / 2
            job.log(loss)
            loss.backward()
            job.keep(loss)
        job.keep_state(model)
        optimizer.step()
        optimizer.zero_grad()


@row(SECTION, "two forward passes, one backward", times={r"^loss|^batch\[1": 1, ACTIVATIONS: 2})
def two_forwards(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    job.train(model, lambda step: (forward(inputs(step)) * forward(inputs(step + 9))).mean())


@row(SECTION, "retain_graph: two backward passes", times={r"\.grad": 2}, note="gradients report once a pass")
def retained_graph(job: Job) -> None:
    model = mlp()
    forward = job.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    job.attach(model, optimizer=optimizer)
    for step in range(3):
        loss = forward(inputs(step)).square().mean()
        job.log(loss)
        loss.backward(retain_graph=True)
        loss.backward()
        job.keep(loss)
        job.keep_state(model)
        optimizer.step()
        optimizer.zero_grad()


class Shared(nn.Module):
    """One layer four times, one Dropout twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop, self.last = nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.layer(self.drop(torch.tanh(self.layer(x))))
        return self.last(x)


def four_nodes(job: Job) -> None:
    (segment,) = job.segments
    assert {"layer:output", "layer#1:output", "layer#2:output", "layer#3:output"} <= segment.planned()


@row(SECTION, "shared modules, called n times", check=four_nodes, note="each call is a site: `layer#1:output`")
def shared_modules(job: Job) -> None:
    train_mlp(job, Shared())


@row(SECTION, "in-place ReLU", blind_by_tap=r"^[13]:output\.grad")
def in_place(job: Job) -> None:
    train_mlp(job, nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(True)))


class Residual(nn.Module):
    """Adds into a layer's output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(functional.relu(self.first(x)))
        y += x
        return self.last(y)


@row(SECTION, "residual `+=`")
def residual(job: Job) -> None:
    train_mlp(job, Residual())


class Views(nn.Module):
    """Outputs that are views of one another, and one that is written through."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.flatten, self.last = nn.Linear(8, 12), nn.Flatten(), nn.Linear(12, 2)
        self.same = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.same(self.first(x).view(-1, 3, 4).transpose(1, 2))
        x[:, 0] = x[:, 0] * 2
        return self.last(self.flatten(x))


@row(SECTION, "views, and writes into them", blind_by_tap=r"^same:output\.grad")
def views(job: Job) -> None:
    train_mlp(job, Views())


@row(SECTION, "tied weights")
def tied(job: Job) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    train_mlp(job, model)


@row(SECTION, "BatchNorm and Dropout")
def normalised(job: Job) -> None:
    train_mlp(job, nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2)))
