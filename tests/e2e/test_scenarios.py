"""A few of the scenarios of ./run evaluate: what is planted is named first, and healthy runs are left in peace."""

from __future__ import annotations

import pytest

from tests.evaluate.daemon_process import Daemon
from tests.evaluate.runner import Job, run_job

EAGER = ("resnet-nonfinite-1", "resnet-dead-2", "mixer-vanishing-1", "mixer-lr-2", "resnet-data-3")


@pytest.mark.parametrize("scenario", EAGER)
def test_the_planted_cause_comes_first(daemon: Daemon, scenario: str) -> None:
    outcome = run_job(daemon, Job(scenario, False, "job"))
    assert outcome.score.first, f"planted {outcome.truth}, answered {outcome.score}"


def test_the_planted_cause_comes_first_under_fullgraph_compilation(daemon: Daemon) -> None:
    outcome = run_job(daemon, Job("mixer-exploding-1", True, "job"))
    assert outcome.score.first, f"planted {outcome.truth}, answered {outcome.score}"


@pytest.mark.parametrize("scenario", ("healthy-relu_mlp-1", "healthy-gpt_warmup-1", "healthy-eval_passes-1"))
def test_a_healthy_run_is_not_called_a_fault(daemon: Daemon, scenario: str) -> None:
    outcome = run_job(daemon, Job(scenario, False, "job"))
    assert outcome.score.verdict != "FAULT", outcome.score.answer
