"""Attached models under torch.compile(fullgraph=True): no extra graph, the same bits, every site in every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import neuraldbg
import pytest
import torch
from torch import Tensor, nn

from tests.agent.conftest import Segment, forget_compiled, graphs
from tests.agent.small_models import MODELS, Block, ResidualBlock, batch, loss_of

STEPS = 3

# How users write it; "blocks" is regional compilation. The method of a Sequential cannot be compiled, hooks or not.
FORMS = {
    "gpt": ("eager", "wrapper", "method", "function", "blocks"),
    "mlp": ("eager", "wrapper", "function"),
    "resnet": ("eager", "wrapper", "function", "blocks"),
}


@dataclasses.dataclass
class Training:
    """What a training left behind."""

    tensors: list[Tensor]
    graphs: tuple[int, int]
    segment: Segment | None = None


def compiled(model: nn.Module, form: str, backend: str) -> Callable[[Tensor], Tensor]:
    if form == "wrapper":
        return torch.compile(model, backend=backend, fullgraph=True)
    if form == "method":
        model.compile(backend=backend, fullgraph=True)
    elif form == "function":
        function = torch.compile(lambda model, x: model(x), backend=backend, fullgraph=True)
        return lambda x: function(model, x)
    elif form == "blocks":
        for module in model.modules():
            if isinstance(module, (Block, ResidualBlock)):
                module.compile(backend=backend, fullgraph=True)
    return model


def train(name: str, form: str, backend: str, attach: Callable[..., neuraldbg.Session] | None) -> Training:
    """Losses, all gradients, parameters and buffers of a few steps, in order."""
    forget_compiled()
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    session = attach(model, optimizer=optimizer) if attach is not None else None
    forward = compiled(model, form, backend)
    tensors = []
    for step in range(STEPS):
        x, y = batch(name, step)
        loss = loss_of(forward(x), y)
        if session is not None:
            session.log_loss(loss, targets=y)
        loss.backward()
        tensors += [loss.detach(), *(p.grad.clone() for p in model.parameters())]
        optimizer.step()
        optimizer.zero_grad()
    tensors += [p.detach().clone() for p in model.parameters()] + [b.clone() for b in model.buffers()]
    found = graphs()
    segment = None
    if session is not None:
        path = session.status().segment
        session.detach()
        segment = Segment(path)
    return Training(tensors, found, segment)


def same_bits(first: Training, second: Training) -> bool:
    pairs = list(zip(first.tensors, second.tensors, strict=True))
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def check(name: str, form: str, backend: str, attach: Callable[..., neuraldbg.Session]) -> Segment:
    bare, again, watched = (train(name, form, backend, one) for one in (None, None, attach))
    assert same_bits(bare, again), "the comparison itself is not deterministic"
    assert same_bits(bare, watched)
    assert watched.graphs == bare.graphs == again.graphs
    segment = watched.segment
    assert segment is not None and segment.run["graph_exact"]
    assert segment.run["planned_sites"] == len(segment.planned())
    for step in range(STEPS):
        assert segment.counts(step) == dict.fromkeys(segment.planned(), 1)
    return segment


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, forms in FORMS.items() for form in forms])
def test_every_form_reports_every_site_once_and_changes_nothing(name: str, form: str, attach: Any) -> None:
    segment = check(name, form, "aot_eager", attach)
    expected = {"gpt": 82, "mlp": 20, "resnet": 44}[name]
    assert len(segment.planned()) == expected


@pytest.mark.parametrize("name", MODELS)
def test_inductor_reports_every_site_once_and_changes_nothing(name: str, attach: Any) -> None:
    check(name, "wrapper", "inductor", attach)


def test_records_of_all_forms_agree(attach: Any) -> None:
    """A compiled graph and eager mode see the same tensors."""
    segments = [train("gpt", form, "aot_eager", attach).segment for form in ("eager", "wrapper", "function")]
    values = [
        {(segment.names[r["site"]], r["step"]): r["bits"] for r in segment.records if r["record"] == "TENSOR"}
        for segment in segments
    ]
    assert values[0] and values[0] == values[1] == values[2]


@pytest.mark.parametrize("attach_first", [True, False])
def test_a_twin_whose_code_is_compiled_first_does_not_silence_the_hooks(attach_first: bool, attach: Any) -> None:
    twin, model = MODELS["mlp"](), MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x, y = batch("mlp")
    session = attach(model, optimizer=optimizer) if attach_first else None
    loss_of(torch.compile(twin, backend="aot_eager", fullgraph=True)(x), y).backward()
    session = session or attach(model, optimizer=optimizer)
    loss_of(torch.compile(model, backend="aot_eager", fullgraph=True)(x), y).backward()
    optimizer.step()
    segment = Segment(session.status().segment)
    assert segment.counts(0) == dict.fromkeys(segment.planned(), 1)


@pytest.mark.parametrize("form", ["wrapper", "function"])
def test_attach_after_the_first_compiled_call_works_with_one_line(
    form: str, attach: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    forward = compiled(model, form, "aot_eager")
    x, y = batch("mlp")
    loss_of(forward(x), y).backward()
    assert graphs() == (1, 0)
    with caplog.at_level("WARNING", "neuraldbg"):
        session = attach(model, optimizer=optimizer)
    assert sum("already compiled" in line for line in caplog.messages) == 1
    for _ in range(2):
        loss_of(forward(x), y).backward()
        optimizer.step()
    assert graphs() == (2, 0), "compiled once more, and only once"
    segment = Segment(session.status().segment)
    for step in range(2):
        assert segment.counts(step) == dict.fromkeys(segment.planned(), 1)


def test_detach_leaves_compiled_models_as_they_were(attach: Any) -> None:
    model = MODELS["mlp"]()
    forward = torch.compile(model, backend="aot_eager", fullgraph=True)
    before = [dict(module.__dict__) for module in model.modules()]
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(model, optimizer=optimizer)
    x, y = batch("mlp")
    loss_of(forward(x), y).backward()
    optimizer.step()
    records = session.status().records
    session.detach()
    assert [dict(module.__dict__) for module in model.modules()] == before
    assert all(not p._backward_hooks for p in model.parameters())
    loss_of(forward(x), y).backward()
    optimizer.step()
    assert session.status().records == records


def test_modes_keep_their_usual_graphs_and_are_told_apart(attach: Any) -> None:
    """Evaluation between training steps: as many graphs as without the agent, and records that say what they are."""

    def run(session_of: Callable[..., neuraldbg.Session] | None) -> tuple[tuple[int, int], str]:
        forget_compiled()
        model = MODELS["mlp"]()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        session = session_of(model, optimizer=optimizer) if session_of is not None else None
        forward = torch.compile(model, backend="aot_eager", fullgraph=True)
        x, y = batch("mlp")
        for _ in range(2):
            model.eval()
            with torch.no_grad():
                forward(x)
            model.train()
            loss_of(forward(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return graphs(), session.status().segment if session is not None else ""

    bare, _ = run(None)
    watched, path = run(attach)
    assert watched == bare
    segment = Segment(path)
    training, grad_mode = 1 << 0, 1 << 8
    for step in range(2):
        flags = [record["flags"] & (training | grad_mode) for record in segment.of("0:output", step=step)]
        assert sorted(flags) == [0, training | grad_mode]
        assert len(segment.of("0:output.grad", step=step)) == 1
        assert segment.of("step", step=step)[0]["microbatches"] == 1
