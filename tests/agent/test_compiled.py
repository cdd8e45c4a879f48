"""Attached models under torch.compile, where it takes more than a row of the table (rows_compile.py) to tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import neuraldbg
import pytest
import torch
from neuraldbg.release import OLD

from tests.agent.conftest import Segment, forget_compiled, graphs
from tests.agent.rows import Row, play
from tests.agent.rows_compile import compiled, train_form
from tests.agent.small_models import MODELS, batch, loss_of


def test_records_of_all_forms_agree(attach: Any) -> None:
    """A compiled graph and eager mode see the same tensors."""
    segments = []
    for form in ("eager", "wrapper", "function"):
        row = Row("", form, lambda job, form=form: train_form(job, "gpt", form))
        segments += play(row, form, attach).segments
    values = [
        {(segment.names[r["site"]], r["step"]): r["bits"] for r in segment.records if r["record"] == "TENSOR"}
        for segment in segments
    ]
    if OLD:  # a tap in front of a module carries the gradient of this module's branch alone
        values = [{key: bits for key, bits in each.items() if not key[0].endswith(":input.grad")} for each in values]
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
