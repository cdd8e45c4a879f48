"""The fallback ladder: what compiled graphs of this torch reach is tried out at attach; what they do not is named."""

from __future__ import annotations

import functools
import json
import logging
import os
import subprocess
import sys
from typing import Any

import neuraldbg
import pytest
import torch
from neuraldbg import self_test
from neuraldbg.sites import Level

from tests.agent.conftest import Segment, forget_compiled, graphs
from tests.agent.rows import LEVELS
from tests.agent.small_models import MODELS, batch, loss_of
from tests.evaluate.daemon_process import ROOT

STEPS = 2


@pytest.fixture(autouse=True)
def untried(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process in which nothing was attached yet."""
    monkeypatch.setattr(self_test, "_known", None)
    monkeypatch.setattr(self_test.hooks, "_taps", False)


def train(attach: Any) -> tuple[list[torch.Tensor], tuple[int, int], Segment | None, str]:
    """A compiled model, bare where `attach` is None."""
    forget_compiled()
    torch.manual_seed(0)
    model = MODELS["gpt"]()
    forward = torch.compile(model, backend="aot_eager", fullgraph=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = attach(forward, optimizer=optimizer) if attach is not None else None
    for step in range(STEPS):
        x, y = batch("gpt", step)
        loss_of(forward(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = graphs()
    segment, level = None, ""
    if session is not None:
        path, level = session.status().segment, session.status().level
        session.detach()
        segment = Segment(path)
    return [parameter.detach() for parameter in model.parameters()], found, segment, level


def require_untouched(attach: Any) -> tuple[Segment, str]:
    bare, bare_graphs, _, _ = train(None)
    watched, watched_graphs, segment, level = train(attach)
    assert all(map(torch.equal, bare, watched))
    assert watched_graphs == bare_graphs
    assert segment is not None
    return segment, level


def test_the_self_test_counts_its_records_and_leaves_no_trace(attach: Any) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    assert self_test.reached() is Level[LEVELS["compiled"].upper()]
    assert torch.equal(torch.rand(1), expected)
    assert graphs() == (0, 0)
    segment, level = require_untouched(attach)
    assert level == LEVELS["compiled"]
    assert {"ln:output", "ln:output.grad"} <= segment.planned()


def test_the_level_is_said_in_one_line(attach: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "neuraldbg")
    require_untouched(attach)
    (line,) = [line for line in caplog.messages if "level" in line]
    assert line == f"neuraldbg: 82 sites, level {LEVELS['compiled']}"


def without_effects() -> None:
    """Operators without a declared effect, which the compiler drops as dead code: rule 1, broken. Prints JSON.

    In a process of its own: what the compiler has once found out of an operator it keeps.
    """
    for name in ("observe", "batch", "enter"):
        torch.library._register_effectful_op(f"neuraldbg::{name}", None)
    segment, level = require_untouched(functools.partial(neuraldbg.attach, cadence=1, run="test"))
    counts = [segment.counts(step) for step in range(STEPS)]
    print(json.dumps({"level": level, "planned": sorted(segment.planned()), "counts": counts}))


def test_operators_that_the_compiler_drops_are_noticed_and_named() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "from tests.agent import test_ladder; test_ladder.without_effects()"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["level"] == "not_observed"
    (line,) = [line for line in ended.stderr.splitlines() if "neuraldbg" in line]
    assert "a forward pass gave 0 records instead of 1" in line and "activations are not observed" in line
    assert not [site for site in told["planned"] if site.endswith((":output", ".grad"))]
    for counts in told["counts"]:
        assert counts["head.weight"] == counts["step"] == 1


def test_without_gradients_outputs_alone_are_observed(
    attach: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(self_test, "_count", lambda _directory, _level: (1, 0))
    caplog.set_level(logging.WARNING, "neuraldbg")
    segment, level = require_untouched(attach)
    assert level == "forward_only"
    (line,) = caplog.messages
    assert "a backward pass gave 0 records" in line and "outputs alone are observed" in line
    planned = segment.planned()
    assert "ln:output" in planned and not [site for site in planned if site.endswith(".grad")]
    planned.discard("loss")  # nobody logged it, and its functional form is in no graph
    for step in range(STEPS):
        assert {site for site in segment.counts(step) if ":" in site} == {site for site in planned if ":" in site}


def test_a_self_test_that_raises_leaves_graphs_alone(
    attach: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_directory: str, _level: Level) -> tuple[int, int]:
        raise RuntimeError("hooks are not traced\nsecond line")

    monkeypatch.setattr(self_test, "_count", broken)
    caplog.set_level(logging.WARNING, "neuraldbg")
    _, level = require_untouched(attach)
    assert level == "not_observed"
    (line,) = caplog.messages
    assert "RuntimeError: hooks are not traced;" in line.replace(")", ";", 1) and "second line" not in line


@pytest.mark.parametrize(("release", "asked"), [((2, 13), 0), ((2, 10), 1), ((3, 0), 1)])
def test_eager_jobs_are_asked_only_where_the_release_was_not_tried(
    release: tuple[int, int], asked: int, attach: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(self_test.release, "RELEASE", release)
    monkeypatch.setattr(self_test, "_count", lambda _directory, level: calls.append(level) or (1, 1))
    session = attach(MODELS["mlp"]())
    assert session.status().level == "eager"
    assert len(calls) == asked
