"""Runs scenarios, each in its own process, under one daemon, and asks that daemon through neuraldbgctl."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.evaluate.daemon_process import ROOT, Daemon
from tests.evaluate.score import Score, score
from tests.scenarios.corpus import Truth, build

SCENARIO_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Job:
    """One scenario in one mode. `run` is all that the daemon gets to know of it."""

    scenario: str
    compiled: bool
    run: str


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    job: Job
    truth: Truth
    score: Score
    diagnosis: dict[str, Any]
    seconds: float


def plan(scenarios: Sequence[str], modes: Sequence[str]) -> list[Job]:
    """Jobs with neutral run names."""
    pairs = [(scenario, mode == "compiled") for mode in modes for scenario in scenarios]
    return [Job(scenario, compiled, f"job-{number}") for number, (scenario, compiled) in enumerate(pairs)]


def run_job(daemon: Daemon, job: Job) -> Outcome:
    """Train, wait until the daemon has consumed everything, ask, score."""
    start = time.monotonic()
    command = [sys.executable, "-m", "tests.scenarios.run_scenario", job.scenario, "--run", job.run]
    command += ["--compile"] if job.compiled else []
    done = subprocess.run(
        command, cwd=ROOT, env=daemon.environment(), capture_output=True, text=True, timeout=SCENARIO_TIMEOUT_S
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    diagnosis = daemon.diagnose(job.run)
    truth = build(job.scenario).truth
    return Outcome(job, truth, score(truth, diagnosis), diagnosis, time.monotonic() - start)


def run_jobs(
    daemon: Daemon, jobs: Sequence[Job], workers: int, report: Callable[[Outcome], None] = lambda outcome: None
) -> list[Outcome]:
    """All of them, `workers` at a time; `report` is called as each one ends, from this thread."""

    def ended() -> Iterator[Outcome]:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(lambda job: run_job(daemon, job), jobs)

    outcomes = []
    for outcome in ended():
        report(outcome)
        outcomes.append(outcome)
    return outcomes
