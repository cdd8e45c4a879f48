"""A daemon killed at ten random instants of a run comes to the events and the diagnosis of one that was left alone."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.e2e.conftest import Job, Jobs
from tests.evaluate.daemon_process import Daemon

ARGUMENTS = ("--steps", "160", "--sleep", "0.04", "--nan-at", "130")
KILLS = 10


def outcome(daemon: Daemon, run: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Events and diagnosis, without what names the run."""
    daemon.settle(run)
    diagnosis = daemon.ask("diagnose", run)
    diagnosis.pop("run")
    return daemon.ask("events", run)["events"], diagnosis


def kill_and_start(daemon: Daemon, times: int) -> list[float]:
    """Kill the daemon at random instants; the pauses before the kills, for the report of a failure."""
    instants = random.Random(time.time_ns())
    waits = []
    for _ in range(times):
        waits.append(instants.uniform(0.0, 0.5))
        time.sleep(waits[-1])
        daemon.kill()
        daemon.start(wait=instants.random() < 0.5)  # half of them die before they are up
    daemon.wait_ready()
    return waits


def start_ranks(daemon: Daemon, jobs: Jobs, run: str) -> list[Job]:
    """Two ranks of one launch, each with a fault of its own."""
    started = []
    for rank, nan_at in enumerate(("130", "110")):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "NEURALDBG_LAUNCH": run}
        arguments = ("--run", run, "--steps", "160", "--sleep", "0.04", "--nan-at", nan_at)
        started.append(jobs(daemon, *arguments, **environment))
    return started


def by_rank(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events without their ids: how two ranks interleave is chance, what each of them shows is not."""
    ids = [event.pop("id") for event in events]
    assert ids == list(range(1, len(ids) + 1)), "an event is missing, or there twice"
    return sorted(events, key=lambda event: (event["rank"], event["step"]))  # stable: each rank's own order stays


def test_ten_kills_change_nothing_of_two_ranks(daemon: Daemon, jobs: Jobs) -> None:
    for job in start_ranks(daemon, jobs, "quiet"):
        job.done()
    daemon.settle("quiet", ranks=2)
    expected_events, expected_diagnosis = outcome(daemon, "quiet")
    assert {event["rank"] for event in expected_events} == {0, 1}
    assert expected_diagnosis["verdict"] == "FAULT"

    ranks = start_ranks(daemon, jobs, "disturbed")
    for job in ranks:
        job.wait_step(0)
    waits = kill_and_start(daemon, KILLS)
    for job in ranks:
        job.done()
    for rank in daemon.settle("disturbed", ranks=2):
        assert rank["recordsReceived"] == rank["recordsProduced"], f"waits {waits}"
    events, diagnosis = outcome(daemon, "disturbed")
    assert by_rank(events) == by_rank(expected_events), f"waits {waits}"
    assert diagnosis == expected_diagnosis, f"waits {waits}"


def test_ten_kills_change_neither_events_nor_diagnosis(daemon: Daemon, jobs: Jobs) -> None:
    jobs(daemon, "--run", "quiet", *ARGUMENTS).done()
    expected_events, expected_diagnosis = outcome(daemon, "quiet")
    assert expected_events and expected_diagnosis["verdict"] == "FAULT"

    job = jobs(daemon, "--run", "disturbed", *ARGUMENTS)
    job.wait_step(0)
    waits = kill_and_start(daemon, KILLS)
    job.done()
    events, diagnosis = outcome(daemon, "disturbed")
    assert events == expected_events, f"waits {waits}"
    assert diagnosis == expected_diagnosis, f"waits {waits}"
