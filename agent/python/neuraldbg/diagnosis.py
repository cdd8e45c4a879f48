"""session.diagnose(): the Diagnosis message of the daemon as Python objects."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from neuraldbg import client


@dataclasses.dataclass(frozen=True)
class Evidence:
    """One observed value, with the range that was expected of the statistic (NaN bounds: none)."""

    site: str
    step: int
    observed: float
    statistic: str
    expected_low: float
    expected_high: float
    note: str


@dataclasses.dataclass(frozen=True)
class ChainLink:
    """One link from cause to symptom, with the share of the change that it explains."""

    site: str
    module: str
    step: int
    phase: str
    share: float
    note: str


@dataclasses.dataclass(frozen=True)
class Notice:
    """An early warning or a piece of information; never part of the verdict."""

    step: int
    rank: int
    kind: str
    module: str
    text: str


@dataclasses.dataclass(frozen=True)
class BlindSpot:
    """A site that should have reported and did not."""

    site: str
    rank: int
    step: int
    text: str


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """One ranked cause."""

    incident: int
    kind: str
    module: str
    site: str
    rank: int
    step: int
    detected_at_step: int
    phase: str
    confidence: float
    summary: str
    remedy: str
    evidence: tuple[Evidence, ...]
    chain: tuple[ChainLink, ...]
    equivalents: tuple[str, ...]
    in_summary: bool  # worth printing: the daemon decides, for every printer alike

    @property
    def description(self) -> str:
        """The summary, by the name that the original NeuralDBG gives it."""
        return self.summary

    def __str__(self) -> str:
        return self.summary


@dataclasses.dataclass(frozen=True)
class Report:
    """A diagnosis. `error` says why there is none, `advice` what to do; the verdict is then INCOMPLETE_DATA.

    `step_consumed`: the last step went into it; None where none was waited for.
    """

    run: str
    verdict: str
    hypotheses: tuple[Hypothesis, ...] = ()
    notices: tuple[Notice, ...] = ()
    blind_spots: tuple[BlindSpot, ...] = ()
    warm: bool = False
    steps_seen: int = 0
    ranks_seen: tuple[int, ...] = ()
    step_consumed: bool | None = None
    error: str = ""
    advice: str = ""
    message: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def cause(self) -> Hypothesis | None:
        """The leading hypothesis."""
        return self.hypotheses[0] if self.hypotheses else None

    def __str__(self) -> str:
        """Verdict, why, and what to do next."""
        unready = "" if self.warm or self.error else ", baselines not ready"
        lines = [f"Verdict  {self.verdict}  run {self.run}, {self.steps_seen} steps{unready}"]
        if self.error:
            return "\n".join([*lines, f"Why      {self.error}", f"Next     {self.advice or client.DOCTOR}"])
        if self.step_consumed is False:
            lines.append("Missing  The last step did not arrive in time: this may not cover it.")
        for hypothesis in self.hypotheses:
            if not hypothesis.in_summary:
                continue
            # Where a process was last seen is no place of a fault; the evidence tells it.
            place = "" if hypothesis.kind == "RANK_DIED" else hypothesis.module or hypothesis.site
            where = f" in {place}" if place else ""
            whose = "all ranks" if hypothesis.rank < 0 else f"rank {hypothesis.rank}"
            lines.append(
                f"Cause    {hypothesis.kind}{where}, {whose}, step {hypothesis.step}"
                f" (confidence {hypothesis.confidence:.0%})"
            )
            lines.append(f"Why      {hypothesis.summary}")
            lines.extend(
                f"         {_behind(evidence.site, evidence.note)}" for evidence in hypothesis.evidence if evidence.note
            )
            if hypothesis.equivalents:
                lines.append(f"         not to be told apart from: {', '.join(hypothesis.equivalents)}")
            if hypothesis.remedy:
                lines.append(f"Next     {hypothesis.remedy}")
        lines.extend(f"Notice   {notice.text}" for notice in self.notices)
        lines.extend(f"Blind    {_behind(spot.site, spot.text)}" for spot in self.blind_spots)
        return "\n".join(lines)


def _behind(site: str, text: str) -> str:
    """The text, behind the name of its site where it has one."""
    return f"{site}: {text}" if site else text


def diagnose(run: str, step: int | None, timeout: float, address: str, data_directory: str) -> Report:
    """Asks the daemon about `run`, a name or name@launch. Never raises.

    It answers once it has consumed `step` or `timeout` seconds are over.
    """
    name = run.partition("@")[0]
    question = ["diagnose", run, "--timeout", f"{timeout:g}"]
    if step is not None:
        question += ["--wait-step", str(step)]
    try:
        return parse(client.ask(question, timeout, address, data_directory), run)
    except client.NoAnswerError as error:
        return Report(name, "INCOMPLETE_DATA", error=str(error), advice=error.advice)
    except (ValueError, TypeError, AttributeError) as error:
        why = f"neuraldbgctl printed no diagnosis: {error}"
        return Report(name, "INCOMPLETE_DATA", error=why, advice=client.OTHER_RELEASE)


def parse(message: dict[str, Any], run: str) -> Report:
    """A Report from the protobuf JSON mapping of neuraldbg.v1.Diagnosis."""
    message = message.get("diagnosis", message)
    return Report(
        run=str(message.get("run") or run),
        verdict=str(message.get("verdict", "INCOMPLETE_DATA")),
        hypotheses=tuple(_hypothesis(one) for one in message.get("hypotheses", ())),
        notices=tuple(
            Notice(_int(one, "step"), _int(one, "rank"), _str(one, "kind"), _str(one, "module"), _str(one, "text"))
            for one in message.get("notices", ())
        ),
        blind_spots=tuple(
            BlindSpot(_str(one, "site"), _int(one, "rank"), _int(one, "step"), _str(one, "text"))
            for one in message.get("blindSpots", ())
        ),
        warm=bool(message.get("warm", False)),
        steps_seen=_int(message, "stepsSeen"),
        ranks_seen=tuple(int(rank) for rank in message.get("ranksSeen", ())),
        step_consumed=None if "stepConsumed" not in message else bool(message["stepConsumed"]),
        message=message,
    )


def _hypothesis(message: dict[str, Any]) -> Hypothesis:
    return Hypothesis(
        incident=_int(message, "incident"),
        kind=_str(message, "kind"),
        module=_str(message, "module"),
        site=_str(message, "site"),
        rank=_int(message, "rank"),
        step=_int(message, "step"),
        detected_at_step=_int(message, "detectedAtStep"),
        phase=_str(message, "phase"),
        confidence=_float(message, "confidence"),
        summary=_str(message, "summary"),
        remedy=_str(message, "remedy"),
        evidence=tuple(_evidence(one) for one in message.get("evidence", ())),
        chain=tuple(
            ChainLink(
                _str(one, "site"),
                _str(one, "module"),
                _int(one, "step"),
                _str(one, "phase"),
                _float(one, "share"),
                _str(one, "note"),
            )
            for one in message.get("chain", ())
        ),
        equivalents=tuple(str(one) for one in message.get("equivalents", ())),
        in_summary=bool(message.get("inSummary", False)),
    )


def _evidence(message: dict[str, Any]) -> Evidence:
    expected = message.get("expected") or {}
    return Evidence(
        _str(message, "site"),
        _int(message, "step"),
        _float(message, "observed"),
        _str(expected, "statistic"),
        _float(expected, "low"),
        _float(expected, "high"),
        _str(message, "note"),
    )


def _int(message: dict[str, Any], field: str) -> int:
    return int(message.get(field, 0))


def _str(message: dict[str, Any], field: str) -> str:
    return str(message.get(field, ""))


def _float(message: dict[str, Any], field: str) -> float:
    """Non-finite values come as strings ("NaN", "Infinity"); an absent one is NaN, not zero."""
    return float(message.get(field, math.nan))
