"""A daemon killed at ten random instants of a run comes to the events and the diagnosis of one that was left alone."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.e2e.conftest import Jobs
from tests.evaluate.daemon_process import Daemon

ARGUMENTS = ("--steps", "160", "--sleep", "0.04", "--nan-at", "130")
KILLS = 10


def outcome(daemon: Daemon, run: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and diagnosis, without what names the run."""
    daemon.settle(run)
    diagnosis = daemon.ask("diagnose", run)
    diagnosis.pop("run")
    return daemon.ask("events", run)["events"], diagnosis


def test_ten_kills_change_neither_events_nor_diagnosis(daemon: Daemon, jobs: Jobs) -> None:
    jobs(daemon, "--run", "quiet", *ARGUMENTS).done()
    expected_events, expected_diagnosis = outcome(daemon, "quiet")
    assert expected_events and expected_diagnosis["verdict"] == "FAULT"

    instants = random.Random(time.time_ns())
    job = jobs(daemon, "--run", "disturbed", *ARGUMENTS)
    job.wait_step(0)
    waits = []
    for _ in range(KILLS):
        waits.append(instants.uniform(0.0, 0.5))
        time.sleep(waits[-1])
        daemon.kill()
        daemon.start(wait=instants.random() < 0.5)  # half of them die before they are up
    daemon.wait_ready()
    job.done()
    events, diagnosis = outcome(daemon, "disturbed")
    assert events == expected_events, f"waits {waits}"
    assert diagnosis == expected_diagnosis, f"waits {waits}"
