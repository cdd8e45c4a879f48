"""Scripts for the original NeuralDBG run as they are, and what it returned empty is answered.

Method: the examples of its documentation (original_example.py) round a compiled model, with a fault planted in each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.original_example import ONSET, STEPS
from tests.evaluate.daemon_process import ROOT, Daemon


def run(daemon: Daemon, name: str, tmp_path: Path) -> dict[str, Any]:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.e2e.original_example", name, str(tmp_path / "package.json")],
        cwd=ROOT,
        env=daemon.environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


@pytest.mark.parametrize(
    ("name", "kind", "module", "layer", "words", "first_site"),
    [
        ("vanishing", "VANISHING_GRADIENT", "6", "5", "the gradient vanishes", "5:output.grad"),
        ("lr", "LEARNING_RATE_SPIKE", "", "optimizer[0]", "the learning rate jumps", "optimizer[0]"),
        ("data", "DATA_NONFINITE", "", "0", "the batch holds NaN or Inf", "batch[0]"),
    ],
)
def test_every_method_answers(
    name: str, kind: str, module: str, layer: str, words: str, first_site: str, daemon: Daemon, tmp_path: Path
) -> None:
    told = run(daemon, name, tmp_path)
    assert told["roots"] == [[kind, module, ONSET]]
    assert told["hypotheses"][0] == kind
    assert told["explanations"] == told["descriptions"]
    assert told["explanations"][0].startswith(f"Step {ONSET}: ") and words in told["explanations"][0]
    assert bool(told["default"]) == ("VANISHING_GRADIENT" in told["hypotheses"])
    assert told["chain"][0] == first_site and "loss" in told["chain"]
    assert told["couplings"] == len(told["hypotheses"]) * (len(told["hypotheses"]) - 1) // 2
    assert f"{kind} {module} step {ONSET}" in told["graph"] and "c0 --> c0_0" in told["graph"]
    assert (told["health"], told["transition"]) == ("vanishing", {"type": "vanishing_to_nonfinite"})
    assert min(step for step, *_ in told["events"]) == ONSET
    assert layer in {event[1] for event in told["events"]}
    package = told["package"]
    assert package["hypotheses"][0]["description"] == told["descriptions"][0]
    assert package["hypotheses"][0]["causal_chain"][0] == f"{first_site}@{ONSET}"
    transitions = [[one["step"], one["layer"], one["to"]] for one in package["events"]]
    assert transitions[: len(told["events"])] == [[step, where, to] for step, where, _, to in told["events"]]
    assert len(package["couplings"]) == told["couplings"]
    assert len(package["loss_history"]) == STEPS
    assert any(isinstance(value, str) for value in package["loss_history"]) == (name != "vanishing")
    assert set(package["first_failure_step"].values()) <= set(range(ONSET, STEPS))
    assert "finished" not in package["first_failure_layer"]
