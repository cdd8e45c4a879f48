"""NeuralDbg: the names that users of the original NeuralDBG know, over a Session and its Report.

The answers are the daemon's: every method asks for the diagnosis of the steps so far and gives its part of it.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from torch import nn

from neuraldbg.attach import attach
from neuraldbg.diagnosis import ChainLink, Hypothesis, Report

_KINDS = {
    "vanishing_gradients": {"VANISHING_GRADIENT", "UPDATE_TOO_SMALL", "LOW_PRECISION_UNDERFLOW"},
    "exploding_gradients": {"EXPLODING_GRADIENT", "UPDATE_TOO_LARGE", "LEARNING_RATE_SPIKE", "LOW_PRECISION_OVERFLOW"},
    "dead_neurons": {"DEAD_UNITS"},
    "saturated_activations": {"SATURATED_ACTIVATION"},
    "optimizer_instability": {"UPDATE_TOO_LARGE", "LEARNING_RATE_SPIKE", "LEARNING_RATE_ZERO", "LOSS_DIVERGENCE"},
    "data_anomaly": {"DATA_SHIFT", "DATA_NONFINITE", "LABEL_ANOMALY"},
}
_FRESH_SECONDS = 1.0  # several questions in a row are answered from one diagnosis


class NeuralDbg:
    """`with NeuralDbg(model) as dbg: …`; arguments are those of attach(). Steps are counted from the optimizer."""

    def __init__(self, model: nn.Module, **arguments: Any) -> None:
        self.session = attach(model, **arguments)
        self._report: Report | None = None
        self._asked_at = 0.0

    def __enter__(self) -> NeuralDbg:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.session.detach()

    @property
    def step(self) -> int:
        """The running step. Assigning to it does nothing: scripts for the original counted by hand."""
        return self.session.status().step

    @step.setter
    def step(self, _value: int) -> None:
        pass

    def record_loss(self, loss: Any, targets: Any = None) -> None:
        """The loss of the running step."""
        self.session.log_loss(loss, targets=targets)

    def report(self) -> Report:
        """The whole diagnosis."""
        if self._report is None or time.monotonic() - self._asked_at > _FRESH_SECONDS:
            self._report = self.session.diagnose()
            self._asked_at = time.monotonic()
        return self._report

    def explain_failure(self, failure_type: str = "vanishing_gradients") -> list[Hypothesis]:
        """Hypotheses of one type of failure, best first. A type may also be a kind of docs/faults.md, or "any"."""
        kinds = _KINDS.get(failure_type, {failure_type.upper()})
        return [one for one in self.get_causal_hypotheses() if failure_type == "any" or one.kind in kinds]

    def get_causal_hypotheses(self) -> list[Hypothesis]:
        """All hypotheses, best first."""
        return list(self.report().hypotheses)

    def get_root_causes(self) -> list[Hypothesis]:
        """The leading hypothesis of each independent incident."""
        leading: dict[int, Hypothesis] = {}
        for one in self.get_causal_hypotheses():
            leading.setdefault(one.incident, one)
        return list(leading.values())

    def trace_causal_chain(self) -> list[ChainLink]:
        """From the leading cause to the symptom."""
        cause = self.report().cause
        return list(cause.chain) if cause is not None else []

    def detect_coupled_failures(self) -> list[tuple[Hypothesis, Hypothesis]]:
        """Pairs of hypotheses that explain the same incident."""
        hypotheses = self.get_causal_hypotheses()
        return [
            (first, second)
            for index, first in enumerate(hypotheses)
            for second in hypotheses[index + 1 :]
            if first.incident == second.incident
        ]

    def export_mermaid_causal_graph(self) -> str:
        """The chains of all root causes as a Mermaid flow chart."""
        lines = ["flowchart LR"]
        for number, cause in enumerate(self.get_root_causes()):
            node = f"c{number}"
            lines.append(f'  {node}["{_quoted(f"{cause.kind} {cause.module} step {cause.step}")}"]')
            for index, link in enumerate(cause.chain):
                lines.append(f'  {node} --> c{number}_{index}["{_quoted(f"{link.site} step {link.step}")}"]')
                node = f"c{number}_{index}"
        return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
