"""NeuralDbg: the names that users of the original NeuralDBG know, over a Session and its Report.

The answers are the daemon's: every method asks for what it has found in the steps so far and gives its part of it.
Health from a norm alone is judged by the daemon's rule, which the agent's library carries (gradient_health.h).
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import time
from types import TracebackType
from typing import Any

from torch import nn

from neuraldbg import client
from neuraldbg.attach import attach
from neuraldbg.diagnosis import ChainLink, Hypothesis, Report
from neuraldbg.session import Session

_KINDS = {
    "vanishing_gradients": {"VANISHING_GRADIENT", "UPDATE_TOO_SMALL", "LOW_PRECISION_UNDERFLOW"},
    "exploding_gradients": {"EXPLODING_GRADIENT", "UPDATE_TOO_LARGE", "LEARNING_RATE_SPIKE", "LOW_PRECISION_OVERFLOW"},
    "dead_neurons": {"DEAD_UNITS"},
    "saturated_activations": {"SATURATED_ACTIVATION"},
    "optimizer_instability": {"UPDATE_TOO_LARGE", "LEARNING_RATE_SPIKE", "LEARNING_RATE_ZERO", "LOSS_DIVERGENCE"},
    "data_anomaly": {"DATA_SHIFT", "DATA_NONFINITE", "LABEL_ANOMALY"},
}
# The original's types of events by the part of the step that ours happen in.
_EVENT_TYPES = {
    "DATA": "data_anomaly",
    "FORWARD": "activation_regime_shift",
    "BACKWARD": "gradient_health_transition",
}
_FRESH_SECONDS = 1.0  # several questions in a row are answered from one diagnosis


class GradientHealth(enum.Enum):
    """What a gradient's norm says. UNKNOWN: too few norms so far to know what is normal."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    VANISHING = "vanishing"
    EXPLODING = "exploding"
    NONFINITE = "nonfinite"


@dataclasses.dataclass(frozen=True)
class SemanticEvent:
    """A transition that the daemon found between two steps of a site."""

    step: int
    rank: int
    layer_name: str
    site: str
    phase: str
    from_state: str
    to_state: str
    severity: str


class NeuralDbg:
    """`with NeuralDbg(model) as dbg: …`; arguments are those of attach(). Steps are counted from the optimizer."""

    def __init__(self, model: nn.Module, **arguments: Any) -> None:
        self._report: Report | None = None
        self._asked_at = 0.0
        self._norms: Any = None
        self.session = self._install_hooks(model, **arguments)

    def __enter__(self) -> NeuralDbg:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.session.__exit__(kind, error, _)

    def _install_hooks(self, model: nn.Module, **arguments: Any) -> Session:
        """Hooks on the whole tree of modules; they keep torch.compile's graphs whole. One model a NeuralDbg."""
        return attach(model, **arguments)

    @property
    def step(self) -> int:
        """The running step. Assigning to it does nothing: scripts for the original counted by hand."""
        return self.session.status().step

    @step.setter
    def step(self, _value: int) -> None:
        pass

    def step_iteration(self) -> None:
        """Does nothing: steps are counted from the optimizer."""

    def record_loss(self, loss: Any, targets: Any = None) -> None:
        """The loss of the running step, as a tensor or a number."""
        self.session.log_loss(loss, targets=targets)

    def report(self) -> Report:
        """The whole diagnosis."""
        if self._report is None or time.monotonic() - self._asked_at > _FRESH_SECONDS:
            self._report = self.session.diagnose()
            self._asked_at = time.monotonic()
        return self._report

    def explain_failure(self, failure_type: str = "vanishing_gradients") -> list[Hypothesis]:
        """Hypotheses of one type of failure, best first. A type may also be a kind of docs/faults.md, or "any"."""
        word = str(failure_type).lower()
        kinds = _KINDS.get(word, {word.upper()})
        return [one for one in self.get_causal_hypotheses() if word == "any" or one.kind in kinds]

    def get_causal_hypotheses(self) -> list[Hypothesis]:
        """All hypotheses, best first."""
        return list(self.report().hypotheses)

    def get_root_causes(self) -> list[Hypothesis]:
        """The leading hypothesis of each independent incident."""
        leading: dict[int, Hypothesis] = {}
        for one in self.get_causal_hypotheses():
            leading.setdefault(one.incident, one)
        return list(leading.values())

    def trace_causal_chain(self, event_type: str = "any") -> list[ChainLink]:
        """From the leading cause of this type of failure (as in explain_failure) to the symptom."""
        causes = self.explain_failure(event_type)
        return list(causes[0].chain) if causes else []

    def detect_coupled_failures(self, window: int | None = None) -> list[tuple[Hypothesis, Hypothesis]]:
        """Pairs of hypotheses that explain the same incident; with `window`, at most so many steps apart."""
        hypotheses = self.get_causal_hypotheses()
        return [
            (first, second)
            for index, first in enumerate(hypotheses)
            for second in hypotheses[index + 1 :]
            if first.incident == second.incident and (window is None or abs(first.step - second.step) <= window)
        ]

    def get_events(self) -> list[SemanticEvent]:
        """The transitions that the daemon found so far, in the order of steps; none where no daemon answers."""
        self.report()  # until the last step is consumed
        answer = self._ask("events")
        return [_event(one) for one in answer.get("events", ())]

    def _classify_gradient_health(self, grad_norm: float) -> GradientHealth:
        """Health of a gradient from its 2-norm alone; call it once a step: what is normal is learnt from the norms."""
        return GradientHealth(self._gradient_norms().observe(float(grad_norm)))

    def _detect_gradient_transition(self, prev_norm: float, current_norm: float) -> dict[str, Any] | None:
        """How health changes between two norms, by what was learnt: {"type": "healthy_to_vanishing"}, or None."""
        before, after = (self._gradient_norms().classify(float(norm)) for norm in (prev_norm, current_norm))
        return None if before == after else {"type": f"{before}_to_{after}"}

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

    def export_aquarium_package(self, package_path: str) -> str:
        """Writes events, hypotheses, couplings and the history of the loss as JSON; returns the path."""
        events, hypotheses = self.get_events(), self.get_causal_hypotheses()
        first: dict[str, SemanticEvent] = {}
        for event in events:
            if event.severity != "INFO":
                first.setdefault(event.to_state.lower(), event)
        series = self._ask("series", "--site", "loss").get("series", ())
        package = {
            "events": [
                {
                    "type": _event_type(one),
                    "layer": one.layer_name,
                    "step": one.step,
                    "from": one.from_state,
                    "to": one.to_state,
                }
                for one in events
            ],
            "hypotheses": [
                {
                    "description": one.description,
                    "confidence": one.confidence,
                    "causal_chain": [f"{link.site}@{link.step}" for link in one.chain],
                }
                for one in hypotheses
            ],
            "couplings": [[first.description, second.description] for first, second in self.detect_coupled_failures()],
            "first_failure_layer": {state: event.layer_name for state, event in first.items()},
            "first_failure_step": {state: event.step for state, event in first.items()},
            "loss_history": [_json_number(point["value"]) for one in series for point in one.get("points", ())],
        }
        with open(package_path, "w", encoding="utf-8") as file:
            json.dump(package, file, indent=2)
        return package_path

    def _gradient_norms(self) -> Any:
        if self._norms is None:
            from neuraldbg.native import GradientNorms  # loads the native library, which may be missing

            self._norms = GradientNorms()
        return self._norms

    def _ask(self, verb: str, *arguments: str) -> dict[str, Any]:
        try:
            return self.session.ask(verb, *arguments)
        except client.NoAnswerError:
            return {}


def _event(message: dict[str, Any]) -> SemanticEvent:
    transition = message.get("transition") or {}
    return SemanticEvent(
        step=int(message.get("step", 0)),
        rank=int(message.get("rank", 0)),
        layer_name=str(message.get("module") or message.get("site", "")),
        site=str(message.get("site", "")),
        phase=str(message.get("phase", "")),
        from_state=str(transition.get("from", "")),
        to_state=str(transition.get("to", "")),
        severity=str(message.get("severity", "")),
    )


def _json_number(value: Any) -> float | str:
    """JSON has no NaN and no infinity: they are words, as in all answers of the daemon."""
    number = float(value)
    return number if math.isfinite(number) else str(value)


def _event_type(event: SemanticEvent) -> str:
    return _EVENT_TYPES.get(event.phase, "optimizer_instability")


def _quoted(text: str) -> str:
    return text.replace('"', "#quot;")
