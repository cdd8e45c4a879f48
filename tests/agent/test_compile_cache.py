"""Compiled graphs with the agent's operators are kept between processes, and what is kept reports for any process."""

from __future__ import annotations

import collections
import hashlib
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import neuraldbg
import pytest
import torch
from neuraldbg import compile_cache
from torch import nn

from tests.agent.conftest import Segment
from tests.evaluate.daemon_process import ROOT

STEPS = 3


def trained(attached: bool, others: int) -> dict[str, Any]:
    """Trains a compiled model; what the caches did, what came out, and where its segment is.

    `others`: sessions of other models before it, so that its handle and sites have other numbers.
    """
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    before = [neuraldbg.attach(nn.Linear(2, 2), run=f"other-{number}") for number in range(others)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session = neuraldbg.attach(model, optimizer=optimizer, run="test", cadence=1) if attached else None
    forward = torch.compile(model, fullgraph=True)
    for _ in range(STEPS):
        forward(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    path = session.status().segment if session is not None else ""
    for one in [*before, session]:
        if one is not None:
            one.detach()
    caches = {
        key: count
        for part in ("aot_autograd", "inductor")
        for key, count in counters[part].items()
        if key.endswith(("cache_hit", "cache_miss", "cache_bypass"))
    }
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return {"caches": caches, "parameters": hashlib.sha256(bits).hexdigest(), "segment": path}


def in_a_process(cache: Path, attached: bool, others: int = 0) -> dict[str, Any]:
    """`trained` in a process of its own, whose compiler keeps what it makes in `cache`."""
    call = f"from tests.agent import test_compile_cache as t; print(t.json.dumps(t.trained({attached}, {others})))"
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(
        [sys.executable, "-c", call], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert ended.returncode == 0, ended.stderr
    assert "keeps no compiled graphs" not in ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def test_the_second_process_compiles_nothing_and_reports_everything(tmp_path: Path) -> None:
    bare = [in_a_process(tmp_path / "bare", attached=False) for _ in range(2)]
    watched = [in_a_process(tmp_path / "watched", attached=True, others=others) for others in (0, 2)]
    assert len({one["parameters"] for one in bare + watched}) == 1
    assert bare[1]["caches"] == {"autograd_cache_hit": 1, "fxgraph_cache_hit": 2}, "the comparison itself has no hits"
    assert watched[1]["caches"] == bare[1]["caches"]
    assert watched[0]["caches"] == bare[0]["caches"]
    first, second = (Segment(one["segment"]) for one in watched)
    for step in range(STEPS):
        counted = collections.Counter(dict.fromkeys(first.planned(), 1))
        counted.subtract(["loss"])  # log_loss was not called
        for segment in (first, second):
            assert segment.counts(step) == +counted
    for one, other in zip(first.records, second.records, strict=True):
        for field in ("sum", "sum_squares", "max_abs", "bits"):
            assert one.get(field) == other.get(field), f"site {first.names[one['site']]} reports another tensor"


def test_a_release_without_the_setting_is_named_once_and_only_by_jobs_that_compile(
    attach: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from torch._higher_order_ops.effects import WithEffects

    monkeypatch.setattr(WithEffects, "cacheable", lambda _self: False)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    attach(model)
    caplog.set_level(logging.WARNING, "neuraldbg")
    model(torch.ones(2, 4))
    assert caplog.messages == []
    forward = torch.compile(model, backend="aot_eager")
    for rows in (2, 3):
        forward(torch.ones(rows, 4))
    (line,) = caplog.messages
    assert "keeps no compiled graphs" in line and torch.__version__ in line
    compile_cache.say_if_bypassed()
    assert len(caplog.messages) == 1


def test_the_users_own_entries_stay(attach: Any) -> None:
    from torch._inductor import config

    with config.patch(unsafe_marked_cacheable_functions={"mine.function": "1"}):
        attach(nn.Linear(2, 2))
        assert config.unsafe_marked_cacheable_functions["mine.function"] == "1"
        assert "neuraldbg" in config.unsafe_marked_cacheable_functions["torch.ops.higher_order.with_effects"]
