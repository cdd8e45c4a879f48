"""Compares a diagnosis with the truth. The only place where the two meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.scenarios.corpus import Truth


@dataclass(frozen=True)
class Score:
    """How good one diagnosis was."""

    verdict: str
    detected: bool  # FAULT for a faulty run, not FAULT for a healthy one
    first: bool  # kind, module and step of the first hypothesis are right
    among_three: bool
    answer: str  # what the first hypothesis said
    latency: int | None = None  # steps from the onset to the records that showed it


def matches(truth: Truth, hypothesis: dict[str, Any]) -> bool:
    """Kind, module and step at once; half right is wrong."""
    late = int(hypothesis["step"]) - truth.step
    right_place = hypothesis["kind"] in truth.kinds and hypothesis["module"] in truth.modules
    return right_place and 0 <= late <= truth.tolerance


def describe(hypothesis: dict[str, Any]) -> str:
    """One hypothesis in a few words."""
    where = f" in {hypothesis['module']}" if hypothesis["module"] else ""
    return f"{hypothesis['kind']}{where} @{hypothesis['step']} ({float(hypothesis['confidence']):.2f})"


def score(truth: Truth, diagnosis: dict[str, Any]) -> Score:
    """Judge one diagnosis."""
    verdict = str(diagnosis["verdict"])
    hypotheses = diagnosis.get("hypotheses", [])
    answer = describe(hypotheses[0]) if hypotheses else "-"
    fault = verdict == "FAULT"
    if not truth.kinds:
        return Score(verdict, not fault, not fault, not fault, answer)
    first = fault and bool(hypotheses) and matches(truth, hypotheses[0])
    among_three = fault and any(matches(truth, hypothesis) for hypothesis in hypotheses[:3])
    latency = int(hypotheses[0]["detectedAtStep"]) - truth.step if first else None
    return Score(verdict, fault, first, among_three, answer, latency)
