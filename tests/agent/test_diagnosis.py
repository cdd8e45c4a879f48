"""session.diagnose() and `neuraldbg run`: the client's answer as an object. No answer is never HEALTHY."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import neuraldbg
import pytest
import torch
from neuraldbg import client as client_module
from neuraldbg import diagnosis

MESSAGE = {
    "run": "gpt-7",
    "verdict": "FAULT",
    "hypotheses": [
        {
            "incident": 0,
            "kind": "NONFINITE_FORWARD",
            "module": "blocks.3.attn",
            "site": "blocks.3.attn.out:input",
            "rank": -1,
            "step": 41,
            "detectedAtStep": 41,
            "phase": "FORWARD",
            "confidence": 0.97,
            "summary": "blocks.3.attn makes NaN from finite input.",
            "evidence": [
                {
                    "site": "blocks.3.attn.out:input",
                    "step": 41,
                    "observed": "NaN",
                    "expected": {"statistic": "rms", "low": 0.5, "high": "Infinity"},
                    "note": "12 of 128 values are NaN",
                }
            ],
            "chain": [{"site": "loss", "module": "", "step": 41, "phase": "LOSS", "share": 1.0, "note": "NaN"}],
            "equivalents": [],
            "remedy": "Look at the mask.",
            "inSummary": True,
        }
    ],
    "notices": [{"step": 3, "rank": 0, "kind": "LOSS_PLATEAU", "module": "", "text": "flat"}],
    "blindSpots": [{"site": "head:output", "rank": 0, "step": 2, "text": "silent"}],
    "warm": True,
    "stepsSeen": 60,
    "ranksSeen": [0, 1],
}


def test_the_message_becomes_an_object() -> None:
    report = diagnosis.parse(MESSAGE, "x")
    assert (report.run, report.verdict, report.warm, report.steps_seen) == ("gpt-7", "FAULT", True, 60)
    assert report.ranks_seen == (0, 1) and report.message is MESSAGE
    cause = report.cause
    assert cause is not None and (cause.kind, cause.module, cause.rank) == ("NONFINITE_FORWARD", "blocks.3.attn", -1)
    (evidence,) = cause.evidence
    assert math.isnan(evidence.observed) and evidence.expected_high == math.inf and evidence.statistic == "rms"
    assert cause.chain[0].share == 1.0
    lines = str(report).splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == [
        "Verdict",
        "Cause",
        "Why",
        "Next",
        "Notice",
        "Blind",
    ]
    assert lines[1].startswith("Cause    NONFINITE_FORWARD in blocks.3.attn, all ranks, step ")


def test_the_daemon_decides_which_causes_are_printed() -> None:
    likely, unlikely = MESSAGE["hypotheses"][0], {**MESSAGE["hypotheses"][0], "incident": 1, "inSummary": False}
    report = diagnosis.parse({**MESSAGE, "hypotheses": [unlikely, likely]}, "x")
    assert len(report.hypotheses) == 2 and str(report).count("Cause") == 1


def test_a_step_that_was_not_consumed_is_said() -> None:
    assert diagnosis.parse(MESSAGE, "x").step_consumed is None
    assert "Missing" not in str(diagnosis.parse({**MESSAGE, "stepConsumed": True}, "x"))
    report = diagnosis.parse({**MESSAGE, "stepConsumed": False}, "x")
    assert report.step_consumed is False and "may not cover it" in str(report)


def test_sentences_have_no_empty_places() -> None:
    placeless = {
        **MESSAGE["hypotheses"][0],
        "kind": "UPDATE_LOST",
        "module": "",
        "site": "",
        "evidence": [{"site": "", "step": 3, "observed": 0.0, "expected": {}, "note": "It stands still."}],
    }
    spot = {"site": "", "rank": 0, "step": 2, "text": "It is silent."}
    text = str(diagnosis.parse({**MESSAGE, "hypotheses": [placeless], "blindSpots": [spot]}, "x"))
    for broken in (" in ,", "in  ", " : ", ":  "):
        assert broken not in text, text
    assert not any(line[9:].startswith((":", " ")) for line in text.splitlines()), text


@pytest.mark.parametrize(
    ("environment", "why", "advice"),
    [
        ({"NEURALDBG_ENABLED": "0"}, "switched off", "unset NEURALDBG_ENABLED"),
        ({"NEURALDBG_SHM_DIR": "/nonexistent"}, "/nonexistent", "neuraldbgctl doctor"),
    ],
)
def test_a_session_that_observes_nothing_says_why_and_what_to_do(
    environment: dict[str, str], why: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with neuraldbg.attach(torch.nn.Linear(2, 2), run="absent", daemon="none") as session:
        report = session.diagnose()
    assert not session.enabled and report.verdict == "INCOMPLETE_DATA"
    assert why in report.error and advice in report.advice and advice in str(report)
    assert "start neuraldbgd" not in str(report)


def test_before_the_first_step_there_is_nothing_to_start() -> None:
    with neuraldbg.attach(torch.nn.Linear(2, 2), run="early", daemon="none") as session:
        text = str(session.diagnose())
    assert "no step was observed" in text and "optimizer.step()" in text and "start neuraldbgd" not in text


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("echo 'connection refused' >&2; exit 3", "connection refused"),
        ("exit 4", "ended with 4"),
        ("echo 'no daemon answers at x' >&2; exit 4", "start neuraldbgd"),
        ("echo 'no such run' >&2; exit 4", "neuraldbgctl doctor"),
        ("echo 'NEURALDBG_ADDRESS: nonsense' >&2; exit 2", "correct the setting"),
        ("echo nonsense; exit 0", "printed no JSON"),
        ("exec sleep 30", "did not answer"),
    ],
)
def test_no_answer_is_never_healthy(script: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "neuraldbgctl"
    client.write_text(f"#!/bin/sh\n{script}\n")
    client.chmod(0o755)
    monkeypatch.setattr(client_module.daemon, "binary", lambda name: str(client))
    monkeypatch.setattr(client_module, "_GRACE_SECONDS", 0.5)
    report = diagnosis.diagnose("x", 3, 0.5, "unix:/nonexistent", str(tmp_path))
    assert report.verdict == "INCOMPLETE_DATA" and report.error and report.advice and word in str(report)


def test_the_client_is_asked_for_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "neuraldbgctl"
    (tmp_path / "message").write_text(json.dumps(MESSAGE))
    client.write_text(f'#!/bin/sh\necho "$@ $NEURALDBG_ADDRESS" >{tmp_path}/asked\ncat {tmp_path}/message\nexit 1\n')
    client.chmod(0o755)
    monkeypatch.setattr(client_module.daemon, "binary", lambda name: str(client))
    assert diagnosis.diagnose("x", 3, 10, "unix:/a", "/d").verdict == "FAULT"
    assert (tmp_path / "asked").read_text().split() == ("diagnose x --timeout 10 --wait-step 3 -o json unix:/a".split())


JOB = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long)).backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit(7)
"""


def test_run_observes_a_script_that_knows_nothing_and_passes_its_exit_code_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.agent.conftest import Segment

    script = tmp_path / "train.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-m", "neuraldbg", "run", "--", sys.executable, str(script)], timeout=300, check=False
    )
    assert done.returncode == 7
    (path,) = (tmp_path / "shm_dir").glob("neuraldbg.*")
    segment = Segment(str(path))
    assert segment.run["run_name"] == "train" and segment.run["graph_exact"]
    for step in range(3):
        assert segment.counts(step) == dict.fromkeys(segment.planned(), 1)


@pytest.mark.parametrize(("command", "code"), [(["/bin/sh", "-c", "kill -9 $$"], 137), (["/nonexistent"], 127)])
def test_run_reports_signals_and_missing_programs_as_a_shell_does(command: list[str], code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "neuraldbg", "run", "--", *command], timeout=120, check=False, capture_output=True
    )
    assert done.returncode == code


def test_the_names_of_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = tmp_path / "neuraldbgctl"
    (tmp_path / "message").write_text(json.dumps(MESSAGE))
    client.write_text(f"#!/bin/sh\ncat {tmp_path}/message\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setattr(client_module.daemon, "binary", lambda name: str(client))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with neuraldbg.NeuralDbg(model, run="classic") as dbg:
        for step in range(2):
            dbg.step = step
            loss = model(torch.ones(1, 2)).sum()
            dbg.record_loss(loss)
            loss.backward()
            optimizer.step()
        assert dbg.step == 2
    (cause,) = dbg.get_root_causes()
    assert dbg.explain_failure("any") == dbg.explain_failure("nonfinite_forward") == [cause]
    assert dbg.explain_failure() == [] and dbg.detect_coupled_failures() == []
    assert [link.site for link in dbg.trace_causal_chain()] == ["loss"]
    graph = dbg.export_mermaid_causal_graph()
    assert graph.startswith("flowchart LR\n") and 'c0 --> c0_0["loss step 41"]' in graph
